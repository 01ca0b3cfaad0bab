"""Metrics beside standard output: what arrives, what is missing, what a full disk does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from trnx.jobs.devices import Ranks
from trnx.jobs.errors import LostMetricsWarning, TrackerError
from trnx.jobs.metrics import Metrics
from trnx.jobs.trackers import JsonLines, Trackers, make_trackers, scalars

SMALL = ("--sequence-length", "16", "--batch", "2", "--backend", "eager", "--steps", "3")
Train = Callable[..., tuple[int, list[dict[str, Any]], str]]


def test_scalars_are_the_numbers_of_a_step() -> None:
    line = {"step": 3, "loss": 2.5, "nki_share": None, "rank": 0, "backend": "trnx"}
    assert scalars(line) == {"loss": 2.5}
    assert scalars({"event": "evaluation", "step": 3, "eval_loss": 1}) == {"eval_loss": 1.0}
    assert scalars({"event": "start", "process": 7}) == {}
    assert scalars({"event": "resume", "step": 3, "checkpoint": "x"}) == {}


def test_tensorboard_has_every_step(train: Train, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra training (tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    flags = ("--data", str(text), *SMALL, "--eval-data", str(text), "--tensorboard", str(tmp_path))
    status, lines, errors = train(*flags)
    assert status == 0, errors
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {event.step: event.value for event in events.Scalars("loss")}
    expected = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert found == pytest.approx(expected, rel=1e-6)
    assert sorted(found) == [1, 2, 3]
    assert [event.step for event in events.Scalars("eval_loss")] == [3]


def test_wandb_gets_every_step(
    train: Train, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra training (wandb)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    logged: list[tuple[int, dict[str, float]]] = []
    log = wandb.Run.log

    def note(run: Any, values: dict[str, float], step: int) -> None:
        logged.append((step, values))
        log(run, values, step=step)

    monkeypatch.setattr(wandb.Run, "log", note)
    status, lines, errors = train("--data", str(text), *SMALL, "--wandb", "project")
    assert status == 0, errors
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    assert [(step, values["loss"]) for step, values in logged if "loss" in values] == losses
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_wandb_without_an_account_is_a_named_error(
    train: Train, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra training (wandb)")

    def refuse(**_: Any) -> None:
        raise wandb.Error("no account")

    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setattr(wandb, "init", refuse)
    status, _, errors = train("--data", str(text), *SMALL, "--wandb", "project")
    assert status == 1
    assert "TrackerError: --wandb project: no account; `wandb login`" in errors


@pytest.mark.parametrize(
    ("flag", "module", "package"),
    [
        ("--tensorboard", "tensorboard", "tensorboard"),
        ("--wandb", "wandb", "wandb"),
    ],
)
def test_package_that_is_missing_is_a_named_error(
    flag: str, module: str, package: str, train: Train, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    status, lines, errors = train("--data", str(text), *SMALL, flag, "x")
    assert status == 1
    wanted = f"{flag} needs the package {package}: pip install 'trnx[training]'"
    assert f"MissingJobsExtraError: {wanted}" in errors
    assert not lines


def _write_steps(metrics: Metrics, count: int) -> None:
    for step in range(count):
        metrics.write(step=step, loss=1.0)


def test_full_disk_costs_the_file_and_not_the_run(
    tmp_path: Path,
    file_limit: Callable[[int], AbstractContextManager[None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    metrics = Metrics(make_trackers(tmp_path, None, None, Ranks(), {}), Ranks())
    message = r"rank-0\.jsonl cannot be written: File too large"
    with file_limit(100), metrics, pytest.warns(LostMetricsWarning, match=message):
        _write_steps(metrics, 9)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in printed] == list(range(9))
    assert json.loads((tmp_path / "rank-0.jsonl").read_text().splitlines()[0]) == printed[0]


def test_one_that_cannot_be_closed_does_not_keep_the_others_open(tmp_path: Path) -> None:
    class Broken:
        name = "the other"

        def write(self, values: object) -> None: ...

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    lines = JsonLines(tmp_path, Ranks())
    trackers = Trackers([Broken(), lines])
    with pytest.warns(LostMetricsWarning, match="the other cannot be written: No space left"):
        trackers.close()
    with pytest.raises(ValueError, match="closed file"):
        lines.write({})


def test_folder_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackerError, match=r"--metrics-dir .*: (File exists|Not a directory)"):
        make_trackers(tmp_path / "file", None, None, Ranks(), {})
