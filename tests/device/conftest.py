"""Processes on the fakes: a machine that seems to have a device (`tests/fakes/README.md`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FAKES = Path(__file__).resolve().parents[1] / "fakes"


@pytest.fixture
def device_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that a test starts find a device; the test's own does not."""
    for name in os.environ:
        if name.startswith("TRNX_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
