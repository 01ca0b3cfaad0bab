"""The programs of a grid, one OS thread each, of which only one runs at a time.

The baton changes hands where programs meet (`core_barrier`, `sendrecv`) and where one ends, always
to the next program in order: the recorded order is deterministic, and it is one serial order that
replay follows. When every program waits, the meeting can never happen: that is the deadlock
finding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trnx.simulator.checks.overlap import ManualMemory
from trnx.simulator.context import kernel_location
from trnx.simulator.errors import FindingError, Location
from trnx.simulator.loops import Loops
from trnx.simulator.storage import Allocation

if TYPE_CHECKING:
    from trnx.simulator.simulator import Simulator


class DeadlockError(FindingError):
    """Programs wait for each other forever."""


class _Stopped(BaseException):
    """Ends a parked program after another one failed."""


class Core:
    """State of one program: its loops, its on-chip tensors, its place in shared HBM's order."""

    def __init__(self, simulator: Simulator, index: int) -> None:
        self.index = index
        self.loops = Loops(simulator)
        self.allocations: list[Allocation] = []
        self.manual = ManualMemory()
        self.shared_next = 0


@dataclass
class _Meeting:
    """Programs that arrived at a rendezvous, with what they brought."""

    parties: frozenset[int]
    arrived: dict[int, Any] = field(default_factory=dict)
    locations: dict[int, Location | None] = field(default_factory=dict)


class Cores:
    """Runs the programs of a grid for `simulator`."""

    def __init__(self, simulator: Simulator, count: int) -> None:
        self._simulator = simulator
        self._condition = threading.Condition()
        self._turn = 0
        self._count = count
        self._ready = set(range(count))
        self._meetings: dict[Hashable, _Meeting] = {}
        self._failure: BaseException | None = None
        self._results: dict[int, Any] = {}

    def run(self, body: Callable[[Core], Any]) -> Any:
        """Run `body` for every program; the first one's result. Raises what failed first."""
        if self._count == 1:
            core = self._simulator.core = Core(self._simulator, 0)
            return body(core)
        threads = [
            threading.Thread(target=self._thread, args=(body, index), name=f"program {index}")
            for index in range(self._count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results[0]

    def _thread(self, body: Callable[[Core], Any], index: int) -> None:
        core = Core(self._simulator, index)
        try:
            self._wait_for_turn(core)
            self._results[index] = body(core)
        except _Stopped:
            pass
        # Whatever a kernel raises belongs to the caller's thread: `run` raises it there.
        except BaseException as error:  # noqa: BLE001
            with self._condition:
                self._failure = self._failure or error
        with self._condition:
            self._ready.discard(index)
            self._pass_on(index)

    def _wait_for_turn(self, core: Core) -> None:
        with self._condition:
            while self._failure is None and not (
                self._turn == core.index and core.index in self._ready
            ):
                self._condition.wait()
            if self._failure is not None:
                raise _Stopped
        self._simulator.core = core

    def _pass_on(self, index: int) -> None:
        """Give the baton to the next program that can run; the condition is held."""
        for step in range(1, self._count + 1):
            candidate = (index + step) % self._count
            if candidate in self._ready:
                self._turn = candidate
                break
        else:
            if self._meetings and self._failure is None:
                self._failure = self._deadlock()
        self._condition.notify_all()

    def _deadlock(self) -> DeadlockError:
        lines = []
        location = None
        for key, meeting in self._meetings.items():
            missing = sorted(meeting.parties - set(meeting.arrived))
            for program, where in meeting.locations.items():
                location = location or where
                lines.append(f"program {program} waits for {missing} in {key} at {where}")
        return DeadlockError("deadlock", "; ".join(lines), location)

    def meet(self, key: Hashable, parties: frozenset[int], brought: Any) -> dict[int, Any] | None:
        """Wait until all `parties` are here. The last to arrive gets what each brought, the others
        None.
        """
        core = self._simulator.core
        meeting = self._meetings.setdefault(key, _Meeting(parties))
        meeting.arrived[core.index] = brought
        meeting.locations[core.index] = kernel_location()
        if set(meeting.arrived) >= parties:
            del self._meetings[key]
            if self._simulator.ordering is not None:
                self._simulator.ordering.meet(parties)
            with self._condition:
                self._ready |= parties
            return meeting.arrived
        with self._condition:
            self._ready.discard(core.index)
            self._pass_on(core.index)
        self._wait_for_turn(core)
        return None
