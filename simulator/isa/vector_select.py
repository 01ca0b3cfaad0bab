"""Selection on VectorE: tensor_copy_predicated, select_reduce, range_select.

select_reduce and range_select reduce their result by maximum into VectorE's accumulator registers.
Source: the entries of these names in SDK nki.isa.
"""

from __future__ import annotations

from typing import Any

import torch

from trnx.simulator.costs.vector import on_vector, per_element, two_tiles
from trnx.simulator.isa.accumulators import read_out, reduced, require_command
from trnx.simulator.isa.alu import binary_arithmetic
from trnx.simulator.isa.indirect import load_scalar_indirect
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import (
    FLOATS,
    append_select,
    bits_of,
    common_shape,
    constant,
    encoded,
    is_overlapping,
    match_column,
    match_tiles,
    not_both_in_psum,
    number,
    require_dtype,
    scalar,
)
from trnx.simulator.language.enums import Engine, ReduceCmd
from trnx.simulator.language.operators.table import OPERATORS
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtypes import float32
from trnx.simulator.program.propagation import by_element, by_partition

FP32_MIN = torch.finfo(torch.float32).min
_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_COMMANDS = (ReduceCmd.idle, ReduceCmd.reset, ReduceCmd.reduce, ReduceCmd.reset_reduce)
_SELECT_SOURCES = tuple(name for name in FLOATS if name != "tfloat32") + (
    "int8",
    "int16",
    "uint8",
    "uint16",
)


@instruction(
    engines=(Engine.vector,),
    undefined=by_element("src", "predicate", "dst"),
    indirect=("dst", "predicate"),
    cost=(on_vector(two_tiles),),
)
def tensor_copy_predicated(
    emit: Emit,
    dst: NkiTensor,
    src: Any,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """dst = src where predicate is not 0 (is 0, when reversed); other elements of dst stay."""
    match_tiles(emit, dst, predicate=predicate)
    require_dtype(emit, "predicate", predicate, ("uint8", "uint16", "uint32", "bool"))
    shape = dst.shape
    flags = bits_of(emit.read(predicate, "predicate", shape=shape))
    if isinstance(src, NkiTensor):
        match_tiles(emit, dst, src=src)
        not_both_in_psum(emit, src, predicate, "src and predicate")
        if src.dtype != dst.dtype:
            emit.illegal(f"src is {src.dtype}, dst is {dst.dtype}; they must be equal")
        source = bits_of(emit.read(src, "src", shape=shape))
    else:
        source = bits_of(encoded(number(emit, src, "src"), dst.dtype))
    target = bits_of(_kept(emit, dst, predicate, reverse_pred))
    mask = emit.scratch(shape, target.dtype)
    change = emit.scratch(shape, target.dtype)
    emit.step(torch.eq if reverse_pred else torch.ne, flags, 0, out=mask)
    emit.step(mask.neg_)
    # dst ^ ((src ^ dst) & mask), several times faster than torch.where.
    emit.step(torch.bitwise_xor, source, target, out=change)
    emit.step(change.bitwise_and_, mask)
    emit.step(target.bitwise_xor_, change)


def _kept(emit: Emit, dst: NkiTensor, predicate: NkiTensor, is_reversed: bool) -> torch.Tensor:
    """The destination with what it holds; of scattered columns, a copy that is stored back."""
    if dst.indirection is None or dst.indirection.base is None:
        return emit.update_where(dst, predicate, bool(is_reversed))
    held = load_scalar_indirect(emit, emit.check(dst, "dst"), "dst")
    stored = emit.write(dst, "dst")
    emit.step(stored.copy_, held)
    return stored


@instruction(engines=(Engine.vector,), undefined=by_partition(), cost=(on_vector(two_tiles),))
def select_reduce(
    emit: Emit,
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_op: Any = None,
    reverse_pred: bool = False,
    name: str | None = None,
) -> None:
    """dst = on_true where predicate is not 0, else on_false; and the maximum of each row."""
    match_tiles(emit, dst, predicate=predicate, on_true=on_true)
    require_dtype(emit, "predicate", predicate, ("int8", "uint8", "int16", "uint16", "bool"))
    require_dtype(emit, "on_true", on_true, _SELECT_SOURCES)
    not_both_in_psum(emit, on_true, predicate, "on_true and predicate")
    _check_maximum(emit, reduce_op, reduce_cmd, reduce_res)
    shape = common_shape(dst, on_true, predicate)
    flags = bits_of(emit.read(predicate, "predicate", shape=shape))
    chosen = emit.read_f32(on_true, "on_true", shape=shape)
    other = scalar(emit, on_false, "on_false", on_true, shape, any_dtype=True)
    out = emit.write_f32(dst, "dst", shape=shape)
    mask = emit.scratch(shape, torch.int32)
    emit.step(torch.eq if reverse_pred else torch.ne, flags, 0, out=mask)
    emit.step(mask.neg_)
    if is_overlapping(dst, on_false):
        copy = emit.scratch(other.shape)
        emit.step(copy.copy_, other)
        other = copy
    append_select(emit, mask, chosen, other, out)
    registers = reduced(emit, reduce_cmd, OPERATORS["maximum"], on_true, out, reduce_res)
    read_out(emit, registers, reduce_res, dst)


def _check_maximum(
    emit: Emit, reduce_op: Any, reduce_cmd: Any, reduce_res: NkiTensor | None
) -> None:
    if reduce_op is not None:
        binary_arithmetic(emit, reduce_op, "reduce_op", ("maximum",))
    require_command(emit, reduce_cmd, _COMMANDS)
    if reduce_res is not None:
        require_dtype(emit, "reduce_res", reduce_res, FLOATS)


@instruction(
    engines=(Engine.vector,),
    generation=3,
    undefined=by_partition(),
    cost=(on_vector(per_element(1)),),
)
def range_select(
    emit: Emit,
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = None,
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> None:
    """dst = on_true_tile where range_start + index compares with both bounds, else FP32_MIN."""
    first = binary_arithmetic(emit, comp_op0, "comp_op0", _COMPARISONS)
    second = binary_arithmetic(emit, comp_op1, "comp_op1", _COMPARISONS)
    match_tiles(emit, dst, on_true_tile=on_true_tile)
    require_dtype(emit, "on_true_tile", on_true_tile, FLOATS)
    match_column(emit, bound0, "bound0", on_true_tile)
    match_column(emit, bound1, "bound1", on_true_tile)
    fill = float(constant(number(emit, on_false_value, "on_false_value")))
    if fill != FP32_MIN:
        emit.illegal(f"on_false_value={on_false_value} must be FP32_MIN, {FP32_MIN}")
    length = on_true_tile.free_size
    if not (isinstance(range_start, int) and range_start + length <= 2**24):
        emit.illegal(f"range_start={range_start} + {length} elements must stay within 2**24")
    _check_maximum(emit, reduce_op, reduce_cmd, reduce_res)
    shape = (dst.shape[0], length)
    chosen = emit.read_f32(on_true_tile, "on_true_tile", shape=shape)
    low = emit.read(bound0, "bound0", shape=(shape[0], 1), dtypes=(float32,))
    high = emit.read(bound1, "bound1", shape=(shape[0], 1), dtypes=(float32,))
    out = emit.write_f32(dst, "dst", shape=shape)
    index = torch.arange(range_start, range_start + length, dtype=torch.float32, device="cpu")
    mask, both = emit.scratch(shape, torch.int32), emit.scratch(shape, torch.int32)
    emit.step(first.function, index, low, out=mask)
    emit.step(second.function, index, high, out=both)
    emit.step(mask.bitwise_and_, both)
    emit.step(mask.neg_)
    append_select(emit, mask, chosen, constant(FP32_MIN), out)
    registers = reduced(emit, reduce_cmd, OPERATORS["maximum"], on_true_tile, out, reduce_res)
    read_out(emit, registers, reduce_res, dst)
