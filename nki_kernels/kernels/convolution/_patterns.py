"""What `convolution` matches: a convolution alone, or followed by what is applied to its sums.

Batch norm with given statistics is what `backend/norm_decompositions.py` makes of it: a scale and a
shift, both of shape `sizes`, with casts where the model is of a 16-bit type.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from trnx.nki_kernels.activations import ACTIVATIONS
from trnx.nki_kernels.spec import Pattern

aten = torch.ops.aten

_NO_NORM = {
    "norm_weight": None, "norm_bias": None, "mean": None, "variance": None, "eps": 0.0,
    "sizes": None,
}  # fmt: skip
# Parameters of patterns and their annotations, which say what they match.
_CONVOLUTION = {
    "x": torch.Tensor, "weight": torch.Tensor, "bias": torch.Tensor | None, "stride": list[int],
    "padding": list[int], "dilation": list[int], "transposed": bool, "output_padding": list[int],
    "groups": int,
}  # fmt: skip
_NORM = {
    "norm_weight": torch.Tensor, "norm_bias": torch.Tensor, "mean": torch.Tensor,
    "variance": torch.Tensor, "eps": float, "sizes": list[int],
}  # fmt: skip


def _convolution(given: dict[str, Any]) -> Any:
    return aten.convolution.default(*(given[name] for name in _CONVOLUTION))


def _normalised(given: dict[str, Any], dtype: torch.dtype | None) -> Any:
    """Batch norm of a convolution; `dtype` is that of a 16-bit model."""

    def wide(value: Any) -> Any:
        return value if dtype is None else aten._to_copy.default(value, dtype=torch.float32)

    def column(name: str) -> Any:
        return wide(aten.view.default(given[name], given["sizes"]))

    rstd = aten.rsqrt.default(aten.add.Tensor(column("variance"), given["eps"]))
    scale = aten.mul.Tensor(rstd, column("norm_weight"))
    shift = aten.mul.Tensor(aten.neg.default(column("mean")), scale)
    shift = aten.add.Tensor(shift, column("norm_bias"))
    total = aten.add.Tensor(aten.mul.Tensor(wide(_convolution(given)), scale), shift)
    return total if dtype is None else aten._to_copy.default(total, dtype=dtype)


def _pattern(
    build: Callable[[dict[str, Any]], Any],
    parameters: dict[str, Any],
    residual: bool,
    activation: str,
) -> Pattern:
    names = parameters | ({"residual": torch.Tensor} if residual else {})

    def function(*values: Any) -> Any:
        given = dict(zip(names, values, strict=True))
        result = build(given)
        if residual:
            result = aten.add.Tensor(result, given["residual"])
        return ACTIVATIONS[activation](result)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, annotation=note) for name, note in names.items()]
    )
    function.__annotations__ = dict(names)
    constants: dict[str, Any] = {"activation": activation}
    if "mean" not in names:
        constants |= _NO_NORM
    if not residual:
        constants["residual"] = None
    return Pattern(function, constants)


def patterns() -> tuple[Pattern, ...]:
    """Every combination of batch norm, a residual and an activation."""
    every = _CONVOLUTION | _NORM
    found = []
    for activation in ACTIVATIONS:
        found.append(_pattern(_convolution, _CONVOLUTION, False, activation))
        for dtype in (None, torch.bfloat16, torch.float16):
            found.append(_pattern(partial(_normalised, dtype=dtype), every, False, activation))
    for activation in ("none", "relu"):
        found.append(_pattern(_convolution, _CONVOLUTION, True, activation))
        for dtype in (None, torch.bfloat16, torch.float16):
            found.append(_pattern(partial(_normalised, dtype=dtype), every, True, activation))
    return tuple(found)
