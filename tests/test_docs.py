"""The Python blocks of the guides run, in order, as a reader would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo

from trnx.nki_kernels import registry

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
    config = torch._dynamo.config  # the guide of RNNs sets `allow_rnn`
    with config.patch(allow_rnn=config.allow_rnn):
        for line, code in blocks:
            # Empty lines in front make tracebacks name the guide's own lines.
            exec(compile("\n" * line + code, str(ROOT / guide), "exec"), names)


WALKTHROUGH = ROOT / "docs" / "own_kernel.md"
STEP = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STATUS = re.compile(r"\(status (\d)\)")


def test_the_walkthrough_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are written, its blocks and commands run, its output is what comes out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    text = WALKTHROUGH.read_text()
    names: dict[str, object] = {"__name__": "guide"}
    commands = 0
    for step in STEP.finditer(text):
        kind, code = step.groups()
        first = code.partition("\n")[0]
        if kind == "console":
            _run_console(code)
            commands += 1
        elif name := re.fullmatch(r"# (\w+\.py)", first):
            Path(name.group(1)).write_text(code)
        else:
            line = text[: step.start(2)].count("\n")
            exec(compile("\n" * line + code, str(WALKTHROUGH), "exec"), names)
    assert commands == text.count("$ trnx") > 4
    registry.kernels().replace(tmp_path / "my_kernel.py", [])


def _run_console(block: str) -> None:
    """One command of trnx with lines of its output; `...` stands for anything."""
    command, *shown = block.splitlines()
    assert command.startswith("$ trnx ")
    status = 0
    if found := STATUS.fullmatch(shown[-1]):
        status = int(found.group(1))
        shown = shown[:-1]
    run = [sys.executable, "-m", "trnx.cli", *command.split()[2:]]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == status, output
    at = 0
    for line in shown:
        pattern = ".*?".join(re.escape(part) for part in line.split("..."))
        matched = re.compile(pattern).search(output, at)
        assert matched, f"{line!r} of {command!r} is not in\n{output[at:]}"
        at = matched.end()


def test_relative_links_lead_somewhere() -> None:
    for guide in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"`(docs/[\w/.-]+\.md|scripts/[\w/.-]+)`", guide.read_text()):
            assert (ROOT / target).exists(), f"{guide.name} names {target}"
