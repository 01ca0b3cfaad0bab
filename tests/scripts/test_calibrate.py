"""scripts/calibrate/run.py: the bars of single instructions hold; the guide has its table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/calibrate/run.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_single_instructions_hold_their_bars() -> None:
    done = _run("--quick", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["failed"] == []
    points = {point["name"]: point for point in answer["points"]}
    assert abs(points["B3-11"]["error"]) <= 0.10
    assert len(answer["free_constants"]) > 0
    # A constant that is not documented says which row or reason it has.
    assert all(": measured, " in c or ": inferred, " in c for c in answer["free_constants"])
    guide = (ROOT / "docs/timing.md").read_text()
    rows = [line for line in done.stdout.splitlines() if line.startswith("| B3-")]
    assert len(rows) > 20
    assert all(row in guide for row in rows)


@pytest.mark.slow
def test_whole_kernels_hold_their_bars() -> None:
    done = _run("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    guide = (ROOT / "docs/timing.md").read_text()
    assert all(row in guide for row in done.stdout.splitlines() if row.startswith("| C"))
