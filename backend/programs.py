"""Traced kernels, shared by all equal launches of the process: the layers of a model, forward and
backward graphs, recompilations."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable

import torch

from trnx.nki_kernels.keys import key_of
from trnx.nki_kernels.spec import Launch
from trnx.simulator import trace
from trnx.simulator.fork_locks import fork_lock
from trnx.simulator.program.program import Program

# A large model has some tens of different launches for each shape that it sees.
CAPACITY = 512
# Programs hold the on-chip tensors of their kernels: some megabytes each, 24 MiB at the most.
CAPACITY_BYTES = 1 << 30


def launch_key(launch: Launch, target: str) -> Hashable:
    """Equal launches on one target have equal keys."""
    return (launch.kernel, key_of(launch.arguments), target)


class ProgramCache:
    """(kernel, arguments, target) -> Program; bounded, the least recently used leaves first.

    What has left is still found while an executable uses it, so that a graph with more than fits
    is not traced again and again. Threads that ask for the same Program at once trace it once.
    `traced` counts the traces.
    """

    def __init__(self, capacity: int = CAPACITY, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._lock = fork_lock(self, threading.Lock)
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()
        self._bytes = 0
        self._in_use: weakref.WeakValueDictionary[Hashable, Program] = weakref.WeakValueDictionary()
        self._tracing: dict[Hashable, threading.Lock] = {}
        self.traced = 0

    def get(self, launch: Launch, target: str) -> Program:
        """The Program of `launch`, traced now where it is new."""
        key = launch_key(launch, target)
        with self._lock:
            known = self._found(key)
            if known is not None:
                return known
            turn = self._tracing.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                known = self._found(key)
            return self._trace(key, launch, target) if known is None else known

    def _found(self, key: Hashable) -> Program | None:
        known = self._in_use.get(key)
        if known is not None:
            self._keep(key, known)
        return known

    def _trace(self, key: Hashable, launch: Launch, target: str) -> Program:
        try:
            # Its storage outlives the call: it must be writable outside inference mode too.
            with torch.inference_mode(False), torch.no_grad():
                program = trace(launch.kernel, launch.arguments, target=target)
            with self._lock:
                self.traced += 1
                self._in_use[key] = program
                self._keep(key, program)
            return program
        finally:
            with self._lock:
                self._tracing.pop(key, None)

    def clear(self) -> None:
        """Drop every Program that nothing uses, for measurements."""
        with self._lock:
            self._programs.clear()
            self._bytes = 0

    def _keep(self, key: Hashable, program: Program) -> None:
        if key not in self._programs:
            self._programs[key] = program
            self._bytes += program.host_bytes
        self._programs.move_to_end(key)
        while len(self._programs) > self._capacity or (
            self._bytes > self._capacity_bytes and len(self._programs) > 1
        ):
            _, dropped = self._programs.popitem(last=False)
            self._bytes -= dropped.host_bytes

    def __len__(self) -> int:
        return len(self._programs)


PROGRAMS = ProgramCache()
