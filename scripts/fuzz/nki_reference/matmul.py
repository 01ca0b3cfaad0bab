"""nc_matmul, nc_transpose, dma_transpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference.dma import DGE_MODES, mode_of, priority
from nki_reference.machine import DMA, HALF_ULP, PSUM, SBUF, Machine
from nki_reference.numbers import ANY, STORED, Array, decode, size_of
from nki_reference.program import Call, Token, View
from nki_reference.program_builder import BANK, PSUM_TILES, ProgramBuilder
from nki_reference.table import entry, never

NARROW = ("float8_e4m3", "float8_e5m2", "bfloat16", "float16")
WIDE = ("float32", "tfloat32")


def psum_tile(s: ProgramBuilder, flat: tuple[int, int], dtype: str, fresh: bool) -> View | None:
    """A whole PSUM tile, unless PSUM is taken."""
    if s._psum >= PSUM_TILES or flat[1] * size_of(dtype) > BANK:
        return None
    made = s.whole(s.storage(flat, dtype, "psum", fresh=fresh))
    s._waiting.append(made)
    return made


def _operands(s: ProgramBuilder, k: int, m: int, n: int) -> tuple[View, View]:
    narrow = NARROW if s.generation < 4 else (*NARROW[1:], "float8_e4m3fn")
    allowed = WIDE if s.c.flag(40) else narrow
    return (
        s.tile((k, m), allowed, SBUF, kind="tame"),
        s.tile((k, n), allowed, SBUF, kind="tame"),
    )


def _draw_matmul(s: ProgramBuilder) -> None:
    if s.c.flag(15):
        _draw_matmul_transpose(s)
        return
    if s.generation >= 3 and s.c.flag(15):
        _draw_double_row(s)
        return
    k = s.c.pick((1, 3, 32, 64, 127, 128))
    m, n = s.c.pick((1, 5, 64, 127, 128)), s.c.pick((1, 7, 129, 512))
    stationary, moving = _operands(s, k, m, n)
    is_onezero = s.c.flag(10)
    if is_onezero:
        ones = s.values.integers(0, 2, (k, m)).astype(np.float32).astype(STORED[stationary.dtype])
        stationary = s.tile((k, m), (stationary.dtype,), SBUF, values=ones, reuse=False)
    dtype = "bfloat16" if s.generation >= 4 and s.c.flag(30) else "float32"
    dst = psum_tile(s, (m, n), dtype, fresh=True)
    if dst is None:
        return
    tiling: dict[str, Any] = {}
    if k <= 64 and s.c.flag(30):
        tiling = {"tile_position": (64 * s.c.integer(0, 1), 0), "tile_size": (64, 128)}
    s.call(
        "nc_matmul",
        dst=dst,
        stationary=stationary,
        moving=moving,
        is_stationary_onezero=True if is_onezero else None,
        accumulate=s.c.pick((None, False)),
        **tiling,
    )
    for _ in range(s.c.pick((0, 0, 1, 2))):
        again = s.tile((k, m), (stationary.dtype,), SBUF, kind="tame", reuse=False)
        accumulate = s.c.pick((None, True, False))
        s.call("nc_matmul", dst=dst, stationary=again, moving=moving, accumulate=accumulate)
    s.pool.append(dst)


def _draw_double_row(s: ProgramBuilder) -> None:
    dtypes = ("float8_e4m3", "float8_e5m2") if s.c.flag() else ("float8_e5m2",)
    k, m, n = s.c.pick((1, 32, 128)), s.c.pick((1, 5, 64)), s.c.pick((1, 7, 256))
    a = s.whole(s.storage((k, 2, m), s.c.pick(dtypes), kind="tame"))
    b = s.whole(s.storage((k, 2, n), s.c.pick(dtypes), kind="tame"))
    dst = psum_tile(s, (m, n), "float32", fresh=True)
    if dst is not None:
        mode = Token("nisa.matmul_perf_mode.double_row")
        s.call("nc_matmul", dst=dst, stationary=a, moving=b, perf_mode=mode)


def _draw_matmul_transpose(s: ProgramBuilder) -> None:
    k, m = s.c.pick((1, 16, 32, 64, 128)), s.c.pick((1, 5, 64, 128))
    dtype = s.c.pick(("float32", "bfloat16") if s.generation >= 3 else ("float32",))
    data = s.tile((k, m), (dtype,), SBUF, kind="tame")
    unit = s.tile((k, k), (dtype,), SBUF, values=np.eye(k).astype(STORED[dtype]), reuse=False)
    dst = psum_tile(s, (m, k), dtype, fresh=True)
    if dst is not None:
        s.call("nc_matmul", dst=dst, stationary=data, moving=unit, is_transpose=True)


def _types(m: Machine, a: str, b: str, double: bool) -> None:
    allowed = ["float8_e4m3", "float8_e5m2"] if double else [*NARROW, *WIDE]
    if m.generation >= 4:
        allowed.append("float8_e4m3fn")
    m.require(a in allowed and b in allowed, "operand types")
    m.require((a in WIDE) == (b in WIDE), "float32 is mixed with another type")
    m.require({a, b} != {"float8_e4m3", "float8_e4m3fn"}, "two kinds of float8_e4m3")


def _tiling(m: Machine, rows: int, columns: int, position: Any, size: Any) -> None:
    m.require(bool(position) == bool(size), "tile_position and tile_size go together")
    if not size:
        return
    for pair in (position, size):
        m.require(isinstance(pair, tuple | list) and len(pair) == 2, "pairs")
        m.require(all(type(n) is int for n in pair), "integers")
    least = 64 if m.generation == 2 else 32
    for extent, start, used in zip(size, position, (rows, columns), strict=True):
        m.require(extent in (least, 64, 128), "tile size")
        m.require(start >= 0 and start % extent == 0 and start + extent <= 128, "tile position")
        m.require(used <= extent, "the operand exceeds its tile")


@entry("nc_matmul", _draw_matmul, is_exact=never)
def nc_matmul(
    m: Machine,
    dst: View,
    stationary: View,
    moving: View,
    is_stationary_onezero: Any = False,
    is_moving_onezero: Any = False,
    is_transpose: Any = False,
    accumulate: Any = None,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: Any = "none",
    name: Any = None,
) -> None:
    """dst = stationary.T @ moving, overwriting or accumulating."""
    m.tile(stationary, ANY, SBUF)
    m.tile(moving, ANY, SBUF)
    m.tile(dst, ANY, PSUM)
    mode = perf_mode
    if isinstance(perf_mode, Token):
        mode = perf_mode.name if "matmul_perf_mode" in perf_mode.path else ""
    m.require(isinstance(mode, str) and mode in ("none", "double_row"), "perf_mode")
    double = mode == "double_row"
    m.require(not double or m.generation >= 3, "double_row needs trn2")
    if double:
        for view in (stationary, moving):
            m.require(len(view.shape) >= 3 and view.shape[1] == 2, "double_row needs [K, 2, N]")
    share = 2 if double else 1
    k, columns, n = stationary.partitions, stationary.free // share, moving.free // share
    m.require(moving.partitions == k and columns <= 128, "sizes")
    m.require(dst.flat == (columns, n), "size of dst")
    _types(m, stationary.dtype, moving.dtype, double)
    _tiling(m, k, columns, tile_position, tile_size)
    m.require(accumulate is None or isinstance(accumulate, bool), "accumulate")
    if is_transpose:
        m.require(n == k, "moving is not an identity")
        is_same = dst.dtype == stationary.dtype or (m.generation == 2 and dst.dtype == "float32")
        m.require(is_same, "dst is of another type")
        m.require(not double, "double_row does not transpose")
        identity = decode(m.elements(moving), moving.dtype)
        m.require(np.array_equal(identity, np.eye(k)), "moving is not an identity")
        m.put(dst, m.elements(stationary).T.astype(STORED[dst.dtype]))
        m.mark(dst, m.indices(dst), by_product=True)
        return
    a = m.f32(stationary).reshape(k * share, columns)
    b = m.f32(moving).reshape(k * share, n)
    product(m, dst, a, b, accumulate)


def product(m: Machine, dst: View, a: Array, b: Array, accumulate: Any) -> None:
    """Write or add a.T @ b; where nothing says which, by what was written there before."""
    types = ("float32",) if m.generation < 4 else ("float32", "bfloat16")
    m.require(dst.dtype in types, "type of dst")
    limit = {2: 512, 3: 512, 4: 4096}[m.generation] * (2 if dst.dtype == "bfloat16" else 1)
    m.require(dst.free <= limit, "too many columns")
    index = m.indices(dst)
    if m.generation < 4:
        within = index % dst.storage.pitch * size_of(dst.dtype)
        m.require(within.min() // BANK == within.max() // BANK, "dst spans PSUM banks")
    storage = dst.storage
    before = m.products[storage][index].reshape(dst.flat)
    if accumulate is not False:
        m.require(m.generation >= 4 or not m.spoilt[storage][index].any(), "spoilt products")
    if m.generation >= 4 and m.written[storage][index].all():
        # Whatever was written there counts, if all of it was.
        before = np.ones(dst.flat, dtype=bool)
    if accumulate is True:
        m.require(before.all(), "nothing to accumulate onto")
    if accumulate is False:
        before = np.zeros(dst.flat, dtype=bool)
    old = np.where(before, decode(m.memory[storage][index], dst.dtype).reshape(dst.flat), 0.0)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    result = wide_a.T @ wide_b + old
    size = np.abs(wide_a).T @ np.abs(wide_b) + np.abs(old)
    error = size * (a.shape[0] + 2) * 2 * HALF_ULP
    error = np.where(np.isfinite(size) & (size < 1e38), error, np.inf)
    m.store(dst, result, error)
    m.mark(dst, index, by_product=True)


# ---- transposes ----


def _draw_transpose(s: ProgramBuilder) -> None:
    on_tensor = s.c.flag()
    sizes = (1, 5, 32, 33, 64, 128) if on_tensor else (1, 5, 31, 32)
    p, f = s.c.pick(sizes), s.c.pick(sizes)
    dtype = s.dtype(ANY)
    if on_tensor:
        data = s.tile((p, f), (dtype,), SBUF, kind="tame")
        dst = psum_tile(s, (f, p), dtype, fresh=True)
        if dst is None:
            return
        engine = s.c.pick((None, Token("nisa.engine.tensor"), Token("nisa.engine.unknown")))
    else:
        data = s.tile((p, f), (dtype,), kind="tame")
        dst = s.tile((f, p), (dtype,), SBUF, dst=True, apart=(data,))
        engine = s.c.pick((None, Token("nisa.engine.vector")))
    s.call("nc_transpose", dst=dst, data=data, engine=engine)


@entry("nc_transpose", _draw_transpose, moves=True)
def nc_transpose(m: Machine, dst: View, data: View, engine: Any = None, name: Any = None) -> None:
    """dst = data.T, bit by bit."""
    m.tile(dst, ANY)
    m.tile(data, ANY)
    default = "tensor" if dst.buffer == "psum" and data.buffer == "sbuf" else "vector"
    used = m.engine(engine, ("tensor", "vector"), default)
    limit = 128 if used == "tensor" else 32
    m.require(max(data.flat) <= limit, "too large")
    m.require(dst.flat == data.flat[::-1], "size of dst")
    m.require(dst.dtype == data.dtype, "types")
    if used == "tensor":
        m.require(dst.buffer == "psum" and data.buffer == "sbuf", "SBUF to PSUM")
    m.put(dst, m.elements(data).T)
    if used == "tensor":
        m.mark(dst, m.indices(dst), by_product=True)


SWAPS = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def _draw_dma_transpose(s: ProgramBuilder) -> None:
    dtype = s.dtype(ANY)
    ndim = s.c.pick((2, 2, 3, 4))
    sizes = [s.c.pick((1, 2, 5, 16, 33, 128)), *(s.c.pick((1, 2, 3)) for _ in range(ndim - 2))]
    sizes.append(s.c.pick((1, 5, 32, 128)))
    order = SWAPS[ndim]
    buffer = s.c.pick(("sbuf", "private_hbm", "argument"))
    src = s.whole(s.storage(sizes, dtype, buffer, kind="tame"))
    wanted = tuple(sizes[axis] for axis in order)
    target = s.c.pick(("sbuf", "private_hbm"))
    dst = s.whole(s.storage(wanted, dtype, target, fresh=True))
    rows, size = sizes[0], size_of(dtype)
    is_fast = rows == 16 if ndim == 2 else rows in (1, 2, 16) and rows * sizes[-2] % 16 == 0
    mode = s.c.pick(("", "unknown"))
    if s.generation >= 3 and is_fast and size == 2 and s.c.flag(60):
        mode = "hwdge"
    s.call(
        "dma_transpose",
        dst=dst,
        src=src,
        axes=order if s.c.flag() else None,
        dge_mode=Token(f"nisa.dge_mode.{mode}") if mode else None,
        priority=priority(s),
    )


def _bits_kept(call: Call) -> bool:
    return True


@entry("dma_transpose", _draw_dma_transpose, moves=True, is_exact=_bits_kept)
def dma_transpose(
    m: Machine,
    dst: View,
    src: View,
    axes: Any = None,
    priority: Any = None,
    dge_mode: Any = 0,
    oob_mode: Any = 0,
    name: Any = None,
) -> None:
    """The dimensions of src in the one order that there is for its rank."""
    m.tile(dst, ANY, DMA, by_dma=True)
    m.tile(src, ANY, DMA, by_dma=True)
    ndim = len(src.shape)
    m.require(ndim in SWAPS, "rank")
    order = SWAPS[ndim]
    if axes is not None:
        m.require(isinstance(axes, tuple | list) and tuple(axes) == order, "axes")
    m.require(dst.shape == tuple(src.shape[axis] for axis in order), "shape of dst")
    m.require(dst.dtype == src.dtype, "types")
    mode = mode_of(m, dge_mode, DGE_MODES)
    # The description names unknown and hwdge, the parameter none as well.
    m.require(mode in ("unknown", "hwdge", "none"), "dge_mode")
    if priority is not None:
        m.since(4)
        m.require(priority in (0, 1, 2, 3), "priority")
    if mode == "hwdge":
        m.since(3)
        rows = src.shape[0]
        is_legal = (
            rows == 16
            if ndim == 2
            else (rows in (1, 2, 4, 8, 16) and rows * src.shape[-2] % 16 == 0)
        )
        m.require(is_legal and src.shape[-1] <= 128 and size_of(src.dtype) == 2, "hwdge")
    skips = mode_of(m, oob_mode, ("error", "skip")) == "skip"
    m.require(not skips, "oob_mode.skip is for indirect sources")
    m.put(dst, m.stored(src).transpose(order))
