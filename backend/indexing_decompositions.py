"""Searches and ops with indices as the ops that kernels take: places in short boundaries, places of
extreme integers, indices of flat tensors, bags in bfloat16; what is read, as eager lays it out.

A rule returns NotImplemented where the op is better as it is. What eager refuses of indices the
kernels refuse with the same class of error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trnx.backend.index_layout import index

aten = torch.ops.aten

# Comparisons with each boundary take memory where they do not become part of a sum.
_MOST_BOUNDARIES = 256
_MOST_COMPARISONS = 1 << 24
_WORD = 2**31 - 1


# -- searches --------------------------------------------------------------------------------------


def _bucketize(
    x: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> Any:
    return _place(x, boundaries, out_int32, right)


def _searchsorted(
    boundaries: torch.Tensor,
    x: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> Any:
    if sorter is not None:
        return NotImplemented
    if boundaries.ndim > 1:
        boundaries = boundaries.unsqueeze(-2)
    return _place(x, boundaries, out_int32, right or side == "right")


def _place(x: torch.Tensor, boundaries: torch.Tensor, out_int32: bool, right: bool) -> Any:
    """How many of the boundaries stand before x, which is behind all of them where it is NaN."""
    count = boundaries.shape[-1]
    if not 0 < count <= _MOST_BOUNDARIES or not 0 < x.numel() * count <= _MOST_COMPARISONS:
        return NotImplemented
    x = x.contiguous().unsqueeze(-1)
    behind = torch.gt(boundaries, x) if right else torch.ge(boundaries, x)
    places = aten.sum.dim_IntList(behind.logical_not(), [-1])
    return places.to(torch.int32) if out_int32 else places


# -- extreme integers ------------------------------------------------------------------------------


def _first(x: torch.Tensor, dim: int, extreme: torch.Tensor) -> torch.Tensor:
    """Where along `dim` x is first the `extreme`, which keeps the dimension."""
    size = x.shape[dim]
    shape = [size if d == dim else 1 for d in range(x.ndim)]
    places = torch.arange(size, dtype=torch.int32, device=x.device).view(shape)
    return torch.where(x == extreme, places, size).amin(dim, keepdim=True).to(torch.int64)


def _argument(extreme: Callable[..., Any]) -> Callable[..., Any]:
    """`argmax` or `argmin` of integers, by `amax` or `amin`."""

    def rule(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if not _is_integral(x):
            return NotImplemented
        if dim is None:
            found = _first(x.reshape(-1), 0, extreme(x.reshape(-1), 0, keepdim=True))
            return found.view([1] * x.ndim if keepdim else [])
        dim = dim % x.ndim
        found = _first(x, dim, extreme(x, dim, keepdim=True))
        return found if keepdim else found.squeeze(dim)

    return rule


def _extreme(extreme: Callable[..., Any]) -> Callable[..., Any]:
    """`max` or `min` of integers along a dimension, with places."""

    def rule(x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
        if not _is_integral(x):
            return NotImplemented
        dim = dim % x.ndim
        values = extreme(x, dim, keepdim=True)
        found = values, _first(x, dim, values)
        return found if keepdim else tuple(r.squeeze(dim) for r in found)

    return rule


def _is_integral(x: torch.Tensor) -> bool:
    integral = x.dtype in (torch.int32, torch.int64, torch.bool)
    return integral and x.ndim > 0 and 0 < x.numel() <= _WORD


# -- indices ---------------------------------------------------------------------------------------


def _index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, values: torch.Tensor, *, alpha: float = 1
) -> Any:
    # Half precision would round the product, where eager does not.
    if alpha == 1 or not x.dtype is values.dtype is torch.float32:
        return NotImplemented
    return aten.index_add.default(x, dim, index, values * alpha)


def _index_fill_number(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    return _index_fill(x, dim, index, torch.full((), value, dtype=x.dtype))


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> Any:
    if x.ndim == 0 or index.numel() == 0 or x.numel() == 0:
        return NotImplemented
    places = [*[None] * (dim % x.ndim), index.reshape(-1)]
    return aten.index_put.default(x, places, value.to(x.dtype))


def _take(x: torch.Tensor, index: torch.Tensor) -> Any:
    if x.numel() == 0 or index.numel() == 0:
        return NotImplemented
    return aten.index.Tensor(x.reshape(-1), [index.contiguous()])


def _put(
    x: torch.Tensor, index: torch.Tensor, values: torch.Tensor, accumulate: bool = False
) -> Any:
    if x.numel() == 0 or index.numel() == 0 or index.shape != values.shape:
        return NotImplemented
    flat = [index.reshape(-1)]
    result = aten.index_put.default(x.reshape(-1), flat, values.reshape(-1), accumulate)
    return result.view(x.shape) if x.is_contiguous() else NotImplemented


# -- bags ------------------------------------------------------------------------------------------


def _embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums of bags in bfloat16, without the bag of each index: eager gives none there, and the op's
    meta function says that it does. Backward finds them where it is given none."""
    if weight.dtype is not torch.bfloat16 or mode != 0 or padding_idx >= 0 or weight.stride(1) != 1:
        return NotImplemented
    total, _, sizes, maxima = aten._embedding_bag_forward_only.default(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
        include_last_offset, padding_idx,
    )  # fmt: skip
    return total, offsets.new_empty((0,)), sizes, maxima


INDEXING_DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.bucketize.Tensor: _bucketize,
    aten.searchsorted.Tensor: _searchsorted,
    aten.argmax.default: _argument(torch.amax),
    aten.argmin.default: _argument(torch.amin),
    aten.max.dim: _extreme(torch.amax),
    aten.min.dim: _extreme(torch.amin),
    aten.index.Tensor: index,
    aten.index_add.default: _index_add,
    aten.index_fill.int_Scalar: _index_fill_number,
    aten.index_fill.int_Tensor: _index_fill,
    aten.take.default: _take,
    aten.put.default: _put,
    aten._embedding_bag.default: _embedding_bag,
}
