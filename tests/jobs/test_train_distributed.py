"""The bars of distributed training: equal to one process in eager, on NKI, and resumable."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STEPS = 20
KILLED_AT = 10
COMMON = ("--sequence-length", "32", "--batch", "4", "--steps", str(STEPS), "--json")
MODES = {
    "ddp": ("--parallel", "ddp"),
    "fsdp": ("--parallel", "fsdp"),
    "tensor": ("--tensor-parallel", "2"),
}
SLOW = {
    "fsdp-checkpointing": (2, ("--parallel", "fsdp", "--activation-checkpointing")),
    "tensor-checkpointing": (2, ("--tensor-parallel", "2", "--activation-checkpointing")),
    "ddp-gpt2": (2, ("--parallel", "ddp", "--preset", "gpt2-tiny")),
    "fsdp-gpt2": (2, ("--parallel", "fsdp", "--preset", "gpt2-tiny")),
    "fsdp-tensor": (4, ("--parallel", "fsdp", "--tensor-parallel", "2")),
}

Train = Callable[..., tuple[int, list[dict[str, Any]], str]]


def curve(lines: list[dict[str, Any]]) -> dict[int, float]:
    """Step -> loss."""
    return {line["step"]: line["loss"] for line in lines if "step" in line and "loss" in line}


def by_rank(folder: Path) -> list[list[dict[str, Any]]]:
    files = sorted(folder.glob("rank-*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


@pytest.fixture(scope="module")
def references() -> dict[str, dict[int, float]]:
    """Loss curves of single-process eager runs, by preset, filled as they are asked for."""
    return {}


def reference(
    known: dict[str, dict[int, float]], train: Train, text: Path, preset: str = "llama-tiny"
) -> dict[int, float]:
    if preset not in known:
        arguments = ("--data", str(text), *COMMON, "--backend", "eager", "--preset", preset)
        status, lines, _ = train(*arguments)
        assert status == 0
        known[preset] = curve(lines)
    assert sorted(known[preset]) == list(range(1, STEPS + 1))
    return known[preset]


def kill_workers(folder: Path) -> None:
    """SIGKILL every rank of the run that writes its metrics to `folder`."""
    for own in by_rank(folder):
        os.kill(own[0]["process"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("mode", "killed"),
    [
        ("ddp", False),
        ("fsdp", True),
        ("tensor", False),
        pytest.param("ddp", True, marks=pytest.mark.slow),
        pytest.param("tensor", True, marks=pytest.mark.slow),
    ],
)
def test_distributed_run_equals_single_process_eager(
    mode: str,
    killed: bool,
    launch: Callable[..., Any],
    train: Train,
    text: Path,
    tmp_path: Path,
    references: dict[str, dict[int, float]],
) -> None:
    expected = reference(references, train, text)
    arguments = ["--data", str(text), *COMMON, *MODES[mode], "--backend", "trnx"]
    arguments += ["--checkpoint-dir", str(tmp_path / "ckpt"), "--checkpoint-every", "4"]
    arguments += ["--metrics-dir", str(tmp_path / "metrics"), "--min-nki-share", "0.9"]

    if killed:
        victim = launch(*arguments, processes=2)
        for line in victim.lines():
            if line.get("step") == KILLED_AT:
                kill_workers(tmp_path / "metrics")
        assert victim.wait()[0] != 0

    job = launch(*arguments, "--resume=auto", processes=2)
    lines = list(job.lines())
    status, errors = job.wait()
    assert status == 0, errors
    assert "NoGraphWarning" not in errors
    resumed = [line["step"] for line in lines if line.get("event") == "resume"]
    assert len(resumed) == killed
    assert all(8 <= step < STEPS for step in resumed)
    summary = lines[-1]
    assert summary["bars_hold"]
    assert summary["skipped"] == []
    assert summary["graph_breaks"] == 0
    assert summary["checkpoint"] == str(tmp_path / "ckpt" / f"step-{STEPS:08d}")

    ranks = by_rank(tmp_path / "metrics")
    assert len(ranks) == len(summary["nki_share_by_rank"]) == 2
    for own in ranks:
        steps = [line for line in own if "loss" in line]
        assert sorted({line["step"] for line in steps}) == sorted(expected)
        for line in steps:
            assert line["loss"] == pytest.approx(expected[line["step"]], rel=1e-3)
            assert line["nki_share"] >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW)
def test_combination_equals_single_process_eager(
    case: str,
    launch: Callable[..., Any],
    train: Train,
    text: Path,
    references: dict[str, dict[int, float]],
) -> None:
    processes, flags = SLOW[case]
    preset = flags[flags.index("--preset") + 1] if "--preset" in flags else "llama-tiny"
    expected = reference(references, train, text, preset)
    job = launch(
        *("--data", str(text), *COMMON, *flags, "--min-nki-share", "0.9"), processes=processes
    )
    lines = list(job.lines())
    status, errors = job.wait()
    assert status == 0, errors
    assert curve(lines[:-1]) == pytest.approx(expected, rel=1e-3)
    assert lines[-1]["skipped"] == []


@pytest.mark.slow
def test_sigterm_to_torchrun_saves_and_the_rest_is_the_same(
    launch: Callable[..., Any],
    train: Train,
    text: Path,
    tmp_path: Path,
    references: dict[str, dict[int, float]],
) -> None:
    expected = reference(references, train, text)
    arguments = ["--data", str(text), *COMMON, "--parallel", "ddp", "--backend", "eager"]
    arguments += ["--checkpoint-dir", str(tmp_path), "--checkpoint-every", "0"]
    first = launch(*arguments, processes=2)
    seen: dict[int, float] = {}
    for line in first.lines():
        seen |= curve([line])
        if line.get("step") == 3:
            first.send_signal(signal.SIGTERM)
    assert first.wait()[0] != 0
    second = launch(*arguments, processes=2)
    lines = list(second.lines())
    assert second.wait()[0] == 0
    assert lines[1]["event"] == "resume"
    assert {**seen, **curve(lines[:-1])} == pytest.approx(expected, rel=1e-3)


def test_ranks_agree_on_the_checkpoint_before_a_damaged_one(
    launch: Callable[..., Any], text: Path, tmp_path: Path
) -> None:
    arguments = ["--data", str(text), *COMMON, "--parallel", "fsdp", "--backend", "eager"]
    arguments += ["--checkpoint-dir", str(tmp_path), "--checkpoint-every", "4"]
    first = launch(*arguments, processes=2)
    list(first.lines())
    status, errors = first.wait()
    assert status == 0, errors
    newest = tmp_path / f"step-{STEPS:08d}"
    data = newest / "__1_0.distcp"
    damaged = bytearray(data.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    data.write_bytes(damaged)
    second = launch(*arguments, processes=2)
    lines = list(second.lines())
    status, errors = second.wait()
    assert status == 0, errors
    (resumed,) = [line for line in lines if line.get("event") == "resume"]
    assert resumed["step"] < STEPS
    assert f"ResumeWarning: {data} cannot be read" in errors
    assert (tmp_path / f"{newest.name}.damaged-1" / data.name).read_bytes() == bytes(damaged)
