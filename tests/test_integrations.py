"""The blocks of docs/integrations.md run, each in its own process, and go through trnx."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "integrations.md"
SECTION = re.compile(r"^## (.+?)\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(SECTION.findall(GUIDE.read_text()))
# What the block leaves behind must hold an NKI region: a library that swallowed the compilation
# would give right values as well.
COLLECTED = """
import trnx
with trnx.collect_reports() as reports:
{block}
assert any(report.regions for report in reports), "nothing was compiled"
"""


@pytest.mark.parametrize("library", BLOCKS)
def test_a_library_runs_with_one_line(library: str, tmp_path: Path) -> None:
    code = BLOCKS[library]
    for name in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install 'trnx[integrations]'")
    indented = "".join(f"    {line}\n" if line else "\n" for line in code.splitlines())
    script = tmp_path / "block.py"
    script.write_text(COLLECTED.format(block=indented))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, timeout=600, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
