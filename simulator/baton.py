"""Programs in one OS thread each, of which only the one that holds the baton runs.

The baton changes hands where programs meet and where one ends, always to the next program in order,
so every run is deterministic. When every program waits, the meetings can never happen: that is the
deadlock finding. A failure ends the parked programs, and `run` raises it.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnx.simulator.context import kernel_location
from trnx.simulator.errors import FindingError, Location


class DeadlockError(FindingError):
    """Programs wait for each other forever."""


class _StoppedError(BaseException):
    """Ends a parked program after another one failed; no `except Exception` may catch it."""


@dataclass
class _Meeting:
    """Programs that arrived at a rendezvous, with what they brought."""

    parties: frozenset[int]
    arrived: dict[int, Any] = field(default_factory=dict)
    locations: dict[int, Location | None] = field(default_factory=dict)


class Baton:
    """Runs `count` programs; `kind` is what messages call one of them."""

    def __init__(self, count: int, kind: str) -> None:
        self._condition = threading.Condition()
        self._turn = 0
        self._count = count
        self._kind = kind
        self._ready = set(range(count))
        self._meetings: dict[Hashable, _Meeting] = {}
        self._failure: BaseException | None = None

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run all programs to their end. Raises what failed first."""
        threads = [
            threading.Thread(
                # Settings of the caller's context hold in the programs, too.
                target=contextvars.copy_context().run,
                args=(self._thread, index, body),
                name=f"{self._kind} {index}",
            )
            for index, body in enumerate(bodies)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            self._join(thread)
        if self._failure is not None:
            raise self._failure

    def _join(self, thread: threading.Thread) -> None:
        try:
            thread.join()
        except KeyboardInterrupt as interrupt:
            with self._condition:
                self._failure = self._failure or interrupt
                self._condition.notify_all()
            thread.join()

    def _thread(self, index: int, body: Callable[[], None]) -> None:
        try:
            self._wait_for_turn(index)
            body()
        except _StoppedError:
            pass
        # Whatever a kernel raises belongs to the caller's thread: `run` raises it there.
        except BaseException as error:  # noqa: BLE001
            with self._condition:
                self._failure = self._failure or error
        with self._condition:
            self._ready.discard(index)
            self._pass_on(index)

    def _wait_for_turn(self, index: int) -> None:
        with self._condition:
            while self._failure is None and not (self._turn == index and index in self._ready):
                self._condition.wait()
            if self._failure is not None:
                raise _StoppedError

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
                lines.append(f"{self._kind} {program} waits for {missing} in {key} at {where}")
        return DeadlockError("deadlock", "; ".join(lines), location)

    def meet(
        self, index: int, key: Hashable, parties: frozenset[int], brought: Any
    ) -> dict[int, Any] | None:
        """Wait until all `parties` are here. The last to arrive gets what each brought, the others
        None.
        """
        meeting = self._meetings.setdefault(key, _Meeting(parties))
        meeting.arrived[index] = brought
        meeting.locations[index] = kernel_location()
        if set(meeting.arrived) >= parties:
            del self._meetings[key]
            with self._condition:
                self._ready |= parties
            return meeting.arrived
        with self._condition:
            self._ready.discard(index)
            self._pass_on(index)
        self._wait_for_turn(index)
        return None
