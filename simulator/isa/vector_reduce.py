"""Reductions of VectorE: tensor_reduce, tensor_scalar_reduce and exponential.

Reductions are taken in float32 over values that are not yet rounded to dst. tensor_scalar_reduce
and exponential share VectorE's accumulator registers with range_select, select_reduce and
tensor_scalar_cumulative. Source: the entries of these names in SDK nki.isa.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from trnx.simulator.costs.vector import halves_at_twice_the_rate, on_vector, per_element, per_source
from trnx.simulator.isa.accumulators import accumulate, accumulator, read_out, require_command
from trnx.simulator.isa.activation_functions import emit_activation
from trnx.simulator.isa.alu import arithmetic, binary_arithmetic, operator
from trnx.simulator.isa.arguments import integers
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import (
    bits_of,
    common_shape,
    flat,
    is_bits,
    match_tiles,
    require_dtype,
    scalar,
)
from trnx.simulator.language.enums import Engine, ReduceCmd
from trnx.simulator.language.operators.table import OPERATORS
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition


@instruction(
    engines=(Engine.vector,),
    undefined=by_partition(),
    indirect=("dst", "data"),
    cost=(on_vector(halves_at_twice_the_rate),),
)
def tensor_reduce(
    emit: Emit,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> None:
    """dst = op-reduce of data over its last free axes."""
    alu = operator(emit, op, "op")
    # Reductions by magnitude are the Scalar Engine's alone (SDK/nki/api/nki.api.shared.rst).
    if alu.identity is None or alu.name in ("abs_max", "abs_min"):
        emit.illegal(f"op=nl.{alu.name} is not a reduction operator")
    emit.require(not (negate and alu.is_bitvec), "negate needs an arithmetic operator")
    emit.check(dst, "dst")
    emit.check(data, "data")
    kept = _kept_dims(emit, data, axis)
    _check_result(emit, dst, data, kept, keepdims)
    rows, length = math.prod(data.shape[1:kept]), math.prod(data.shape[kept:])
    source, result = (data.shape[0], rows, length), (data.shape[0], rows, 1)
    if kept == 1:
        source, result = (data.shape[0], length), (data.shape[0], 1)  # type: ignore[assignment]
    if alu.is_bitvec:
        if not (
            is_bits(data.dtype) and is_bits(dst.dtype) and data.dtype.itemsize == dst.dtype.itemsize
        ):
            emit.illegal(
                f"nl.{alu.name} takes integers of one width, not {data.dtype} and {dst.dtype}"
            )
        bits = bits_of(emit.read(data, "data", shape=source))
        target = bits_of(emit.write(dst, "dst", shape=result, elementwise=False))
        emit.step(alu.reduce(), bits, out=target)
        return
    value = emit.read_f32(data, "data", shape=source)
    out = emit.write_f32(dst, "dst", shape=result, elementwise=False)
    emit.step(alu.reduce(), value, out=out)
    if negate:
        emit.step(out.neg_)


def _kept_dims(emit: Emit, data: NkiTensor, axis: Any) -> int:
    """The number of leading dimensions that stay; the reduced axes must be the last ones."""
    rank = data.ndim
    if isinstance(axis, bool):
        emit.illegal(f"axis={axis} must be an axis or a list of them")
    axes = sorted([a + rank if a < 0 else a for a in integers(emit, axis, "axis")])
    kept = rank - len(axes)
    if not axes or kept < 1 or axes != list(range(kept, rank)):
        emit.illegal(
            f"axis={axis} of a tile {data.shape}: the reduced axes must be the last free axes, "
            f"such as {tuple(range(1, data.ndim))}"
        )
    return kept


def _check_result(emit: Emit, dst: NkiTensor, data: NkiTensor, kept: int, keepdims: bool) -> None:
    expected = data.shape[:kept] + ((1,) * (data.ndim - kept) if keepdims else ())
    if dst.shape[0] != data.shape[0] or dst.size != math.prod(expected):
        emit.illegal(f"dst has shape {dst.shape}; the reduction of {data.shape} gives {expected}")


_REDUCE_OPS = ("add", "multiply", "maximum", "minimum")
_REDUCING = (ReduceCmd.reset_reduce, ReduceCmd.reduce, ReduceCmd.load_reduce)


@instruction(
    engines=(Engine.vector,),
    undefined=by_partition(),
    indirect=("dst", "data"),
    discards=True,
    cost=(on_vector(per_source, is_two_instructions=True),),
)
def tensor_scalar_reduce(
    emit: Emit,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> None:
    """dst = data <op0> operand0, and its reduction by reduce_op over all free dimensions."""
    alu = arithmetic(emit, op0, "op0")
    reduction = binary_arithmetic(emit, reduce_op, "reduce_op", _REDUCE_OPS)
    emit.require(not reverse0, "reverse0 is not supported by tensor_scalar_reduce")
    check_command(emit, reduce_cmd, _REDUCING, reduce_init is not None)
    match_tiles(emit, dst, data=data)
    shape = common_shape(dst, data)
    value = emit.read_f32(data, "data", shape=shape)
    if alu.is_unary:
        if operand0 not in (None, 0):
            emit.illegal(f"operand0 must be None or 0 with nl.{alu.name}")
        operand = None
    else:
        operand = scalar(emit, operand0, "operand0", data, shape)
    initial = (
        None if reduce_init is None else scalar(emit, reduce_init, "reduce_init", data, flat(data))
    )
    # What is read after the first element is written may not lie in dst.
    out = emit.write_f32(dst, "dst", shape=shape, elementwise=initial is None, exact=alu.is_exact)
    emit.step(alu.function, *alu.arguments(value, operand, False), out=out)
    registers = accumulator(emit, Engine.vector, data, reduce_cmd)
    accumulate(emit, reduce_cmd, reduction, out, registers, initial)
    if reduce_res is not None and reduce_res_negate:
        negated = emit.scratch(registers.shape)
        emit.step(torch.neg, registers, out=negated)
        registers = negated
    read_out(emit, registers, reduce_res, dst)


def check_command(
    emit: Emit, command: Any, allowed: tuple[ReduceCmd, ...], has_initial: bool
) -> None:
    """The reduce command is one that the instruction takes, with an initial value where it needs
    one.
    """
    require_command(emit, command, allowed)
    emit.require(
        has_initial == (command is ReduceCmd.load_reduce),
        "an initial value is needed for reduce_cmd.load_reduce, and only there",
    )


_EXP_SOURCES = (
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "bfloat16",
    "float32",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
)
_EXP_RESULTS = (
    "float8_e4m3",
    "float8_e5m2",
    "float16",
    "bfloat16",
    "float32",
    "tfloat32",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
)


@instruction(
    engines=(Engine.vector,),
    generation=4,
    undefined=by_partition(),
    indirect=("dst", "src"),
    cost=(on_vector(per_element(0.25)),),
)
def exponential(
    emit: Emit,
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> None:
    """dst = exp(src - max_value), and its sum over all free dimensions, on trn3."""
    is_loading = isinstance(reduce_init, NkiTensor) or reduce_init != 0
    if reduce_cmd is not ReduceCmd.load_reduce:
        emit.require(not is_loading, "reduce_init is set but reduce_cmd is not load_reduce")
    check_command(
        emit, reduce_cmd, (ReduceCmd.idle, *_REDUCING), reduce_cmd is ReduceCmd.load_reduce
    )
    match_tiles(emit, dst, src=src)
    require_dtype(emit, "src", src, _EXP_SOURCES)
    require_dtype(emit, "dst", dst, _EXP_RESULTS)
    for operand, tile in (("src", src), ("dst", dst)):
        if tile.ndim > 4:
            emit.illegal(
                f"{operand} has shape {tile.shape}; at most 4 dimensions are possible: merge free "
                "ones (flatten_dims, reshape)"
            )
    shape = common_shape(dst, src)
    value = emit.read_f32(src, "src", shape=shape)
    shift = scalar(emit, max_value, "max_value", src, shape)
    initial = (
        scalar(emit, reduce_init, "reduce_init", src, flat(src))
        if reduce_cmd is ReduceCmd.load_reduce
        else None
    )
    # What is read after the first element is written may not lie in dst.
    out = emit.write_f32(dst, "dst", shape=shape, elementwise=initial is None)
    emit.step(torch.sub, value, shift, out=out)
    emit_activation(emit, OPERATORS["exp"], out, out)
    registers = accumulator(emit, Engine.vector, src, reduce_cmd, reduce_res)
    accumulate(emit, reduce_cmd, OPERATORS["add"], out, registers, initial)
    if reduce_res is not None:
        require_dtype(emit, "reduce_res", reduce_res, _EXP_RESULTS[:6])
    read_out(emit, registers, reduce_res, dst)
