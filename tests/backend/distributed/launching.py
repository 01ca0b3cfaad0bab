"""Starts jobs of two processes, and reads what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def environment(**variables: str) -> dict[str, str]:
    """That of a rank: one thread, no network, no options of another test."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TRNX_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **variables}


def results(folder: Path, task: str) -> list[dict[str, Any]]:
    """What both ranks wrote."""
    return [json.loads((folder / f"{task}-{rank}.json").read_text()) for rank in range(2)]


def run_job(folder: Path, tasks: Sequence[str], **variables: str) -> None:
    """The tasks of `ranks.py`, one after the other, under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", str(HERE / "ranks.py"), str(folder), *tasks]
    environ = environment(**variables)
    run = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
