"""tensor_tensor_scan, tensor_scalar_cumulative."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference import alu
from nki_reference.elementwise import two_of
from nki_reference.machine import HALF_ULP, IDENTITIES, Machine
from nki_reference.numbers import ARITHMETIC
from nki_reference.program import Token, View
from nki_reference.program_builder import TAME, ProgramBuilder
from nki_reference.table import entry, never

CUMULATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
CUMULATIVE_DTYPES = tuple(
    dtype for dtype in ARITHMETIC if dtype not in ("int32", "uint32", "tfloat32")
)


def _draw_scan(s: ProgramBuilder) -> None:
    flat = s.extent()
    data0, data1 = two_of(s, flat, ARITHMETIC, kind=TAME)
    names = alu.binary(s.generation, power=False)
    s.call(
        "tensor_tensor_scan",
        dst=s.tile(flat, ARITHMETIC, dst=True),
        data0=data0,
        data1=data1,
        initial=s.scalar(data0, ARITHMETIC, kind=TAME),
        op0=s.op(names),
        op1=s.op(names),
        reverse0=True if s.c.flag(30) else None,
        reverse1=True if s.c.flag(30) else None,
    )


@entry("tensor_tensor_scan", _draw_scan, is_exact=alu.is_exact("op0", "op1"))
def tensor_tensor_scan(
    m: Machine,
    dst: View,
    data0: View,
    data1: View,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: Any = False,
    reverse1: Any = False,
    name: Any = None,
) -> None:
    """dst[i] = (data0[i] <op0> dst[i - 1]) <op1> data1[i], the state in float32."""
    first, second = (m.token(op, alu.binary(m.generation)) for op in (op0, op1))
    for tile in (dst, data0, data1):
        m.tile(tile, ARITHMETIC)
    m.same_extent(dst, data0, data1)
    m.require(not data0.buffer == data1.buffer == "psum", "both inputs are in PSUM")
    state = np.broadcast_to(m.scalar_f32(initial, data0, ARITHMETIC), (data0.partitions, 1))[:, 0]
    left, right = m.f32(data0), m.f32(data1)
    result = np.empty(dst.flat, dtype=np.float32)
    for i in range(dst.free):
        inner = alu.compute(first, left[:, i], state, bool(reverse0)).astype(np.float32)
        state = alu.compute(second, inner, right[:, i], bool(reverse1)).astype(np.float32)
        result[:, i] = state
    # An error of `power` grows along the scan: only its first element is known then.
    error = None
    if "power" in (first, second):
        error = np.full(dst.flat, np.inf)
    m.store(dst, result, error)


def _draw_cumulative(s: ProgramBuilder) -> None:
    flat = s.extent()
    src = s.tile(flat, CUMULATIVE_DTYPES, kind=TAME)
    names = tuple(name for name in alu.arithmetic(s.generation) if name not in alu.INEXACT)
    first, second = s.op(names), s.op(CUMULATIVE)
    command = s.c.pick(("", "reset_reduce", "load_reduce"))
    s.call(
        "tensor_scalar_cumulative",
        dst=s.tile(flat, CUMULATIVE_DTYPES, dst=True),
        src=src,
        op0=first,
        op1=second,
        imm0=0.0 if first.name in alu.UNARY else s.scalar(src, kind=TAME),
        imm1=s.scalar(src, kind=TAME) if command == "load_reduce" else None,
        reduce_cmd=Token(f"nisa.reduce_cmd.{command}") if command else None,
    )


@entry("tensor_scalar_cumulative", _draw_cumulative, is_exact=never)
def tensor_scalar_cumulative(
    m: Machine,
    dst: View,
    src: View,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = None,
    name: Any = None,
) -> None:
    """register = dst[i] = (src[i] <op0> imm0) <op1> register."""
    first = m.token(op0, alu.arithmetic(m.generation))
    second = m.token(op1, CUMULATIVE)
    m.tile(dst, CUMULATIVE_DTYPES)
    m.tile(src, CUMULATIVE_DTYPES)
    m.same_extent(dst, src)
    commands = ("reset_reduce", "reduce", "load_reduce")
    command = "reset_reduce" if reduce_cmd is None else m.token(reduce_cmd, commands)
    m.require(command != "load_reduce" or imm1 is not None, "imm1 is missing")
    other = None if first in alu.UNARY else m.scalar_f32(imm0, src)
    lanes = slice(src.start, src.start + src.partitions)
    registers = m.vector
    if command == "reset_reduce":
        registers.values[lanes], registers.errors[lanes] = IDENTITIES[second], 0.0
        registers.known[lanes] = True
    elif command == "load_reduce":
        registers.values[lanes] = np.broadcast_to(m.scalar_f32(imm1, src), (src.partitions, 1))[
            :, 0
        ]
        registers.errors[lanes], registers.known[lanes] = 0.0, True
    state = registers.values[lanes].astype(np.float32)
    values = alu.compute(first, m.f32(src), other).astype(np.float32)
    values = np.broadcast_to(values, src.flat)
    result, size = np.empty(src.flat, dtype=np.float32), np.empty(src.flat)
    running = np.abs(state).astype(np.float64)
    for i in range(src.free):
        state = alu.compute(second, values[:, i], state).astype(np.float32)
        running = running + np.abs(values[:, i]) if second != "multiply" else np.abs(state)
        result[:, i], size[:, i] = state, running
    error = size * np.arange(2, src.free + 2) * 2 * HALF_ULP
    if second in ("maximum", "minimum"):
        error = np.zeros_like(error)
    start = np.where(registers.known[lanes], registers.errors[lanes], np.inf)
    error = error + start[:, None]
    if alu.error(first, values) is not None:
        error = np.full_like(error, np.inf)
    error = np.where(np.isfinite(result), error, np.inf)
    registers.values[lanes], registers.errors[lanes] = result[:, -1], error[:, -1]
    registers.known[lanes] = True
    m.store(dst, result, error)
