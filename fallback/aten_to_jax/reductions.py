"""Reductions, scans, sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import fx

from trnx.fallback.aten_to_jax.dtypes import (
    I64,
    accumulated,
    axes,
    axis,
    cast,
    is_floating,
    promote,
    wide,
)
from trnx.fallback.aten_to_jax.table import dtype_of, register
from trnx.simulator.errors import Reject

Dims = int | Sequence[int] | None


def _input(x: Any, dtype: Any) -> Any:
    return accumulated(x if dtype is None else cast(x, dtype))


@register("sum")
def _sum_all(x: Any, dtype: Any = None) -> Any:
    return jnp.sum(_input(x, dtype))


@register("sum.dim_IntList")
def _sum(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return jnp.sum(_input(x, dtype), axes(dim, x.ndim), keepdims=keepdim)


@register("nansum")
def _nansum(x: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return jnp.nansum(_input(x, dtype), axes(dim, x.ndim), keepdims=keepdim)


@register("mean")
def _mean_all(x: Any, dtype: Any = None) -> Any:
    return jnp.mean(_input(x, dtype))


@register("mean.dim")
def _mean(x: Any, dim: Dims, keepdim: bool = False, dtype: Any = None) -> Any:
    return jnp.mean(_input(x, dtype), axes(dim, x.ndim), keepdims=keepdim)


@register("prod")
def _prod_all(x: Any, dtype: Any = None) -> Any:
    return jnp.prod(_input(x, dtype))


@register("prod.dim_int")
def _prod(x: Any, dim: int, keepdim: bool = False, dtype: Any = None) -> Any:
    return jnp.prod(_input(x, dtype), axes(dim, x.ndim), keepdims=keepdim)


@register("any", "any.dim", "any.dims")
def _any(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    return jnp.any(x != 0, axes(dim, x.ndim), keepdims=keepdim)


@register("all", "all.dim", "all.dims")
def _all(x: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    return jnp.all(x != 0, axes(dim, x.ndim), keepdims=keepdim)


@register("count_nonzero.dim_IntList", "count_nonzero")
def _count_nonzero(x: Any, dim: Dims = None) -> Any:
    return jnp.sum(x != 0, axes(dim, x.ndim), dtype=I64)


@register("amax")
def _amax(x: Any, dim: Dims = (), keepdim: bool = False) -> Any:
    return jnp.max(x, axes(dim, x.ndim), keepdims=keepdim)


@register("amin")
def _amin(x: Any, dim: Dims = (), keepdim: bool = False) -> Any:
    return jnp.min(x, axes(dim, x.ndim), keepdims=keepdim)


@register("max")
def _max_all(x: Any) -> Any:
    return jnp.max(x)


@register("min")
def _min_all(x: Any) -> Any:
    return jnp.min(x)


def _along(x: Any, index: Any, dim: int) -> Any:
    return jnp.take_along_axis(x, index, axis(dim, x.ndim))


def _best(x: Any, index: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """The value at `index` (of two zeros the one that the index names), and the index."""
    if x.ndim == 0:
        return x, index
    values = _along(x, index, dim)
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


@register("max.dim")
def _max_dim(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _best(x, _argmax(x, dim, keepdim=True), dim, keepdim)


@register("min.dim")
def _min_dim(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _best(x, _argmin(x, dim, keepdim=True), dim, keepdim)


@register("aminmax")
def _aminmax(x: Any, *, dim: int | None = None, keepdim: bool = False) -> tuple[Any, Any]:
    where = axes(dim, x.ndim)
    return jnp.min(x, where, keepdims=keepdim), jnp.max(x, where, keepdims=keepdim)


def _arg(function: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    if x.ndim == 0:
        return jnp.zeros((), I64)
    x = cast(x, np.dtype(np.uint8)) if x.dtype == np.bool_ else x
    where = None if dim is None else axis(dim, x.ndim)
    return cast(function(x, where, keepdims=keepdim), I64)


def _not_bool(node: fx.Node) -> Reject | None:
    if dtype_of(node.args[0]) == torch.bool:
        return Reject(f"eager refuses {node.target} of bool", node)
    return None


@register("argmax", guard=_not_bool)
def _argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _arg(jnp.argmax, x, dim, keepdim)


@register("argmin", guard=_not_bool)
def _argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return _arg(jnp.argmin, x, dim, keepdim)


# ---------------------------------------------------------------------------- moments and norms


def moments(x: Any, dim: Dims, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Variance and mean of a floating array, in float64 as eager accumulates them."""
    where = axes(dim, x.ndim)
    x = cast(x, np.dtype(np.float64))
    mean = jnp.mean(x, where, keepdims=True)
    count = int(np.prod([x.shape[d] for d in where], dtype=np.int64))
    total = jnp.sum((x - mean) ** 2, where, keepdims=keepdim)
    scale = max(count - (1 if correction is None else correction), 0)
    return total / jnp.asarray(scale, x.dtype), mean if keepdim else jnp.squeeze(mean, where)


def _floats(node: fx.Node) -> Reject | None:
    kind = dtype_of(node.args[0])
    if kind is not None and not kind.is_floating_point:
        return Reject(f"eager refuses {node.target} of {kind}", node)
    return None


@register("var.correction", guard=_floats)
def _var(x: Any, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return moments(x, dim, correction, keepdim)[0]


@register("std.correction", guard=_floats)
def _std(x: Any, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return jnp.sqrt(_var(x, dim, correction=correction, keepdim=keepdim))


@register("var_mean.correction", guard=_floats)
def _var_mean(
    x: Any, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Any, Any]:
    return moments(x, dim, correction, keepdim)


@register("std_mean.correction", guard=_floats)
def _std_mean(
    x: Any, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Any, Any]:
    variance, mean = moments(x, dim, correction, keepdim)
    return jnp.sqrt(variance), mean


@register("logsumexp")
def _logsumexp(x: Any, dim: Dims, keepdim: bool = False) -> Any:
    x = wide(x) if is_floating(x) else cast(x, np.dtype(np.float32))
    return jax.nn.logsumexp(x, axis=axes(dim, x.ndim), keepdims=keepdim)


@register("linalg_vector_norm")
def _vector_norm(
    x: Any, order: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    x = jnp.abs(_input(x, dtype))
    where = axes(dim, x.ndim)
    if order == float("inf"):
        return jnp.max(x, where, keepdims=keepdim)
    if order == float("-inf"):
        return jnp.min(x, where, keepdims=keepdim)
    if order == 0:
        return jnp.sum(x != 0, where, keepdims=keepdim)
    if order == 1:
        return jnp.sum(x, where, keepdims=keepdim)
    if order == 2:
        return jnp.sqrt(jnp.sum(x * x, where, keepdims=keepdim))
    return jnp.sum(x**order, where, keepdims=keepdim) ** (1.0 / order)


@register("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype")
def _norm(x: Any, p: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    return _vector_norm(x, 2 if p is None else p, dim, keepdim, dtype)


# --------------------------------------------------------------------------------------- scans


@register("cumsum")
def _cumsum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    x = _input(x, dtype)
    return jnp.cumsum(x, axis(dim, x.ndim)) if x.ndim else x


def _exact_products(node: fx.Node) -> Reject | None:
    """XLA multiplies in another order than eager: a product of a part may overflow before a 0."""
    made = dtype_of(node)
    if made is not None and made.is_floating_point:
        return Reject(f"{node.target} of floats overflows elsewhere than in eager", node)
    return None


@register("cumprod", guard=_exact_products)
def _cumprod(x: Any, dim: int, *, dtype: Any = None) -> Any:
    x = _input(x, dtype)
    return jnp.cumprod(x, axis(dim, x.ndim)) if x.ndim else x


@register("logcumsumexp")
def _logcumsumexp(x: Any, dim: int) -> Any:
    return lax.cumlogsumexp(wide(x), axis(dim, x.ndim)) if x.ndim else x


def _running(x: Any, dim: int, better: Any) -> tuple[Any, Any]:
    """Running best with the last position that holds it; NaN is best of all, as in eager."""
    if x.ndim == 0:
        return x, jnp.zeros((), I64)
    dim = axis(dim, x.ndim)

    def combine(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        nan_b = b[0] != b[0]
        take = jnp.where(nan_b, True, (a[0] == a[0]) & better(b[0], a[0]))
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    position = lax.broadcasted_iota(I64, x.shape, dim)
    index = lax.associative_scan(combine, (x, position), axis=dim)[1]
    return _along(x, index, dim), index


@register("cummax")
def _cummax(x: Any, dim: int) -> tuple[Any, Any]:
    return _running(x, dim, lambda new, old: new >= old)


@register("cummin")
def _cummin(x: Any, dim: int) -> tuple[Any, Any]:
    return _running(x, dim, lambda new, old: new <= old)


# ------------------------------------------------------------------------- sorting and searching


def _order(x: Any, dim: int, descending: bool) -> Any:
    """Indices of a stable sort; NaN counts as the greatest."""
    if x.dtype == np.bool_:
        x = cast(x, np.dtype(np.int8))
    return cast(jnp.argsort(x, axis=dim, stable=True, descending=descending), I64)


def _order_of_equals(node: fx.Node) -> Reject | None:
    """Eager's own order of equal elements is followed only where it is asked to be stable."""
    if node.kwargs.get("stable"):
        return None
    return Reject(f"{node.target} leaves equal elements in another order than eager", node)


@register("sort.stable", guard=_order_of_equals)
def _sort(
    x: Any,
    dim: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
) -> tuple[Any, Any]:
    if x.ndim == 0:
        return x, jnp.zeros((), I64)
    index = _order(x, axis(dim, x.ndim), descending)
    return _along(x, index, dim), index


@register("argsort.stable", guard=_order_of_equals)
def _argsort(x: Any, *args: Any, **kwargs: Any) -> Any:
    return _sort(x, *args, **kwargs)[1]


def _no_sorter(node: fx.Node) -> Reject | None:
    if node.kwargs.get("sorter") is not None:
        return Reject("searchsorted with a sorter is not in the table", node)
    return None


def _search(edges: Any, values: Any, side: str) -> Any:
    """Eager's bisection: it goes right of an edge that is NaN, and with a value that is."""
    size = edges.shape[0]
    low, high = jnp.zeros(values.shape, I64), jnp.full(values.shape, size, I64)
    if size == 0:
        return low

    def step(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = (low + high) // 2
        edge = edges[jnp.minimum(middle, size - 1)]
        stays = edge > values if side == "right" else edge >= values
        stays |= low >= high
        return jnp.where(stays, low, middle + 1), jnp.where(stays, jnp.minimum(middle, high), high)

    return lax.fori_loop(0, size.bit_length(), step, (low, high))[0]


@register("searchsorted.Tensor", "searchsorted.Scalar", guard=_no_sorter)
def _searchsorted(
    edges: Any, values: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:  # fmt: skip
    side = side or ("right" if right else "left")
    edges, values = promote(edges, values)
    dtype = np.dtype(np.int32) if out_int32 else I64
    if edges.ndim == 1:
        return cast(_search(edges, values, side), dtype)
    flat = edges.reshape((-1, edges.shape[-1]))
    rows = values.reshape((flat.shape[0], -1))
    found = jax.vmap(lambda e, v: _search(e, v, side))(flat, rows)
    return cast(found.reshape(values.shape), dtype)


@register("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(values: Any, edges: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return _searchsorted(edges, values, out_int32=out_int32, right=right)


@register("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def _isin(x: Any, tests: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    x, tests = promote(x, tests)
    found = (x[..., None] == tests.reshape(-1)).any(-1)
    return ~found if invert else found


@register("trace")
def _trace(x: Any) -> Any:
    return jnp.sum(accumulated(jnp.diagonal(x)))


@register("dist")
def _dist(x: Any, y: Any, p: Any = 2) -> Any:
    x, y = promote(x, y)
    return _vector_norm(x - y, p)
