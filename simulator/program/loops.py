"""Loops with bounds that only a run knows: recorded once, replayed as one step.

The steps of the body go to a list of their own; the loop's step (see `interleaved_loops`) reads its
bounds from registers and calls them. While a body is recorded nothing is executed; with values the
whole loop runs when it is complete. Loops in which programs meet are completed by all of them
together.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from trnx.simulator.errors import (
    KernelSubsetError,
    Location,
    UninitialisedReadError,
    shortened,
)
from trnx.simulator.findings import Findings
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.memory.pool import BufferPool
from trnx.simulator.memory.storage import Step
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.interleaved_loops import Bound, ForLoop, Loop, WaitPoint, WhileLoop
from trnx.simulator.program.skipped_rows import require_turn


class LoopRecorder(Protocol):
    """What loops ask of who records their kernel."""

    rows: InstructionTable
    pool: BufferPool
    findings: Findings

    @property
    def storage_count(self) -> int: ...
    def append_steps(self, steps: Iterable[Step]) -> None: ...
    def join_loops(self, loop: Loop, with_ranks: bool) -> None: ...
    def begin_body(self, loop: Loop, own: int, is_sure: bool) -> None: ...
    def end_body(
        self, where: Location | None, registers: Sequence[VirtualRegister]
    ) -> list[Step]: ...


@dataclass
class LoopRecord:
    """A loop of the Program: instructions `first` to `last` (exclusive) are its body. `storages` is
    how many there were before it. `tensors` is the range of storages that its body function
    declares; empty for a `for` or `while` statement, whose names Python keeps.
    """

    first: int
    location: Location | None
    storages: int
    last: int = -1
    trips: int | None = None
    tensors: range = range(0)


@dataclass
class _Open:
    """A loop whose body is being recorded; `register` is the condition of `while register:`."""

    record: LoopRecord
    loop: Loop
    register: VirtualRegister | None
    # How many instructions wrote the register before.
    writes: int = 0
    meets_ranks: bool = False
    # What has its first value from the body.
    registers: list[VirtualRegister] = field(default_factory=list)


class Loops:
    """The loops being recorded, outermost first, and those that are complete."""

    def __init__(self, recorder: LoopRecorder) -> None:
        self._recorder = recorder
        self._open: list[_Open] = []
        # Whether a loop is being recorded.
        self.is_open = False
        self.records: list[LoopRecord] = []
        # How many `nl.no_reorder` blocks are open.
        self.ordered_blocks = 0

    @property
    def depth(self) -> int:
        """How many loops are open."""
        return len(self._open)

    @property
    def innermost(self) -> LoopRecord | None:
        """The innermost open loop."""
        return self._open[-1].record if self._open else None

    def around(self, instruction: int) -> set[int]:
        """The loops, by number, in whose bodies an instruction is."""
        return {
            number
            for number, one in enumerate(self.records)
            if one.first <= instruction and (one.last < 0 or instruction < one.last)
        }

    def extend(self, steps: Sequence[Step]) -> None:
        """Record steps of the innermost open loop."""
        loop = self._open[-1].loop
        loop.steps += steps
        if loop.watched is not None:
            loop.watched += steps

    def watch(self, step: Step) -> None:
        """A step of the innermost open loop that belongs to the first run alone."""
        loop = self._open[-1].loop
        if loop.watched is None:
            loop.watched = list(loop.steps)
        loop.watched.append(step)

    def note_register(self, register: VirtualRegister) -> None:
        """An instruction gives a register its first value."""
        unsure = next((one for one in reversed(self._open) if not one.record.trips), None)
        if unsure is not None:
            unsure.registers.append(register)

    def arrive(self, meets_ranks: bool) -> WaitPoint | None:
        """Mark the place where a program waits for others; None outside of loops."""
        if not self._open:
            return None
        self._recorder.pool.share()
        for one in self._open:
            one.loop.meets = True
            one.meets_ranks |= meets_ranks
        wait_point = WaitPoint(kernel_location())
        self.extend([wait_point])
        return wait_point

    def _begin(
        self,
        loop: Loop,
        register: VirtualRegister | None = None,
        trips: int | None = None,
        own: int = sys.maxsize,
    ) -> _Open:
        """A loop of so many `trips`, if that is known; storages from `own` on are its body's."""
        if self.ordered_blocks:
            raise KernelSubsetError(
                "kernel-subset",
                "a register loop cannot stand in nl.no_reorder; end the block before the loop "
                "(SDK/nki/api/nki/language/__init__.py, no_reorder)",
                kernel_location(),
            )
        if self._open:
            self._recorder.pool.nest()
        else:
            self._recorder.pool.hold()
        storages = self._recorder.storage_count
        first = len(self._recorder.rows)
        record = LoopRecord(first, kernel_location(), storages, trips=trips)
        opened = _Open(record, loop, register, register.writes if register is not None else 0)
        self._recorder.begin_body(loop, own, bool(trips))
        self._open.append(opened)
        self.is_open = True
        self.records.append(opened.record)
        return opened

    def _end(self) -> None:
        ended = self._open.pop()
        self.is_open = bool(self._open)
        ended.record.last = len(self._recorder.rows)
        steps = self._recorder.end_body(ended.record.location, ended.registers)
        self._recorder.append_steps(steps)
        if self._open or not ended.loop.meets:
            self._recorder.append_steps([ended.loop])
        else:
            self._recorder.join_loops(ended.loop, ended.meets_ranks)
        if self._open:
            self._recorder.pool.end_nested()
        else:
            ended.loop.forget()
            self._recorder.pool.release()

    def fori(self, lower: Bound, upper: Bound, step: int, body: Callable[[Any], Any]) -> None:
        """`for i in range(lower, upper, step): body(i)`."""
        number, before = len(self.records), self._recorder.storage_count
        for counter in self.counted(lower, upper, step, before):
            if body(counter) is not None:
                self._fail(
                    "the body of nl.fori_loop returns a value, which nothing receives; write it to "
                    "a tensor that was declared before the loop (SDK/nki/migration/index.rst)"
                )
        self.records[number].tensors = range(before, self._recorder.storage_count)

    def counted(
        self, lower: Any, upper: Any, step: int, own: int = sys.maxsize
    ) -> Iterator[VirtualRegister]:
        """Yields the counter once, while the body is recorded; `own` as in `_begin`."""
        if not isinstance(step, int) or step < 1:
            self._fail(f"the step of a loop must be a positive compile-time integer, not {step!r}")
        for bound in (lower, upper):
            if not isinstance(bound, int | np.integer | VirtualRegister):
                self._fail(f"a loop's bound is an integer or a register, not {shortened(bound)}")
            self._require_set(bound)
        counter = VirtualRegister(is_frozen=True)
        counter.is_set = True
        loop = ForLoop(counter=counter, lower=lower, upper=upper, stride=step)
        is_known = isinstance(lower, int) and isinstance(upper, int)
        trips = len(range(lower, upper, step)) if is_known else None
        opened = self._begin(loop, trips=trips, own=own)
        yield counter
        if not self._open or self._open[-1] is not opened:
            self._fail("a loop inside this loop was not finished")
        self._end()

    def while_loop(self, init: Any, body: Callable[[Any], Any]) -> None:
        """`r = init; while r: r = body(r)`."""
        if not isinstance(init, VirtualRegister):
            self._fail(f"the condition of nl.while_loop is a register, not {shortened(init)}")
        self._require_set(init)
        condition = VirtualRegister()
        condition.is_set = True
        loop = WhileLoop(init=init, condition=condition, following=condition)
        before = self._recorder.storage_count
        record = self._begin(loop, own=before).record
        following = body(condition)
        if not isinstance(following, VirtualRegister):
            self._fail("the body of nl.while_loop must return the register of the next condition")
        if following is condition and not condition.writes:
            self._report_endless(record.location)
        loop.following = following
        self._end()
        record.tensors = range(before, self._recorder.storage_count)

    def while_condition(self, register: VirtualRegister) -> bool:
        """`while register:`: True opens the loop, the next evaluation closes it."""
        if self._open and self._open[-1].register is register:
            if register.writes == self._open[-1].writes:
                self._report_endless(self._open[-1].record.location)
            self._end()
            return False
        self._require_set(register)
        self._begin(WhileLoop(init=register, condition=register, following=register), register)
        return True

    def _report_endless(self, where: Location | None) -> None:
        self._recorder.findings.report(
            KernelSubsetError(
                "kernel-subset",
                "no instruction of the body writes the register that is the loop's condition, so "
                "that the loop never ends; load the next condition (nisa.register_load), which is "
                "0 at the end",
                where,
            )
        )

    def check_closed(self) -> None:
        """A loop that is open at the end was left by break or return, or was an `if register`."""
        if self._open:
            self._fail(
                "the value of a register was used in `if`, or a register loop was left early; "
                "registers work in `while register:` and nl.fori_loop alone",
                self._open[0].record.location,
            )

    def _require_set(self, bound: Bound) -> None:
        if isinstance(bound, VirtualRegister) and not bound.is_set:
            self._recorder.findings.report(
                UninitialisedReadError(
                    "uninitialised-read",
                    "a loop's bound is a register without value; set it with nisa.register_move "
                    "or nisa.register_load",
                    kernel_location(),
                )
            )
        if isinstance(bound, VirtualRegister) and bound.lacks is not None:
            flags, why = bound.lacks
            where = kernel_location()
            step = functools.partial(require_turn, flags, f"a loop's bound {why}", where)
            self._recorder.append_steps([step])

    def _fail(self, message: str, location: Location | None = None) -> None:
        raise KernelSubsetError("kernel-subset", message, location or kernel_location())
