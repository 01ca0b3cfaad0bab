"""select_reduce, range_select, affine_select, iota, nc_find_index8, nc_match_replace8, dropout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki_reference import alu
from nki_reference.machine import Machine
from nki_reference.numbers import ARITHMETIC, FLOATS, INTEGERS, STORED, Array, encode
from nki_reference.program import Register, Token, View
from nki_reference.program_builder import SPECIAL, TAME, ProgramBuilder
from nki_reference.table import entry

FP32_MIN = float(np.finfo(np.float32).min)
SELECT_SOURCES = tuple(d for d in ARITHMETIC if d not in ("tfloat32", "int32", "uint32"))
COMPARE_RANGE = ("equal", "less", "less_equal", "greater", "greater_equal")
COMMANDS = ("idle", "reset", "reduce", "reset_reduce")


def _maximum(
    m: Machine, command: Any, default: str, op: Any, result: Any, like: View, values: Array
) -> None:
    """Reduce by maximum into VectorE's registers."""
    name = default if command is None else m.token(command, COMMANDS)
    if op is not None:
        m.token(op, ("maximum",))
    m.accumulate(m.vector, name, "maximum", like, values)
    if name == "idle":
        # "the accumulator state may still be modified"
        m.vector.known[like.start : like.start + like.partitions] = False


def _read_maximum(m: Machine, result: Any, like: View) -> None:
    if result is not None:
        m.column(result, like, FLOATS)
        m.read_out(m.vector, result, like)


def _draw_select_reduce(s: ProgramBuilder) -> None:
    flat = s.extent()
    predicate = s.tile(flat, ("int8", "uint8", "int16", "uint16"), kind=TAME)
    buffers = ("sbuf",) if predicate.buffer == "psum" else ("sbuf", "psum")
    on_true = s.tile(flat, SELECT_SOURCES, buffers)
    command = s.c.pick(("", "idle", "reset_reduce"))
    dst = s.tile(flat, ARITHMETIC, dst=True)
    reads = command == "reset_reduce" and s.c.flag(70)
    s.call(
        "select_reduce",
        dst=dst,
        predicate=predicate,
        on_true=on_true,
        on_false=s.scalar(on_true, ("float32", "bfloat16")),
        reduce_cmd=Token(f"nisa.reduce_cmd.{command}") if command else None,
        reduce_op=Token("nl.maximum") if s.c.flag(40) else None,
        reduce_res=s.column(flat[0], FLOATS, dst=True, apart=(dst,), reuse=False)
        if reads
        else None,
        reverse_pred=True if s.c.flag(30) else None,
    )


@entry("select_reduce", _draw_select_reduce)
def select_reduce(
    m: Machine,
    dst: View,
    predicate: View,
    on_true: View,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = None,
    reduce_op: Any = None,
    reverse_pred: Any = False,
    name: Any = None,
) -> None:
    """dst = on_true where the predicate is not 0, else on_false; and the maximum."""
    m.tile(dst, ARITHMETIC)
    m.tile(predicate, ("int8", "uint8", "int16", "uint16"))
    m.tile(on_true, SELECT_SOURCES)
    m.same_extent(dst, predicate, on_true)
    m.require(not predicate.buffer == on_true.buffer == "psum", "both are in PSUM")
    chosen = m.elements(predicate) != 0
    if reverse_pred:
        chosen = ~chosen
    other = m.scalar_f32(on_false, on_true, ARITHMETIC)
    values = np.where(chosen, m.f32(on_true), other)
    _maximum(m, reduce_cmd, "idle", reduce_op, reduce_res, on_true, values)
    m.store(dst, values)
    _read_maximum(m, reduce_res, on_true)


def _draw_range_select(s: ProgramBuilder) -> None:
    flat = s.extent()
    tile = s.tile(flat, FLOATS)
    start = s.c.pick((0, 0, 5, 1000))
    bounds = []
    for _ in range(2):
        values = (start + s.values.integers(-2, flat[1] + 2, (flat[0], 1))).astype(np.float32)
        bounds.append(s.tile((flat[0], 1), values=values, reuse=False))
    dst = s.tile(flat, FLOATS, dst=True)
    command = s.c.pick(("", "reset_reduce", "idle"))
    reads = command != "idle" and s.c.flag(70)
    s.call(
        "range_select",
        dst=dst,
        on_true_tile=tile,
        comp_op0=s.op(COMPARE_RANGE),
        comp_op1=s.op(COMPARE_RANGE),
        bound0=bounds[0],
        bound1=bounds[1],
        reduce_cmd=Token(f"nisa.reduce_cmd.{command}") if command else None,
        reduce_res=s.column(flat[0], FLOATS, dst=True, apart=(dst,), reuse=False)
        if reads
        else None,
        reduce_op=Token("nl.maximum") if s.c.flag() else None,
        range_start=start if start or s.c.flag() else None,
        on_false_value=FP32_MIN if s.c.flag() else None,
    )


@entry("range_select", _draw_range_select, generations=(3, 4))
def range_select(
    m: Machine,
    dst: View,
    on_true_tile: View,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = None,
    reduce_res: Any = None,
    reduce_op: Any = None,
    range_start: Any = 0,
    on_false_value: Any = FP32_MIN,
    name: Any = None,
) -> None:
    """Elements whose index compares with both bounds, others FP32_MIN; and the maximum."""
    m.since(3)
    first, second = m.token(comp_op0, COMPARE_RANGE), m.token(comp_op1, COMPARE_RANGE)
    m.tile(dst, ARITHMETIC)
    m.tile(on_true_tile, FLOATS)
    m.same_extent(dst, on_true_tile)
    m.column(bound0, on_true_tile, ("float32",))
    m.column(bound1, on_true_tile, ("float32",))
    m.require(m.number(on_false_value) == FP32_MIN, "on_false_value")
    m.require(isinstance(range_start, int), "range_start is no integer")
    m.require(range_start + on_true_tile.free <= 2**24, "range_start is too large")
    index = np.arange(range_start, range_start + on_true_tile.free).astype(np.float32)[None]
    chosen = alu.compute(first, index, m.f32(bound0)) * alu.compute(second, index, m.f32(bound1))
    values = np.where(chosen != 0, m.f32(on_true_tile), np.float32(FP32_MIN))
    _maximum(m, reduce_cmd, "reset_reduce", reduce_op, reduce_res, on_true_tile, values)
    m.store(dst, values)
    _read_maximum(m, reduce_res, on_true_tile)


# ---- affine patterns ----


def _pattern(s: ProgramBuilder, free: int) -> list[list[int]]:
    sizes = s._free_sizes(free, None)
    return [[s.c.pick((0, 1, 2, -1, 7, 1000, -513)), size] for size in sizes]


def _offset(s: ProgramBuilder) -> Any:
    kind = s.c.pick(("none", "number", "register"))
    if kind == "none":
        return None
    value = s.c.pick((0, 1, -1, 100, -300, 2**30))
    return s.register(value) if kind == "register" else value


def affine(m: Machine, dst: View, pattern: Any, offset: Any, multiplier: Any) -> Array:
    """offset + partition * multiplier + sum(step * index) in 32 bits, [partitions, elements]."""
    is_list = isinstance(pattern, list | tuple) and 1 <= len(pattern) <= 4
    m.require(is_list, "the pattern")
    pairs = all(isinstance(p, list | tuple) and len(p) == 2 for p in pattern)
    m.require(pairs and all(isinstance(n, int) for p in pattern for n in p), "the pattern")
    counts = [count for _, count in pattern]
    m.require(all(c > 0 for c in counts) and math.prod(counts) == dst.free, "size of the pattern")
    m.require(isinstance(multiplier, int), "channel_multiplier")
    base = m.register(offset) if isinstance(offset, Register) else offset
    m.require(isinstance(base, int), "the offset")
    m.require(
        all(abs(n) < 2**31 for n in (base, multiplier, *(s for s, _ in pattern))), "not int32"
    )
    values = np.array([[base]]) + np.arange(dst.partitions)[:, None] * multiplier
    for step, count in pattern:
        values = (values[..., None] + np.arange(count) * step).reshape(dst.partitions, -1)
    return np.asarray((values & 0xFFFFFFFF).astype(np.uint32).view(np.int32))


def _draw_iota(s: ProgramBuilder) -> None:
    flat = s.extent()
    offset = _offset(s)
    s.call(
        "iota",
        dst=s.tile(flat, ARITHMETIC, ("sbuf",), dst=True),
        pattern=_pattern(s, flat[1]),
        offset=offset,
        channel_multiplier=s.c.pick((None, 0, 1, -3, 512)),
    )


@entry("iota", _draw_iota)
def iota(
    m: Machine,
    dst: View,
    pattern: Any,
    offset: Any = 0,
    channel_multiplier: Any = 0,
    name: Any = None,
) -> None:
    """dst = an affine function of the position."""
    m.tile(dst, ARITHMETIC, ("sbuf",))
    m.put(dst, _from_int32(affine(m, dst, pattern, offset, channel_multiplier), dst.dtype))


def _from_int32(values: Array, dtype: str) -> Array:
    """32-bit types keep the bits, narrower integers saturate, floats round once."""
    if dtype in ("int32", "uint32"):
        return values.view(STORED[dtype])
    if dtype in INTEGERS:
        limits = np.iinfo(STORED[dtype])
        return np.clip(values, limits.min, limits.max).astype(STORED[dtype])
    return encode(values, dtype)


def _draw_affine_select(s: ProgramBuilder) -> None:
    flat = s.extent()
    tile = s.tile(flat, ARITHMETIC, ("sbuf",))
    same = (tile.dtype,) if s.c.flag() else ARITHMETIC
    offset = _offset(s)
    s.call(
        "affine_select",
        dst=s.tile(flat, same, ("sbuf",), dst=True),
        pattern=_pattern(s, flat[1]),
        channel_multiplier=s.c.pick((0, 1, -3, 512)),
        on_true_tile=tile,
        on_false_value=s.number(SPECIAL),
        cmp_op=s.op(alu.COMPARISONS) if s.c.flag(80) else None,
        offset=offset,
    )


@entry("affine_select", _draw_affine_select)
def affine_select(
    m: Machine,
    dst: View,
    pattern: Any,
    channel_multiplier: Any,
    on_true_tile: View,
    on_false_value: Any,
    cmp_op: Any = None,
    offset: Any = 0,
    name: Any = None,
) -> None:
    """dst = on_true_tile where the affine value compares with 0, else a number."""
    m.tile(dst, ARITHMETIC, ("sbuf",))
    m.tile(on_true_tile, ARITHMETIC, ("sbuf",))
    m.same_extent(dst, on_true_tile)
    compare = "equal" if cmp_op is None else m.token(cmp_op, alu.COMPARISONS)
    fill = m.number(on_false_value)
    values = affine(m, dst, pattern, offset, channel_multiplier)
    chosen = alu.compute(compare, values.astype(np.float64), np.zeros(1)) != 0
    stored = m.elements(on_true_tile)
    if dst.dtype != on_true_tile.dtype:
        stored = encode(m.f32(on_true_tile), dst.dtype)
    m.put(dst, np.where(chosen, stored, encode(np.array(fill), dst.dtype)))


# ---- searches ----


def _search_operands(s: ProgramBuilder) -> tuple[View, View]:
    flat = s.extent()[0], s.c.pick((8, 9, 32, 100, 513))
    dtypes = (s.dtype(("float32", "bfloat16", "float16", "int16", "uint8")),)
    dims = s.c.pick((2, 3))
    data = s.tile(flat, dtypes, kind=TAME, reuse=False, dims=dims)
    # Values of which most occur, some of them several times.
    stored = data.storage.values
    assert stored is not None
    elements = stored.reshape(-1)[data.index].reshape(data.flat)
    columns = s.values.integers(0, flat[1], (flat[0], 8))
    wanted = np.take_along_axis(elements, columns, 1)
    if s.c.flag(50):
        wanted[:, s.c.integer(0, 7)] = np.array(77).astype(STORED[data.dtype])
    if s.c.flag(30):
        wanted[:, 1:5] = wanted[:, :1]
    return data, s.tile((flat[0], 8), dtypes, values=wanted, reuse=False, dims=dims)


def _matches(data: Array, values: Array, order: Any) -> tuple[Array, Array]:
    """(positions of each value's next unused occurrence or -1, mask of the positions)."""
    positions = np.full(values.shape, -1, dtype=np.int64)
    used = np.zeros(data.shape, dtype=bool)
    for row in range(data.shape[0]):
        for i in order:
            found = np.flatnonzero((data[row] == values[row, i]) & ~used[row])
            if found.size:
                positions[row, i] = found[0]
                used[row, found[0]] = True
    return positions, used


def _draw_find(s: ProgramBuilder) -> None:
    data, vals = _search_operands(s)
    dst = s.tile((data.partitions, 8), ("uint32", "uint16"), dst=True, dims=2)
    s.call("nc_find_index8", dst=dst, data=data, vals=vals)


def _check_search(m: Machine, data: View, vals: View) -> None:
    m.tile(data, ARITHMETIC)
    m.tile(vals, ARITHMETIC)
    m.require(8 <= data.free <= 16384, "8 to 16384 elements")
    m.require(vals.flat == (data.partitions, 8), "8 values")


@entry("nc_find_index8", _draw_find)
def nc_find_index8(m: Machine, dst: View, data: View, vals: View, name: Any = None) -> None:
    """Indices of 8 values; duplicates take successive occurrences, missing ones are all ones."""
    _check_search(m, data, vals)
    m.require(max(len(data.shape), len(vals.shape)) <= 3, "dimensions")
    m.tile(dst, ("uint32", "uint16"))
    m.require(dst.flat == (data.partitions, 8), "size of dst")
    positions, _ = _matches(m.f32(data), m.f32(vals), range(8))
    m.put(dst, positions.astype(np.uint64).astype(STORED[dst.dtype]))


def _draw_replace(s: ProgramBuilder) -> None:
    data, vals = _search_operands(s)
    dst = s.tile(data.flat, (data.dtype, "float32"), dst=True)
    indices = None
    if s.c.flag(60):
        indices = s.tile(
            (data.partitions, 8), ("uint32", "uint16"), dst=True, apart=(dst,), dims=2, reuse=False
        )
    s.call("nc_match_replace8", dst=dst, data=data, vals=vals, imm=s.number(), dst_idx=indices)


@entry("nc_match_replace8", _draw_replace)
def nc_match_replace8(
    m: Machine, dst: View, data: View, vals: View, imm: Any, dst_idx: Any = None, name: Any = None
) -> None:
    """dst = data with each value's next occurrence replaced, the last value first."""
    _check_search(m, data, vals)
    m.tile(dst, ARITHMETIC)
    m.same_extent(dst, data)
    immediate = np.array(m.number(imm)).astype(np.float32)
    values = m.f32(data)
    positions, used = _matches(values, m.f32(vals), range(7, -1, -1))
    m.store(dst, np.where(used, immediate, values))
    if dst_idx is not None:
        m.tile(dst_idx, ("uint32", "uint16"))
        m.require(dst_idx.storage is not dst.storage, "dst and dst_idx may overlap")
        m.require(dst_idx.flat == (data.partitions, 8), "size of dst_idx")
        m.put(dst_idx, positions.astype(np.uint64).astype(STORED[dst_idx.dtype]))
