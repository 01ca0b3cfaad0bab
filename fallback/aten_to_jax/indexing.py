"""Gather, scatter, embedding. Indices are checked: XLA clamps what eager refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import fx

from trnx.fallback.aten_to_jax.dtypes import I64, axis, cast, is_floating, wide
from trnx.fallback.aten_to_jax.table import argument, dtype_of, register, require_index
from trnx.simulator.errors import Reject


def _no_masks(node: fx.Node) -> Reject | None:
    """A boolean index picks a number of elements that is known only at run time."""
    for index in argument(node, 1, "indices"):
        if dtype_of(index) in (torch.bool, torch.uint8):
            return Reject(f"{node.target} with a boolean mask has a size known at run time", node)
    return None


def _checked(x: Any, indices: Sequence[Any], wraps: bool = True) -> tuple[Any, ...]:
    return tuple(
        slice(None) if i is None else require_index(i, size, wraps=wraps)
        for i, size in zip(indices, x.shape, strict=False)
    )


@register("index.Tensor", "_unsafe_index.Tensor", guard=_no_masks)
def _index(x: Any, indices: Sequence[Any]) -> Any:
    return x[_checked(x, indices)]


@register("index_put", "_unsafe_index_put", guard=_no_masks)
def _index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    where = x.at[_checked(x, indices)]
    values = cast(values, x.dtype)
    if not accumulate:
        return where.set(values)
    return cast(wide(x), wide(x).dtype).at[_checked(x, indices)].add(cast(values, wide(x).dtype))


@register("index_select")
def _index_select(x: Any, dim: int, index: Any) -> Any:
    if x.ndim == 0:
        require_index(index, 1, wraps=False)
        return x.reshape(()) if index.ndim == 0 else jnp.broadcast_to(x, ())
    dim = axis(dim, x.ndim)
    index = require_index(index.reshape(-1), x.shape[dim], wraps=False)
    return jnp.take(x, index, axis=dim)


@register("take")
def _take(x: Any, index: Any) -> Any:
    return x.reshape(-1)[require_index(index, x.size, wraps=True)]


@register("put")
def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    where = require_index(index.reshape(-1), x.size, wraps=True)
    flat = wide(x).reshape(-1)
    values = cast(source.reshape(-1), flat.dtype)
    out = flat.at[where].add(values) if accumulate else flat.at[where].set(values)
    return out.reshape(x.shape)


@register("gather")
def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    return x.reshape(-1)[_flat(x.shape, dim, index)].reshape(index.shape)


def _flat(shape: Sequence[int], dim: int, index: Any) -> Any:
    """Flat positions in a tensor of `shape`: `index` along `dim`, its own position elsewhere."""
    if len(shape) == 0:
        return require_index(index.reshape(-1), 1, wraps=False)
    if index.ndim == 0:
        index = index.reshape((1,))
    dim = axis(dim, len(shape))
    index = require_index(index, shape[dim], wraps=False)
    flat: Any = jnp.zeros(index.shape, I64)
    for d, size in enumerate(shape):
        here = cast(index, I64) if d == dim else lax.broadcasted_iota(I64, index.shape, d)
        flat = flat * size + here
    return flat.reshape(-1)


def _source(source: Any, index: Any, dtype: Any) -> Any:
    """The part of `source` that `index` covers, flat."""
    if isinstance(source, (bool, int, float)) or source.ndim == 0:
        return jnp.broadcast_to(cast(source, dtype), (index.size,))
    part = source[tuple(slice(0, n) for n in index.shape)] if index.ndim else source
    return cast(part.reshape(-1), dtype)


def _scatter_with(x: Any, dim: int, index: Any, source: Any, method: str) -> Any:
    flat = wide(x).reshape(-1)
    where = flat.at[_flat(x.shape, dim, index)]
    return getattr(where, method)(_source(source, index, flat.dtype)).reshape(x.shape)


@register("scatter.src", "scatter.value")
def _scatter(x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter_with(x, dim, index, source, "set")


@register("scatter_add")
def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter_with(x, dim, index, source, "add")


_METHODS = {
    "add": "add",
    "multiply": "multiply",
    "sum": "add",
    "prod": "multiply",
    "amax": "max",
    "amin": "min",
}


@register("scatter.reduce", "scatter.value_reduce")
def _scatter_reduce_old(x: Any, dim: int, index: Any, source: Any, *, reduce: str) -> Any:
    return _scatter_with(x, dim, index, source, _METHODS[reduce])


def _neutral(method: str, dtype: Any) -> Any:
    if method in ("add", "multiply"):
        return 0 if method == "add" else 1
    if jnp.issubdtype(dtype, jnp.floating):
        return -np.inf if method == "max" else np.inf
    limits = jnp.iinfo(dtype)
    return limits.min if method == "max" else limits.max


def _reduced(flat: Any, where: Any, values: Any, reduce: str, include_self: bool) -> Any:
    """Flat scatter with a reduction; untouched elements keep their value."""
    method = "add" if reduce == "mean" else _METHODS[reduce]
    touched = jnp.zeros(flat.shape, I64).at[where].add(1)
    start = flat
    if not include_self:
        start = jnp.where(touched > 0, jnp.asarray(_neutral(method, flat.dtype), flat.dtype), flat)
    out = getattr(start.at[where], method)(values)
    if reduce == "mean":
        count = cast(jnp.maximum(touched + int(include_self), 1), flat.dtype)
        out = out / count if is_floating(flat) else jnp.floor_divide(out, count)
    return out


@register("scatter_reduce.two")
def _scatter_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    flat = wide(x).reshape(-1)
    where = _flat(x.shape, dim, index)
    values = _source(source, index, flat.dtype)
    return _reduced(flat, where, values, reduce, include_self).reshape(x.shape)


def _rows(x: Any, dim: int, index: Any) -> tuple[int, Any]:
    dim = axis(dim, x.ndim)
    return dim, require_index(index.reshape(-1), x.shape[dim], wraps=False)


def _along(dim: int, index: Any) -> tuple[Any, ...]:
    return (slice(None),) * dim + (index,)


@register("index_add")
def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    if x.ndim == 0:
        require_index(index, 1, wraps=False)
        return x + jnp.sum(cast(source, x.dtype)) * cast(alpha, x.dtype)
    dim, index = _rows(x, dim, index)
    base = wide(x)
    return base.at[_along(dim, index)].add(cast(source, base.dtype) * cast(alpha, base.dtype))


@register("index_copy")
def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    if x.ndim == 0:
        require_index(index, 1, wraps=False)
        return source.reshape(())
    dim, index = _rows(x, dim, index)
    shape = (*x.shape[:dim], index.size, *x.shape[dim + 1 :])
    return x.at[_along(dim, index)].set(source.reshape(shape))


@register("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(x: Any, dim: int, index: Any, value: Any) -> Any:
    if x.ndim == 0:
        return cast(value, x.dtype)
    dim = axis(dim, x.ndim)
    index = require_index(index.reshape(-1), x.shape[dim], wraps=True)
    return x.at[_along(dim, index)].set(cast(value, x.dtype))


@register("embedding")
def _embedding(
    weight: Any, indices: Any, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:  # fmt: skip
    return weight[require_index(indices, weight.shape[0], wraps=False)]


@register("embedding_dense_backward")
def _embedding_backward(
    grad: Any, indices: Any, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    flat = require_index(indices.reshape(-1), rows, wraps=False)
    values = wide(grad).reshape((flat.size, grad.shape[-1]))
    if scale_grad_by_freq:
        count = jnp.zeros((rows,), I64).at[flat].add(1)[flat]
        values = values / cast(count, values.dtype)[:, None]
    values = jnp.where((flat == padding_idx)[:, None], 0, values)
    return jnp.zeros((rows, grad.shape[-1]), values.dtype).at[flat].add(values)
