"""ScalarE: activation, activation_reduce, activate2.

func(data * scale + bias) in float32, with an optional reduction over all free dimensions of the
result, before it is rounded to dst, into the accumulator registers of ScalarE. The registers live
across instructions: idle leaves them, reset sets the identity, reduce adds to them, reset_reduce
starts anew; reduce_res reads them out. Source: the entries of these names in SDK nki.isa.
"""

from __future__ import annotations

from typing import Any

import torch

from trnx.simulator.costs.attributes import activation_attributes
from trnx.simulator.isa.accumulators import read_out, reduced, require_command
from trnx.simulator.isa.activation_functions import activation_function, emit_activation
from trnx.simulator.isa.alu import binary_arithmetic, token_name
from trnx.simulator.isa.instruction import SPECS, Emit, instruction
from trnx.simulator.isa.operands import (
    Result,
    common_shape,
    intermediate,
    match_tiles,
    scalar,
)
from trnx.simulator.language.enums import Engine, ReduceCmd
from trnx.simulator.language.operators.functions import prelu
from trnx.simulator.language.operators.table import OPERATORS, Operator
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition

_ACCUMULATING = (ReduceCmd.idle, ReduceCmd.reset, ReduceCmd.reduce, ReduceCmd.reset_reduce)


@instruction(
    engines=(Engine.scalar,),
    undefined=by_partition("data"),
    indirect=("dst", "data"),
    discards=True,
)
def activation(
    emit: Emit,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    name: str | None = None,
) -> None:
    """dst = op(data * scale + bias); the sum of each row goes to the accumulator registers."""
    function = activation_function(emit, op)
    emit.attributes = activation_attributes(function.name)
    match_tiles(emit, dst, data=data)
    _check_bias(emit, function.name, bias)
    reduction = _check_reduction(emit, reduce_op, reduce_cmd, ("add",))
    emit.require(
        reduce_op is not None or not dst.form.is_broadcast,
        "dst is a broadcast view; several elements would write one location",
    )
    shape = common_shape(dst, data)
    value = emit.read_f32(data, "data", shape=shape)
    scales = None if _is_number(scale, 1) else scalar(emit, scale, "scale", data, shape)
    biases = (
        None
        if bias is None or _is_number(bias, 0)
        else scalar(emit, bias, "bias", data, shape, any_dtype=True)
    )
    result = Result(emit, dst, shape, value, data)
    out = result.out
    if scales is not None or biases is not None:
        later = bias if isinstance(scale, NkiTensor) else None
        target = intermediate(emit, out, dst, later)
        factor = scale if _is_plain(scale) else None
        _scale_and_bias(emit, value, scales, factor, biases, target)
        value = target
    emit_activation(emit, function, value, out)
    registers = reduced(emit, reduce_cmd, reduction, data, out, reduce_res)
    result.store()
    read_out(emit, registers, reduce_res, dst)


@instruction(
    engines=(Engine.scalar,),
    undefined=by_partition(),
    indirect=("dst", "data"),
    discards=True,
)
def activation_reduce(
    emit: Emit,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> None:
    """`activation` with reduce_cmd.reset_reduce."""
    command = ReduceCmd.reset_reduce
    function = SPECS["activation"].function
    function(emit, dst, op, data, bias, scale, reduce_op, reduce_res, command)


def _is_plain(value: Any) -> bool:
    return not isinstance(value, NkiTensor)


def _is_number(value: Any, expected: float) -> bool:
    return isinstance(value, int | float) and value == expected


def _scale_and_bias(
    emit: Emit,
    value: torch.Tensor,
    scales: torch.Tensor | None,
    factor: Any,
    biases: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    if biases is None:
        emit.step(torch.mul, value, scales, out=out)
    elif scales is None:
        emit.step(torch.add, value, biases, out=out)
    elif factor is not None:
        # One call, with a fused multiply-add: how ScalarE rounds in between is not specified.
        emit.step(torch.add, biases, value, alpha=float(factor), out=out)
    else:
        emit.step(torch.mul, value, scales, out=out)
        emit.step(torch.add, out, biases, out=out)


def _check_bias(emit: Emit, function: str, bias: Any) -> None:
    if isinstance(bias, NkiTensor):
        emit.require(bias.dtype != "tfloat32", "bias is tfloat32, which ScalarE does not take")
    if emit.generation > 2 or bias is None:
        return
    if not (isinstance(bias, NkiTensor) or bias == 0):
        emit.illegal(
            f"bias={bias} is a number; {emit.hardware.target} takes a tile (partitions, 1)"
        )
    if function == "reciprocal":
        emit.illegal(f"nl.reciprocal takes no bias on {emit.hardware.target}")


def _check_reduction(
    emit: Emit, reduce_op: Any, reduce_cmd: Any, allowed: tuple[str, ...]
) -> Operator:
    require_command(emit, reduce_cmd, _ACCUMULATING)
    if reduce_op is None:
        if reduce_cmd not in (ReduceCmd.idle, ReduceCmd.reset):
            emit.illegal(f"reduce_cmd={reduce_cmd} needs reduce_op (nl.{', nl.'.join(allowed)})")
        return OPERATORS["add"]
    return binary_arithmetic(emit, reduce_op, "reduce_op", allowed)


_STAGE_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)


@instruction(engines=(Engine.scalar,), generation=4, indirect=("dst", "data"))
def activate2(
    emit: Emit,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    name: str | None = None,
) -> None:
    """dst = op((data <op0> imm0) <op1> imm1), on trn3; reductions also by max, min, abs_max,
    abs_min.
    """
    function = activation_function(emit, op)
    emit.attributes = activation_attributes(function.name)
    match_tiles(emit, dst, data=data)
    stages = _stages(emit, (op0, op1), (imm0, imm1), (reverse0, reverse1))
    if isinstance(imm0, NkiTensor) and isinstance(imm1, NkiTensor):
        emit.require(imm0.dtype == imm1.dtype, "imm0 and imm1 differ in dtype")
    allowed = ("add", "maximum", "minimum", "abs_max", "abs_min")
    reduction = _check_reduction(emit, reduce_op, reduce_cmd, allowed)
    shape = common_shape(dst, data)
    value = emit.read_f32(data, "data", shape=shape)
    operands = [
        scalar(emit, operand, label, data, shape, any_dtype=True) for _, operand, _, label in stages
    ]
    slope = scalar(emit, relu_param, "relu_param", data, shape, any_dtype=True)
    out = emit.write_f32(dst, "dst", shape=shape)
    for i, ((alu, _, reverse, _), operand) in enumerate(zip(stages, operands, strict=True)):
        later = [stage[1] for stage in stages[i + 1 :]] + [relu_param]
        target = intermediate(emit, out, dst, *later)
        emit.step(alu.function, *alu.arguments(value, operand, reverse), out=target)
        value = target
    if function.name == "prelu":
        emit.step(prelu(slope), value, out=out)
    else:
        emit_activation(emit, function, value, out)
    registers = reduced(emit, reduce_cmd, reduction, data, out, reduce_res)
    read_out(emit, registers, reduce_res, dst)


def _stages(
    emit: Emit, ops: tuple[Any, Any], operands: tuple[Any, Any], reverses: tuple[bool, bool]
) -> list[tuple[Operator, Any, bool, str]]:
    names = tuple("bypass" if op is None else token_name(op) for op in ops)
    if names not in _STAGE_PAIRS:
        listed = ", ".join(f"({a}, {b})" for a, b in _STAGE_PAIRS)
        emit.illegal(f"(op0, op1) = ({', '.join(names)}) is not supported; use one of {listed}")
    stages = []
    for i, name in enumerate(names):
        if name == "bypass":
            if reverses[i]:
                emit.illegal(f"reverse{i} is set but op{i} is bypass")
        else:
            stages.append((OPERATORS[name], operands[i], reverses[i], f"imm{i}"))
    return stages
