"""What ops on lists of tensors, `torch._foreach_*`, compute of one element.

A list gives each tensor its own element; whatever is no list is the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
