"""The commands of docs/jobs.md run as they stand, and its tables are those of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trnx.jobs import export, kernel_bench_flags, serve_flags, train_flags
from trnx.jobs.service import PATHS

Train = Callable[..., tuple[int, list[dict[str, Any]], str]]
ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "jobs.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
NAMES = [f"{index}-{block.split()[1]}" for index, block in enumerate(BLOCKS)]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_commands_run_as_they_stand(block: str, text: Path, tmp_path: Path) -> None:
    shutil.copytree(text, tmp_path / "text")
    launcher = f"{sys.executable} -m torch.distributed.run"
    for line in block.splitlines():
        command = line.replace("torchrun", launcher, 1).replace("scripts/", f"{ROOT}/scripts/")
        command = re.sub("^python ", f"{sys.executable} ", command)
        done = subprocess.run(
            command.split(), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_training_commands_run_in_eager(
    train: Train, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, and without compilation: what takes time is tested elsewhere."""
    shutil.copytree(text, tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in BLOCKS for line in block.splitlines() if "train.py" in line]
    commands = [line.split() for line in lines if line.startswith("python ")]
    assert len(commands) == 3
    for command in commands:
        status, seen, errors = train(*command[2:], "--backend", "eager")
        assert status == 0, errors
        assert seen
    (parallel,) = (line.split() for line in lines if line.startswith("torchrun "))
    settings = train_flags.parse("", parallel[parallel.index("--data") :])
    assert settings.parallel == "fsdp"


def test_every_flag_that_the_guide_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    known = {"--clients", "--seconds", "--standalone", "--nproc-per-node"}
    for flags in (train_flags, serve_flags, kernel_bench_flags):
        with pytest.raises(SystemExit):
            flags.parse("", ["--help"])
        known |= set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    with pytest.raises(SystemExit):
        export.main(["--help"])
    known |= set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    named = set(re.findall(r"--[a-z][a-z-]+", GUIDE))
    assert named - known == set()


def test_every_path_is_in_the_guide() -> None:
    for path in PATHS:
        assert f" {path}`" in GUIDE
