"""What ops on lists of tensors, `torch._foreach_*`, compute of one element.

A list gives each tensor its own element; whatever is no list is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

PREFIX = "_foreach_"
# Ops whose call for one tensor is not the op of that name with the same arguments.
_OTHERS: Mapping[str, Callable[..., Any]] = {
    "norm": lambda x, ord=2, dtype=None: torch.linalg.vector_norm(x, ord, dtype=dtype),
    "addcmul": lambda x, a, b, value=1: torch.addcmul(x, a, b, value=value),
    "addcdiv": lambda x, a, b, value=1: torch.addcdiv(x, a, b, value=value),
    "maximum": lambda x, y: _bound(torch.maximum, torch.clamp_min, x, y),
    "minimum": lambda x, y: _bound(torch.minimum, torch.clamp_max, x, y),
    "clamp_min": lambda x, y: torch.clamp(x, min=y),
    "clamp_max": lambda x, y: torch.clamp(x, max=y),
    "copy": lambda x, source, non_blocking=False: aten.copy(x, source, non_blocking),
    "zero": torch.zeros_like,
}
_SAME = (
    "abs", "acos", "add", "asin", "atan", "ceil", "cos", "cosh", "div", "erf", "erfc", "exp",
    "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2", "mul", "neg",
    "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub",
    "tan", "tanh", "trunc",
)  # fmt: skip


def _bound(tensor: Any, number: Any, x: torch.Tensor, y: Any) -> Any:
    return tensor(x, y) if isinstance(y, torch.Tensor) else number(x, y)


SINGLE: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME},
    **_OTHERS,
}
"""Name, without `_foreach_`, -> what computes one element."""


def by_place(
    op: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a call of `torch.<op>` with those in their places that have one, which the
    overloads name differently; None where no overload has these names."""
    if not kwargs:
        return tuple(args), {}
    packet = getattr(aten, op)
    for overload in packet.overloads():
        every = getattr(packet, overload)._schema.arguments
        if not kwargs.keys() <= {one.name for one in every}:
            continue
        places = [one for one in every if not one.kwarg_only]
        names = [one.name for one in places]
        given = dict(zip(names, args, strict=False)) | {**kwargs}
        count = 1 + max(place for place, name in enumerate(names) if name in given)
        values = tuple(given.get(one.name, one.default_value) for one in places[:count])
        return values, {name: value for name, value in kwargs.items() if name not in names}
    return None
