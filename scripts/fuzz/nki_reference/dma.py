"""dma_copy and dma_compute, direct and at addresses that values decide."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference.chains import chain
from nki_reference.machine import DMA, HALF_ULP, Machine
from nki_reference.movement import copy
from nki_reference.numbers import ANY, ARITHMETIC, STORED, Array, decode, encode
from nki_reference.program import Offset, Token, View
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import entry, never

PLACES = ("sbuf", "private_hbm", "shared_hbm", "argument")


def hbm_view(s: ProgramBuilder, count: int, dtype: str, dst: bool) -> View:
    """`count` elements of a tensor in HBM, dense or with gaps."""
    buffer = s.c.pick(PLACES[1:])
    rows = s.c.pick([d for d in (1, 2, 3, 8, 128) if count % d == 0])
    columns = count // rows
    layout = s.c.pick(("whole", "margin", "strided", "rows", "chain"))
    fresh = dst and buffer != "argument" and layout == "whole" and s.c.flag()
    if layout == "margin":
        made = s.storage((rows, columns + 3), dtype, buffer)
        text, index = f"[:, 1:{columns + 1}]", _grid(made.shape)[:, 1 : columns + 1]
    elif layout == "strided":
        made = s.storage((rows, 2 * columns), dtype, buffer)
        text, index = "[:, 1::2]", _grid(made.shape)[:, 1::2]
    elif layout == "chain":
        shape, expression, index = chain(s.c, rows, (columns,), dst)
        made = s.storage(shape, dtype, buffer)
        text = expression[1:].replace("@", made.name).replace("#", str(rows))
    elif layout == "rows":
        made = s.storage((3 * rows, columns), dtype, buffer)
        text, index = "[0::3, :]", _grid(made.shape)[0::3]
    else:
        made = s.storage((rows, columns), dtype, buffer, fresh=fresh)
        text, index = "", _grid(made.shape)
    return View(made, made.name + text, index)


def _grid(shape: tuple[int, ...]) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape)


def _draw_dma_copy(s: ProgramBuilder) -> None:
    kind = s.c.pick(("direct", "direct", "scalar", "gather", "scatter"))
    if kind in ("gather", "scatter"):
        _draw_vector(s, kind == "gather")
        return
    if kind == "scalar":
        _draw_scalar(s)
        return
    flat = s.extent()
    same = s.c.flag(60)
    dtypes = (s.dtype(ANY),) if same else ARITHMETIC
    places = s.c.pick((("sbuf", "hbm"), ("hbm", "sbuf"), ("hbm", "hbm"), ("sbuf", "sbuf")))
    count = flat[0] * flat[1]
    src, dst = (
        s.tile(flat, dtypes, ("sbuf",), dst=is_dst)
        if place == "sbuf"
        else hbm_view(s, count, s.dtype(dtypes), is_dst)
        for place, is_dst in zip(places, (False, True), strict=True)
    )
    mode = s.c.pick(("", "unknown", "none", "swdge"))
    if mode == "none" and not (src.offset is None and dst.offset is None):
        mode = ""
    engine: Any = None
    if s.generation >= 3 and src.dtype == dst.dtype and s.c.flag(30):
        mode, engine = "hwdge", s.engine(("sync", "scalar"))
    s.call(
        "dma_copy",
        dst=dst,
        src=src,
        dge_mode=Token(f"nisa.dge_mode.{mode}") if mode else None,
        engine=engine,
        priority=priority(s),
    )


def priority(s: ProgramBuilder) -> int | None:
    """One of the queues that trn3 has, or none."""
    return s.c.integer(0, 3) if s.generation >= 4 and s.c.flag(20) else None


def _draw_scalar(s: ProgramBuilder) -> None:
    """A block of columns of an HBM tensor, or of rows, at an index from a register or a tile."""
    rows, columns = s.c.pick((1, 4, 32)), s.c.pick((1, 5, 64))
    dtype = s.dtype(ANY)
    base = s.storage((rows + 3, columns), dtype, s.c.pick(PLACES[1:]))
    value = s.c.integer(0, 3)
    if s.c.flag():
        index: Any = s.register(value)
    else:
        kind = s.c.pick(("int32", "uint32"))
        values = np.array([[value]]).astype(STORED[kind])
        index = s.tile((1, 1), (kind,), ("sbuf",), values=values, reuse=False)
    name = index.expression if isinstance(index, View) else index.name
    pattern = [[columns, rows], [1, columns]]
    text = f"{base.name}.ap(pattern={pattern}, scalar_offset={name}, indirect_dim=0)"
    start = _grid((rows, columns))
    # Valid as long as the block stays in its tensor.
    view = View(base, text, start, offset=Offset(index, columns, 4, False))
    tile = s.tile((rows, columns), (dtype,), ("sbuf",), dst=True)
    if s.c.flag():
        s.call("dma_copy", dst=tile, src=view)
    elif tile.storage.values is not None or tile in s.pool:
        s.call("dma_copy", dst=view, src=tile)
    else:
        s.call("dma_copy", dst=tile, src=view)


def _draw_vector(s: ProgramBuilder, gather: bool) -> None:
    """Rows of an HBM tensor by an index for each partition."""
    partitions, columns, rows = s.c.pick((1, 4, 33, 128)), s.c.pick((1, 5, 64)), 130
    dtype = s.dtype(ANY)
    base = s.storage((rows, columns), dtype, s.c.pick(PLACES[1:]))
    # A scatter to one row twice has no order.
    chosen = s.values.permutation(rows)[:partitions][:, None]
    skips = s.c.flag(30)
    if skips:
        chosen = np.where(s.values.random(chosen.shape) < 0.3, rows + 5, chosen)
    kind = s.c.pick(("uint32", "int32"))
    index = s.tile(
        (partitions, 1), (kind,), ("sbuf",), values=chosen.astype(STORED[kind]), reuse=False
    )
    text = (
        f"{base.name}.ap(pattern=[[{columns}, {partitions}], [1, {columns}]], "
        f"vector_offset={index.expression}, indirect_dim=0)"
    )
    view = View(
        base,
        text,
        np.broadcast_to(np.arange(columns), (partitions, columns)),
        offset=Offset(index, columns, rows, True),
    )
    tile = s.tile((partitions, columns), (dtype,), ("sbuf",), reuse=False, static=True)
    if np.unique(tile.index).size < tile.index.size:
        tile = s.whole(s.storage((partitions, columns), dtype))
    dst, src = (tile, view) if gather else (view, tile)
    s.call("dma_copy", dst=dst, src=src, oob_mode=Token("nisa.oob_mode.skip") if skips else None)


# In the order of their numbers, which kernels also pass.
DGE_MODES = ("unknown", "swdge", "hwdge", "none")


def mode_of(m: Machine, token: Any, names: tuple[str, ...]) -> str:
    """The name of a mode, given as a token or as a number."""
    if type(token) is int:
        m.require(0 <= token < len(names), "no such mode")
        return names[token]
    m.require(isinstance(token, Token) and token.name in names, f"{token}")
    return str(token.name)


@entry("dma_copy", _draw_dma_copy, moves=True)
def dma_copy(
    m: Machine,
    dst: View,
    src: View,
    priority: Any = None,
    oob_mode: Any = 0,
    dge_mode: Any = 0,
    engine: Any = None,
    name: Any = None,
) -> None:
    """dst = src in row-major order; other types through float32."""
    m.tile(dst, ANY, DMA, by_dma=True)
    m.tile(src, ANY, DMA, by_dma=True)
    m.require(dst.index.size == src.index.size, "different numbers of elements")
    mode = mode_of(m, dge_mode, DGE_MODES)
    if mode == "hwdge":
        m.since(3)
        m.require(src.dtype == dst.dtype, "hwdge converts no types")
    for offset in (dst.offset, src.offset):
        if offset is not None:
            m.require(mode != "none", "descriptors that know no address")
            m.require(mode != "hwdge" or not offset.is_vector, "hwdge gathers no rows")
    used = engine.name if isinstance(engine, Token) else "unknown"
    if engine is not None:
        m.require(isinstance(engine, Token), "the engine")
        m.require(used in ("unknown", "sync", "scalar"), "the engine")
        m.require(used == "unknown" or mode == "hwdge", "an engine without hwdge")
    if priority is not None:
        m.since(4)
        m.require(type(priority) is int and 0 <= priority <= 3, "priority")
    skip = mode_of(m, oob_mode, ("error", "skip")) == "skip"
    if skip and (src.offset is not None or dst.offset is not None):
        _copy_valid(m, dst, src)
    else:
        copy(m, dst, src)


def _copy_valid(m: Machine, dst: View, src: View) -> None:
    """Rows of which every index is in bounds; the others are left out."""
    rows: list[Array] = []
    valid: Array | None = None
    for view in (dst, src):
        index, offset = view.index, view.offset
        if offset is None:
            rows.append(index)
            continue
        values = m.offset_values(offset)
        inside = (values >= 0) & (values < offset.limit)
        valid = inside if valid is None else valid & inside
        rows.append(index.reshape(inside.size, -1) + values[:, None] * offset.scale)
    assert valid is not None
    if valid.any():
        kept = [index.reshape(valid.size, -1)[valid] for index in rows]
        copy(m, View(dst.storage, "", kept[0]), View(src.storage, "", kept[1]))


# ---- dma_compute ----


def _draw_compute(s: ProgramBuilder) -> None:
    flat = s.extent()
    count = flat[0] * flat[1]
    views = []
    for _ in range(s.c.pick((1, 2, 2, 3, 16))):
        if s.c.flag():
            views.append(s.tile(flat, ARITHMETIC, ("sbuf",), static=True))
        else:
            views.append(hbm_view(s, count, s.dtype(ARITHMETIC), False))
    dst = (
        s.tile(flat, ARITHMETIC, ("sbuf",), dst=True, apart=views, static=True)
        if s.c.flag()
        else hbm_view(s, count, s.dtype(ARITHMETIC), True)
    )
    scales = s.c.pick((None, [1.0] * len(views)))
    s.call("dma_compute", dst=dst, srcs=views, scales=scales, reduce_op=Token("nl.add"))


@entry("dma_compute", _draw_compute, is_exact=never)
def dma_compute(
    m: Machine,
    dst: View,
    srcs: Any,
    reduce_op: Any,
    scales: Any = None,
    unique_indices: Any = True,
    oob_mode: Any = 0,
    name: Any = None,
) -> None:
    """dst = the sum of the sources in float32."""
    m.token(reduce_op, ("add",))
    m.require(isinstance(srcs, list | tuple) and 1 <= len(srcs) <= 16, "srcs")
    m.tile(dst, ARITHMETIC, DMA, by_dma=True)
    if scales is not None:
        m.require(isinstance(scales, list | tuple), "scales")
        m.require(len(scales) == len(srcs) and all(scale == 1.0 for scale in scales), "scales")
    for src in srcs:
        m.tile(src, ARITHMETIC, DMA, by_dma=True)
        m.require(src.offset is None and dst.offset is None, "addresses are known beforehand")
        m.require(src.index.size == dst.index.size, "different numbers of elements")
    skips = mode_of(m, oob_mode, ("error", "skip")) == "skip"
    m.require(not skips, "oob_mode.skip needs an indirect operand")
    values = [decode(m.stored(src), src.dtype).reshape(-1).astype(np.float64) for src in srcs]
    total = np.asarray(sum(values))
    # Of two sources the sum is rounded once; of more the order decides, most of all near overflow.
    size = sum(np.where(np.isfinite(value), np.abs(value), 0.0) for value in values)
    error = np.zeros_like(total)
    if len(srcs) > 2:
        error = np.where(size > 1e38, np.inf, size * len(srcs) * 2 * HALF_ULP)
    m.put(dst, encode(total.reshape(dst.shape), dst.dtype))
    low, high = encode(total - error, dst.dtype), encode(total + error, dst.dtype)
    m.bound(dst, low, high, np.isposinf(error))
