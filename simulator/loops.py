"""Loops with bounds that only a run knows: recorded once, replayed as one step.

The steps of the body go to a list of their own; the loop's step reads its bounds from registers and
calls them. While a body is recorded nothing is executed; with values the whole loop runs when it is
complete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trnx.simulator.context import kernel_location
from trnx.simulator.errors import KernelSubsetError, Location, UninitialisedReadError
from trnx.simulator.program import Step
from trnx.simulator.registers import VirtualRegister

if TYPE_CHECKING:
    from trnx.simulator.simulator import Simulator

Bound = int | VirtualRegister


@dataclass
class LoopRecord:
    """A loop of the Program: instructions `first` to `last` (exclusive) are its body."""

    kind: str
    first: int
    last: int = -1
    trips: int | None = None
    steps: list[Step] = field(default_factory=list)
    location: Location | None = None


class Loops:
    """The loops being recorded, outermost first, and those that are complete."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._open: list[tuple[LoopRecord, VirtualRegister | None]] = []
        self.records: list[LoopRecord] = []

    @property
    def depth(self) -> int:
        """How many loops are open."""
        return len(self._open)

    def target(self) -> list[Step] | None:
        """Where steps are recorded: the innermost open loop's list, or None outside of loops."""
        return self._open[-1][0].steps if self._open else None

    def _begin(self, kind: str, register: VirtualRegister | None) -> LoopRecord:
        if not self._open:
            self._simulator.pool.hold()
        record = LoopRecord(kind, len(self._simulator.rows), location=kernel_location())
        self._open.append((record, register))
        self.records.append(record)
        return record

    def _end(self, step: Step) -> None:
        record, _ = self._open.pop()
        record.last = len(self._simulator.rows)
        self._simulator.append_steps([step])
        if not self._open:
            self._simulator.pool.release()

    def fori(self, lower: Bound, upper: Bound, step: int, body: Callable[[Any], Any]) -> None:
        """`for i in range(lower, upper, step): body(i)`."""
        for counter in self.counted(lower, upper, step):
            body(counter)

    def counted(self, lower: Bound, upper: Bound, step: int) -> Iterator[VirtualRegister]:
        """Yields the counter once, while the body is recorded."""
        if not isinstance(step, int) or step < 1:
            self._fail(f"the step of a loop must be a positive compile-time integer, not {step!r}")
        for bound in (lower, upper):
            self._require_set(bound)
        counter = VirtualRegister(is_frozen=True)
        counter.is_set = True
        record = self._begin("for", None)
        if isinstance(lower, int) and isinstance(upper, int):
            record.trips = len(range(lower, upper, step))
        yield counter
        if not self._open or self._open[-1][0] is not record:
            self._fail("a loop inside this loop was not finished")
        self._end(functools.partial(_run_for, record.steps, counter, lower, upper, step))

    def while_loop(self, init: VirtualRegister, body: Callable[[Any], Any]) -> None:
        """`r = init; while r: r = body(r)`."""
        self._require_set(init)
        record = self._begin("while", None)
        condition = VirtualRegister()
        condition.is_set = True
        following = body(condition)
        if not isinstance(following, VirtualRegister):
            self._fail("the body of nl.while_loop must return the register of the next condition")
        self._end(functools.partial(_run_while, record.steps, init, condition, following))

    def while_condition(self, register: VirtualRegister) -> bool:
        """`while register:`: True opens the loop, the next evaluation closes it."""
        if self._open and self._open[-1][1] is register:
            record = self._open[-1][0]
            self._end(functools.partial(_run_while, record.steps, register, register, register))
            return False
        self._require_set(register)
        self._begin("while", register)
        return True

    def check_closed(self) -> None:
        """A loop that is open at the end was left by break or return, or was an `if register`."""
        if self._open:
            self._fail(
                "the value of a register was used in `if`, or a register loop was left early; "
                "registers work in `while register:` and nl.fori_loop alone",
                self._open[0][0].location,
            )

    def _require_set(self, bound: Bound) -> None:
        if isinstance(bound, VirtualRegister) and not bound.is_set:
            self._simulator.findings.report(
                UninitialisedReadError(
                    "uninitialised-read",
                    "a loop's bound is a register without value; set it with nisa.register_move "
                    "or nisa.register_load",
                    kernel_location(),
                )
            )

    def _fail(self, message: str, location: Location | None = None) -> None:
        raise KernelSubsetError("kernel-subset", message, location or kernel_location())


def _value(bound: Bound) -> int:
    return bound if isinstance(bound, int) else int(bound.value.item())


def _run_for(
    steps: list[Step], counter: VirtualRegister, lower: Bound, upper: Bound, stride: int
) -> None:
    for i in range(_value(lower), _value(upper), stride):
        counter.value.fill_(i)
        for step in steps:
            step()


def _run_while(
    steps: list[Step], init: VirtualRegister, condition: VirtualRegister, following: VirtualRegister
) -> None:
    condition.value.copy_(init.value)
    while condition.value.item():
        for step in steps:
            step()
        condition.value.copy_(following.value)
