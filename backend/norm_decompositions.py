"""Normalisation over channels as pointwise ops, which generated kernels fuse with what is near.

`x` is `[N, C, ...]`, statistics and weights are `[C]`; they become `[1, C, 1, ...]` by views, so
that the whole is one iteration space. Computed in float32 and rounded once, as eager does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnx.backend.torch_internals import suggest_memory_format

aten = torch.ops.aten


def _by_channel(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.view([1, vector.shape[0]] + [1] * (like.ndim - 2))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def batch_norm_inference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    variance: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`aten._native_batch_norm_legit_no_training`: x * scale + shift, one of each a channel."""
    del momentum
    if x.ndim < 2:
        return NotImplemented  # type: ignore[no-any-return]  # the op stays as it is
    scale = torch.rsqrt(_wide(_by_channel(variance, x)) + eps)
    if weight is not None:
        scale = scale * _wide(_by_channel(weight, x))
    shift = -_wide(_by_channel(mean, x)) * scale
    if bias is not None:
        shift = shift + _wide(_by_channel(bias, x))
    out = (_wide(x) * scale + shift).to(x.dtype)
    # Eager's result is dense, whatever the order of x's dimensions is.
    out = out.contiguous(memory_format=suggest_memory_format(x))
    return out, x.new_empty((0,)), x.new_empty((0,))


def _in_layout_of_result(op: Any) -> Callable[..., Any]:
    """Give the op an x in the memory format that eager's result has; the op's meta function gives
    the result x's strides, whatever they are."""

    def rule(x: torch.Tensor, *rest: Any) -> Any:
        layout = suggest_memory_format(x)
        if x.is_contiguous(memory_format=layout):
            return NotImplemented  # the op stays as it is
        return op(x.contiguous(memory_format=layout), *rest)

    return rule


# Rewrites of an op to the same op, whether a kernel takes it or not.
NORM_LAYOUTS: dict[Any, Callable[..., Any]] = {
    op: _in_layout_of_result(op)
    for op in (
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit.no_stats,
    )
}
NORM_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_no_training.default: batch_norm_inference,
}
