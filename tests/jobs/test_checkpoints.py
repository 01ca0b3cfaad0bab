"""A damaged checkpoint gives way to the one before; none is lost to damage, NaN or a full disk."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.jobs import checkpoints as checkpoints_module
from trnx.jobs.checkpoint_reader import read_metadata
from trnx.jobs.checkpoints import Checkpoints, finished, load_weights, newest_readable
from trnx.jobs.checksums import CHECKSUMS, problem_of, seal
from trnx.jobs.devices import Ranks
from trnx.jobs.errors import (
    CheckpointError,
    NotFiniteError,
    ResumeWarning,
    SaveError,
    SkippedSaveWarning,
    UnreadableCheckpointError,
)

Train = Callable[..., tuple[int, list[dict[str, Any]], str]]
Limit = Callable[[int], AbstractContextManager[None]]
SMALL = ("--sequence-length", "16", "--batch", "2", "--backend", "eager", "--json")
FILES = (".metadata", "__0_0.distcp", "run.json", CHECKSUMS)


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def _overwrite(data: bytes) -> bytes:
    middle = len(data) // 2
    return (
        data[:middle]
        + bytes(255 - byte for byte in data[middle : middle + 24])
        + data[middle + 24 :]
    )


# What becomes of a file's bytes; None removes it.
DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "first byte": lambda data: _flip(data, 0),
    "first quarter": lambda data: _flip(data, len(data) // 4),
    "24 bytes in the middle": _overwrite,
    "last quarter": lambda data: _flip(data, 3 * len(data) // 4),
    "last byte": lambda data: _flip(data, len(data) - 1),
    "zeroed": lambda data: bytes(len(data)),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "longer": lambda data: data + b"\0",
    "removed": lambda _: None,
}


def _model(value: float = 0.0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 64)
    with torch.no_grad():
        model.weight.fill_(value)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def _checkpoints(root: Path, keep: int = 2) -> Checkpoints:
    return Checkpoints(root, keep, {"seed": 0}, {"tokenizer": "bytes"}, Ranks(0, 1))


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of the steps 1, 2 and 3; weights say the step."""
    root = tmp_path_factory.mktemp("three")
    for step in (1, 2, 3):
        _checkpoints(root, 3).save(step, *_model(step))
    return root


def _damage(folder: Path, name: str, how: str) -> None:
    path = folder / name
    before = path.read_bytes()
    after = DAMAGES[how](before)
    assert after != before
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_newest_gives_way_and_none_is_lost(
    three: Path, tmp_path: Path, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(three, root)
    newest = root / "step-00000003"
    _damage(newest, name, how)
    left = {path.name: path.read_bytes() for path in newest.iterdir()}
    asked: list[Path] = []
    monkeypatch.setattr(
        checkpoints_module,
        "read_metadata",
        lambda folder: (asked.append(folder), read_metadata(folder)),
    )
    run = _checkpoints(root, keep=2)
    with pytest.warns(ResumeWarning, match="cannot be read: .*; an older one is taken"):
        found = run.find("auto")
    assert found == root / "step-00000002"
    model, optimizer = _model(9)
    assert run.load(found, model, optimizer) == 2
    torch.testing.assert_close(model.weight[:, 0], _model(2)[0].weight[:, 0], rtol=0, atol=0)
    # Nothing of the damaged one was parsed.
    assert asked == [found]
    with pytest.warns(ResumeWarning, match="an older one is taken"):
        assert newest_readable(root) == found
    # Older whole ones count, and the damaged one stays, also where its step is saved again.
    run.save(3, model, optimizer)
    run.save(4, model, optimizer)
    assert [folder.name for folder in finished(root)] == ["step-00000003", "step-00000004"]
    aside = root / "step-00000003.damaged-1"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == left


def test_pruning_counts_whole_checkpoints_alone(three: Path, tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(three, root)
    _damage(root / "step-00000003", "__0_0.distcp", "last byte")
    run = _checkpoints(root, keep=2)
    with pytest.warns(ResumeWarning):
        run.find("auto")
    run.save(4, *_model(4))
    assert [folder.name for folder in finished(root)] == [
        "step-00000002",
        "step-00000003",
        "step-00000004",
    ]


def test_two_damaged_ones_and_all(three: Path, tmp_path: Path) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(three, root)
    for step in (3, 2):
        _damage(root / f"step-{step:08d}", "__0_0.distcp", "zeroed")
    with pytest.warns(ResumeWarning) as told:
        assert _checkpoints(root).find("auto") == root / "step-00000001"
    assert len(told) == 2
    _damage(root / "step-00000001", ".metadata", "cut")
    with pytest.raises(
        UnreadableCheckpointError, match=r"every checkpoint in .* is damaged: .*anew"
    ):
        _checkpoints(root).find("auto")
    assert len(list(root.iterdir())) == 3


def test_damaged_folder_that_is_named_is_refused(three: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000002"
    shutil.copytree(three / folder.name, folder)
    _damage(folder, "__0_0.distcp", "24 bytes in the middle")
    with pytest.raises(
        UnreadableCheckpointError, match=r"its bytes are not those .* --resume auto"
    ):
        _checkpoints(tmp_path).find(str(folder))
    with pytest.raises(UnreadableCheckpointError, match="nothing of it was loaded"):
        load_weights(folder, _model()[0])


def test_files_that_were_not_written_with_it(three: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000002"
    shutil.copytree(three / folder.name, folder)
    (folder / "__1_0.distcp").write_bytes(b"x")
    assert "written without it" in str(problem_of(folder))
    seal(folder)
    assert problem_of(folder) is None
    entries = json.loads((folder / CHECKSUMS).read_text())
    entries["files"]["../run.json"] = entries["files"]["run.json"]
    (folder / CHECKSUMS).write_text(json.dumps(entries))
    assert "written without it" in str(problem_of(folder))
    entries["files"] = {"run.json": 3, **{name: {} for name in (".metadata",)}}
    (folder / CHECKSUMS).write_text(json.dumps(entries))
    assert "cannot be read" in str(problem_of(folder))
    # Ranks look at a share each, and together at all.
    seal(folder)
    _damage(folder, "run.json", "cut")
    assert sum(problem_of(folder, rank, 3) is not None for rank in range(3)) == 1


@pytest.mark.parametrize("where", ["weight", "moment"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_not_saved(
    three: Path, tmp_path: Path, where: str, value: float
) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(three, root)
    model, optimizer = _model()
    target = model.weight if where == "weight" else optimizer.state[model.weight]["exp_avg"]
    with torch.no_grad():
        target[3, 5] = value
    with pytest.raises(
        NotFiniteError, match=r"after step 4 (model|optimizer)\..*weight.* not finite"
    ):
        _checkpoints(root, keep=1).save(4, model, optimizer)
    assert sorted(path.name for path in root.iterdir()) == [f"step-0000000{n}" for n in (1, 2, 3)]
    assert all(problem_of(folder) is None for folder in finished(root))


def test_training_that_diverges_leaves_the_last_good_checkpoint(
    train: Train, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ("--data", str(text), *SMALL, "--checkpoint-dir", str(tmp_path))
    flags = ("--checkpoint-every", "1", "--keep-checkpoints", "1")
    assert train(*common, *flags, "--steps", "2")[0] == 0
    kept = (tmp_path / "step-00000002" / CHECKSUMS).read_bytes()
    cross_entropy = torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        "trnx.jobs.training.F.cross_entropy", lambda *a: cross_entropy(*a) * float("nan")
    )
    with pytest.warns(SkippedSaveWarning, match=r"step \d: the loss is not finite: no checkpoint"):
        status, lines, _ = train(*common, *flags, "--steps", "5")
    assert status == 1
    assert not lines[-1]["bars_hold"]
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000002"]
    assert (tmp_path / "step-00000002" / CHECKSUMS).read_bytes() == kept
    # A good loss over parameters that are none ends the run.
    monkeypatch.setattr(
        "trnx.jobs.training.parallel.clip_gradients",
        lambda model, _: (
            model.get_parameter("lm_head.weight").grad.fill_(float("nan")),
            torch.ones(()),
        )[1],
    )
    monkeypatch.setattr("trnx.jobs.training.F.cross_entropy", cross_entropy)
    status, _, errors = train(*common, *flags, "--steps", "5")
    assert status == 1
    assert "NotFiniteError: after step 3" in errors
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-00000002"]


# Nothing fits; a part of the data; all but the metadata or what stands beside it.
@pytest.mark.parametrize("size", [0, 100, 1000, 4000])
def test_full_disk_is_named_and_older_ones_are_kept(
    three: Path, tmp_path: Path, size: int, file_limit: Limit
) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(three, root)
    largest = max(path.stat().st_size for path in (root / "step-00000003").iterdir())
    assert size < largest
    run = _checkpoints(root, keep=1)
    with (
        file_limit(size),
        pytest.raises(SaveError, match=r"step-00000004 cannot be written: .*kept"),
    ):
        run.save(4, *_model(4))
    assert sorted(path.name for path in root.iterdir()) == [f"step-0000000{n}" for n in (1, 2, 3)]
    assert run.find("auto") == root / "step-00000003"
    run.save(4, *_model(4))
    assert [folder.name for folder in finished(root)] == ["step-00000004"]


@pytest.mark.parametrize("name", [CHECKSUMS, "run.json"])
def test_full_disk_at_the_last_files(
    three: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ckpt"
    shutil.copytree(three, root)
    whole = Path.open

    def full(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == f"{name}.part":
            raise OSError(28, "No space left on device", str(path))
        return whole(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(SaveError, match="No space left on device; older checkpoints are kept"):
        _checkpoints(root, keep=1).save(3, *_model(4))
    assert sorted(path.name for path in root.iterdir()) == [f"step-0000000{n}" for n in (1, 2, 3)]
    assert problem_of(root / "step-00000003") is None


def test_everything_is_flushed_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    renamed: list[tuple[str, int]] = []
    fsync, rename = checkpoints_module.flush_folder.__globals__["os"].fsync, Path.rename

    def note(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", note)
    monkeypatch.setattr(
        Path,
        "rename",
        lambda path, to: (renamed.append((to.name, len(flushed))), rename(path, to))[1],
    )
    _checkpoints(tmp_path).save(1, *_model())
    at = dict(renamed)["step-00000001"]
    assert {"__0_0.distcp", "run.json.part", f"{CHECKSUMS}.part"} <= set(flushed[:at])
    assert any(".metadata" in name for name in flushed[:at])
    assert flushed[at - 1] == "step-00000001.partial"
    assert flushed[at] == tmp_path.name


def test_whole_ones_are_loaded_without_a_word(three: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert newest_readable(three) == three / "step-00000003"
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        _checkpoints(three).find(str(three))


def test_folder_that_cannot_be_written_is_named_before_training(
    train: Train, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        flags = ("--data", str(text), *SMALL, "--steps", "1", "--checkpoint-dir", str(folder))
        status, lines, errors = train(*flags)
        assert status == 1
        assert [line["event"] for line in lines] == ["start"]
        assert f"SaveError: --checkpoint-dir {folder}: " in errors
