"""Comparing two checkouts: equal ones are equal, and a planted change of a cost is seen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "compare_programs.py"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout in which VectorE takes a cycle longer."""
    copy = tmp_path_factory.mktemp("other") / "trnx"
    ignore = shutil.ignore_patterns(".git", ".venv", ".mypy_cache", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignore)
    constants = copy / "simulator" / "costs" / "constants.py"
    text = constants.read_text()
    assert "vector_issue_cycles: float = _constant(\n        73," in text
    constants.write_text(text.replace("_constant(\n        73,", "_constant(\n        74,", 1))
    return copy


def _compare(before: Path, only: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--before", str(before), "--only", only, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_a_planted_cost_is_seen_where_it_matters(other: Path) -> None:
    status, result = _compare(other, "core")
    assert status == 1
    different = result["different"]
    assert isinstance(different, dict)
    assert "times of instructions" in different["core streams_tiles"]
    # No instruction of VectorE in it.
    assert "core writes_argument" not in different
    status, result = _compare(ROOT, "core")
    assert (status, result["equal"], result["programs"]) == (0, True, 17)
