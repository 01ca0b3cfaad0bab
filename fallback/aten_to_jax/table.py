"""The table, how entries join it, and the checks that an entry adds to a region."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import torch
from torch import fx

from trnx.fallback.errors import DuplicateOpError
from trnx.simulator.errors import Reject

Guard = Callable[[fx.Node], Reject | None]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """An op's JAX function, and why some of its nodes are refused."""

    function: Callable[..., Any]
    guard: Guard | None = None


TABLE: dict[Any, Entry] = {}

# The conditions on values that eager enforces by raising, of the region that is being traced.
CHECKS: ContextVar[list[Any]] = ContextVar("checks")


def overload(name: str) -> Any:
    """`add.Tensor` -> torch.ops.aten.add.Tensor; `trnx::rms_norm.default` from its namespace."""
    namespace, _, rest = name.rpartition("::")
    packet, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), which or "default")


def register(*names: str, guard: Guard | None = None) -> Callable[[Function], Function]:
    """Enter a function for these overloads (`op` means `op.default`)."""

    def enter(function: Function) -> Function:
        for name in names:
            op = overload(name)
            if op in TABLE:
                raise DuplicateOpError(f"the table has two entries for {op}")
            TABLE[op] = Entry(function, guard)
        return function

    return enter


def require(condition: Any) -> None:
    """Where `condition` (an array) does not hold everywhere, eager runs the region again, and
    raises its own error.
    """
    CHECKS.get().append(jnp.all(condition))


def require_index(index: Any, size: int, *, wraps: bool) -> Any:
    """`index`, checked against `size` (XLA would clamp it); negative ones count from the end."""
    low = -size if wraps else 0
    if size == 0 and index.size == 0:
        return index
    require((index >= low) & (index < size))
    return jnp.where(index < 0, index + size, index) if wraps else index


def argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    """An argument of a node, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def dtype_of(value: Any) -> torch.dtype | None:
    """The dtype of a node's tensor, None where it holds none."""
    meta = value.meta.get("val") if isinstance(value, fx.Node) else None
    return meta.dtype if isinstance(meta, torch.Tensor) else None
