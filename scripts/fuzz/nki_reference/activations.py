"""activation, activation_reduce, activate2, exponential."""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_reference import functions
from nki_reference.machine import HALF_ULP, Machine
from nki_reference.numbers import ARITHMETIC, FLOATS, Array
from nki_reference.program import Token, View
from nki_reference.program_builder import ProgramBuilder
from nki_reference.table import entry, never

COMMANDS = ("idle", "reset", "reduce", "reset_reduce")
BIASES = tuple(dtype for dtype in ARITHMETIC if dtype != "tfloat32")


def _command(m: Machine, token: Any, allowed: tuple[str, ...], default: str) -> str:
    return default if token is None else m.token(token, allowed)


def affine(m: Machine, data: View, scale: Any, bias: Any) -> tuple[Array, Array, Array]:
    """(low, middle, high) of data * scale + bias: rounded once, or after each operation."""
    factor = m.scalar_f32(scale, data).astype(np.float64)
    term = np.float64(0) if bias is None else m.scalar_f32(bias, data, BIASES).astype(np.float64)
    with np.errstate(all="ignore"):
        product = m.f32(data).astype(np.float64) * factor
        middle = product + term
        if np.all(factor == 1) and np.all(term == 0):
            return middle, middle, middle
        spread = (np.abs(product) + np.abs(middle)) * 2 * HALF_ULP + 2.0**-149
        return middle - spread, middle, middle + spread


def _scale_bias(s: ProgramBuilder, data: View, function: str) -> tuple[Any, Any]:
    scale: Any = s.c.pick((None, 1.0, 2.0, -0.5))
    if s.c.flag(25):
        scale = s.column(data.partitions, ("float32",))
    bias: Any = None
    if s.c.flag(50):
        bias = s.column(data.partitions, BIASES)
        if s.generation >= 3 and s.c.flag():
            bias = s.c.pick((0.0, 1.0, -2.5))
    if function == "reciprocal" and s.generation == 2:
        bias = None
    return scale, bias


def _draw_activation(s: ProgramBuilder) -> None:
    flat = s.extent()
    data = s.tile(flat, ARITHMETIC)
    function = s.c.pick(tuple(functions.FUNCTIONS))
    scale, bias = _scale_bias(s, data, function)
    reduces = s.c.flag(40)
    command = s.command(("reset_reduce", "reset_reduce", "reset", "reduce")) if reduces else None
    if command is not None and command.name == "reduce":
        # The registers hold something known first.
        s.call(
            "activation",
            dst=s.tile(flat, dst=True),
            op=Token("nl.copy"),
            data=data,
            reduce_op=Token("nl.add"),
            reduce_cmd=Token("nisa.reduce_cmd.reset_reduce"),
        )
    dst = s.tile(flat, ARITHMETIC, dst=True)
    result = None
    if reduces and s.c.flag(70):
        result = s.column(flat[0], FLOATS, dst=True, apart=(dst,), reuse=False)
    s.call(
        "activation",
        dst=dst,
        op=Token(f"nl.{function}"),
        data=data,
        scale=scale,
        bias=bias,
        reduce_op=Token("nl.add") if reduces else None,
        reduce_cmd=command,
        reduce_res=result,
    )


def _run(
    m: Machine,
    dst: View,
    data: View,
    ends: tuple[Array, Array, Array],
    function: str,
    reduce: tuple[str, str, View | None],
    slope: Array | None = None,
) -> None:
    """Evaluate, reduce what is not yet rounded, store, read out."""
    if slope is not None and function == "prelu":
        value = np.where(ends[1] > 0, ends[1], ends[1] * slope)
        error = np.abs(value) * 4 * HALF_ULP + (ends[2] - ends[0]) * (1 + np.abs(slope))
        # What overflows on its way to the function is infinite there, times a slope of 0 even NaN.
        error = np.where(np.abs(ends[1]) <= functions.HUGE, error, np.inf)
    else:
        value, error = functions.evaluate(function, *ends)
    command, op, result = reduce
    # A sum that may be anything in one term may be anything.
    m.accumulate(m.scalar, command, op, data, value, error)
    m.store(dst, value, error)
    if result is not None:
        m.column(result, data)
        m.read_out(m.scalar, result, data)


@entry("activation", _draw_activation, is_exact=never)
def activation(
    m: Machine,
    dst: View,
    op: Any,
    data: View,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = None,
    name: Any = None,
) -> None:
    """dst = op(data * scale + bias); the registers add up the result."""
    function = m.token(op, tuple(functions.FUNCTIONS))
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    m.same_extent(dst, data)
    if m.generation == 2:
        m.require(bias is None or isinstance(bias, View) or bias == 0, "bias is a number")
        m.require(bias is None or function != "reciprocal", "reciprocal takes no bias")
    command = _command(m, reduce_cmd, COMMANDS, "idle")
    if reduce_op is None:
        m.require(command in ("idle", "reset"), "reduce_op is missing")
    else:
        m.token(reduce_op, ("add",))
    ends = affine(m, data, scale, bias)
    _run(m, dst, data, ends, function, (command, "add", reduce_res))


def _draw_activation_reduce(s: ProgramBuilder) -> None:
    flat = s.extent()
    data = s.tile(flat, ARITHMETIC)
    function = s.c.pick(tuple(functions.FUNCTIONS))
    scale, bias = _scale_bias(s, data, function)
    dst = s.tile(flat, ARITHMETIC, dst=True)
    s.call(
        "activation_reduce",
        dst=dst,
        op=Token(f"nl.{function}"),
        data=data,
        reduce_op=Token("nl.add"),
        reduce_res=s.column(flat[0], FLOATS, dst=True, apart=(dst,), reuse=False),
        scale=scale,
        bias=bias,
    )


@entry("activation_reduce", _draw_activation_reduce, is_exact=never)
def activation_reduce(
    m: Machine,
    dst: View,
    op: Any,
    data: View,
    reduce_op: Any,
    reduce_res: Any,
    bias: Any = None,
    scale: Any = 1.0,
    name: Any = None,
) -> None:
    """activation with reset_reduce."""
    command = Token("nisa.reduce_cmd.reset_reduce")
    m.require(reduce_op is not None, "reduce_op is missing")
    activation(m, dst, op, data, bias, scale, reduce_op, reduce_res, command)


# ---- activate2 ----

PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)
REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


def _draw_activate2(s: ProgramBuilder) -> None:
    flat = s.extent()
    data = s.tile(flat, ARITHMETIC)
    first, second = s.c.pick(PAIRS)
    function = s.c.pick(tuple(functions.FUNCTIONS))
    imm0, imm1 = s.scalar(data), s.scalar(data)
    slope = s.scalar(data) if function == "prelu" else None
    reduces = s.c.flag(40)
    dst = s.tile(flat, ARITHMETIC, dst=True)
    s.call(
        "activate2",
        dst=dst,
        op=Token(f"nl.{function}"),
        data=data,
        imm0=imm0,
        imm1=imm1,
        op0=Token(f"nl.{first}"),
        op1=Token(f"nl.{second}"),
        relu_param=slope,
        reverse0=True if first != "bypass" and s.c.flag(30) else None,
        reverse1=True if second != "bypass" and s.c.flag(30) else None,
        reduce_op=s.op(REDUCTIONS) if reduces else None,
        reduce_cmd=s.command(("reset_reduce", "reset")) if reduces else None,
        reduce_res=s.column(flat[0], FLOATS, dst=True, apart=(dst,), reuse=False)
        if reduces and s.c.flag(70)
        else None,
    )


@entry("activate2", _draw_activate2, generations=(4,), is_exact=never)
def activate2(
    m: Machine,
    dst: View,
    op: Any,
    data: View,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: Any = False,
    reverse1: Any = False,
    reduce_op: Any = None,
    reduce_res: Any = None,
    reduce_cmd: Any = None,
    name: Any = None,
) -> None:
    """dst = op((data <op0> imm0) <op1> imm1), with a reduction of the result."""
    m.since(4)
    function = m.token(op, tuple(functions.FUNCTIONS))
    m.tile(dst, ARITHMETIC)
    m.tile(data, ARITHMETIC)
    m.same_extent(dst, data)
    names = ("multiply", "add", "subtract", "bypass")
    first = "bypass" if op0 is None else m.token(op0, names)
    second = "bypass" if op1 is None else m.token(op1, names)
    m.require((first, second) in PAIRS, "no such pair of operators")
    m.require(not (reverse0 and first == "bypass"), "reverse0 without op0")
    m.require(not (reverse1 and second == "bypass"), "reverse1 without op1")
    if isinstance(imm0, View) and isinstance(imm1, View):
        m.require(imm0.dtype == imm1.dtype, "immediates of different types")
    command = _command(m, reduce_cmd, COMMANDS, "idle")
    if reduce_op is None:
        m.require(command in ("idle", "reset"), "reduce_op is missing")
    reduction = "add" if reduce_op is None else m.token(reduce_op, REDUCTIONS)
    value = m.f32(data).astype(np.float64)
    spread = np.zeros_like(value)
    for kind, operand, reverse in ((first, imm0, reverse0), (second, imm1, reverse1)):
        if kind != "bypass":
            other = m.scalar_f32(operand, data, ARITHMETIC).astype(np.float64)
            value, spread = _stage(kind, value, spread, other, bool(reverse))
    slope = m.scalar_f32(relu_param, data, ARITHMETIC).astype(np.float64)
    ends = (value - spread, value, value + spread)
    _run(m, dst, data, ends, function, (command, reduction, reduce_res), slope)


def _stage(
    kind: str, value: Array, spread: Array, other: Array, reverse: bool
) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        if kind == "multiply":
            result, scaled = value * other, spread * np.abs(other)
        elif kind == "add":
            result, scaled = value + other, spread
        else:
            result, scaled = (other - value if reverse else value - other), spread
        return result, np.broadcast_to(scaled + np.abs(result) * 2 * HALF_ULP, result.shape)


# ---- exponential ----

_SOURCES = tuple(dtype for dtype in ARITHMETIC if dtype not in ("tfloat32", "float8_e4m3fn"))
_RESULTS = tuple(dtype for dtype in ARITHMETIC if dtype not in ("uint32", "float8_e4m3fn"))
_SUMS = tuple(dtype for dtype in FLOATS if dtype != "float8_e4m3fn")


def _draw_exponential(s: ProgramBuilder) -> None:
    flat = s.extent()
    src = s.tile(flat, _SOURCES)
    maximum = s.scalar(src)
    command = s.c.pick(("", "idle", "reset_reduce", "load_reduce"))
    dst = s.tile(flat, _RESULTS, dst=True)
    reads = command in ("reset_reduce", "load_reduce") and s.c.flag(70)
    s.call(
        "exponential",
        dst=dst,
        src=src,
        max_value=maximum if s.c.flag(70) else None,
        reduce_cmd=Token(f"nisa.reduce_cmd.{command}") if command else None,
        reduce_init=s.scalar(src) if command == "load_reduce" else None,
        reduce_res=s.column(flat[0], _SUMS, dst=True, apart=(dst,), reuse=False) if reads else None,
    )


@entry("exponential", _draw_exponential, generations=(4,), is_exact=never)
def exponential(
    m: Machine,
    dst: View,
    src: View,
    max_value: Any = 0.0,
    reduce_res: Any = None,
    reduce_cmd: Any = None,
    reduce_init: Any = 0.0,
    name: Any = None,
) -> None:
    """dst = exp(src - max_value), and its sum."""
    m.since(4)
    m.tile(src, _SOURCES)
    m.tile(dst, _RESULTS)
    m.same_extent(dst, src)
    m.require(max(len(src.shape), len(dst.shape)) <= 4, "dimensions")
    command = _command(m, reduce_cmd, ("idle", "reset_reduce", "reduce", "load_reduce"), "idle")
    if command != "load_reduce":
        m.require(not isinstance(reduce_init, View) and reduce_init == 0, "reduce_init is set")
    shift = m.scalar_f32(max_value, src).astype(np.float64)
    initial = m.scalar_f32(reduce_init, src) if command == "load_reduce" else None
    with np.errstate(all="ignore"):
        middle = m.f32(src).astype(np.float64) - shift
        spread = np.abs(middle) * 2 * HALF_ULP
    value, error = functions.evaluate("exp", middle - spread, middle, middle + spread)
    m.accumulate(m.vector, command, "add", src, value, error, initial)
    if command == "idle":
        # "accumulator state unknown"
        m.vector.known[src.start : src.start + src.partitions] = False
    m.store(dst, value, error)
    if reduce_res is not None:
        m.column(reduce_res, src, _SUMS)
        m.read_out(m.vector, reduce_res, src)
