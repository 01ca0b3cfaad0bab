"""Fixtures of the simulator's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from trnx.simulator import load_module
from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.language.recorder import CURRENT
from trnx.simulator.memory.storage import Step

# For `kernel_parts.py`, which kernels import.
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    """The kernels of `core_kernels.py`."""
    return load_module(Path(__file__).with_name("core_kernels.py"))


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """A simulator that is the current one, as inside of a kernel."""
    made = Simulator(TraceOptions(values=True))
    token = CURRENT.set(made)
    yield made
    CURRENT.reset(token)


@pytest.fixture(scope="session")
def run_twice() -> Callable[..., list[torch.Tensor]]:
    """Runs steps on memory that is filled anew."""
    return _run_twice


def _run_twice(made: Any, steps: Sequence[Step], are_same: bool) -> list[torch.Tensor]:
    """What two runs leave in the caller's memory, bound to `made.slots`: inputs, which are one
    where they `are_same`, and a result; `made.own` is the other memory, of as many elements."""
    size = made.own[0].numel()
    for number, memory in enumerate(made.own):
        memory.copy_(torch.arange(size) % (3 + number))
    given = [torch.arange(size).float() % (5 + number) - 2 for number in range(len(made.slots))]
    if are_same:
        given[1] = given[0]
    for slot, tensor in zip(made.slots, given, strict=True):
        slot.release()
        slot.bind(tensor)
    left = []
    for _ in range(2):
        for step in steps:
            step()
        left += [one.clone() for one in given]
        # Sums of sums stay exact.
        for tensor in (*given, *made.own):
            tensor.remainder_(7)
    return left
