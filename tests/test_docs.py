"""The Python blocks of the guides run, in order, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ("README.md", "docs/user_guide.md", "docs/simulator.md", "docs/timing.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("guide", GUIDES)
def test_python_blocks_run(guide: str) -> None:
    text = (ROOT / guide).read_text()
    blocks = [(text[: m.start(1)].count("\n"), m.group(1)) for m in BLOCK.finditer(text)]
    assert blocks, f"{guide} has no Python block"
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "guide"}
    for line, code in blocks:
        # Empty lines in front make tracebacks name the guide's own lines.
        exec(compile("\n" * line + code, str(ROOT / guide), "exec"), names)


def test_relative_links_lead_somewhere() -> None:
    for guide in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"`(docs/[\w/.-]+\.md|scripts/[\w/.-]+)`", guide.read_text()):
            assert (ROOT / target).exists(), f"{guide.name} names {target}"
