"""Upsampling, grid sampling and reflecting or replicating padding, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trnx.fallback.aten_to_jax.dtypes import wide
from trnx.fallback.aten_to_jax.table import register

Matrix = Callable[[int, int, bool, float | None], Any]


def _scale(size: int, out: int, align: bool, factor: float | None) -> np.float32:
    if align:
        return np.float32((size - 1) / (out - 1) if out > 1 else 0)
    return np.float32(1 / factor if factor else size / out)


def _source(size: int, out: int, align: bool, factor: float | None) -> Any:
    """Position in the input of each output's centre, in float32 as eager computes it."""
    scale = _scale(size, out, align, factor)
    index = np.arange(out, dtype=np.float32)
    half = np.float32(0.5)
    return index * scale if align else scale * (index + half) - half


def _linear_matrix(size: int, out: int, align: bool, factor: float | None) -> Any:
    where = np.maximum(_source(size, out, align, factor), 0)
    low = np.minimum(np.floor(where).astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    part = np.clip(where - low, 0, 1)
    matrix = np.zeros((out, size), np.float32)
    np.add.at(matrix, (np.arange(out), low), 1 - part)
    np.add.at(matrix, (np.arange(out), high), part)
    return matrix


def _cubic(t: Any) -> Any:
    """Weights of the four neighbours at distance t from the second, a = -0.75."""
    a = -0.75

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _cubic_matrix(size: int, out: int, align: bool, factor: float | None) -> Any:
    where = _source(size, out, align, factor)
    low = np.floor(where).astype(np.int64)
    matrix = np.zeros((out, size), np.float32)
    for offset, weight in enumerate(_cubic(where - low)):
        np.add.at(matrix, (np.arange(out), np.clip(low + offset - 1, 0, size - 1)), weight)
    return matrix


def _nearest_index(size: int, out: int, factor: float | None, exact: bool) -> Any:
    scale = _scale(size, out, False, factor)
    index = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0)
    return np.minimum((index * scale).astype(np.int64), size - 1)


def _by_matrix(x: Any, out: Sequence[int], matrices: Sequence[Any]) -> Any:
    for d, matrix in enumerate(matrices):
        dim = x.ndim - len(out) + d
        weight = jnp.asarray(matrix, x.dtype)
        x = jnp.moveaxis(jnp.tensordot(x, weight, ((dim,), (1,)), precision="highest"), -1, dim)
    return x


def _backward(function: Callable[[Any], Any], shape: Sequence[int], grad: Any) -> Any:
    """The gradient of a linear function of a tensor of `shape`."""
    grad = wide(grad)
    return jax.vjp(function, jnp.zeros(shape, grad.dtype))[1](grad)[0]


def _sizes(x: Any, out: Any, factors: Any, spatial: int) -> tuple[list[int], list[Any]]:
    """Output sizes and the factors given, from the `.vec` form of the arguments."""
    if out is not None:
        return list(out), [None] * spatial
    sizes = x.shape[2:]
    return [int(n * f) for n, f in zip(sizes, factors, strict=True)], list(factors)


def _enter_linear(name: str, spatial: int, matrix: Matrix) -> None:
    def forward(x: Any, out: Sequence[int], align: bool, factors: Sequence[Any]) -> Any:
        matrices = [
            matrix(size, o, align, f) for size, o, f in zip(x.shape[2:], out, factors, strict=True)
        ]
        return _by_matrix(wide(x), out, matrices)

    def pad(factors: Sequence[Any]) -> list[Any]:
        return list(factors) or [None] * spatial

    @register(name)
    def _(x: Any, out: Sequence[int], align_corners: bool, *factors: Any, **named: Any) -> Any:
        return forward(x, out, align_corners, pad([*factors, *named.values()]))

    @register(f"{name}.vec")
    def _(x: Any, out: Any, align_corners: bool, factors: Any) -> Any:
        out, factors = _sizes(x, out, factors, spatial)
        return forward(x, out, align_corners, factors)

    @register(f"{name}_backward")
    def _(grad: Any, out: Sequence[int], shape: Sequence[int], align: bool, *factors: Any) -> Any:
        return _backward(lambda v: forward(v, out, align, pad(factors)), shape, grad)


def _enter_nearest(name: str, spatial: int, exact: bool) -> None:
    def forward(x: Any, out: Sequence[int], factors: Sequence[Any]) -> Any:
        for d, (size, o, f) in enumerate(zip(x.shape[2:], out, factors, strict=True)):
            x = jnp.take(x, jnp.asarray(_nearest_index(size, o, f, exact)), axis=2 + d)
        return x

    def pad(factors: Sequence[Any]) -> list[Any]:
        return list(factors) or [None] * spatial

    @register(name)
    def _(x: Any, out: Sequence[int], *factors: Any, **named: Any) -> Any:
        return forward(x, out, pad([*factors, *named.values()]))

    @register(f"{name}.vec")
    def _(x: Any, out: Any, factors: Any) -> Any:
        out, factors = _sizes(x, out, factors, spatial)
        return forward(x, out, factors)

    @register(f"{name}_backward")
    def _(grad: Any, out: Sequence[int], shape: Sequence[int], *factors: Any) -> Any:
        return _backward(lambda v: forward(v, out, pad(factors)), shape, grad)


for _spatial, _kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _enter_linear(f"upsample_{_kind}{_spatial}d", _spatial, _linear_matrix)
    _enter_nearest(f"upsample_nearest{_spatial}d", _spatial, False)
    _enter_nearest(f"_upsample_nearest_exact{_spatial}d", _spatial, True)
_enter_linear("upsample_bicubic2d", 2, _cubic_matrix)


# -------------------------------------------------------------------------------------- padding


def _enter_padding(kind: str, mode: str, spatial: int) -> None:
    def forward(x: Any, pad: Sequence[int]) -> Any:
        widths = [(0, 0)] * (x.ndim - spatial)
        widths += [(pad[2 * i], pad[2 * i + 1]) for i in reversed(range(spatial))]
        for dim, (low, high) in enumerate(widths):
            # Negative padding crops.
            x = jax.lax.slice_in_dim(x, max(-low, 0), x.shape[dim] - max(-high, 0), axis=dim)
        return jnp.pad(x, [(max(low, 0), max(high, 0)) for low, high in widths], mode=mode)

    @register(f"{kind}_pad{spatial}d")
    def _(x: Any, pad: Sequence[int]) -> Any:
        return forward(x, pad)

    @register(f"{kind}_pad{spatial}d_backward")
    def _(grad: Any, x: Any, pad: Sequence[int]) -> Any:
        return _backward(lambda v: forward(v, pad), x.shape, grad)


for _spatial in (1, 2, 3):
    _enter_padding("reflection", "reflect", _spatial)
    _enter_padding("replication", "edge", _spatial)


# --------------------------------------------------------------------------------- grid sampling


def _unnormalise(coordinate: Any, size: int, align: bool) -> Any:
    if align:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _reflect(x: Any, low: float, high: float) -> Any:
    span = high - low
    if span == 0:
        return jnp.zeros_like(x)
    x = jnp.abs(x - low)
    rest = jnp.fmod(x, span)
    even = jnp.floor(x / span) % 2 == 0
    return jnp.where(even, rest + low, span - rest + low)


def _fold(x: Any, size: int, padding: int, align: bool) -> Any:
    """A coordinate brought inside for padding modes border (1) and reflection (2)."""
    if padding == 2:
        x = _reflect(x, 0.0, size - 1.0) if align else _reflect(x, -0.5, size - 0.5)
    return x if padding == 0 else jnp.clip(x, 0, size - 1)


def _at(x: Any, row: Any, column: Any) -> Any:
    """x[n, :, row[n], column[n]] as [N, C, H, W]; zero outside."""
    height, width = x.shape[2:]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    rows = jnp.clip(row, 0, height - 1).astype(np.int64)
    columns = jnp.clip(column, 0, width - 1).astype(np.int64)
    taken = jax.vmap(lambda image, r, c: image[:, r, c])(x, rows, columns)
    return jnp.where(inside[:, None], taken, 0)


def _grid_sample(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    height, width = x.shape[2:]
    column = _fold(_unnormalise(grid[..., 0], width, align), width, padding, align)
    row = _fold(_unnormalise(grid[..., 1], height, align), height, padding, align)
    if mode == 1:
        return _at(x, jnp.round(row), jnp.round(column))
    top, left = jnp.floor(row), jnp.floor(column)
    down, right = row - top, column - left
    out: Any = 0
    for dy, wy in ((0, 1 - down), (1, down)):
        for dx, wx in ((0, 1 - right), (1, right)):
            out = out + _at(x, top + dy, left + dx) * (wy * wx)[:, None]
    return out


def _no_cubic(mode: int) -> None:
    if mode == 2:
        raise TypeError("bicubic grid sampling is not in the table")


@register("grid_sampler_2d")
def _grid_sampler(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    _no_cubic(mode)
    return _grid_sample(wide(x), wide(grid), mode, padding, align)


@register("grid_sampler_2d_backward")
def _grid_sampler_backward(
    grad: Any, x: Any, grid: Any, mode: int, padding: int, align: bool, mask: Sequence[bool]
) -> tuple[Any, Any]:
    _no_cubic(mode)
    _, pull = jax.vjp(lambda a, b: _grid_sample(a, b, mode, padding, align), wide(x), wide(grid))
    dx, dgrid = pull(wide(grad))
    return dx if mask[0] else None, dgrid
