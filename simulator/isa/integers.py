"""Exact integer and bit arithmetic of the element-wise instructions.

A chain of stages `value = value <op> operand` on integers: 32-bit arithmetic that wraps around, or
bit operations. Where all tiles are int32 and operands fit, torch computes in int32 in place;
otherwise the chain runs in int64 and the low bits are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from trnx.simulator.isa.instruction import Emit
from trnx.simulator.isa.operands import column_shape, constant, intermediate, match_column
from trnx.simulator.language.operators.table import Operator
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.views import Shape

Stage = tuple[Operator, bool, Any]

_SIGNED = {
    1: torch.int8,
    2: torch.int16,
    4: torch.int32,
}


def emit_integers(
    emit: Emit,
    dst: NkiTensor,
    shape: Shape,
    stages: Sequence[Stage],
    data: NkiTensor,
    data_name: str,
    names: Sequence[str],
) -> None:
    """Append the stages on int32/uint32 tiles and integer operands, with 32-bit wrap-around."""
    tiles = [data, dst, *(operand for *_, operand in stages if isinstance(operand, NkiTensor))]
    numbers = [int(operand) for *_, operand in stages if not isinstance(operand, NkiTensor)]
    is_narrow = all(tile.dtype.torch is torch.int32 for tile in tiles) and all(
        -(2**31) <= value < 2**31 for value in numbers
    )
    work = torch.int32 if is_narrow else torch.int64
    value = _load(emit, data, data_name, shape, work)
    operands = [
        _operand(emit, operand, name, data, shape, work)
        for (*_, operand), name in zip(stages, names, strict=True)
    ]
    out = emit.write(dst, "dst", shape=shape)
    _chain(emit, dst, stages, value, operands, out, work)


def _wrap(value: torch.Tensor, is_signed: bool) -> None:
    """The low 32 bits of int64 values, in place."""
    if is_signed:
        value.add_(2**31)
    value.bitwise_and_(0xFFFFFFFF)
    if is_signed:
        value.sub_(2**31)


def emit_bits(
    emit: Emit,
    dst: NkiTensor,
    shape: Shape,
    stages: Sequence[Stage],
    data: NkiTensor,
    data_name: str,
    names: Sequence[str],
) -> None:
    """Append bitvec stages; every tile must hold integers of one width."""
    tiles = [data, dst, *(operand for *_, operand in stages if isinstance(operand, NkiTensor))]
    sizes = {tile.dtype.itemsize for tile in tiles}
    if len(sizes) != 1:
        listed = ", ".join(str(tile.dtype) for tile in tiles)
        emit.illegal(f"bitvec operators do not cast; the tiles must have one width, not {listed}")
    work = _SIGNED[sizes.pop()]
    value = _raw(emit, data, data_name, shape).view(work)
    operands = [
        None if operand is None else _bit_operand(emit, operand, name, data, shape, work)
        for (*_, operand), name in zip(stages, names, strict=True)
    ]
    out = emit.write(dst, "dst", shape=shape).view(work)
    _chain(emit, dst, stages, value, operands, out, work)


def _chain(
    emit: Emit,
    dst: NkiTensor,
    stages: Sequence[Stage],
    value: torch.Tensor,
    operands: Sequence[torch.Tensor | None],
    out: torch.Tensor,
    work: torch.dtype,
) -> None:
    target = out if out.dtype is work else emit.scratch(out.shape, work)
    for i, ((alu, reverse, _), operand) in enumerate(zip(stages, operands, strict=True)):
        is_last = i == len(stages) - 1
        result = target
        if not is_last and target is out:
            later = [operand for *_, operand in stages[i + 1 :]]
            spare = intermediate(emit, out, dst, *later)
            result = spare if spare is out else emit.scratch(out.shape, work)
        emit.step(alu.function, *alu.arguments(value, operand, reverse), out=result)
        if work is torch.int64 and not is_last:
            emit.step(_wrap, result, dst.dtype.torch is torch.int32)
        value = result
    if target is not out:
        # Converting int64 to 32 bits keeps the low bits, as 32-bit arithmetic would.
        emit.step(out.copy_, target)


def _raw(emit: Emit, tile: NkiTensor, name: str, shape: Shape) -> torch.Tensor:
    return emit.read(tile, name, shape=shape)


def _load(emit: Emit, tile: NkiTensor, name: str, shape: Shape, work: torch.dtype) -> torch.Tensor:
    view = _raw(emit, tile, name, shape)
    if view.dtype is work:
        return view
    copy = emit.scratch(view.shape, work)
    emit.step(copy.copy_, view)
    return copy


def _operand(
    emit: Emit, operand: Any, name: str, data: NkiTensor, shape: Shape, work: torch.dtype
) -> torch.Tensor:
    if not isinstance(operand, NkiTensor):
        return constant(int(operand), work)
    if operand.size != data.size:
        match_column(emit, operand, name, data)
        shape = column_shape(shape)
    return _load(emit, operand, name, shape, work)


def _bit_operand(
    emit: Emit, operand: Any, name: str, data: NkiTensor, shape: Shape, work: torch.dtype
) -> torch.Tensor:
    if isinstance(operand, NkiTensor):
        if operand.size != data.size:
            match_column(emit, operand, name, data)
            shape = column_shape(shape)
        return _raw(emit, operand, name, shape).view(work)
    if not isinstance(operand, int) and not (isinstance(operand, float) and operand.is_integer()):
        emit.illegal(f"{name}={operand} is not an integer; bitvec operators act on bits")
    bits = 8 * work.itemsize
    value = int(operand) & ((1 << bits) - 1)
    return constant(value - (1 << bits) if value >> (bits - 1) else value, work)
