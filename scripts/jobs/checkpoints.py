"""Checkpoints that can be resumed from, or are not there: torch.distributed.checkpoint, made
atomic.

A checkpoint is written to `step-N.partial` and renamed when all ranks have finished, so a killed
job leaves no folder that looks complete. The folder must be one that all ranks see and that can
rename (a disk, FSx for Lustre, EFS; not Mountpoint for S3). The newest `keep` are kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trnx.jobs.checkpoint_reader import METADATA, SafePlanner, SafeReader, read_metadata
from trnx.jobs.devices import Ranks
from trnx.jobs.errors import CheckpointError, ResumeWarning, UnreadableCheckpointError

_NAME = re.compile(r"step-(\d{8})")
_RUN = "run.json"


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """torch warns of every checkpoint that is written or read without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or")
        yield


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def _flush(folder: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_complete(folder: Path) -> bool:
    """Whether a folder is a checkpoint that was finished."""
    return (
        _NAME.fullmatch(folder.name) is not None
        and (folder / METADATA).is_file()
        and (folder / _RUN).is_file()
    )


def finished(root: Path) -> list[Path]:
    """Complete checkpoints in a folder, oldest first."""
    return sorted(folder for folder in root.glob("step-*") if is_complete(folder))


def step_of(folder: Path) -> int:
    """The number of finished steps in a checkpoint."""
    found = _NAME.fullmatch(folder.name)
    assert found is not None
    return int(found.group(1))


def read_run(folder: Path) -> dict[str, Any]:
    """What a complete checkpoint says of its run: model, vocabulary, tokenizer and so on.

    Raises UnreadableCheckpointError.
    """
    path = folder / _RUN
    try:
        run = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnreadableCheckpointError(f"{path} cannot be read: {error}") from None
    if not isinstance(run, dict):
        raise UnreadableCheckpointError(f"{path} holds no object")
    return run


def newest_readable(root: Path) -> Path | None:
    """The newest complete checkpoint in a folder whose files can be read; None without one.

    Raises CheckpointError for one that is not what torch writes.
    """
    for folder in reversed(finished(root)):
        try:
            read_run(folder)
            read_metadata(folder)
        except UnreadableCheckpointError as error:
            warnings.warn(f"{error}; an older one is taken", ResumeWarning, stacklevel=2)
            continue
        return folder
    return None


def _load(wanted: dict[str, Any], folder: Path) -> None:
    """Fill `wanted` in place. Raises CheckpointError."""
    reader, planner = SafeReader(folder), SafePlanner()
    no_dist = not dist.is_initialized()
    try:
        with _one_process_is_meant():
            load(wanted, storage_reader=reader, planner=planner, no_dist=no_dist)
    except CheckpointException as error:
        reasons = {str(reason) for reason, _ in error.failures.values()}
        raise CheckpointError(f"{folder} cannot be loaded: {'; '.join(sorted(reasons))}") from error


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """The weights alone, into a model in one process."""
    wanted = {"model": get_model_state_dict(model)}
    _load(wanted, folder)
    set_model_state_dict(model, wanted["model"])


def _remove(folder: Path) -> None:
    # Renamed first: a removal that is cut short leaves nothing that looks complete.
    gone = folder.with_name(folder.name + ".removed")
    shutil.rmtree(gone, ignore_errors=True)
    shutil.rmtree(folder.rename(gone), ignore_errors=True)


class Checkpoints:
    """Checkpoints of one run; `run` is what must be equal for a resumed run to be the same one,
    `facts` are kept with it for other readers."""

    def __init__(
        self,
        root: Path,
        keep: int,
        run: Mapping[str, Any],
        facts: Mapping[str, Any],
        ranks: Ranks,
    ) -> None:
        self._root = root
        self._keep = keep
        self._run = dict(run)
        self._facts = dict(facts)
        self._ranks = ranks

    def save(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Path:
        """Write the state after `step` steps; all ranks call this, and none returns before the
        checkpoint is complete."""
        final = self._root / f"step-{step:08d}"
        partial = final.with_name(final.name + ".partial")
        if self._ranks.is_first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        _barrier()
        state = {**_state(model, optimizer), **_random_state(self._ranks)}
        with _one_process_is_meant():
            save(state, checkpoint_id=partial, no_dist=not dist.is_initialized())
        _barrier()
        if self._ranks.is_first:
            run = {**self._run, **self._facts, "world": self._ranks.world}
            (partial / _RUN).write_text(json.dumps(run))
            _flush(partial)
            if final.exists():
                _remove(final)
            partial.rename(final)
            _flush(self._root)
            self._prune()
        _barrier()
        return final

    def _prune(self) -> None:
        done = finished(self._root)
        for folder in done[: -self._keep]:
            _remove(folder)

    def find(self, resume: str) -> Path | None:
        """The checkpoint that `resume` ("never", "auto" or a folder) means, the same on all ranks.

        Raises CheckpointError for a folder that is no complete checkpoint, and for "never" where
        there are checkpoints: a later `auto` could not tell them from the new ones.
        """
        if resume == "never":
            if finished(self._root):
                raise CheckpointError(
                    f"--checkpoint-dir {self._root} has checkpoints already; say --resume auto, or "
                    "name another folder"
                )
            return None
        if resume != "auto":
            if not is_complete(Path(resume)):
                raise CheckpointError(f"--resume {resume}: this is no complete checkpoint")
            read_metadata(Path(resume))
            return Path(resume)
        newest = newest_readable(self._root) if self._ranks.is_first else None
        if dist.is_initialized():
            choice: list[Path | None] = [newest]
            dist.broadcast_object_list(choice, src=0)
            newest = choice[0]
        return newest

    def load(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Restore model, optimizer and random numbers; the number of finished steps.

        Raises CheckpointError where the checkpoint is of another run.
        """
        saved = self._check(folder)
        state = _state(model, optimizer)
        same_world = saved.get("world") == self._ranks.world
        random = _random_state(self._ranks) if same_world else {}
        wanted = {**state, **random}
        _load(wanted, folder)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=wanted["model"],
            optim_state_dict=wanted["optimizer"],
        )
        if same_world:
            torch.set_rng_state(wanted[_random_key(self._ranks)])
        elif self._ranks.is_first:
            warnings.warn(
                f"{folder} was written by {saved.get('world')} processes, this run has "
                f"{self._ranks.world}: random numbers (dropout) start anew",
                ResumeWarning,
                stacklevel=2,
            )
        return step_of(folder)

    def _check(self, folder: Path) -> dict[str, Any]:
        saved = read_run(folder)
        for key, value in self._run.items():
            if saved.get(key) != value:
                raise CheckpointError(
                    f"{folder} is of another run: its {key} is {saved.get(key)!r}, this run's is "
                    f"{value!r}; name another --checkpoint-dir, or say --resume never"
                )
        return saved


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def _random_key(ranks: Ranks) -> str:
    return f"random_{ranks.rank}"


def _random_state(ranks: Ranks) -> dict[str, Any]:
    return {_random_key(ranks): torch.get_rng_state()}
