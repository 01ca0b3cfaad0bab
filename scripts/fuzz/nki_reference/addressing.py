"""Legal programs made harder: manual addresses, gathers and scatters by `.indirect`, and calls that
run in a register loop whose number of turns is a value.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from nki_reference.choices import Choices
from nki_reference.differential import prune_snapshots, views_of
from nki_reference.machine import IllegalError
from nki_reference.numbers import STORED, size_of
from nki_reference.program import Call, Loop, Offset, Program, Register, Storage, View
from nki_reference.program_builder import PLAIN, ProgramBuilder
from nki_reference.table import ENTRIES

# Operands that gather, and instructions whose dst scatters ("Tensor indirection" of the entries),
# on engines that share an index between 16 partitions.
GATHERS = {
    "tensor_copy": "src",
    "tensor_tensor": "data1",
    "tensor_scalar": "data",
    "tensor_reduce": "data",
    "activation": "data",
    "exponential": "src",
    "tensor_scalar_cumulative": "src",
}
SCATTERS = ("tensor_copy", "tensor_tensor", "tensor_scalar", "activation")
GROUP = 16
INDICES = ("int32", "uint32", "int16", "uint16")
WIDE_INTEGERS = ("int32", "uint32")
# SBUF bytes of a partition that manual tensors take at most: the others need room as well.
MANUAL = 2**16
BANK = 2048
# What a product adds to is decided when it is recorded; barriers order one turn of shared HBM.
NOT_IN_LOOPS = ("nc_matmul", "nc_matmul_mx", "core_barrier", "language")


# ---- tensor indirection ----


def make_indirect(builder: ProgramBuilder, call: Call) -> None:
    """Let an operand of the call, which was the last, gather or scatter columns."""
    engine = call.arguments.get("engine")
    if engine is not None and engine.name not in ("vector", "scalar", "unknown"):
        return
    if call.name == "tensor_scalar" and _may_be_address_arithmetic(call):
        return
    command = call.arguments.get("reduce_cmd")
    if command is not None and command.name == "reduce":
        return  # The registers that are set are those of the partitions of its operand.
    if call.name in GATHERS and builder.c.flag(60):
        _gather(builder, call, GATHERS[call.name])
    elif call.name in SCATTERS:
        _scatter(builder, call)


def _may_be_address_arithmetic(call: Call) -> bool:
    """Whether operands may make it arithmetic of 32-bit integers, which takes no indirection."""
    return all(call.arguments[name].dtype in WIDE_INTEGERS for name in ("dst", "data"))


def _fits(view: object) -> bool:
    return (
        isinstance(view, View)
        and len(view.shape) == 2
        and view.partitions % GROUP == 0
        and view.offset is None
        and view.other is None
    )


def _gather(s: ProgramBuilder, call: Call, operand: str) -> None:
    view = call.arguments.get(operand)
    if not _fits(view) or view.storage.values is None:
        return
    partitions, count = view.flat
    columns = s.c.integer(1, count + 4)
    # Of the kind that the instruction was to get.
    kept = view.storage.values.reshape(-1)
    base = s.storage(
        (partitions, columns), view.dtype, values=s.values.choice(kept, (partitions, columns))
    )
    lists = s.values.integers(0, columns, (partitions // GROUP, count))
    call.arguments[operand] = _indirect(s, base, lists)


def _scatter(s: ProgramBuilder, call: Call) -> None:
    view = call.arguments["dst"]
    # Later calls may read what it was to write.
    if not _fits(view) or view.storage.values is None:
        return
    partitions, count = view.flat
    columns = count + s.c.integer(0, 4)
    base = s.storage((partitions, columns), view.dtype, kind=PLAIN)
    lists = np.stack([s.values.permutation(columns)[:count] for _ in range(partitions // GROUP)])
    call.arguments["dst"] = _indirect(s, base, lists)


def _indirect(s: ProgramBuilder, base: Storage, lists: np.ndarray) -> View:
    """Columns of `base`: for each group of partitions those of its list."""
    groups, count = lists.shape
    width = -(-count // GROUP) + s.c.integer(0, 1)
    padded = np.zeros((groups, width * GROUP), dtype=np.int64)
    padded[:, :count] = lists
    # Offset i of a group stands in its partition i % 16, column i // 16.
    table = padded.reshape(groups, width, GROUP).transpose(0, 2, 1).reshape(-1, width)
    kind = s.c.pick(INDICES)
    index = s.whole(s.storage(table.shape, kind, values=table.astype(STORED[kind])))
    first = np.arange(base.shape[0])[:, None] * base.pitch
    return View(
        base,
        f"{base.name}.indirect({index.expression}, {count})",
        np.broadcast_to(first, (base.shape[0], count)),
        offset=Offset(index, 1, base.pitch, False, GROUP),
    )


# ---- manual addresses ----


def place(c: Choices, program: Program) -> None:
    """Give tensors on chip addresses that do not overlap."""
    still = {
        view.storage
        for call in program.calls
        if any(view.offset is not None and view.offset.group for view in _operands(call))
        for view in _operands(call)
    }
    taken: list[tuple[str, tuple[int, int], tuple[int, int]]] = []
    for storage in program.storages:
        if storage.is_on_chip and not storage.is_result and storage not in still and c.flag(70):
            storage.address = _free_address(c, storage, taken)
    if _is_refused(program):
        # An instruction wants its operands elsewhere: at partition 0 they all may be.
        taken.clear()
        for storage in program.storages:
            if storage.address is not None:
                storage.address = _free_address(c, storage, taken, starts=(0,))


def _operands(call: Call) -> list[View]:
    views = [view for value in call.arguments.values() for view in views_of(value)]
    indices = [view.offset.index for view in views if view.offset is not None]
    return [*views, *(index for index in indices if isinstance(index, View))]


def _is_refused(program: Program) -> bool:
    program.snapshots[-1] = []
    return isinstance(prune_snapshots(program), IllegalError)


def _free_address(
    c: Choices,
    storage: Storage,
    taken: list[tuple[str, tuple[int, int], tuple[int, int]]],
    starts: tuple[int, ...] = (0, 0, 32, 64, 96),
) -> tuple[int, int] | None:
    """(first partition, first byte), noted in `taken`; None where there is no room."""
    partitions = storage.shape[0]
    # Engines, which load PSUM, address all of it: where so many partitions may start.
    boundary = 32 if partitions <= 32 else 64 if partitions <= 64 else 128
    start = c.pick([s for s in starts if s + partitions <= 128 and s % boundary == 0])
    size = storage.pitch * size_of(storage.dtype)
    step = BANK if storage.buffer == "psum" else 64
    limit = 8 * BANK if storage.buffer == "psum" else MANUAL
    size = -(-size // step) * step
    columns = [0, *(end for buffer, _, (_, end) in taken if buffer == storage.buffer)]
    for column in columns:
        if column + size <= limit and all(
            buffer != storage.buffer
            or start >= rows[1]
            or rows[0] >= start + partitions
            or column >= bytes_[1]
            or bytes_[0] >= column + size
            for buffer, rows, bytes_ in taken
        ):
            taken.append((storage.buffer, (start, start + partitions), (column, column + size)))
            return start, column
    return None


# ---- loops ----


def make_loop(c: Choices, program: Program) -> None:
    """Let some calls that follow each other run as often as a tensor says."""
    runs = [
        (first, last)
        for first in range(len(program.calls))
        for last in range(first + 1, len(program.calls) + 1)
        if all(_may_repeat(program, call) for call in program.calls[first:last])
    ]
    if not runs:
        return
    first, last = c.pick(runs)
    body = program.calls[first:last]
    # Registers that the body gives values have none where it does not run.
    has_results = any(call.name.startswith("register") for call in body)
    kind = c.pick(("dynamic", "while") if has_results else ("fori", "dynamic", "while"))
    touched = {view.storage for call in body for view in _operands(call)}
    may_skip = not has_results and all(storage.values is not None for storage in touched)
    lower, step = (0, 1) if kind == "while" else (c.pick((0, 0, 1)), c.pick((1, 1, 2)))
    turns = c.pick((0, 1, 2, 3, 5) if may_skip else (1, 2, 3, 5))
    bound = np.array([[lower + step * turns]], dtype=np.int32)
    count = Storage("count", (1, 1), "int32", "sbuf", bound, other=bound)
    program.storages.append(count)
    program.loop = Loop(first, last, kind, count, lower, step)
    if kind != "while":
        _use_counter(c, program, lower + step * turns)
        _roll(c, program, lower + step * turns)


def _may_repeat(program: Program, call: Call) -> bool:
    known = ENTRIES.get(call.name)
    if known is None or not known.is_exact(call) or call.name in NOT_IN_LOOPS:
        return False
    buffers = {view.buffer for view in _operands(call)}
    return program.cores == 1 or "shared_hbm" not in buffers


def _use_counter(c: Choices, program: Program, end: int) -> None:
    """Addresses that a register decides follow the loop's counter."""
    loop = program.loop
    assert loop is not None
    for call in program.calls[loop.first : loop.last]:
        for key, view in call.arguments.items():
            if not isinstance(view, View) or view.offset is None or not c.flag(70):
                continue
            register = view.offset.index
            if isinstance(register, Register) and end <= view.offset.limit:
                text = re.sub(rf"\b{register.name}\b", loop.counter, view.expression)
                offset = dataclasses.replace(view.offset, index=Register(loop.counter))
                call.arguments[key] = dataclasses.replace(view, expression=text, offset=offset)


def _roll(c: Choices, program: Program, end: int) -> None:
    """Each turn takes an operand from the column that the counter names, or writes there."""
    loop = program.loop
    assert loop is not None
    for number, call in enumerate(program.calls[loop.first : loop.last]):
        operand = c.pick((GATHERS.get(call.name, ""), "dst" if call.name in SCATTERS else ""))
        view = call.arguments.get(operand)
        if (
            not isinstance(view, View)
            or len(view.shape) != 2
            or view.offset is not None
            or view.other is not None
            or view.storage.values is None
            or not c.flag(60)
        ):
            continue
        partitions, count = view.flat
        shape = (partitions, count + max(end, 1) - 1 + c.integer(0, 2))
        rng = np.random.default_rng(c.integer(0, 2**31))
        values = rng.choice(view.storage.values.reshape(-1), shape)
        base = Storage(f"rolling{number}", shape, view.dtype, "sbuf", values)
        program.storages.append(base)
        text = f"{base.name}[:, nl.ds({loop.counter}, {count})]"
        index = np.arange(base.size).reshape(shape)[:, :count]
        offset = Offset(Register(loop.counter), 1, shape[1] - count + 1, False)
        call.arguments[operand] = View(base, text, index, offset=offset)
