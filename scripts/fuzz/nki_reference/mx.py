"""quantize_mx and nc_matmul_mx: blocks of 8 partitions x 4 elements that share a power of two."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nki_reference.machine import PSUM, SBUF, Machine
from nki_reference.matmul import product, psum_tile
from nki_reference.numbers import ANY, PACKED, STORED, Array
from nki_reference.program import View
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import entry, never

SCALES = ("float8_e8m0fnu", "uint8")
ELEMENTS: dict[str, Any] = {
    "float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, 8),
    "float8_e5m2_x4": (ml_dtypes.float8_e5m2, 15),
}


def scale_rows(partitions: int) -> list[int]:
    """The partition of the scale of each group of 8 partitions."""
    return [32 * (group // 4) + group % 4 for group in range(partitions // 8)]


def _check_scale(m: Machine, scale: Any, partitions: int, columns: int) -> None:
    m.require(isinstance(scale, View) and scale.buffer == "sbuf", "scales are in SBUF")
    m.require(scale.dtype in SCALES and len(scale.shape) == 2, "type or rank of scales")
    needed = scale_rows(partitions)[-1] + 1 if partitions else 0
    m.require(scale.partitions >= needed and scale.shape[1] == columns, "size of scales")
    start = scale.start % 32
    m.require(start in (0, 4, 8, 12), "start of scales")


def _draw_quantize(s: ProgramBuilder) -> None:
    partitions, columns = s.c.pick((32, 64, 96, 128)), s.c.pick((1, 2, 8, 33))
    src = s.tile((partitions, 4 * columns), ("bfloat16", "float16"), SBUF, kind="tame", reuse=False)
    stored = src.storage.values
    assert stored is not None
    # Blocks of very different size, and one of zeros.
    scale = np.exp2(s.values.integers(-12, 12, (stored.shape[0] // 1, *(1,) * (stored.ndim - 1))))
    with np.errstate(all="ignore"):
        scaled = (stored.astype(np.float32) * scale.astype(np.float32)).astype(stored.dtype)
    if s.c.flag():
        scaled[: scaled.shape[0] // 2] = 0
    src.storage.values = scaled
    dtype = s.c.pick(tuple(ELEMENTS))
    dst = s.tile((partitions, columns), (dtype,), SBUF, dst=True, apart=(src,), reuse=False)
    scales = s.whole(s.storage((partitions, columns), s.c.pick(SCALES)))
    s.call("quantize_mx", dst=dst, src=src, dst_scale=scales)


@entry("quantize_mx", _draw_quantize, generations=(4,))
def quantize_mx(m: Machine, dst: View, src: View, dst_scale: View, name: Any = None) -> None:
    """Scale exponent floor(log2(amax)) - (Emax - 1), elements divided by it and rounded."""
    m.since(4)
    m.tile(src, ("bfloat16", "float16"), SBUF)
    m.tile(dst, tuple(ELEMENTS), SBUF)
    m.require(src.partitions % 32 == 0 and src.free % 4 == 0, "sizes")
    partitions, columns = src.partitions, src.free // 4
    m.require(dst.flat == (partitions, columns), "size of dst")
    _check_scale(m, dst_scale, partitions, columns)
    element, largest = ELEMENTS[dst.dtype]
    values = m.f32(src).astype(np.float64).reshape(partitions // 8, 8, columns, 4)
    amax = np.abs(values).max((1, 3))
    m.require(np.isfinite(amax).all(), "infinite values have no scale")
    exponent = np.full(amax.shape, -127)
    nonzero = amax > 0
    exponent[nonzero] = np.floor(np.log2(amax[nonzero])).astype(int) - (largest - 1)
    exponent = np.clip(exponent, -127, 127)
    scaled = values * np.exp2(-exponent.astype(np.float64))[:, None, :, None]
    codes = scaled.reshape(partitions, columns, 4).astype(np.float32).astype(element)
    m.put(dst, np.ascontiguousarray(codes).view(np.uint32).reshape(dst.flat))
    rows = np.zeros((dst_scale.partitions, columns), dtype=np.uint8)
    chosen = np.zeros(rows.shape, dtype=bool)
    for group, row in enumerate(scale_rows(partitions)):
        rows[row], chosen[row] = exponent[group] + 127, True
    m.put(dst_scale, rows.view(STORED[dst_scale.dtype]), chosen)


# ---- nc_matmul_mx ----


def _mx_operand(s: ProgramBuilder, k: int, free: int) -> tuple[View, View]:
    dtype = s.c.pick(PACKED)
    element = {"float4_e2m1fn_x4": None}.get(dtype, ELEMENTS.get(dtype, (None,))[0])
    data: Array
    if element is None:
        data = s.values.integers(0, 2**16, (k, free)).astype(np.uint16)
    else:
        numbers = s.values.standard_normal((k, free, 4)).astype(np.float32).astype(element)
        data = np.ascontiguousarray(numbers).view(np.uint32).reshape(k, free)
    scales = s.values.integers(120, 135, (k, free)).astype(np.uint8)
    kind = s.c.pick(SCALES)
    return (
        s.whole(s.storage((k, free), dtype, values=data)),
        s.whole(s.storage((k, free), kind, values=scales.view(STORED[kind]))),
    )


def _draw_matmul_mx(s: ProgramBuilder) -> None:
    k, columns, n = s.c.pick((32, 64, 96, 128)), s.c.pick((2, 8, 128)), s.c.pick((1, 33, 512))
    dst = psum_tile(s, (columns, n), s.c.pick(("float32", "bfloat16")), fresh=True)
    if dst is None:
        return
    stationary, stationary_scale = _mx_operand(s, k, columns)
    moving, moving_scale = _mx_operand(s, k, n)
    rows = s.c.pick([r for r in (32, 64, 128) if r >= k])
    tiling: dict[str, Any] = {}
    if s.c.flag(30):
        start = rows * s.c.integer(0, 128 // rows - 1)
        tiling = {"tile_position": (start, 0), "tile_size": (rows, 128)}
    for _ in range(s.c.pick((1, 1, 2))):
        s.call(
            "nc_matmul_mx",
            dst=dst,
            stationary=stationary,
            moving=moving,
            stationary_scale=stationary_scale,
            moving_scale=moving_scale,
            accumulate=s.c.pick((None, False)),
            **tiling,
        )


def unpack(stored: Array, dtype: str) -> Array:
    """float64 [..., 4] of packed elements, the one in the lowest bits first."""
    if dtype in ELEMENTS:
        codes = np.ascontiguousarray(stored).view(np.uint8).reshape(*stored.shape, 4)
        return np.asarray(codes.view(ELEMENTS[dtype][0]).astype(np.float64))
    shifts = np.arange(4, dtype=np.uint16) * np.uint16(4)
    nibbles = ((stored[..., None] >> shifts) & 0xF).astype(np.uint8)
    return np.asarray(nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64))


def _dequantised(m: Machine, data: View, scale: View) -> Array:
    """[4 * partitions, columns]; the order of the contraction does not matter."""
    _check_scale(m, scale, data.partitions, data.free)
    values = unpack(m.elements(data), data.dtype)
    rows = scale_rows(data.partitions)
    indices = m.indices(scale)[rows]
    m.require(m.written[scale.storage][indices].all(), "scales are not written")
    codes = m.memory[scale.storage][indices].view(np.uint8).astype(np.float64)
    factors = np.where(codes == 255, np.nan, np.exp2(codes - 127))
    scaled = values * np.repeat(factors, 8, axis=0)[..., None]
    return np.asarray(scaled.transpose(0, 2, 1).reshape(4 * data.partitions, data.free))


@entry("nc_matmul_mx", _draw_matmul_mx, generations=(4,), is_exact=never)
def nc_matmul_mx(
    m: Machine,
    dst: View,
    stationary: View,
    moving: View,
    stationary_scale: Any,
    moving_scale: Any,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: Any = None,
    name: Any = None,
) -> None:
    """dst = dequantised stationary.T @ dequantised moving."""
    m.since(4)
    m.tile(stationary, PACKED, SBUF)
    m.tile(moving, PACKED, SBUF)
    m.tile(dst, ANY, PSUM)
    k, columns, n = stationary.partitions, stationary.free, moving.free
    m.require(moving.partitions == k and k % 32 == 0, "partitions")
    m.require(columns <= 128 and columns % 2 == 0, "columns of stationary")
    m.require(dst.flat == (columns, n), "size of dst")
    m.require(bool(tile_position) == bool(tile_size), "tile_position and tile_size")
    if tile_size:
        m.require(len(tile_size) == 2 and len(tile_position) == 2, "pairs")
        rows, start = tile_size[0], tile_position[0]
        m.require(rows in (32, 64, 128) and start % rows == 0 and 0 <= start < 128, "row tile")
        m.require(tile_size[1] == 128 and tile_position[1] == 0 and k <= rows, "row tile")
    m.require(accumulate is None or isinstance(accumulate, bool), "accumulate")
    a = _dequantised(m, stationary, stationary_scale)
    b = _dequantised(m, moving, moving_scale)
    product(m, dst, a, b, accumulate)
