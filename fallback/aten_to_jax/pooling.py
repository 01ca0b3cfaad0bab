"""Average, maximum and adaptive pooling, with their gradients.

Windows are gathered as one more dimension: index arrays per spatial dimension, known at trace time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from trnx.fallback.aten_to_jax.dtypes import I64, cast, is_floating, wide
from trnx.fallback.aten_to_jax.table import register


def _each(values: Any, count: int) -> list[int]:
    given: list[int] = [values] if isinstance(values, int) else list(values)
    return given * count if len(given) == 1 else given


def _blocks(size: int, kernel: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    span = size + 2 * pad - dilation * (kernel - 1) - 1
    blocks = -(-span // stride) + 1 if ceil else span // stride + 1
    # The last window must start inside the input or the padding before it.
    return blocks - 1 if ceil and (blocks - 1) * stride >= size + pad else blocks


def _positions(
    sizes: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> list[Any]:
    """For each spatial dimension, positions [blocks, kernel]; outside the input where padded."""
    count = len(sizes)
    kernel, padding, dilation = (_each(v, count) for v in (kernel, padding, dilation))
    stride = _each(stride, count) if stride else kernel
    result = []
    for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True):
        starts = np.arange(_blocks(size, k, s, p, d, ceil)) * s - p
        result.append(starts[:, None] + np.arange(k)[None, :] * d)
    return result


def _grid(positions: Sequence[Any], sizes: Sequence[int]) -> tuple[Any, Any]:
    """Flat index into the spatial part, and validity: both [*blocks, product of kernels]."""
    count = len(positions)
    flat: Any = 0
    valid: Any = True
    for d, (where, size) in enumerate(zip(positions, sizes, strict=True)):
        shape = [1] * (2 * count)
        shape[d], shape[count + d] = where.shape
        flat = flat * size + np.clip(where, 0, max(size - 1, 0)).reshape(shape)
        valid = valid & ((where >= 0) & (where < size)).reshape(shape)
    blocks = [p.shape[0] for p in positions]
    full = [*blocks, *(p.shape[1] for p in positions)]
    shape = [*blocks, math.prod(p.shape[1] for p in positions)]
    return np.broadcast_to(flat, full).reshape(shape), np.broadcast_to(valid, full).reshape(shape)


def _gather(x: Any, flat: Any, spatial: int) -> Any:
    """x [..., *sizes] -> [..., *blocks, window]."""
    lead = x.shape[: x.ndim - spatial]
    return x.reshape((*lead, math.prod(x.shape[len(lead) :])))[..., flat]


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _max_windows(x: Any, flat: Any, valid: Any, spatial: int) -> tuple[Any, Any]:
    windows = jnp.where(valid, _gather(x, flat, spatial), jnp.asarray(_lowest(x.dtype), x.dtype))
    # Windows without any value above the lowest must still name a position of the input.
    best = jnp.argmax(jnp.where(valid, cast(windows, x.dtype), windows), -1)
    first = np.argmax(valid, -1)
    best = jnp.where(jnp.take_along_axis(
        jnp.broadcast_to(valid, windows.shape), best[..., None], -1)[..., 0], best, first
    )  # fmt: skip
    values = jnp.take_along_axis(windows, best[..., None], -1)[..., 0]
    index = jnp.take_along_axis(jnp.broadcast_to(flat, windows.shape), best[..., None], -1)
    return values, cast(index[..., 0], I64)


def _max_pool(
    x: Any, spatial: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> tuple[Any, Any]:
    sizes = x.shape[x.ndim - spatial :]
    flat, valid = _grid(_positions(sizes, kernel, stride, padding, dilation, ceil), sizes)
    return _max_windows(x, flat, valid, spatial)


def _put_back(grad: Any, x: Any, index: Any, spatial: int) -> Any:
    """Add each gradient at the flat position that its maximum came from."""
    lead = math.prod(x.shape[: x.ndim - spatial])
    count = math.prod(grad.shape[grad.ndim - spatial :])
    target = jnp.zeros((lead, math.prod(x.shape[x.ndim - spatial :])), wide(grad).dtype)
    rows = jnp.arange(lead)[:, None]
    where = target.at[rows, index.reshape((lead, count))]
    out = where.add(wide(grad).reshape((lead, count)))
    return out.reshape(x.shape)


def _enter_max_pool(spatial: int) -> None:
    @register(f"max_pool{spatial}d_with_indices")
    def _(
        x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Any, Any]:  # fmt: skip
        return _max_pool(x, spatial, kernel, stride, padding, dilation, ceil_mode)

    @register(f"max_pool{spatial}d_with_indices_backward")
    def _(
        grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool, indices: Any,
    ) -> Any:  # fmt: skip
        return _put_back(grad, x, indices, spatial)


def _enter_avg_pool(spatial: int) -> None:
    def forward(
        x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, count_pad: bool, divisor: Any
    ) -> Any:
        sizes = x.shape[x.ndim - spatial :]
        where = _positions(sizes, kernel, stride, padding, 1, ceil)
        flat, valid = _grid(where, sizes)
        total = jnp.sum(jnp.where(valid, _gather(x, flat, spatial), 0), -1)
        if divisor is not None:
            return (
                total / divisor if is_floating(x) else lax.div(total, jnp.full_like(total, divisor))
            )
        counted = valid
        if count_pad:
            bounds = [
                (w < size + p) for w, size, p in zip(where, sizes, _each(padding, spatial),
                                                     strict=True)
            ]  # fmt: skip
            counted = _grid_of(bounds)
        count = counted.sum(-1)
        return (
            total / jnp.asarray(count, total.dtype)
            if is_floating(x)
            else lax.div(total, jnp.broadcast_to(count, total.shape).astype(total.dtype))
        )

    @register(f"avg_pool{spatial}d")
    def _(
        x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Any:  # fmt: skip
        return forward(
            wide(x), kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
        )

    if spatial == 1:
        return

    @register(f"avg_pool{spatial}d_backward")
    def _(
        grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: Any,
    ) -> Any:  # fmt: skip
        def function(v: Any) -> Any:
            return forward(
                v, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
            )

        return jax.vjp(function, wide(x))[1](wide(grad))[0]


def _grid_of(members: Sequence[Any]) -> Any:
    """Booleans per dimension [blocks, kernel], combined as `_grid` combines positions."""
    count = len(members)
    valid: Any = True
    for d, member in enumerate(members):
        shape = [1] * (2 * count)
        shape[d], shape[count + d] = member.shape
        valid = valid & member.reshape(shape)
    return valid.reshape((*(m.shape[0] for m in members), math.prod(m.shape[1] for m in members)))


def _adaptive_bounds(size: int, out: int) -> tuple[Any, Any]:
    index = np.arange(out)
    return index * size // out, -(-(index + 1) * size // out)


def _adaptive_matrix(size: int, out: int) -> Any:
    """[out, size]: row i averages its window."""
    start, end = _adaptive_bounds(size, out)
    position = np.arange(size)[None, :]
    inside = (position >= start[:, None]) & (position < end[:, None])
    return inside / (end - start)[:, None]


def _adaptive_avg(x: Any, out: Sequence[int]) -> Any:
    spatial = len(out)
    for d, size in enumerate(out):
        dim = x.ndim - spatial + d
        matrix = jnp.asarray(_adaptive_matrix(x.shape[dim], size), x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, matrix, ((dim,), (1,)), precision="highest"), -1, dim)
    return x


@register("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d",
          "adaptive_avg_pool2d", "adaptive_avg_pool3d")  # fmt: skip
def _adaptive_avg_pool(x: Any, out: Sequence[int]) -> Any:
    return _adaptive_avg(wide(x), out)


def _enter_adaptive_backward(spatial: int) -> None:
    @register(f"_adaptive_avg_pool{spatial}d_backward")
    def _(grad: Any, x: Any) -> Any:
        out = grad.shape[grad.ndim - spatial :]
        return jax.vjp(lambda v: _adaptive_avg(v, out), wide(x))[1](wide(grad))[0]

    @register(f"adaptive_max_pool{spatial}d_backward")
    def _(grad: Any, x: Any, indices: Any) -> Any:
        return _put_back(grad, x, indices, spatial)

    @register(f"adaptive_max_pool{spatial}d")
    def _(x: Any, out: Sequence[int]) -> tuple[Any, Any]:
        sizes = x.shape[x.ndim - spatial :]
        positions = []
        for size, blocks in zip(sizes, out, strict=True):
            start, end = _adaptive_bounds(size, blocks)
            width = int((end - start).max(initial=0))
            where = start[:, None] + np.arange(width)[None, :]
            positions.append(np.where(where < end[:, None], where, size))
        flat, valid = _grid(positions, sizes)
        return _max_windows(x, flat, valid, spatial)


for _spatial in (1, 2, 3):
    _enter_avg_pool(_spatial)
for _spatial in (2, 3):
    _enter_max_pool(_spatial)
    _enter_adaptive_backward(_spatial)
