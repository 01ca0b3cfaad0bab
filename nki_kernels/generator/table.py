"""The table of ops: one entry an ATen op, a small lowering function from operands to a `Value`.

A lowering takes the builder and the node's arguments, in which tensors are `Value`s, and returns a
`Value` or a `Reject`. `reduces` says which dimensions an entry reduces and whether they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trnx.nki_kernels.errors import GeneratorError
from trnx.nki_kernels.generator.ir import Lowering

Target = Any


@dataclass(frozen=True)
class Reduction:
    """What a node reduces: dimensions (non-negative) of its first argument, and whether they stay.

    `inner` says that the result has the argument's shape, as softmax has.
    """

    dims: tuple[int, ...]
    keepdim: bool
    inner: bool = False


ReductionOf = Callable[[fx.Node, int], Reduction]


@dataclass(frozen=True)
class Entry:
    """One row of the table."""

    name: str
    lowering: Lowering
    reduction: ReductionOf | None = None
    flops: int = 1


_TABLE: dict[Target, Entry] = {}


def lowers(
    *targets: Target, reduction: ReductionOf | None = None, flops: int = 1
) -> Callable[[Lowering], Lowering]:
    """Decorator: the function lowers `targets`, overloads or packets (all their overloads)."""

    def register(lowering: Lowering) -> Lowering:
        for target in targets:
            for overload in _overloads(target):
                if overload in _TABLE:
                    raise GeneratorError(f"{overload} has two lowerings; keep one")
                name = overload.overloadpacket.__name__.strip("_")
                _TABLE[overload] = Entry(name, lowering, reduction, flops)
        return lowering

    return register


def _overloads(target: Target) -> Sequence[Target]:
    if isinstance(target, torch._ops.OpOverloadPacket):
        names = [n for n in target.overloads() if n != "out" and not n.endswith("_out")]
        return [getattr(target, n) for n in names]
    return [target]


def entry_of(target: Target) -> Entry | None:
    """The row of `target`, or None."""
    return _TABLE.get(target)


def targets() -> frozenset[Target]:
    """All ops of the table."""
    return frozenset(_TABLE)


def dims_at(dims: int = 1, keepdim: int = 2) -> ReductionOf:
    """The reduction of an op with `dim` and `keepdim` at these positions of its arguments."""

    def reduction(node: fx.Node, rank: int) -> Reduction:
        given = _argument(node, dims, "dim", None)
        keep = bool(_argument(node, keepdim, "keepdim", False))
        chosen = [given] if isinstance(given, int) else list(given or range(rank))
        return Reduction(tuple(sorted(d % rank for d in chosen)) if rank else (), keep)

    return reduction


def along(dim: int = 1) -> ReductionOf:
    """The reduction of an op that works along one dimension and keeps the shape."""

    def reduction(node: fx.Node, rank: int) -> Reduction:
        given: Any = node.args[dim]
        return Reduction((given % rank,) if rank else (), True, inner=True)

    return reduction


def last(node: fx.Node, rank: int) -> Reduction:  # noqa: ARG001  the protocol's
    """The reduction of an op that works along the last dimension and keeps the shape."""
    return Reduction((rank - 1,) if rank else (), True, inner=True)


def whole(node: fx.Node, rank: int) -> Reduction:  # noqa: ARG001  the protocol's
    """The reduction of an op that reduces all dimensions."""
    return Reduction(tuple(range(rank)), False)


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default)
