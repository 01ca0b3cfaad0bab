"""Kernels written from the documentation: one program of each is judged as it says."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts" / "conformance" / "seeded"


@pytest.fixture(scope="module")
def seeded() -> Iterator[ModuleType]:
    """`seeded/run.py`, with its folder on the path as when it is run."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("run")
    finally:
        sys.path.remove(str(FOLDER))
        for name in {path.stem for path in FOLDER.glob("*.py")} - before:
            sys.modules.pop(name, None)


def _first_of_each(seeded: ModuleType, kind: str) -> list[object]:
    """The first program of each kernel, on the newest generation that it names."""
    found = {}
    for program in seeded.programs(kind):
        found[program.kernel.family, program.kernel.what, program.target] = program
    newest = {}
    for (family, what, target), program in found.items():
        newest[family, what] = max(newest.get((family, what), (target, program)), (target, program),
                                   key=lambda pair: pair[0])  # fmt: skip
    return [program for _, program in newest.values()]


def test_faults_are_found_at_their_lines(seeded: ModuleType) -> None:
    verdicts = [seeded.judge(program) for program in _first_of_each(seeded, "faults")]
    missed = [one.program.name for one in verdicts if one.status != "found"]
    assert len(missed) <= 0.03 * len(verdicts), missed


def test_legal_kernels_are_accepted(seeded: ModuleType) -> None:
    verdicts = [seeded.judge(program) for program in _first_of_each(seeded, "legal")]
    assert len(verdicts) > 100
    assert [(one.program.name, one.detail) for one in verdicts if one.status != "accepted"] == []


def test_programs_are_as_many_as_asked(seeded: ModuleType) -> None:
    assert sum(program.line > 0 for program in seeded.programs("faults")) >= 400
    assert len(list(seeded.programs("faults"))) == sum(
        program.line > 0 for program in seeded.programs("faults")
    )
    legal = list(seeded.programs("legal"))
    assert len(legal) >= 300
    assert all(program.line == 0 for program in legal)


def test_wrong_values_and_lines_are_told(seeded: ModuleType) -> None:
    template = importlib.import_module("template")
    body = "t = load(x)\nu = sb((128, 64))\nnisa.tensor_copy(dst=u, src=t)\nreturn save(u)"
    right = template.Kernel("f", "a:1", "copy", body, want=lambda x: x, on=("trn2",))
    wrong = template.Kernel("f", "a:1", "copy", body, want=lambda x: x + 1, on=("trn2",))
    marked = body.replace("src=t)", "src=t)  # fault")
    legal = template.Kernel("f", "a:1", "copy", marked, on=("trn2",))
    other = template.Kernel("f", "a:1", "copy", marked.replace("src=t", "src=u"), on=("trn2",))
    moved = marked.replace("sb((128, 64))", "sb((129, 64))")
    earlier = template.Kernel("f", "a:1", "copy", moved, on=("trn2",))
    found = [
        seeded.judge(next(one.programs())).status for one in (right, wrong, legal, other, earlier)
    ]
    assert found == ["accepted", "values", "missed", "found", "other line"]


def test_the_script_counts_by_family() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--only", "bn_", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(done.stdout.splitlines()[-1])
    assert data["passed"] is True
    assert set(data["faults"]["by_family"]) == {"bn_stats", "bn_aggr"}
    assert data["legal"]["by_family"] == {"bn_aggr": {"accepted": 3}}
