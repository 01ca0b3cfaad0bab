"""Fixtures of the simulator's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from trnx.simulator import load_module
from trnx.simulator.context import enter, leave
from trnx.simulator.hardware import TRN2
from trnx.simulator.simulator import Simulator


@pytest.fixture(scope="session")
def kernels() -> ModuleType:
    """The kernels of `core_kernels.py`."""
    return load_module(Path(__file__).with_name("core_kernels.py"))


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """A simulator that is the current one, as inside of a kernel."""
    made = Simulator(TRN2, values=True)
    token = enter(made)
    yield made
    leave(token)
