"""Every command of `docs/trainium.md` is one that `trnx` takes, and what no device has shown is
marked."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from trnx.cli import app
from trnx.device.probes import PROBES
from trnx.device.tasks import LIMITS, all_tasks

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "trainium.md").read_text()
BLOCKS = re.findall(r"^ *```\n(.*?)^ *```$", GUIDE, re.MULTILINE | re.DOTALL)
# In blocks, and in the text where a command has arguments.
COMMANDS = sorted(
    {line.strip() for block in BLOCKS for line in block.splitlines() if "trnx " in line[:9]}
    | set(re.findall(r"`(trnx [a-z][^`]*)`", GUIDE))
)
STEPS = GUIDE.split("## From a bare instance", 1)[1].split("\n## ", 1)[0]


def test_the_guide_has_the_commands_of_the_first_hour() -> None:
    named = {" ".join(command.split()[1:3]) for command in COMMANDS}
    assert {"device collect", "device report", "doctor", "check-kernels --target"} <= named


@pytest.mark.parametrize("command", COMMANDS)
def test_trnx_takes_the_command(command: str) -> None:
    words = shlex.split(command)[1:]
    found: Any = typer.main.get_command(app)
    path: list[str] = []
    while isinstance(found, TyperGroup):
        assert words[0] in found.commands, f"trnx has no command {words[0]!r}"
        path.append(words.pop(0))
        found = found.commands[path[-1]]
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for word in words:
        assert not word.startswith("-") or f"{word.partition('=')[0]} " in shown.output
    # Parses, and does not run. Where the text names a command alone, it has no arguments.
    if words or not any(p.required for p in found.params):
        found.make_context(path[-1], words)


@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_what_a_shell_takes(block: str) -> None:
    lines = "\n".join(line.removeprefix("   ") for line in block.splitlines())
    checked = subprocess.run(["bash", "-n"], input=lines, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_what_no_device_has_shown_is_marked() -> None:
    steps = re.split(r"^\d\. ", STEPS, flags=re.MULTILINE)[1:]
    assert len(steps) == 6
    for step in steps:
        needs_a_device = re.search("sudo|repos.neuron|trnx device|first model", step) is not None
        assert ("[unconfirmed]" in step) == needs_a_device, step
    assert "**No device has confirmed any of this page.**" in GUIDE
    table = GUIDE.split("## What no device has confirmed", 1)[1]
    assert all(row.count("|") == 4 for row in table.strip().splitlines())


def test_each_open_question_has_a_task_or_a_reason() -> None:
    timing = (Path(__file__).resolve().parents[2] / "docs" / "timing.md").read_text()
    rows = timing.split("| question | task |", 1)[1].strip().splitlines()[1:]
    known = {probe.name for probe in PROBES} | set(all_tasks())
    for row in rows:
        _, question, task, _ = row.split("|")
        named = set(re.findall(r"`([^`]{8,})`", task)) - {"affine_select"}
        assert named <= known, question
        assert named or task.strip().startswith(("none: ", "all of them")), question
    # And each thing that a probe tells about is asked.
    told = {probe.kernel for probe in PROBES if f"`{probe.name}`" in timing}
    assert told == {probe.kernel for probe in PROBES}


def test_the_limits_are_those_of_the_code() -> None:
    for part, seconds in LIMITS.items():
        row = re.search(rf"^\| `{part}` \|.*\| (\d+) min", GUIDE, re.MULTILINE)
        assert row is not None, part
        assert int(row[1]) * 60 == seconds
