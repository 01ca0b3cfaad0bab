"""Views (values here: XLA decides where they lie), concatenation, padding, tiling and casts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from torch import fx

from trnx.fallback.aten_to_jax.dtypes import JAX_DTYPES, axes, axis, cast, promote
from trnx.fallback.aten_to_jax.table import argument, dtype_of, register
from trnx.simulator.errors import Reject


def _whole(ndim: int, dim: int, index: slice | int | Any) -> tuple[slice | int | Any, ...]:
    """An index that takes all of every dimension but one."""
    dim = axis(dim, ndim)
    return (slice(None),) * dim + (index,) + (slice(None),) * (ndim - dim - 1)


@register("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "_reshape_copy")
def _view(x: Any, shape: Sequence[int], *_: Any) -> Any:
    shape = list(shape)
    if -1 in shape:
        known = math.prod(s for s in shape if s != -1)
        shape[shape.index(-1)] = x.size // known if known else 0
    return x.reshape(shape)


def _same_size(node: fx.Node) -> Reject | None:
    source, target = dtype_of(node.args[0]), argument(node, 1, "dtype")
    if source is not None and target in JAX_DTYPES and source.itemsize == target.itemsize:
        return None
    return Reject(f"reinterpreting {source} as {target} changes the size of an element", node)


@register("view.dtype", guard=_same_size)
def _bitcast(x: Any, dtype: Any) -> Any:
    if np.dtype(bool) in (x.dtype, dtype):
        return cast(x, dtype)
    return lax.bitcast_convert_type(x, dtype)


@register("expand", "expand_copy")
def _expand(x: Any, sizes: Sequence[int], *, implicit: bool = False) -> Any:
    lead = len(sizes) - x.ndim
    shape = [x.shape[d - lead] if size == -1 else size for d, size in enumerate(sizes)]
    return jnp.broadcast_to(x, shape)


@register("permute", "permute_copy")
def _permute(x: Any, dims: Sequence[int]) -> Any:
    return jnp.transpose(x, [axis(d, x.ndim) for d in dims])


@register("transpose.int", "transpose_copy.int")
def _transpose(x: Any, a: int, b: int) -> Any:
    return jnp.swapaxes(x, axis(a, x.ndim), axis(b, x.ndim)) if x.ndim else x


@register("t", "t_copy")
def _t(x: Any) -> Any:
    return x.T


@register("squeeze", "squeeze.dim", "squeeze.dims", "squeeze_copy", "squeeze_copy.dim",
          "squeeze_copy.dims")  # fmt: skip
def _squeeze(x: Any, dim: int | Sequence[int] | None = None) -> Any:
    if dim is None:
        return jnp.squeeze(x)
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return jnp.squeeze(x, tuple(d % x.ndim for d in dims if x.ndim and x.shape[d] == 1))


@register("unsqueeze", "unsqueeze_copy")
def _unsqueeze(x: Any, dim: int) -> Any:
    return jnp.expand_dims(x, dim % (x.ndim + 1))


def _bounds(size: int, start: int | None, end: int | None, step: int) -> slice:
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return slice(start, end, step)


@register("slice.Tensor", "slice_copy.Tensor")
def _slice(
    x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    return x[_whole(x.ndim, dim, _bounds(x.shape[dim], start, end, step))]


@register("slice_scatter")
def _slice_scatter(
    x: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Any:  # fmt: skip
    where = _whole(x.ndim, dim, _bounds(x.shape[dim], start, end, step))
    return x.at[where].set(cast(source, x.dtype))


@register("slice_backward")
def _slice_backward(
    grad: Any, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Any:
    return _slice_scatter(jnp.zeros(sizes, grad.dtype), grad, dim, start, end, step)


@register("select.int", "select_copy.int")
def _select(x: Any, dim: int, index: int) -> Any:
    return x[_whole(x.ndim, dim, index)]


@register("select_scatter")
def _select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    return x.at[_whole(x.ndim, dim, index)].set(cast(source, x.dtype))


@register("select_backward")
def _select_backward(grad: Any, sizes: Sequence[int], dim: int, index: int) -> Any:
    return _select_scatter(jnp.zeros(sizes, grad.dtype), grad, dim, index)


def _pieces(x: Any, sizes: Sequence[int], dim: int) -> list[Any]:
    ends = np.cumsum(sizes).tolist()
    return [
        x[_whole(x.ndim, dim, slice(end - size, end))]
        for size, end in zip(sizes, ends, strict=True)
    ]


@register("split.Tensor", "split_copy.Tensor")
def _split(x: Any, size: int, dim: int = 0) -> list[Any]:
    total = x.shape[dim]
    if size == 0 or total == 0:
        return [x]
    full, rest = divmod(total, size)
    return _pieces(x, [size] * full + [rest] * bool(rest), dim)


@register("split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> list[Any]:
    return _pieces(x, sizes, dim)


@register("unbind.int", "unbind_copy.int")
def _unbind(x: Any, dim: int = 0) -> list[Any]:
    return [_select(x, dim, i) for i in range(x.shape[dim])]


@register("cat")
def _cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    # Eager lets an empty 1-d tensor stand among tensors of more dimensions.
    arrays = promote(*tensors)
    kept = [x for x in arrays if x.ndim != 1 or x.size] or list(arrays[:1])
    return jnp.concatenate(kept, axis(dim, kept[0].ndim))


@register("stack")
def _stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    return jnp.stack(promote(*tensors), dim)


@register("flip")
def _flip(x: Any, dims: Sequence[int]) -> Any:
    return jnp.flip(x, axes(list(dims), x.ndim)) if len(dims) else x


@register("roll")
def _roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = jnp.roll(x, shift, axis(dim, x.ndim))
    return x


@register("rot90")
def _rot90(x: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    return jnp.rot90(x, k, (dims[0], dims[1]))


@register("repeat")
def _repeat(x: Any, repeats: Sequence[int]) -> Any:
    return jnp.tile(x.reshape((1,) * (len(repeats) - x.ndim) + x.shape), repeats)


@register("alias", "clone", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "lift",
          "alias_copy", "detach_copy")  # fmt: skip
def _same(x: Any, **_: Any) -> Any:
    return x


@register("_to_copy", "to.dtype", "resolve_neg", "resolve_conj")
def _to_copy(x: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
    return x if dtype is None else cast(x, dtype)


@register("copy", "fill.Tensor", "fill.Scalar")
def _copy(x: Any, source: Any, *_: Any) -> Any:
    return jnp.broadcast_to(cast(source, x.dtype), x.shape)


@register("constant_pad_nd")
def _constant_pad(x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    low_high = [(0, 0)] * x.ndim
    for i in range(len(pad) // 2):
        low_high[x.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1])
    config = [(low, high, 0) for low, high in low_high]
    return lax.pad(x, cast(value, x.dtype), config)


@register("tril")
def _tril(x: Any, diagonal: int = 0) -> Any:
    return jnp.tril(x, diagonal)


@register("triu")
def _triu(x: Any, diagonal: int = 0) -> Any:
    return jnp.triu(x, diagonal)


@register("diagonal", "diagonal_copy")
def _diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return jnp.diagonal(x, offset, axis(dim1, x.ndim), axis(dim2, x.ndim))


def _on_diagonal(x: Any, source: Any, offset: int, dim1: int, dim2: int) -> Any:
    moved = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    length = source.shape[-1]
    if source.shape != jnp.diagonal(x, offset, dim1, dim2).shape:
        raise ValueError(f"the diagonal of {x.shape} does not take a source of {source.shape}")
    rows = jnp.arange(length) + max(-offset, 0)
    columns = jnp.arange(length) + max(offset, 0)
    moved = moved.at[..., rows, columns].set(cast(source, x.dtype))
    return jnp.moveaxis(moved, (-2, -1), (dim1, dim2))


@register("diagonal_scatter")
def _diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return _on_diagonal(x, source, offset, axis(dim1, x.ndim), axis(dim2, x.ndim))


@register("diagonal_backward")
def _diagonal_backward(grad: Any, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Any:
    return _diagonal_scatter(jnp.zeros(sizes, grad.dtype), grad, offset, dim1, dim2)


@register("diag_embed")
def _diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    size = x.shape[-1] + abs(offset)
    ndim = x.ndim + 1
    out = jnp.zeros((*x.shape[:-1], size, size), x.dtype)
    out = _on_diagonal(out, x, offset, ndim - 2, ndim - 1)
    return jnp.moveaxis(out, (ndim - 2, ndim - 1), (axis(dim1, ndim), axis(dim2, ndim)))


@register("unfold", "unfold_copy")
def _unfold(x: Any, dim: int, size: int, step: int) -> Any:
    dim = axis(dim, x.ndim)
    if x.ndim == 0:
        return jnp.broadcast_to(x, (size,))
    starts = np.arange(0, x.shape[dim] - size + 1, step)
    index = starts[:, None] + np.arange(size)[None, :]
    taken = jnp.take(x, jnp.asarray(index.reshape(-1)), axis=dim)
    shape = (*x.shape[:dim], len(starts), size, *x.shape[dim + 1 :])
    return jnp.moveaxis(taken.reshape(shape), dim + 1, -1)


@register("unfold_backward")
def _unfold_backward(grad: Any, sizes: Sequence[int], dim: int, size: int, step: int) -> Any:
    if len(sizes) == 0:
        return grad.reshape(())
    dim = axis(dim, len(sizes))
    starts = np.arange(0, sizes[dim] - size + 1, step)
    index = (starts[:, None] + np.arange(size)[None, :]).reshape(-1)
    moved = jnp.moveaxis(grad, -1, dim + 1)
    flat = moved.reshape((*sizes[:dim], len(index), *sizes[dim + 1 :]))
    out = jnp.zeros(sizes, grad.dtype)
    return out.at[_whole(len(sizes), dim, jnp.asarray(index))].add(flat)


@register("pixel_shuffle")
def _pixel_shuffle(x: Any, factor: int) -> Any:
    *lead, channels, height, width = x.shape
    n, inner = len(lead), channels // factor**2
    x = x.reshape((*lead, inner, factor, factor, height, width))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.transpose(order).reshape((*lead, inner, height * factor, width * factor))


@register("pixel_unshuffle")
def _pixel_unshuffle(x: Any, factor: int) -> Any:
    *lead, channels, height, width = x.shape
    n, rows, columns = len(lead), height // factor, width // factor
    x = x.reshape((*lead, channels, rows, factor, columns, factor))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.transpose(order).reshape((*lead, channels * factor**2, rows, columns))


@register("channel_shuffle")
def _channel_shuffle(x: Any, groups: int) -> Any:
    batch, channels, *rest = x.shape
    x = x.reshape((batch, groups, channels // groups, *rest))
    return jnp.swapaxes(x, 1, 2).reshape((batch, channels, *rest))


@register("sym_size.int")
def _sym_size(x: Any, dim: int) -> int:
    return int(x.shape[dim])


@register("sym_numel")
def _sym_numel(x: Any) -> int:
    return int(x.size)
