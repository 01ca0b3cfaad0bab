"""Checkpoints that are written while training goes on: what they hold, and what a kill leaves."""

from __future__ import annotations

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

ROOT = Path(__file__).resolve().parents[2]


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


def _slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kills", "steps", "ranks", "backend"),
    [
        (3, 40, 1, "eager"),
        _slow(3, 40, 2, "eager"),
        _slow(20, 200, 1, "eager"),
        _slow(20, 200, 2, "eager"),
        _slow(20, 200, 1, "trnx"),
        _slow(20, 200, 2, "trnx"),
    ],
)
def test_killed_at_random_points_and_resumed_is_the_same_run_bit_by_bit(
    kills: int,
    steps: int,
    ranks: int,
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts/bench"))
    from resume import measure, options_of

    flags = f"--kills {kills} --steps {steps} --ranks {ranks} --backend {backend}"
    found = measure(options_of(flags.split()), tmp_path)
    assert found["bars_hold"], found
