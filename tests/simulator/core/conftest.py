"""Fixtures of the simulator's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from trnx.simulator import load_module
from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.frontend.simulator import Simulator
from trnx.simulator.language.recorder import CURRENT


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
