"""The accumulator registers of VectorE and ScalarE, one for each lane, and reductions into them.

They live across instructions; `ReduceCmd` says whether an instruction sets, adds to or leaves them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from trnx.simulator.errors import UninitialisedReadError
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.isa.operands import is_overlapping, match_column
from trnx.simulator.language.enums import Engine, ReduceCmd
from trnx.simulator.language.operators.table import Operator
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtype_conversion import append_store_f32
from trnx.simulator.memory.views import reshape_strides


def require_command(emit: Emit, command: Any, allowed: Collection[ReduceCmd]) -> None:
    """The reduce command is one that the instruction takes."""
    if command not in allowed:
        names = ", ".join(one.name for one in allowed)
        emit.illegal(f"reduce_cmd={command} is not supported; use one of {names}")


def accumulator(
    emit: Emit, engine: Engine, tile: NkiTensor, command: Any, result: NkiTensor | None = None
) -> torch.Tensor:
    """The [partitions, 1] accumulator registers of the lanes that `tile` runs through; a finding
    where `command` adds to what nothing has set, or `result` gets that.
    """
    start, count = tile.start_partition, tile.shape[0]
    key, lanes = f"{engine.name}.accumulator", ((1 << count) - 1) << start
    registers = emit.state(key, (128, 1), torch.float32)
    if command is ReduceCmd.idle and engine is Engine.vector:
        # Only here may registers change: "the accumulator state may still be modified".
        emit.change_lanes(key, lanes, is_set=False)
        if result is not None:
            _unknown(emit, "gives reduce_res what reduce_cmd.idle leaves")
    elif command is ReduceCmd.reduce or (command is ReduceCmd.idle and result is not None):
        if not emit.are_lanes_set(key, lanes):
            _unknown(emit, "takes what nothing has set, or what an instruction with idle has left")
    elif command is not ReduceCmd.idle:
        emit.change_lanes(key, lanes, is_set=True)
    return registers[start : start + count]


def _unknown(emit: Emit, what: str) -> None:
    message = f"{what} in the accumulator registers of the {emit.engine.name} engine; set them"
    hint = "with reduce_cmd.reset_reduce, or in an instruction before"
    emit.finding("uninitialised-read", f"{message} {hint}", UninitialisedReadError)


def accumulate(
    emit: Emit,
    command: Any,
    op: Operator,
    values: torch.Tensor,
    registers: torch.Tensor,
    initial: Any = None,
) -> None:
    """Reduce `values` (all but dimension 0) by `op` into the registers as `command` says."""
    if command is ReduceCmd.idle:
        return
    if command is ReduceCmd.reset:
        emit.step(registers.fill_, op.identity)
        return
    rows = _flat(emit, values)
    if command is ReduceCmd.reset_reduce:
        emit.step(op.reduce(), rows, out=registers)
        return
    if command is ReduceCmd.load_reduce:
        emit.step(registers.copy_, initial)
    partial = emit.scratch(registers.shape)
    emit.step(op.reduce(), rows, out=partial)
    emit.step(op.function, registers, partial, out=registers)


def reduced(
    emit: Emit,
    command: Any,
    op: Operator,
    tile: NkiTensor,
    values: torch.Tensor,
    result: NkiTensor | None,
) -> torch.Tensor | None:
    """The registers after `accumulate`; None where the instruction does not touch them."""
    if command is ReduceCmd.idle and result is None and emit.engine is not Engine.vector:
        return None
    registers = accumulator(emit, emit.engine, tile, command, result)
    accumulate(emit, command, op, values, registers)
    return registers


def _flat(emit: Emit, values: torch.Tensor) -> torch.Tensor:
    """`values` as [partitions, elements]; a copy in scratch where strides do not allow a view."""
    if values.ndim == 2:
        return values
    strides = reshape_strides(
        tuple(values.shape), values.stride(), (values.shape[0], values[0].numel())
    )
    if strides is not None:
        return values.as_strided((values.shape[0], values[0].numel()), strides)
    copy = emit.scratch(values.shape, values.dtype)
    emit.step(copy.copy_, values)
    return copy.view(values.shape[0], -1)


def read_out(
    emit: Emit, registers: torch.Tensor | None, result: NkiTensor | None, dst: NkiTensor
) -> None:
    """Write the registers to `reduce_res`, where it is given, after `dst` is complete even where
    the two overlap.
    """
    if registers is None or result is None:
        return
    match_column(emit, result, "reduce_res", dst)
    shape = (result.shape[0], 1)
    if not is_overlapping(dst, result):
        emit.step(emit.write_f32(result, "reduce_res", shape=shape).copy_, registers)
        return
    target = emit.write(result, "reduce_res", shape=shape)
    steps: list[Any] = []
    append_store_f32(steps, result.dtype, registers, target, False)
    for step in steps:
        emit.finish(step)
