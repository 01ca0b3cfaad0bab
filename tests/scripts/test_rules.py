"""The ledger of rules: each row's kernels are judged as it says, and the page is current."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "conformance" / "rules.py"


def _ledger() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rules_ledger", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ledger = _ledger()
ROWS = ledger.rows()


@pytest.mark.parametrize("row", [row for row in ROWS if row.refused], ids=lambda row: row.id)
def test_a_rule_is_held(row: object) -> None:
    assert ledger.run(row) == []


def test_a_wrong_row_is_told() -> None:
    row = ledger.Row(
        "family", "id", "a.py:1", "dst is in PSUM", check="engine",
        refused="nisa.tensor_copy(x, x)", accepted="nisa.memset(x, value=0)",
    )  # fmt: skip
    problems = ledger.run(row)
    assert len(problems) == 2 * 3
    assert "refused by buffer, not by engine" in problems[0]
    assert sum("refused: [buffer]" in problem for problem in problems) == 3
    for given in ({"refused": "x", "check": "c"}, {"why": "a", "open": "b"}, {}):
        assert list(ledger.Row("family", "id", "a.py:1", "rule", **given).problems_of_form())


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
