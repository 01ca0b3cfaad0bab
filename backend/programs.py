"""Traced kernels, shared by all equal launches of the process: the layers of a model, forward and
backward graphs, recompilations."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Hashable

import torch

from trnx.backend.cache.programs import kept_program
from trnx.backend.errors import SharedResultError
from trnx.nki_kernels.keys import key_of
from trnx.nki_kernels.spec import Launch
from trnx.simulator import trace
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.frontend.beginnings import Beginning
from trnx.simulator.frontend.tracing import trace_beginning
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.program.program import Program
from trnx.simulator.program.proof import Claim

# While a graph compiles: kernels are traced to predict them, and most of those are not chosen.
CAPACITY = 256
# After that, for the next model of the same layers: what executables use is found without them. A
# large model has some tens of different launches for each shape that it sees.
KEPT = 64
# Programs hold the on-chip tensors of their kernels: some megabytes each, 24 MiB at the most.
CAPACITY_BYTES = 1 << 30


def launch_key(launch: Launch, target: str) -> Hashable:
    """Equal launches on one target have equal keys."""
    return (launch.kernel, key_of(launch.arguments), launch.grid, target)


def traced(launch: Launch, target: str) -> Program:
    """The Program of `launch`, from shapes alone. Raises what tracing raises, and
    SharedResultError."""
    # A kernel without a grid of its own, so that a user's `kernel[2]` stays what it is.
    grid = launch.grid if launch.grid > 1 else None
    program = trace(launch.kernel, launch.arguments, target=target, grid=grid)
    if grid is not None and not launch.knows_cores:
        check_repeatable(launch, program)
    return program


def traced_beginning(launch: Launch, target: str, most: int) -> Beginning:
    """The first `most` instructions of each core of `launch`, from shapes alone. Raises what
    tracing raises."""
    grid = launch.grid if launch.grid > 1 else None
    return trace_beginning(launch.kernel, launch.arguments, most, target=target, grid=grid)


def _recorded(launch: Launch, target: str) -> Program:
    # Its storage outlives the call: it must be writable outside inference mode too.
    with torch.inference_mode(False), torch.no_grad():
        return traced(launch, target)


def check_repeatable(launch: Launch, program: Program) -> None:
    """Raises SharedResultError for a kernel that all programs run alike, and that reads what it
    writes to shared HBM: there another program may have been faster."""
    if program.rows.reads_back():
        name = getattr(launch.kernel, "__name__", "kernel")
        raise SharedResultError(
            f"{name} reads what it writes to nl.shared_hbm, and {launch.grid} programs would run "
            "it at once: keep what is read again in nl.private_hbm, or give the kernel a last "
            "parameter `cores: int = 1` and share the work (docs/adding_a_kernel.md)"
        )


def host_bytes(programs: Collection[Program]) -> int:
    """Memory of this machine that they hold."""
    return sum(program.host_bytes for program in programs)


class _Turn:
    """Held by the thread that traces; a forked child, which has no such thread, finds it free."""

    def __init__(self) -> None:
        self._lock = fork_lock(self, threading.Lock)


class ProgramCache:
    """(kernel, arguments, grid, target) -> Program; bounded, the least recently used leaves first.

    What has left is still found while an executable uses it, so that a graph with more than fits
    is not traced again and again. Threads that ask for the same Program at once trace it once.
    `traced` counts the traces. `get` traces what is not known here; `replayable` looks into the
    compile cache before it does, and keeps there what it finds elsewhere.
    """

    def __init__(self, capacity: int = CAPACITY, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._lock = fork_lock(self, threading.Lock)
        self._programs: LruCache[Program] = LruCache(capacity, capacity_bytes, host_bytes)
        self._in_use: weakref.WeakValueDictionary[Hashable, Program] = weakref.WeakValueDictionary()
        self._replayed: weakref.WeakValueDictionary[Hashable, Program] = (
            weakref.WeakValueDictionary()
        )
        self._tracing: dict[Hashable, _Turn] = {}
        self.traced = 0

    def get(self, launch: Launch, target: str) -> Program:
        """The Program of `launch`, traced now where it is new."""
        key = launch_key(launch, target)
        with self._lock:
            known = self._found(key)
            if known is not None:
                return known
            turn = self._tracing.setdefault(key, _Turn())
        with turn._lock:
            with self._lock:
                known = self._found(key)
            return self._trace(key, launch, target) if known is None else known

    def replayable(self, launch: Launch, target: str, claim: Claim | None = None) -> Program:
        """A Program of `launch` for who runs it, and what it is claimed to compute."""
        key = launch_key(launch, target)
        with self._lock:
            known = self._replayed.get(key)
        if known is not None:
            return known
        found = kept_program(
            launch,
            target,
            lambda: self._shortened(launch, target, claim),
            # Whoever asks for its instructions later: with this Program in its place.
            lambda: _recorded(launch, target).rows,
        )
        with self._lock:
            self._replayed[key] = found
            if self._in_use.get(key) is None:
                self._in_use[key] = found
                self._programs.put(key, found)
        return found

    def _shortened(self, launch: Launch, target: str, claim: Claim | None) -> Program:
        program = self.get(launch, target)
        program.shorten(claim)
        return program

    def _found(self, key: Hashable) -> Program | None:
        known = self._in_use.get(key)
        if known is not None and self._programs.get(key) is None:
            self._programs.put(key, known)
        return known

    def _trace(self, key: Hashable, launch: Launch, target: str) -> Program:
        try:
            program = _recorded(launch, target)
            with self._lock:
                self.traced += 1
                self._in_use[key] = program
                self._programs.put(key, program)
            return program
        finally:
            with self._lock:
                self._tracing.pop(key, None)

    def trim(self, most: int = KEPT) -> None:
        """Drop what nothing uses, but for the `most` newest: a graph has compiled."""
        self._programs.trim(most)

    def clear(self) -> None:
        """Drop every Program that nothing uses, for measurements."""
        self._programs.clear()

    def __len__(self) -> int:
        return len(self._programs)


PROGRAMS = ProgramCache()
