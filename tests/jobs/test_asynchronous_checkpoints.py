"""Checkpoints that are written while training goes on: what they hold, and what a kill leaves."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from trnx.jobs.checkpoints import Checkpoints, finished
from trnx.jobs.checksums import problem_of
from trnx.jobs.devices import Ranks
from trnx.jobs.errors import NotFiniteError, SaveError
from trnx.jobs.train import main


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 64)
    return model, torch.optim.AdamW(model.parameters())


def _train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _checkpoints(root: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(root, keep, {"seed": 0}, {"tokenizer": "bytes"}, Ranks(0, 1))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Data is written once this is set."""
    event = threading.Event()
    write = FileSystemWriter.write_data

    def wait(writer: FileSystemWriter, *arguments: Any) -> Any:
        assert event.wait(timeout=60)
        return write(writer, *arguments)

    monkeypatch.setattr(FileSystemWriter, "write_data", wait)
    return event


def test_checkpoint_holds_the_state_when_it_was_begun(
    tmp_path: Path, held: threading.Event
) -> None:
    model, optimizer = _model()
    _train(model, optimizer)
    run = _checkpoints(tmp_path)
    run.begin(1, model, optimizer)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    moment = optimizer.state[model.weight]["exp_avg"].clone()
    random_numbers = torch.get_rng_state()
    _train(model, optimizer)
    torch.rand(3)
    assert not finished(tmp_path)
    held.set()
    assert run.finish() == tmp_path / "step-00000001"
    assert run.finish() is None
    found, restored = _model()
    assert _checkpoints(tmp_path).load(tmp_path / "step-00000001", found, restored) == 1
    assert torch.equal(torch.get_rng_state(), random_numbers)
    for name, value in found.state_dict().items():
        assert torch.equal(value, weights[name])
        assert not torch.equal(value, model.state_dict()[name])
    assert torch.equal(restored.state[found.weight]["exp_avg"], moment)


def test_next_one_waits_for_the_one_before(tmp_path: Path, held: threading.Event) -> None:
    run = _checkpoints(tmp_path, keep=1)
    run.begin(1, *_model())
    threading.Timer(0.05, held.set).start()
    run.begin(2, *_model())
    assert (tmp_path / "step-00000001").is_dir() or (tmp_path / "step-00000002").is_dir()
    run.finish()
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000002"]


def test_refused_write_is_named_at_the_next_call_and_older_ones_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _checkpoints(tmp_path, keep=1)
    run.save(1, *_model())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(FileSystemWriter, "write_data", full)
        run.begin(2, *_model())
        with pytest.raises(SaveError, match=r"step-00000002 cannot be written: .*No space left"):
            run.begin(3, *_model())
        assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000001"]
        run.begin(3, *_model())
        with pytest.raises(SaveError, match="step-00000003 cannot be written"):
            run.finish()
    run.save(4, *_model())
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000004"]


def test_state_that_is_not_finite_leaves_the_one_before_complete(
    tmp_path: Path, held: threading.Event
) -> None:
    model, optimizer = _model()
    run = _checkpoints(tmp_path, keep=1)
    run.begin(1, model, optimizer)
    held.set()
    with torch.no_grad():
        model.bias[0] = float("nan")
    with pytest.raises(NotFiniteError, match=r"after step 2 model\.bias"):
        run.begin(2, model, optimizer)
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000001"]
    assert problem_of(tmp_path / "step-00000001") is None


def test_training_that_fails_leaves_the_last_checkpoint_complete(
    train: Callable[..., Any], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileSystemWriter.write_data
    monkeypatch.setattr(
        FileSystemWriter, "write_data", lambda *all_: (time.sleep(0.2), write(*all_))[1]
    )
    steps = iter([1.0, KeyError("a step")])

    def clip(*_: Any) -> torch.Tensor:
        value = next(steps)
        if isinstance(value, Exception):
            raise value
        return torch.tensor(value)

    monkeypatch.setattr("trnx.jobs.training.parallel.clip_gradients", clip)
    with pytest.raises(KeyError, match="a step"):
        train(*_flags(text), "--checkpoint-dir", str(tmp_path), "--checkpoint-every", "1")
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000001"]
    assert problem_of(tmp_path / "step-00000001") is None


def _flags(text: Path, steps: int = 3) -> tuple[str, ...]:
    common = ("--data", str(text), "--sequence-length", "16", "--batch", "2", "--dropout", "0.1")
    return (*common, "--backend", "eager", "--steps", str(steps))


def _child(arguments: tuple[str, ...], out: str) -> None:
    with open(out, "a", buffering=1) as file:
        sys.stdout = sys.stderr = file
        sys.exit(main(arguments))


def _lines(metrics: Path) -> list[dict[str, Any]]:
    """What was logged; a kill may cut the last line of a process short."""
    found = []
    for line in metrics.read_text().splitlines() if metrics.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _losses(lines: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


@pytest.mark.parametrize(
    ("kills", "last"), [(3, 40), pytest.param(20, 200, marks=pytest.mark.slow)]
)
def test_killed_at_random_points_and_resumed_is_the_same_run_bit_by_bit(
    kills: int, last: int, train: Callable[..., Any], text: Path, tmp_path: Path
) -> None:
    _, whole, _ = train(*_flags(text, last))
    expected = dict(_losses(whole))
    assert sorted(expected) == list(range(1, last + 1))

    # Children of a server that has imported everything: twenty starts take seconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trnx.jobs.train", "transformers.models.llama.modeling_llama"])
    folder, metrics = tmp_path / "ckpt", tmp_path / "metrics" / "rank-0.jsonl"
    arguments = (*_flags(text, last), "--checkpoint-dir", str(folder), "--checkpoint-every", "2")
    arguments += ("--metrics-dir", str(metrics.parent))
    out = str(tmp_path / "out")
    chance = random.Random(0)
    for _ in range(kills):
        before = len(_losses(_lines(metrics)))
        # At least three steps, so that every second one of them ends in a checkpoint.
        steps, delay = chance.randint(3, 5), chance.uniform(0, 0.03)
        child = context.Process(target=_child, args=(arguments, out))
        child.start()
        while child.is_alive() and len(_losses(_lines(metrics))) < before + steps:
            time.sleep(0.002)
        time.sleep(delay)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert child.exitcode == -signal.SIGKILL, Path(out).read_text()
        # Whatever has its name is whole.
        assert all(problem_of(found) is None for found in finished(folder))
    status, rest, errors = train(*arguments)
    assert status == 0, errors
    everything = _lines(metrics)
    resumed = [line["step"] for line in everything if line.get("event") == "resume"]
    assert len(resumed) >= kills // 2
    assert resumed == sorted(resumed)
    assert all(loss == expected[step] for step, loss in _losses(everything))
    assert {step for step, _ in _losses(everything)} == set(expected)
    assert rest[-1]["step"] == last
