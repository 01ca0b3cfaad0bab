"""Patterns of ops that take a list of tensors, one for each length, and of optional operands."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from trnx.nki_kernels.spec import Pattern

aten = torch.ops.aten


def pattern_of(
    function: Callable[..., Any],
    names: Iterable[str],
    kinds: Mapping[str, Any],
    absent: Iterable[str],
) -> Pattern:
    """`function(*values)` as a pattern with the parameters `names`, of which `kinds` annotates
    those that are no tensors or may be None; the bindings `absent` are None."""
    parameter = inspect.Parameter
    signature = inspect.Signature([parameter(n, parameter.POSITIONAL_OR_KEYWORD) for n in names])
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = dict(kinds)
    return Pattern(function, dict.fromkeys(absent))


def pattern_without(reference: Callable[..., Any], *absent: str) -> Pattern:
    """The calls that `reference` makes where its parameters `absent` are None, and the others are
    not, unless they are handed on as they are."""
    names = [name for name in inspect.signature(reference).parameters if name not in absent]
    hints = typing.get_type_hints(reference)

    def function(*values: Any) -> Any:
        return reference(**dict(zip(names, values, strict=True)), **dict.fromkeys(absent))

    return pattern_of(function, names, {name: hints[name] for name in names}, absent)


def in_float32(
    norm: Callable[[torch.Tensor], Any], x: torch.Tensor, dtype: torch.dtype, results: int
) -> tuple[torch.Tensor, ...]:
    """The results of `norm(x)` computed in float32, the first one in `dtype`: how a norm of half
    precision with parameters in float32 is compiled, whose statistics are float32."""
    found = norm(aten._to_copy.default(x, dtype=torch.float32))
    first = aten._to_copy.default(found[0], dtype=dtype)
    return (first, *(found[i] for i in range(1, results)))
