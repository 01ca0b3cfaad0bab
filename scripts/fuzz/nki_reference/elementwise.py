"""tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference import alu
from nki_reference.machine import Machine
from nki_reference.numbers import (
    ARITHMETIC,
    FLOATS,
    INTEGERS,
    STORED,
    WIDE_INTEGERS,
    Array,
    raw,
    size_of,
)
from nki_reference.program import View
from nki_reference.program_builder import SPECIAL, ProgramBuilder
from nki_reference.table import entry, never

SIGNED = {1: "int8", 2: "int16", 4: "int32"}


def by_size(size: int) -> tuple[str, ...]:
    """Integer types of one width."""
    return tuple(dtype for dtype in INTEGERS if size_of(dtype) == size)


def two_of(s: ProgramBuilder, flat: tuple[int, int], dtypes: Any, **more: Any) -> tuple[View, View]:
    """Two sources of which at most one is in PSUM."""
    first = s.tile(flat, dtypes, **more)
    buffers = ("sbuf",) if first.buffer == "psum" else ("sbuf", "psum")
    return first, s.tile(flat, dtypes, buffers, **more)


# ---- tensor_tensor ----


def _draw_tensor_tensor(s: ProgramBuilder) -> None:
    flat = s.extent()
    kind = s.c.pick(("float", "float", "integer", "bits"))
    if kind == "bits":
        dtypes = by_size(s.c.pick((1, 2, 4)))
        a, b = two_of(s, flat, dtypes)
        dst = s.tile(flat, dtypes, dst=True)
        s.call("tensor_tensor", dst=dst, data1=a, data2=b, op=s.op(alu.BITS))
        return
    dtypes = WIDE_INTEGERS if kind == "integer" else ARITHMETIC
    is_power = kind == "float" and s.c.flag(8)
    buffers = ("sbuf",) if is_power else ("sbuf", "psum")
    if is_power:
        a, b = s.tile(flat, dtypes, buffers), s.tile(flat, dtypes, buffers)
    else:
        a, b = two_of(s, flat, dtypes, kind=s.c.pick(("plain", SPECIAL)))
    dst = s.tile(flat, dtypes, buffers, dst=True)
    names = ("power",) if is_power else alu.binary(s.generation, power=False)
    in_psum = "psum" in (a.buffer, b.buffer, dst.buffer)
    engines = ("gpsimd",) if is_power else ("vector",) if in_psum else ("vector", "gpsimd")
    engine = s.engine(engines)
    s.call("tensor_tensor", dst=dst, data1=a, data2=b, op=s.op(names), engine=engine)


@entry("tensor_tensor", _draw_tensor_tensor, is_exact=alu.is_exact("op"))
def tensor_tensor(
    m: Machine, dst: View, data1: View, data2: View, op: Any, engine: Any = None, name: Any = None
) -> None:
    """dst = data1 <op> data2."""
    kind = m.token(op, (*alu.binary(m.generation), *alu.BITS))
    for tile in (dst, data1, data2):
        m.tile(tile, ARITHMETIC)
    m.same_extent(dst, data1, data2)
    m.require(not data1.buffer == data2.buffer == "psum", "both inputs are in PSUM")
    in_psum = "psum" in (dst.buffer, data1.buffer, data2.buffer)
    is_wide = all(tile.dtype in WIDE_INTEGERS for tile in (dst, data1, data2))
    if kind in alu.BITS:
        m.engine(engine, ("vector",))
        store_bits(m, dst, [(kind, False, data2)], data1)
        return
    if kind == "power":
        used = m.engine(engine, ("gpsimd",))
    else:
        default = "gpsimd" if is_wide and not in_psum else "vector"
        used = m.engine(engine, ("vector", "gpsimd"), default)
    m.require(used != "gpsimd" or not in_psum, "GpSimd cannot access PSUM")
    if used == "gpsimd" and is_wide and kind not in ("power", *alu.ABSOLUTE):
        store_integers(m, dst, [(kind, False, data2)], data1)
        return
    values = alu.compute(kind, m.f32(data1), m.f32(data2))
    m.store(dst, values, alu.error(kind, values))


def _integers(m: Machine, operand: Any, like: View) -> Array:
    if isinstance(operand, View):
        if operand.flat != like.flat:
            m.column(operand, like)
        return m.elements(operand).astype(np.int64)
    return np.asarray(int(operand), dtype=np.int64)


def store_integers(m: Machine, dst: View, stages: list[Any], data: View) -> None:
    """Stages (op, reverse, operand) in 32-bit integers that wrap around."""
    value = m.elements(data).astype(np.int64)
    for kind, reverse, operand in stages:
        other = _integers(m, operand, data)
        left, right = (other, value) if reverse else (value, other)
        result = np.asarray(getattr(np, kind)(left, right)).astype(np.int64)
        # Every operator wraps around in the type of the result.
        bits = np.ascontiguousarray(result & 0xFFFFFFFF).astype(np.uint32)
        value = bits.view(STORED[dst.dtype]).astype(np.int64)
    m.put(dst, np.broadcast_to(value, dst.flat).astype(STORED[dst.dtype]))


def store_bits(m: Machine, dst: View, stages: list[Any], data: View) -> None:
    """Bitvec stages (op, reverse, operand); all integers of one width."""
    size = size_of(data.dtype)
    value = None
    for tile in (dst, data, *(stage[2] for stage in stages)):
        if isinstance(tile, View):
            m.require(tile.dtype in by_size(size), "bitvec operators do not cast")
    value = raw(m.elements(data))
    for kind, reverse, operand in stages:
        value = alu.bits(kind, value, _bit_operand(m, operand, data, size), reverse)
    m.put(dst, np.ascontiguousarray(value).view(STORED[dst.dtype]))


def _bit_operand(m: Machine, operand: Any, like: View, size: int) -> Array | None:
    if operand is None:
        return None
    if isinstance(operand, View):
        if operand.flat != like.flat:
            m.column(operand, like)
        return raw(m.elements(operand))
    m.require(float(operand).is_integer(), "a bitvec operand is no integer")
    masked = int(operand) & ((1 << 8 * size) - 1)
    return np.asarray(masked, dtype=f"uint{8 * size}")


# ---- tensor_scalar ----


def _draw_tensor_scalar(s: ProgramBuilder) -> None:
    flat = s.extent()
    two = s.c.flag(50)
    if s.c.flag(15):
        _draw_bit_stages(s, flat, two)
        return
    is_wide = s.c.flag(12)
    dtypes = WIDE_INTEGERS if is_wide else ARITHMETIC
    data = s.tile(flat, dtypes)
    dst = s.tile(flat, dtypes, dst=True)
    names = alu.NATIVE + alu.COMPARISONS if is_wide else alu.arithmetic(s.generation)
    ops = [s.op(names), s.op(names)] if two else [s.op(names)]
    if two and ops[0].name in alu.INEXACT:
        ops[1] = s.op(alu.NATIVE)
    unary = [op.name in alu.UNARY for op in ops]
    # Small integer immediates: products of two stages fit in 32 bits or wrap around.
    operands: list[Any] = [
        (0 if s.c.flag() else None)
        if one
        else s.c.integer(-9, 9)
        if is_wide
        else s.scalar(data, kind=SPECIAL)
        for one in unary
    ]
    if unary[0] and operands[0] is None:
        operands[0] = 0
    _call_tensor_scalar(s, dst, data, ops, operands)


def _call_tensor_scalar(
    s: ProgramBuilder, dst: View, data: View, ops: list[Any], operands: list[Any]
) -> None:
    names = tuple(op.name for op in ops)
    columns = [operand for operand in operands if isinstance(operand, View)]
    in_psum = "psum" in (dst.buffer, data.buffer, *(column.buffer for column in columns))
    engines = ["vector"]
    if "rsqrt" in names and not in_psum:
        engines.append("gpsimd")
    if s.generation >= 3 and names in (("multiply", "add"), ("multiply",), ("add",)):
        engines.append("scalar")
    s.call(
        "tensor_scalar",
        dst=dst,
        data=data,
        op0=ops[0],
        operand0=operands[0],
        reverse0=True if s.c.flag(25) else None,
        op1=ops[1] if len(ops) > 1 else None,
        operand1=operands[1] if len(ops) > 1 else None,
        reverse1=True if len(ops) > 1 and s.c.flag(25) else None,
        engine=s.engine(engines),
    )


def _draw_bit_stages(s: ProgramBuilder, flat: tuple[int, int], two: bool) -> None:
    dtypes = by_size(s.c.pick((1, 2, 4)))
    data, dst = s.tile(flat, dtypes), s.tile(flat, dtypes, dst=True)
    ops = [s.op(alu.BITS + alu.UNARY_BITS) for _ in range(2 if two else 1)]
    operands: list[Any] = [
        0
        if op.name == "invert"
        else s.c.integer(0, 9)
        if s.c.flag(70)
        else s.column(flat[0], dtypes)
        for op in ops
    ]
    s.call(
        "tensor_scalar",
        dst=dst,
        data=data,
        op0=ops[0],
        operand0=operands[0],
        op1=ops[1] if two else None,
        operand1=operands[1] if two else None,
        reverse0=True if s.c.flag(20) else None,
    )


@entry("tensor_scalar", _draw_tensor_scalar, is_exact=alu.is_exact("op0", "op1"))
def tensor_scalar(
    m: Machine,
    dst: View,
    data: View,
    op0: Any,
    operand0: Any = None,
    reverse0: Any = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: Any = False,
    engine: Any = None,
    name: Any = None,
) -> None:
    """dst = (data <op0> operand0) <op1> operand1."""
    allowed = (*alu.arithmetic(m.generation), *alu.BITS, *alu.UNARY_BITS)
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    m.same_extent(dst, data)
    stages = [(m.token(op0, allowed), reverse0, operand0)]
    if op1 is not None:
        stages.append((m.token(op1, allowed), reverse1, operand1))
    else:
        m.require(operand1 is None, "operand1 without op1")
    for kind, _, operand in stages:
        alu.unary_operand(m, kind, operand)
    names = tuple(stage[0] for stage in stages)
    is_bits = [kind in (*alu.BITS, *alu.UNARY_BITS) for kind in names]
    m.require(len(set(is_bits)) == 1, "bitvec and arithmetic operators are mixed")
    _tensor_scalar_engine(m, names, is_bits[0], engine, [dst, data, operand0, operand1])
    stages = [
        (kind, reverse, None if kind in (*alu.UNARY, *alu.UNARY_BITS) else operand)
        for kind, reverse, operand in stages
    ]
    if is_bits[0]:
        store_bits(m, dst, stages, data)
    elif _is_integral(dst, data, stages):
        store_integers(m, dst, stages, data)
    else:
        _store_stages(m, dst, data, stages)


def _tensor_scalar_engine(
    m: Machine, names: tuple[str, ...], is_bits: bool, engine: Any, operands: list[Any]
) -> None:
    in_psum = any(isinstance(view, View) and view.buffer == "psum" for view in operands)
    allowed = ["vector"]
    if not is_bits and "rsqrt" in names:
        allowed.append("gpsimd")
    if m.generation >= 3 and names in (("multiply", "add"), ("multiply",), ("add",)):
        allowed.append("scalar")
    used = m.engine(engine, allowed)
    m.require(used != "gpsimd" or not in_psum, "GpSimd cannot access PSUM")


def _is_integral(dst: View, data: View, stages: list[Any]) -> bool:
    """The address-arithmetic pattern: 32-bit integers and integer operands are exact."""
    exact = (*alu.NATIVE, *alu.COMPARISONS, *alu.LOGICAL)
    return (
        dst.dtype in WIDE_INTEGERS
        and data.dtype in WIDE_INTEGERS
        and all(
            kind in exact
            and (
                operand.dtype in WIDE_INTEGERS
                if isinstance(operand, View)
                else isinstance(operand, int)
            )
            for kind, _, operand in stages
        )
    )


def _store_stages(m: Machine, dst: View, data: View, stages: list[Any]) -> None:
    """Two float32 stages; an error of the first is carried through the second by its ends."""
    kind, reverse, operand = stages[0]
    other = None if operand is None else m.scalar_f32(operand, data)
    value = alu.compute(kind, m.f32(data), other, reverse)
    spread = alu.error(kind, value)
    if len(stages) == 1:
        m.store(dst, value, spread)
        return
    kind, reverse, operand = stages[1]
    other = None if operand is None else m.scalar_f32(operand, data)
    store_second(m, dst, kind, value, spread, other, reverse)


def store_second(
    m: Machine,
    dst: View,
    kind: str,
    value: Array,
    spread: Array | None,
    other: Array | None,
    reverse: bool,
) -> None:
    """The second of two stages on a first result that is known to within `spread`."""
    if spread is None:
        result = alu.compute(kind, value, other, reverse)
        m.store(dst, result, alu.error(kind, result))
        return
    with np.errstate(all="ignore"):
        ends = [
            np.broadcast_to(alu.compute(kind, value + shift, other, reverse), dst.flat)
            for shift in (-spread, 0 * spread, spread)
        ]
        wide = np.stack([end.astype(np.float64) for end in ends])
        middle = wide[1]
        error = np.fmax(np.abs(wide[0] - middle), np.abs(wide[2] - middle))
        own = alu.error(kind, middle)
        error = error + np.abs(middle) * 2.0**-22
        if own is not None:
            # Nothing is said about an inexact function of an inexact value.
            error = np.full_like(error, np.inf)
        m.store(dst, middle, np.where(np.isnan(error), np.inf, error))


# ---- scalar_tensor_tensor, reciprocal ----


def _draw_scalar_tensor_tensor(s: ProgramBuilder) -> None:
    flat = s.extent()
    data, other = two_of(s, flat, ARITHMETIC)
    # One inexact operator at most: what its error becomes is not what this instruction is about.
    first = s.op(alu.arithmetic(s.generation))
    second = s.op(alu.NATIVE if first.name in alu.INEXACT else alu.binary(s.generation))
    is_unary = first.name in alu.UNARY
    s.call(
        "scalar_tensor_tensor",
        dst=s.tile(flat, ARITHMETIC, dst=True),
        data=data,
        op0=first,
        operand0=0 if is_unary else s.scalar(data, FLOATS),
        op1=second,
        operand1=other,
        reverse0=True if s.c.flag(25) else None,
        reverse1=True if s.c.flag(25) else None,
    )


@entry("scalar_tensor_tensor", _draw_scalar_tensor_tensor, is_exact=alu.is_exact("op0", "op1"))
def scalar_tensor_tensor(
    m: Machine,
    dst: View,
    data: View,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Any,
    reverse0: Any = False,
    reverse1: Any = False,
    name: Any = None,
) -> None:
    """dst = (data <op0> operand0) <op1> operand1."""
    first = m.token(op0, alu.arithmetic(m.generation))
    second = m.token(op1, alu.binary(m.generation))
    for tile in (dst, data, operand1):
        m.tile(tile, ARITHMETIC)
    m.same_extent(dst, data, operand1)
    m.require(not data.buffer == operand1.buffer == "psum", "both inputs are in PSUM")
    alu.unary_operand(m, first, operand0)
    other = None if first in alu.UNARY else m.scalar_f32(operand0, data, ARITHMETIC)
    value = alu.compute(first, m.f32(data), other, reverse0)
    store_second(m, dst, second, value, alu.error(first, value), m.f32(operand1), reverse1)


def _draw_reciprocal(s: ProgramBuilder) -> None:
    flat = s.extent()
    s.call("reciprocal", dst=s.tile(flat, ARITHMETIC, dst=True), data=s.tile(flat, ARITHMETIC))


@entry("reciprocal", _draw_reciprocal, is_exact=never)
def reciprocal(m: Machine, dst: View, data: View, name: Any = None) -> None:
    """dst = 1 / data."""
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    m.same_extent(dst, data)
    values = alu.compute("reciprocal", m.f32(data))
    m.store(dst, values, alu.error("reciprocal", values))
