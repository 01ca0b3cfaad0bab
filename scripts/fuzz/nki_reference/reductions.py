"""tensor_reduce, tensor_partition_reduce, tensor_scalar_reduce, bn_stats, bn_aggr, max8."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki_reference import alu
from nki_reference.elementwise import by_size
from nki_reference.machine import HALF_ULP, Machine, reduce_rows
from nki_reference.numbers import ARITHMETIC, FLOATS, STORED, Array, raw, size_of
from nki_reference.program import Call, Token, View
from nki_reference.program_builder import SPECIAL, TAME, ProgramBuilder
from nki_reference.table import entry, never

LOGICAL_REDUCTIONS = ("logical_and", "logical_or", "logical_xor")
BIT_REDUCTIONS = ("bitwise_and", "bitwise_or", "bitwise_xor")
EXACT_REDUCTIONS = ("maximum", "minimum", *LOGICAL_REDUCTIONS, *BIT_REDUCTIONS, "max")


def _reduces_exactly(call: Call) -> bool:
    token = call.arguments.get("op")
    return isinstance(token, Token) and token.name in EXACT_REDUCTIONS


# Not those by magnitude, which are the Scalar Engine's (SDK/nki/api/nki.api.shared.rst).
_REDUCTIONS = ("add", "subtract", "multiply", "maximum", "minimum", *LOGICAL_REDUCTIONS)


def _reduce(kind: str, rows: Array) -> tuple[Array, Array]:
    """(result, error) of rows [..., count] in float64."""
    flat = rows.reshape(-1, rows.shape[-1])
    if kind == "logical_and":
        result, error = (flat != 0).all(1).astype(np.float64), np.zeros(len(flat))
    elif kind == "logical_or":
        result, error = (flat != 0).any(1).astype(np.float64), np.zeros(len(flat))
    elif kind == "logical_xor":
        result, error = ((flat != 0).sum(1) % 2).astype(np.float64), np.zeros(len(flat))
    else:
        result, error = reduce_rows(kind, flat)
    return result.reshape(rows.shape[:-1]), error.reshape(rows.shape[:-1])


# ---- tensor_reduce ----


def _draw_tensor_reduce(s: ProgramBuilder) -> None:
    flat = s.extent()
    is_bits = s.c.flag(15)
    names = BIT_REDUCTIONS if is_bits else _REDUCTIONS
    dtypes = by_size(s.c.pick((1, 2, 4))) if is_bits else ARITHMETIC
    op = s.op(names)
    # Products stay far from overflow, where the order of multiplying would decide.
    kind = TAME if op.name in ("multiply", "subtract", "add") else SPECIAL
    data = s.tile(flat, dtypes, kind=kind, reuse=op.name != "multiply")
    if op.name == "multiply":
        data.storage.values, data.storage.other = _near_one(s, data), None
    first = s.c.integer(1, len(data.shape) - 1)
    axis: Any = tuple(range(first, len(data.shape)))
    axis = axis[0] if len(axis) == 1 and s.c.flag() else axis
    kept = math.prod(data.shape[1:first])
    s.call(
        "tensor_reduce",
        dst=s.tile((flat[0], kept), dtypes, dst=True, apart=(data,), reuse=False),
        op=op,
        data=data,
        axis=axis,
        negate=True if not is_bits and s.c.flag(30) else None,
        keepdims=True if s.c.flag(30) else None,
    )


def _near_one(s: ProgramBuilder, data: View) -> Array:
    values = 1 + s.values.integers(-1, 2, data.storage.shape) * 0.0078125
    return values.astype(np.float32).astype(STORED[data.dtype])


@entry("tensor_reduce", _draw_tensor_reduce, is_exact=_reduces_exactly)
def tensor_reduce(
    m: Machine,
    dst: View,
    op: Any,
    data: View,
    axis: Any,
    negate: Any = False,
    keepdims: Any = False,
    name: Any = None,
) -> None:
    """dst = the reduction of the last free axes."""
    kind = m.token(op, (*_REDUCTIONS, *BIT_REDUCTIONS))
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    axes = (axis,) if isinstance(axis, int) else axis
    m.require(isinstance(axes, list | tuple) and all(type(a) is int for a in axes), "axis")
    ndim = len(data.shape)
    axes = tuple(sorted(a + ndim if a < 0 else a for a in axes))
    kept = ndim - len(axes)
    m.require(axes and kept >= 1 and axes == tuple(range(kept, ndim)), "not the last axes")
    m.require(dst.flat == (data.partitions, math.prod(data.shape[1:kept])), "size of dst")
    length = math.prod(data.shape[kept:])
    if kind in BIT_REDUCTIONS:
        m.require(not negate, "negate with bitvec")
        m.require(dst.dtype in by_size(size_of(data.dtype)), "bitvec operators do not cast")
        m.require(data.dtype in by_size(size_of(data.dtype)), "bitvec takes integers")
        rows = raw(m.elements(data)).reshape(data.partitions, -1, length)
        result = getattr(np, kind).reduce(rows, axis=2)
        m.put(dst, result.astype(rows.dtype).view(STORED[dst.dtype]))
        return
    values = m.f32(data).astype(np.float64).reshape(data.partitions, -1, length)
    result, error = _reduce(kind, values)
    sign = -1.0 if negate else 1.0
    m.store(dst, result * sign, None if kind in EXACT_REDUCTIONS else error)


# ---- tensor_partition_reduce ----


def _draw_partition_reduce(s: ProgramBuilder) -> None:
    flat = s.extent()
    name = s.c.pick(("add", "average", "max", "maximum", "bitwise_or", "bitwise_and"))
    dtypes = by_size(s.c.pick((1, 2, 4))) if name.startswith("bit") else ARITHMETIC
    data = s.tile(flat, dtypes, ("sbuf",))
    dst = s.tile((1, flat[1]), dtypes, ("sbuf",), dst=True, apart=(data,), reuse=False)
    s.call("tensor_partition_reduce", dst=dst, op=Token(f"nl.{name}"), data=data)


@entry("tensor_partition_reduce", _draw_partition_reduce, is_exact=_reduces_exactly)
def tensor_partition_reduce(m: Machine, dst: View, op: Any, data: View, name: Any = None) -> None:
    """dst[0] = the reduction over partitions."""
    kind = m.token(op, ("add", "average", "maximum", "bitwise_or", "bitwise_and"))
    m.tile(dst, ARITHMETIC, ("sbuf",))
    m.tile(data, ARITHMETIC, ("sbuf",))
    m.require(dst.flat == (1, data.free), "size of dst")
    if kind in BIT_REDUCTIONS:
        m.require(
            {dst.dtype, data.dtype} <= set(by_size(size_of(data.dtype))),
            "bitvec operators do not cast",
        )
        rows = raw(m.elements(data))
        m.put(dst, getattr(np, kind).reduce(rows, axis=0)[None].view(STORED[dst.dtype]))
        return
    columns = m.f32(data).astype(np.float64).T
    result, error = _reduce("add" if kind == "average" else kind, columns)
    if kind == "average":
        result, error = result / data.partitions, error / data.partitions
        error = error + np.abs(result) * 2 * HALF_ULP + 2.0**-149
    m.store(dst, result[None], None if kind == "maximum" else error[None])


# ---- tensor_scalar_reduce ----


def _draw_scalar_reduce(s: ProgramBuilder) -> None:
    flat = s.extent()
    reduction = s.c.pick(("add", "maximum", "minimum", "max", "min", "multiply"))
    data = s.tile(flat, ARITHMETIC, kind=TAME, reuse=reduction != "multiply")
    names = tuple(name for name in alu.arithmetic(s.generation) if name not in alu.INEXACT)
    op = s.op(("maximum",) if reduction == "multiply" else names)
    operand: Any = 0 if op.name in alu.UNARY else s.scalar(data, kind=TAME)
    if reduction == "multiply":
        data.storage.values, data.storage.other = _near_one(s, data), None
        operand = 0.0
    command = s.c.pick(("", "reset_reduce", "load_reduce"))
    dst = s.tile(flat, ARITHMETIC, dst=True)
    reads = s.c.flag(75)
    s.call(
        "tensor_scalar_reduce",
        dst=dst,
        data=data,
        op0=op,
        operand0=operand,
        reduce_op=Token(f"nl.{reduction}"),
        reduce_cmd=Token(f"nisa.reduce_cmd.{command}") if command else None,
        reduce_init=s.scalar(data, kind=TAME) if command == "load_reduce" else None,
        reduce_res=s.column(flat[0], FLOATS, dst=True, apart=(dst,), reuse=False)
        if reads
        else None,
        reduce_res_negate=True if s.c.flag(30) else None,
    )


@entry("tensor_scalar_reduce", _draw_scalar_reduce, is_exact=never)
def tensor_scalar_reduce(
    m: Machine,
    dst: View,
    data: View,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Any = None,
    reverse0: Any = False,
    reduce_cmd: Any = None,
    reduce_init: Any = None,
    reduce_res_negate: Any = False,
    name: Any = None,
) -> None:
    """dst = data <op0> operand0, and its reduction."""
    kind = m.token(op0, alu.arithmetic(m.generation))
    reduction = m.token(reduce_op, ("add", "multiply", "maximum", "minimum"))
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    m.same_extent(dst, data)
    m.require(not reverse0, "reverse0 is not supported yet")
    commands = ("reset_reduce", "reduce", "load_reduce")
    command = "reset_reduce" if reduce_cmd is None else m.token(reduce_cmd, commands)
    m.require((reduce_init is not None) == (command == "load_reduce"), "reduce_init")
    alu.unary_operand(m, kind, operand0)
    other = None if kind in alu.UNARY else m.scalar_f32(operand0, data)
    initial = None if reduce_init is None else m.scalar_f32(reduce_init, data)
    values = alu.compute(kind, m.f32(data), other)
    error = alu.error(kind, values)
    m.accumulate(
        m.vector, command, reduction, data, values, 0.0 if error is None else error, initial
    )
    m.store(dst, values, error)
    if reduce_res is not None:
        m.column(reduce_res, data)
        m.read_out(m.vector, reduce_res, data, -1.0 if reduce_res_negate else 1.0)


# ---- statistics ----


def _draw_bn_stats(s: ProgramBuilder) -> None:
    partitions = s.extent()[0]
    flat = partitions, s.c.pick((1, 2, 3, 17, 128, 511, 512))
    data = s.tile(flat, ARITHMETIC, kind=TAME)
    s.call("bn_stats", dst=s.tile((flat[0], 6), FLOATS, dst=True, apart=(data,)), data=data)


@entry("bn_stats", _draw_bn_stats, is_exact=never)
def bn_stats(m: Machine, dst: View, data: View, name: Any = None) -> None:
    """Count, mean and variance * count of the even elements, then of the odd ones."""
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    m.require(data.free <= 512, "more than 512 elements")
    m.require(dst.flat == (data.partitions, 6), "size of dst")
    values = m.f32(data).astype(np.float64)
    result = np.zeros((data.partitions, 6))
    error = np.zeros((data.partitions, 6))
    for first in (0, 1):
        part = values[:, first::2]
        count = part.shape[1]
        column = 3 * first
        result[:, column] = count
        if not count:
            continue
        mean = part.mean(1)
        off = np.abs(part).sum(1) * 4 * HALF_ULP + 2.0**-140
        centred = (part - mean[:, None]) ** 2
        result[:, column + 1], error[:, column + 1] = mean, off
        result[:, column + 2] = centred.sum(1)
        spread = np.abs(part - mean[:, None]).max(1)
        error[:, column + 2] = centred.sum(1) * count * 4 * HALF_ULP + count * off * (
            2 * spread + off
        )
    _store_statistics(m, dst, result, error)


def _store_statistics(m: Machine, dst: View, result: Array, error: Array) -> None:
    # Squares overflow from here on, in one order of the operations or another.
    bad = ~np.isfinite(result) | (np.abs(result) > 1e15)
    bad = np.broadcast_to(bad.any(1, keepdims=True), result.shape)
    m.store(dst, result, np.where(bad, np.inf, error))


def _draw_bn_aggr(s: ProgramBuilder) -> None:
    partitions = s.extent()[0]
    groups = s.c.pick((1, 2, 3, 8))
    triples = np.empty((partitions, groups, 3))
    triples[..., 0] = s.values.integers(1, 257, triples.shape[:2])
    triples[..., 1] = s.values.standard_normal(triples.shape[:2])
    triples[..., 2] = s.values.random(triples.shape[:2]) * 50
    dtype = s.dtype(("float32", "bfloat16", "float16"))
    stored = triples.reshape(partitions, -1).astype(np.float32).astype(STORED[dtype])
    data = s.tile((partitions, 3 * groups), (dtype,), values=stored, reuse=False)
    dst = s.tile((partitions, 2), FLOATS, dst=True, apart=(data,))
    s.call("bn_aggr", dst=dst, data=data)


@entry("bn_aggr", _draw_bn_aggr, is_exact=never)
def bn_aggr(m: Machine, dst: View, data: View, name: Any = None) -> None:
    """Mean and variance of triples (count, mean, variance * count)."""
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    m.require(data.free % 3 == 0, "not triples")
    m.require(dst.flat == (data.partitions, 2), "size of dst")
    values = m.f32(data).astype(np.float64)
    count, mean, spread = values[:, 0::3], values[:, 1::3], values[:, 2::3]
    total = count.sum(1)
    average = (count * mean).sum(1) / total
    squares = count * (mean - average[:, None]) ** 2
    variance = (spread + squares).sum(1) / total
    scale = (np.abs(count * mean)).sum(1) / np.abs(total)
    groups = count.shape[1] + 4
    # Products of tiny counts and means may become 0.
    tiny = groups * 2.0**-126 / np.abs(total)
    off = scale * groups * 4 * HALF_ULP + tiny
    distance = np.abs(mean - average[:, None]).max(1)
    loose = (np.abs(spread) + np.abs(squares)).sum(1) / np.abs(total) * groups * 4 * HALF_ULP
    error = np.stack((off, loose + tiny + 2 * distance * off + off**2), 1)
    # Counts that cancel leave nothing certain, nor do sums that float32 cannot hold on the way.
    error[(count <= 0).any(1)] = np.inf
    largest = [np.abs(count * mean), distance[:, None] ** 2, np.abs(squares), np.abs(spread)]
    error[np.max([size.max(1) for size in largest], axis=0) * groups > 1e38] = np.inf
    _store_statistics(m, dst, np.stack((average, variance), 1), error)


# ---- max8 ----


def _draw_max8(s: ProgramBuilder) -> None:
    flat = s.extent()[0], s.c.pick((8, 9, 16, 100, 513))
    src = s.tile(flat, ARITHMETIC, dims=s.c.pick((2, 3)))
    dst = s.tile((flat[0], 8), ARITHMETIC, dst=True, apart=(src,), dims=2)
    s.call("max8", dst=dst, src=src)


@entry("max8", _draw_max8)
def max8(m: Machine, dst: View, src: View, name: Any = None) -> None:
    """The 8 largest in descending order; NaN counts as the largest."""
    m.tile(dst, ARITHMETIC)
    m.tile(src, ARITHMETIC)
    m.require(8 <= src.free <= 16384, "8 to 16384 elements")
    m.require(len(src.shape) <= 3 and len(dst.shape) == 2, "dimensions")
    m.require(dst.flat == (src.partitions, 8), "size of dst")
    m.store(dst, np.sort(m.f32(src), axis=1)[:, ::-1][:, :8])
