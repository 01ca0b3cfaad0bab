"""Element-wise arithmetic of VectorE: tensor_tensor, tensor_scalar, scalar_tensor_tensor,
reciprocal.

Arithmetic is float32, each operator rounded to float32, the last result rounded once to dst's
dtype. tensor_tensor on int32/uint32 tiles runs on GpSimd by default, in exact 32-bit integers that
wrap around; tensor_scalar does the same for int32/uint32 tiles with integer operands (address
arithmetic). Bitvec operators act on the bits of integers. Source: the entries of these names in SDK
nki.isa.
"""

from __future__ import annotations

from typing import Any

import torch

from trnx.simulator.costs.attributes import operator_attributes
from trnx.simulator.costs.vector import (
    copied,
    halves_on_scalar,
    on_scalar,
    on_vector,
    per_element,
    two_tiles,
)
from trnx.simulator.isa.alu import arithmetic, binary_arithmetic, operator
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.integers import emit_bits, emit_integers
from trnx.simulator.isa.operands import (
    Result,
    all_wide_integers,
    common_shape,
    intermediate,
    is_bits,
    is_psum,
    match_tiles,
    not_both_in_psum,
    reachable,
    scalar,
)
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.operators.table import Operator
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.program.propagation import by_partition

_NATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
_HALVES = ("bfloat16", "float16")
_COMPARISONS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)


@instruction(
    engines=(Engine.vector, Engine.gpsimd),
    undefined=by_partition("data1", "data2"),
    indirect=("dst", "data1"),
    cost=(on_vector(two_tiles),),
)
def tensor_tensor(
    emit: Emit,
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> None:
    """dst = data1 <op> data2, element by element."""
    alu = operator(emit, op, "op")
    emit.attributes = operator_attributes(alu.name)
    if alu.is_unary:
        emit.illegal(f"op=nl.{alu.name} takes one operand; use nisa.tensor_scalar")
    match_tiles(emit, dst, data1=data1, data2=data2)
    not_both_in_psum(emit, data1, data2, "data1 and data2")
    _tensor_tensor_engine(emit, alu, engine, dst, data1, data2)
    reachable(emit, dst=dst, data1=data1, data2=data2)
    shape = common_shape(dst, data1, data2)
    if alu.is_bitvec:
        _require_bits(emit, dst=dst, data1=data1, data2=data2)
        emit_bits(emit, dst, shape, [(alu, False, data2)], data1, "data1", ("data2",))
    elif alu.is_integer and emit.engine is Engine.gpsimd and all_wide_integers(dst, data1, data2):
        emit_integers(emit, dst, shape, [(alu, False, data2)], data1, "data1", ("data2",))
    elif alu.name in _NATIVE and data1.dtype == data2.dtype == dst.dtype in _HALVES:
        # torch computes these in float32 and rounds once, as the engine does.
        a = emit.read(data1, "data1", shape=shape)
        b = emit.read(data2, "data2", shape=shape)
        emit.step(alu.function, a, b, out=emit.write(dst, "dst", shape=shape))
    else:
        a = emit.read_f32(data1, "data1", shape=shape)
        b = emit.read_f32(data2, "data2", shape=shape)
        result = Result(emit, dst, shape, a, data1)
        a, b = _closer(emit, alu, a), _closer(emit, alu, b)
        emit.step(alu.function, a, b, out=result.out)
        result.store(alu.is_exact)


def _closer(emit: Emit, alu: Operator, operand: torch.Tensor) -> torch.Tensor:
    """An operand of a comparison as a copy where its elements lie apart: those torch compares one
    by one, which takes eight times as long as to copy them.
    """
    apart = operand.ndim and operand.shape[-1] > 1 and operand.stride(-1) > 1
    if not apart or alu.function not in _COMPARISONS:
        return operand
    copy = emit.scratch(operand.shape)
    emit.step(copy.copy_, operand)
    return copy


def _tensor_tensor_engine(
    emit: Emit, alu: Operator, engine: Any, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor
) -> None:
    if alu.name == "power":
        emit.on(engine, (Engine.gpsimd,))
    elif alu.is_bitvec:
        emit.on(engine, (Engine.vector,))
    else:
        exact = all_wide_integers(dst, data1, data2)
        in_sbuf = exact and not (is_psum(dst) or is_psum(data1) or is_psum(data2))
        default = Engine.gpsimd if in_sbuf else Engine.vector
        emit.on(engine, default=default)


def _require_bits(emit: Emit, **tiles: Any) -> None:
    for name, tile in tiles.items():
        if isinstance(tile, NkiTensor) and not is_bits(tile.dtype):
            emit.illegal(f"{name} is {tile.dtype}; bitvec operators take integers only")


@instruction(
    engines=(Engine.vector, Engine.scalar, Engine.gpsimd),
    undefined=by_partition("data"),
    indirect=("dst", "data"),
    cost=(on_vector(copied), on_scalar(halves_on_scalar)),
)
def tensor_scalar(
    emit: Emit,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> None:
    """dst = (data <op0> operand0) <op1> operand1, operands being numbers or columns."""
    match_tiles(emit, dst, data=data)
    first = operator(emit, op0, "op0")
    stages = [(first, reverse0, _operand(emit, first, operand0, "operand0"))]
    if op1 is not None:
        second = operator(emit, op1, "op1")
        if first.is_bitvec != second.is_bitvec:
            emit.illegal(
                f"op0=nl.{first.name} and op1=nl.{second.name} must be both bitvec or both "
                "arithmetic"
            )
        stages.append((second, reverse1, _operand(emit, second, operand1, "operand1")))
    else:
        emit.require(operand1 is None, "operand1 is given without op1")
    _tensor_scalar_engine(emit, stages, engine, (dst, data, operand0, operand1))
    reachable(emit, dst=dst, data=data, operand0=operand0, operand1=operand1)
    shape = common_shape(dst, data)
    names = ("operand0", "operand1")[: len(stages)]
    if first.is_bitvec:
        _require_bits(emit, dst=dst, data=data, operand0=operand0, operand1=operand1)
        emit_bits(emit, dst, shape, stages, data, "data", names)
    elif _is_address_arithmetic(dst, data, stages):
        if dst.has_column_index or data.has_column_index:
            emit.illegal(
                "32-bit integers and operands (address arithmetic) take no tensor indirection; "
                "copy the columns with nisa.tensor_copy"
            )
        emit_integers(emit, dst, shape, stages, data, "data", names)
    else:
        _emit_stages(emit, dst, shape, stages, data, names)


Stage = tuple[Operator, bool, Any]


def _operand(emit: Emit, alu: Operator, operand: Any, name: str) -> Any:
    if alu.is_unary:
        if isinstance(operand, NkiTensor) or (operand is not None and operand != 0):
            emit.illegal(f"{name} must be None or 0 with the unary operator nl.{alu.name}")
        return None
    if operand is None:
        emit.illegal(f"{name} is missing for nl.{alu.name}")
    return operand


def _tensor_scalar_engine(
    emit: Emit, stages: list[Stage], engine: Any, operands: tuple[Any, ...]
) -> None:
    names = tuple([alu.name for alu, _, _ in stages])
    if stages[0][0].is_bitvec:
        emit.on(engine, (Engine.vector,))
        return
    if "rsqrt" in names:
        default = Engine.vector if any(map(is_psum, operands)) else Engine.gpsimd
        emit.on(engine, (Engine.gpsimd, Engine.vector), default)
        return
    allowed = [Engine.vector]
    # ScalarE on trn2: only multiply-add, multiply, add (SDK nki.isa.tensor_scalar).
    if emit.generation >= 3 and names in (("multiply", "add"), ("multiply",), ("add",)):
        allowed.append(Engine.scalar)
    emit.on(engine, allowed)


def _is_address_arithmetic(dst: NkiTensor, data: NkiTensor, stages: list[Stage]) -> bool:
    return all_wide_integers(dst, data) and all(
        alu.is_integer
        and (
            all_wide_integers(operand)
            if isinstance(operand, NkiTensor)
            else isinstance(operand, int)
        )
        for alu, _, operand in stages
    )


def _emit_stages(
    emit: Emit,
    dst: NkiTensor,
    shape: tuple[int, ...],
    stages: list[Stage],
    data: NkiTensor,
    names: tuple[str, ...],
) -> None:
    value = emit.read_f32(data, "data", shape=shape)
    operands = [
        None if alu.is_unary else scalar(emit, operand, name, data, shape)
        for (alu, _, operand), name in zip(stages, names, strict=True)
    ]
    result = Result(emit, dst, shape, value, data)
    out = result.out
    bounds = _clamp_bounds(stages)
    if bounds is not None:
        emit.step(torch.clamp, value, *bounds, out=out)
    else:
        first, reverse, _ = stages[0]
        target = out if len(stages) == 1 else intermediate(emit, out, dst, stages[1][2])
        emit.step(first.function, *first.arguments(value, operands[0], reverse), out=target)
        if len(stages) == 2:
            second, reverse, _ = stages[1]
            emit.step(second.function, *second.arguments(target, operands[1], reverse), out=out)
    result.store(stages[-1][0].is_exact)


def _clamp_bounds(stages: list[Stage]) -> tuple[float, float] | None:
    """(low, high) where two stages are a maximum and a minimum with numbers: one call of clamp."""
    if len(stages) != 2 or {alu.name for alu, _, _ in stages} != {"maximum", "minimum"}:
        return None
    if any(isinstance(operand, NkiTensor) for _, _, operand in stages):
        return None
    bounds = {alu.name: float(operand) for alu, _, operand in stages}
    low, high = bounds["maximum"], bounds["minimum"]
    return (low, high) if low <= high else None


@instruction(
    engines=(Engine.vector,),
    undefined=by_partition("data", "operand1"),
    cost=(on_vector(two_tiles),),
)
def scalar_tensor_tensor(
    emit: Emit,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> None:
    """dst = (data <op0> operand0) <op1> operand1, with operand1 a full tile."""
    first = arithmetic(emit, op0, "op0")
    second = binary_arithmetic(emit, op1, "op1")
    match_tiles(emit, dst, data=data, operand1=operand1)
    not_both_in_psum(emit, data, operand1, "data and operand1")
    shape = common_shape(dst, data, operand1)
    value = emit.read_f32(data, "data", shape=shape)
    left = _operand(emit, first, operand0, "operand0")
    scale = None if first.is_unary else scalar(emit, left, "operand0", data, shape, any_dtype=True)
    other = emit.read_f32(operand1, "operand1", shape=shape)
    result = Result(emit, dst, shape, value, data)
    target = intermediate(emit, result.out, dst, operand1)
    emit.step(first.function, *first.arguments(value, scale, reverse0), out=target)
    emit.step(second.function, *second.arguments(target, other, reverse1), out=result.out)
    result.store(second.is_exact)


@instruction(
    engines=(Engine.vector,),
    undefined=by_partition("data"),
    cost=(on_vector(per_element(8)),),
)
def reciprocal(emit: Emit, dst: NkiTensor, data: NkiTensor, name: str | None = None) -> None:
    """dst = 1 / data."""
    match_tiles(emit, dst, data=data)
    shape = common_shape(dst, data)
    value = emit.read_f32(data, "data", shape=shape)
    result = Result(emit, dst, shape, value, data)
    emit.step(torch.reciprocal, value, out=result.out)
    result.store()
