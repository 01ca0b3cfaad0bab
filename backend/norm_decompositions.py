"""Normalisation over channels as pointwise ops, which generated kernels fuse with what is near;
layer norm of rows that no partition holds as a group norm, group norm of rows as a layer norm;
weight norm and its gradients; the gradients of a layer norm of which fewer than three are wanted.

`x` is `[N, C, ...]`, statistics and weights are `[C]`; they become `[1, C, 1, ...]` by views, so
that the whole is one iteration space. Computed in float32 and rounded once, as eager does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trnx.backend.torch_internals import suggest_memory_format

aten = torch.ops.aten

# Elements of a row that the kernel `layer_norm` holds in a partition at most, with its parameters.
_LONGEST_ROW = 12288
_HALVES = (torch.bfloat16, torch.float16)
_MOST_CHANNELS = 128  # of a group of the kernel `group_norm`


def _by_channel(vector: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return vector.view([1, vector.shape[0]] + [1] * (like.ndim - 2))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in _HALVES else x


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


def layer_norm_of_long_rows(
    x: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    """`aten.native_layer_norm` as the norm of one group of channels, pieces of each row.

    In float32 alone: half precision would round before the weight is applied. Not where sizes are
    symbols: what is decided here would become guards.
    """
    if not all(type(size) is int for size in (*x.shape, *shape)):
        return NotImplemented
    length = math.prod(shape)
    channels = math.gcd(length, _MOST_CHANNELS)
    if x.dtype is not torch.float32 or length <= _LONGEST_ROW or channels < _MOST_CHANNELS // 4:
        return NotImplemented
    rows = x.numel() // length
    if not rows or any(v is not None and v.dtype is not x.dtype for v in (weight, bias)):
        return NotImplemented
    pieces = x.reshape(rows, channels, length // channels)
    sizes = (rows, channels, length // channels)
    out, mean, rstd = aten.native_group_norm.default(pieces, None, None, *sizes, 1, eps)
    out = out.view(x.shape)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    statistics = [*x.shape[: x.ndim - len(shape)], *[1] * len(shape)]
    return out, mean.view(statistics), rstd.view(statistics)


def group_norm_of_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    rows: int,
    channels: int,
    length: int,
    groups: int,
    eps: float,
) -> Any:
    """`aten.native_group_norm` of channels of one element each, as a layer norm of each group.

    In float32 alone: half precision would round before the weight is applied.
    """
    each = channels // groups
    if length != 1 or x.dtype is not torch.float32 or not x.numel() or each > _LONGEST_ROW:
        return NotImplemented
    if any(v is not None and v.dtype is not x.dtype for v in (weight, bias)):
        return NotImplemented
    pieces = x.reshape(rows * groups, each)
    out, mean, rstd = aten.native_layer_norm.default(pieces, [each], None, None, eps)
    out = out.view(rows, channels)
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.view(x.shape), mean.view(rows, groups), rstd.view(rows, groups)


def layer_norm_backward_of_fewer(
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mask: Sequence[bool],
) -> Any:
    """`aten.native_layer_norm_backward` of a norm without bias or weight, or whose weight is
    frozen; the kernel `layer_norm_backward` computes all three gradients together."""
    if (weight is not None and bias is not None and all(mask)) or x.dtype is torch.float64:
        return NotImplemented
    first = x.ndim - len(shape)
    inner, outer = list(range(first, x.ndim)), list(range(first))
    wide, normal = _wide(grad), (_wide(x) - _wide(mean)) * _wide(rstd)
    found: list[torch.Tensor | None] = [None, None, None]
    if mask[0]:
        weighted = wide if weight is None else wide * _wide(weight)
        slope = (weighted * normal).mean(inner, keepdim=True)
        centred = weighted - weighted.mean(inner, keepdim=True) - normal * slope
        found[0] = (centred * _wide(rstd)).to(x.dtype).contiguous()
    for i, vector, terms in ((1, weight, wide * normal), (2, bias, wide)):
        if mask[i] and vector is not None:
            total = terms.sum(outer) if outer else terms.clone()
            found[i] = total.to(vector.dtype).contiguous()
    return tuple(found)


def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """`aten._weight_norm_interface`: `v * (g / norms)`, and the norms, which are float32 for half
    precision as eager's; torch's own rule gives them float16's range, and rounds the quotient.
    """
    if v.dtype is torch.float64:
        return NotImplemented  # type: ignore[no-any-return]
    wide_v, dims = v.float(), [d for d in range(v.ndim) if d != dim]
    norms = torch.linalg.vector_norm(wide_v, 2, dims, keepdim=True)
    return (wide_v * (g.float() / norms)).to(v.dtype), norms


def weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`aten._weight_norm_interface_backward`, the gradients of v and g of `v * (g / norms)`."""
    if v.dtype is torch.float64:
        return NotImplemented  # type: ignore[no-any-return]
    dims = [d for d in range(v.ndim) if d != dim]
    wide_v, wide_g, wide = v.float(), g.float(), grad.float()
    along = (wide * wide_v).sum(dims, keepdim=True)
    grad_g = along / norms
    grad_v = (wide - wide_v * (grad_g / norms)) * (wide_g / norms)
    return grad_v.to(v.dtype).contiguous(), grad_g.to(g.dtype).contiguous()


def _is_mixed(x: torch.Tensor, *rest: Any) -> bool:
    """Whether x is of half precision and a parameter is not."""
    parameters = [v for v in rest if isinstance(v, torch.Tensor)]
    return x.dtype in _HALVES and any(v.dtype is torch.float32 for v in parameters)


def _in_float32(op: Any, x: torch.Tensor, *rest: Any) -> Any:
    """A norm in training whose parameters are float32. Eager's statistics are float32 then; torch's
    meta function gives them x's dtype, to which they would be rounded before backward reads them.
    """
    out, *statistics = op(x.float(), *rest)
    return out.to(x.dtype), *statistics


def _batch_norm(op: Any) -> Callable[..., Any]:
    """Give the op an x in the memory format that eager's result has; the op's meta function gives
    the result x's strides, whatever they are."""

    def rule(x: torch.Tensor, *rest: Any) -> Any:
        layout = suggest_memory_format(x)
        is_mixed = _is_mixed(x, *rest)
        if x.is_contiguous(memory_format=layout) and not is_mixed:
            return NotImplemented  # the op stays as it is
        x = x.contiguous(memory_format=layout)
        return _in_float32(op, x, *rest) if is_mixed else op(x, *rest)

    return rule


def _mixed_first(op: Any, other: Callable[..., Any]) -> Callable[..., Any]:
    """The rule `other` where x is not of half precision with parameters in float32."""

    def rule(x: torch.Tensor, *rest: Any) -> Any:
        return _in_float32(op, x, *rest) if _is_mixed(x, *rest) else other(x, *rest)

    return rule


# Rewrites of an op to the same op, whether a kernel takes it or not.
NORM_LAYOUTS: dict[Any, Callable[..., Any]] = {
    op: _batch_norm(op)
    for op in (
        aten._native_batch_norm_legit_functional.default,
        aten._native_batch_norm_legit.no_stats,
    )
}
# Norms as norms over other dimensions, where the kernels of those fit better.
NORMS_AS_OTHERS: dict[Any, Callable[..., Any]] = {
    aten.native_group_norm.default: _mixed_first(
        aten.native_group_norm.default, group_norm_of_rows
    ),
    aten.native_layer_norm.default: _mixed_first(
        aten.native_layer_norm.default, layer_norm_of_long_rows
    ),
    aten.native_layer_norm_backward.default: layer_norm_backward_of_fewer,
}
NORM_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._weight_norm_interface.default: weight_norm,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten._native_batch_norm_legit_no_training.default: batch_norm_inference,
}
