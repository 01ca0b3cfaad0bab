"""Programs in one OS thread each, of which only the one that holds the baton runs.

The baton changes hands where programs meet and where one ends, always to the next program in order,
so every run is deterministic. When every program waits, none can go on: that is the deadlock
finding. A failure ends the parked programs, and `run` raises it.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnx.simulator.errors import DeadlockError, Location
from trnx.simulator.kernel_lines import kernel_location

# Seconds after which a program that is to stop is asked again.
_PATIENCE = 0.5


class _StoppedError(BaseException):
    """Ends a parked program after another one failed; no `except Exception` may catch it."""


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise `error` in another thread at its next bytecode."""
    identity = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(error))


@dataclass
class _Rendezvous:
    """Programs that arrived, with their payloads."""

    parties: frozenset[int]
    arrived: dict[int, Any] = field(default_factory=dict)
    locations: dict[int, Location | None] = field(default_factory=dict)


class Baton:
    """Runs `count` programs; `kind` is what messages call one of them.

    Programs park at a lock of their own, which can be interrupted at any bytecode: nothing but
    plain locks is held across it.
    """

    def __init__(self, count: int, kind: str) -> None:
        self._lock = threading.Lock()
        # Held while its program has nothing to do.
        self._gates = [threading.Lock() for _ in range(count)]
        # Held until its program has ended. (An interrupted Thread.join takes any thread for dead.)
        self._ends = [threading.Lock() for _ in range(count)]
        for lock in (*self._gates, *self._ends):
            lock.acquire()
        self._turn = 0
        self._count = count
        self._kind = kind
        self._ready = set(range(count))
        # Programs that a stop has to be raised in: others end when they ask for their turn.
        self._running: set[int] = set()
        self._rendezvous: dict[Hashable, _Rendezvous] = {}
        self._failure: BaseException | None = None

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run all programs to their end. Raises what failed first.

        An interrupt (Ctrl-C) comes to the thread that waits here: it ends the programs, too.
        """
        threads = [
            threading.Thread(
                # Settings of the caller's context hold in the programs, too.
                target=contextvars.copy_context().run,
                args=(self._thread, index, body),
                name=f"{self._kind} {index}",
                daemon=True,
            )
            for index, body in enumerate(bodies)
        ]
        try:
            for thread in threads:
                thread.start()
            for end in self._ends:
                # Programs of a rank wait in its thread, which must notice when it is to stop.
                while not end.acquire(timeout=_PATIENCE):
                    pass
        except BaseException as interrupt:  # noqa: BLE001
            self._failure = self._failure or interrupt
            self._stop(threads)
        for thread in threads:
            if thread.is_alive():
                thread.join()
        if self._failure is not None:
            raise self._failure

    def _stop(self, threads: Sequence[threading.Thread]) -> None:
        """End the programs wherever they are, and wait for it; more interrupts change nothing."""
        pending = list(range(self._count))
        while pending:
            try:
                self._wake_all()
                for index in list(pending):
                    if index in self._running:
                        _raise_in(threads[index], _StoppedError)
                    # One that did not start yet ends by itself when it asks for its turn.
                    if self._ends[index].acquire(timeout=_PATIENCE) or index not in self._running:
                        pending.remove(index)
            except KeyboardInterrupt:
                continue

    def _wake_all(self) -> None:
        for index in range(self._count):
            self._wake(index)

    def _wake(self, index: int) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake
            self._gates[index].release()

    def _thread(self, index: int, body: Callable[[], None]) -> None:
        try:
            self._running.add(index)
            self._run_one(index, body)
        except _StoppedError:
            pass  # it came while the program was ending anyway
        finally:
            self._running.discard(index)
            self._ends[index].release()

    def _run_one(self, index: int, body: Callable[[], None]) -> None:
        try:
            self._wait_for_turn(index)
            body()
        # Whatever a kernel raises belongs to the caller's thread: `run` raises it there.
        except BaseException as error:  # noqa: BLE001
            self._failure = self._failure or error
        with self._lock:
            self._ready.discard(index)
            self._pass_on(index)

    def _wait_for_turn(self, index: int) -> None:
        while True:
            with self._lock:
                if self._failure is not None:
                    raise _StoppedError
                if self._turn == index and index in self._ready:
                    return
            self._gates[index].acquire()

    def _pass_on(self, index: int) -> None:
        """Give the baton to the next program that can run; the lock is held."""
        for step in range(1, self._count + 1):
            candidate = (index + step) % self._count
            if candidate in self._ready:
                self._turn = candidate
                self._wake(candidate)
                break
        else:
            if self._rendezvous and self._failure is None:
                self._failure = self._deadlock()
        if self._failure is not None:
            self._wake_all()

    def _deadlock(self) -> DeadlockError:
        lines = []
        location = None
        for key, rendezvous in self._rendezvous.items():
            missing = sorted(rendezvous.parties - set(rendezvous.arrived))
            for program, where in rendezvous.locations.items():
                location = location or where
                lines.append(f"{self._kind} {program} waits for {missing} in {key} at {where}")
        return DeadlockError("deadlock", "; ".join(lines), location)

    def meet(
        self, index: int, key: Hashable, parties: frozenset[int], payload: Any
    ) -> dict[int, Any] | None:
        """Wait until all `parties` are here. The last to arrive gets everyone's payload, the others
        None.
        """
        rendezvous = self._rendezvous.setdefault(key, _Rendezvous(parties))
        rendezvous.arrived[index] = payload
        rendezvous.locations[index] = kernel_location()
        if set(rendezvous.arrived) >= parties:
            del self._rendezvous[key]
            with self._lock:
                self._ready |= parties
            return rendezvous.arrived
        with self._lock:
            self._ready.discard(index)
            self._pass_on(index)
        self._wait_for_turn(index)
        return None
