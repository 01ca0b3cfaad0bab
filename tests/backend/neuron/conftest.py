"""Runs functions of `on_fakes.py` in a process of their own, which has the fakes on its path.

The device of the fakes is a process's for good, so the process of the other tests must not have it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
FAKES = HERE.parents[1] / "fakes"

OnFakes = Callable[..., Any]


def environment(**variables: str) -> dict[str, str]:
    """The variables of a process on the fakes; one LNC per process."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("TRNX_")}
    return {
        **known,
        "PYTHONPATH": f"{FAKES}{os.pathsep}{HERE}",
        "NEURON_LOGICAL_NC_CONFIG": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **variables,
    }


class _Worker:
    """A process that answers one line of JSON for each line that it gets."""

    def __init__(self, **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(**variables),
            text=True,
        )

    def __call__(self, function: str, *args: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([function, args]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the process ended"}')
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def fakes_environment() -> dict[str, str]:
    """The variables of a process that has the fakes installed."""
    return environment()


@pytest.fixture(scope="session")
def on_fakes() -> Any:
    """`on_fakes(function, *args)`: what the function of `on_fakes.py` returns."""
    worker = _Worker()
    yield worker
    worker.close()
