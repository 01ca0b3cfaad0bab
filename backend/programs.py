"""Traced kernels, shared by all equal launches of the process: the layers of a model, forward and
backward graphs, recompilations."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch

from trnx.nki_kernels.spec import Launch
from trnx.simulator import trace
from trnx.simulator.program import Program

# A large model has some tens of different launches for each shape that it sees.
CAPACITY = 512


def _hashable(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_hashable(item) for item in value))
    if isinstance(value, dict):
        return ("dict", *((key, _hashable(item)) for key, item in value.items()))
    # 1, 1.0 and True are equal, and are different constants to a kernel.
    return (type(value), value)


class ProgramCache:
    """(kernel, arguments, target) -> Program; bounded, the least recently used leaves first."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._programs: OrderedDict[Hashable, Program] = OrderedDict()

    def get(self, launch: Launch, target: str) -> Program:
        """The Program of `launch`, traced now where it is new."""
        key = (launch.kernel, _hashable(launch.arguments), target)
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
        # Its storage outlives the call: it must be writable outside inference mode too.
        with torch.inference_mode(False), torch.no_grad():
            program = trace(launch.kernel, launch.arguments, target=target)
        with self._lock:
            program = self._programs.setdefault(key, program)
            while len(self._programs) > self._capacity:
                self._programs.popitem(last=False)
        return program

    def __len__(self) -> int:
        return len(self._programs)


PROGRAMS = ProgramCache()
