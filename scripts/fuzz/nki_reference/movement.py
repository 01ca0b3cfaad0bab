"""Moving elements: tensor_copy, memset, tensor_copy_predicated, nc_stream_shuffle."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference.machine import Machine
from nki_reference.numbers import ANY, ARITHMETIC, INTEGERS, PACKED, STORED, decode, encode
from nki_reference.program import View
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import entry

# ---- tensor_copy ----


def _draw_tensor_copy(s: ProgramBuilder) -> None:
    flat = s.extent()
    if s.c.flag(20):
        dtype = s.c.pick(PACKED)
        src, dst = s.tile(flat, (dtype,)), s.tile(flat, (dtype,), dst=True)
    elif s.c.flag(50):
        src = s.tile(flat, ARITHMETIC)
        dst = s.tile(flat, (src.dtype,), dst=True)
    else:
        src, dst = s.tile(flat, ARITHMETIC), s.tile(flat, ARITHMETIC, dst=True)
    engines = ["vector"]
    if "psum" not in (src.buffer, dst.buffer):
        engines.append("gpsimd")
    if s.generation >= 3:
        engines.append("scalar")
    s.call("tensor_copy", dst=dst, src=src, engine=s.engine(engines))


@entry("tensor_copy", _draw_tensor_copy, moves=True)
def tensor_copy(m: Machine, dst: View, src: View, engine: Any = None, name: Any = None) -> None:
    """Bits for equal types (but for integers on the Scalar engine), else through float32."""
    m.tile(dst, ANY)
    m.tile(src, ANY)
    m.same_extent(dst, src)
    allowed = ["vector"]
    if "psum" not in (src.buffer, dst.buffer):
        allowed.append("gpsimd")
    if m.generation >= 3:
        allowed.append("scalar")
    used = m.engine(engine, allowed)
    copy(m, dst, src, through_f32=used == "scalar" and src.dtype in INTEGERS)


def copy(m: Machine, dst: View, src: View, through_f32: bool = False) -> None:
    """dst = src in row-major order."""
    stored = m.stored(src)
    if dst.dtype != src.dtype or through_f32:
        m.require(
            src.dtype in ARITHMETIC and dst.dtype in ARITHMETIC, "packed types do not convert"
        )
        stored = encode(decode(stored, src.dtype), dst.dtype)
    m.put(dst, stored.reshape(dst.shape))


# ---- memset ----


def _draw_memset(s: ProgramBuilder) -> None:
    flat = s.extent()
    dst = s.tile(flat, ANY, dst=True)
    value: float = s.number("special")
    if dst.dtype in INTEGERS:
        value = s.c.pick((0, 1, 7, 100))
    elif dst.dtype in PACKED:
        value = 0
    engines = ("vector",) if dst.buffer == "psum" else ("vector", "gpsimd")
    s.call("memset", dst=dst, value=value, engine=s.engine(engines))


@entry("memset", _draw_memset)
def memset(m: Machine, dst: View, value: Any, engine: Any = None, name: Any = None) -> None:
    """dst = a constant of its type."""
    m.tile(dst, (*ANY, "float8_e8m0fnu"))
    used = m.engine(engine, ("vector", "gpsimd"))
    m.require(used != "gpsimd" or dst.buffer == "sbuf", "GpSimd cannot access PSUM")
    number = m.number(value)
    if dst.dtype in PACKED:
        m.require(number == 0, "packed types take 0 alone")
        m.put(dst, np.zeros(dst.shape, dtype=STORED[dst.dtype]))
        return
    if dst.dtype in INTEGERS:
        limits = np.iinfo(STORED[dst.dtype])
        m.require(np.isfinite(number) and number.is_integer(), "not an integer")
        m.require(limits.min <= number <= limits.max, "not of the type")
        m.put(dst, np.full(dst.shape, int(value), dtype=STORED[dst.dtype]))
        return
    m.put(dst, np.broadcast_to(encode(np.array(number), dst.dtype), dst.shape))


# ---- tensor_copy_predicated ----


def _draw_predicated(s: ProgramBuilder) -> None:
    flat = s.extent()
    predicate = s.tile(flat, ("uint8", "uint16", "uint32"), kind="tame")
    dst = s.tile(flat, ARITHMETIC, dst=True, reuse=False)
    # dst is read and written.
    if dst.storage.values is None:
        dst.storage.values = s.content(dst.storage.size, dst.dtype).reshape(dst.storage.shape)
    buffers = ("sbuf",) if predicate.buffer == "psum" else ("sbuf", "psum")
    src: Any = s.tile(flat, (dst.dtype,), buffers)
    if s.c.flag(25):
        src = s.number()
    s.call(
        "tensor_copy_predicated",
        dst=dst,
        src=src,
        predicate=predicate,
        reverse_pred=True if s.c.flag(30) else None,
    )


@entry("tensor_copy_predicated", _draw_predicated, moves=True)
def tensor_copy_predicated(
    m: Machine, dst: View, src: Any, predicate: View, reverse_pred: Any = False, name: Any = None
) -> None:
    """dst = src where the predicate is not 0; elsewhere dst stays."""
    m.tile(dst, ANY)
    m.tile(predicate, ("uint8", "uint16", "uint32"))
    m.same_extent(dst, predicate)
    chosen = m.elements(predicate) != 0
    if reverse_pred:
        chosen = ~chosen
    if isinstance(src, View):
        m.tile(src, ANY)
        m.same_extent(dst, src)
        m.require(src.dtype == dst.dtype, "src and dst differ in type")
        m.require(not src.buffer == predicate.buffer == "psum", "both are in PSUM")
        stored = m.elements(src)
    else:
        number = m.number(src)
        m.require(dst.dtype in ARITHMETIC, "a number in a packed type")
        stored = np.broadcast_to(encode(np.array(number), dst.dtype), dst.flat)
    # Elements that stay must have been written.
    m.stored(dst)
    m.put(dst, stored, chosen)


# ---- nc_stream_shuffle ----


def _draw_shuffle(s: ProgramBuilder) -> None:
    _, free = s.extent()
    partitions = s.c.pick((32, 64, 128, 96, 5, 33))
    dtypes = (s.dtype(ANY),)
    src = s.tile((partitions, free), dtypes)
    if partitions % 32:
        # Every quadrant takes partitions that src has.
        mask = [s.c.integer(0, (partitions - 1) % 32) for _ in range(32)]
    else:
        mask = [s.c.pick((255, *range(32))) for _ in range(32)]
    dst = s.tile((partitions, free), dtypes, dst=True, reuse=False)
    if dst.storage.values is None:
        dst.storage.values = s.content(dst.storage.size, dst.dtype).reshape(dst.storage.shape)
    if s.c.flag(20) and src.offset is None and np.unique(src.index).size == src.index.size:
        dst = src
    s.call("nc_stream_shuffle", dst=dst, src=src, shuffle_mask=mask)


@entry("nc_stream_shuffle", _draw_shuffle, moves=True)
def nc_stream_shuffle(
    m: Machine, dst: View, src: View, shuffle_mask: Any, name: Any = None
) -> None:
    """Partition i of each quadrant of dst = partition shuffle_mask[i] of that quadrant of src."""
    m.tile(dst, ANY)
    m.tile(src, ANY)
    m.require(src.dtype == dst.dtype and src.free == dst.free, "src and dst differ")
    quadrants = -(-max(src.partitions, dst.partitions) // 32)
    step = {1: 32, 2: 64}.get(quadrants, 128)
    m.require(src.start % step == 0 and dst.start % step == 0, "start partitions")
    m.require(isinstance(shuffle_mask, list | tuple) and len(shuffle_mask) == 32, "the mask")
    m.require(
        all(type(entry) is int and (0 <= entry < 32 or entry == 255) for entry in shuffle_mask),
        "an entry of the mask",
    )
    rows = [row for row in range(dst.partitions) if shuffle_mask[row % 32] != 255]
    sources = [row - row % 32 + shuffle_mask[row % 32] for row in rows]
    m.require(all(source < src.partitions for source in sources), "src has no such partition")
    moved = m.elements(src)[sources]
    chosen = np.zeros(dst.flat, dtype=bool)
    chosen[rows] = True
    result = np.zeros(dst.flat, dtype=STORED[dst.dtype])
    result[rows] = moved
    if len(rows) < dst.partitions:
        m.stored(dst)
    m.put(dst, result, chosen)
