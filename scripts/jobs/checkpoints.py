"""Checkpoints that can be resumed from, or are not there: torch.distributed.checkpoint, made
atomic and checked.

A checkpoint is written to `step-N.partial`, with checksums of all its files, and renamed when all
ranks have finished, so a killed job leaves no folder that looks complete. All of that goes on
beside training (`checkpoint_writer.py`). The folder must be one that all ranks see and that can
rename (a disk, FSx for Lustre, EFS; not Mountpoint for S3). The newest `keep` are kept. What is
damaged gives way to the one before, and is never removed.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor

from trnx.jobs.checkpoint_reader import METADATA, SafePlanner, SafeReader, read_metadata
from trnx.jobs.checkpoint_writer import CheckpointWriter
from trnx.jobs.checksums import (
    CHECKSUMS,
    Entry,
    entries_of,
    flush_folder,
    problem_of,
    seal,
    write_durably,
)
from trnx.jobs.devices import Ranks
from trnx.jobs.errors import (
    CheckpointError,
    NotFiniteError,
    ResumeWarning,
    SaveError,
    UnreadableCheckpointError,
)
from trnx.jobs.together import first_does, from_first, gathered

_NAME = re.compile(r"step-(\d{8})")
_RUN = "run.json"
# Frozen weights are not in a checkpoint: they are where they came from. What is missing else is
# found before these options are asked.
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)


@contextmanager
def _one_process_is_meant() -> Iterator[None]:
    """torch warns of every checkpoint that is read without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or")
        yield


def is_complete(folder: Path) -> bool:
    """Whether a folder is a checkpoint that was finished."""
    return _NAME.fullmatch(folder.name) is not None and all(
        (folder / name).is_file() for name in (METADATA, _RUN, CHECKSUMS)
    )


def finished(root: Path) -> list[Path]:
    """Complete checkpoints in a folder, oldest first."""
    return [folder for folder in _renamed(root) if is_complete(folder)]


def _renamed(root: Path) -> list[Path]:
    """What was a complete checkpoint once, damaged or not, oldest first."""
    found = (folder for folder in root.glob("step-*") if _NAME.fullmatch(folder.name))
    return sorted(folder for folder in found if folder.is_dir() and any(folder.iterdir()))


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
    """The newest checkpoint in a folder whose files are as they were written; None without one.
    A ResumeWarning names what is damaged in each that is passed over."""
    for folder in reversed(_renamed(root)):
        problem = problem_of(folder)
        if problem is None:
            return folder
        _warn_of_damage(problem)
    return None


def _warn_of_damage(problem: str) -> None:
    warnings.warn(f"{problem}; an older one is taken", ResumeWarning, stacklevel=3)


def _require_whole(folder: Path, problem: str | None) -> None:
    if problem is not None:
        raise UnreadableCheckpointError(
            f"{problem}: the checkpoint is damaged, and nothing of it was loaded; take another of "
            f"{folder.parent}, for training --resume auto"
        )


def _load(wanted: dict[str, Any], folder: Path) -> None:
    """Fill `wanted` in place. Raises CheckpointError."""
    read_metadata(folder)
    reader, planner = SafeReader(folder), SafePlanner()
    no_dist = not dist.is_initialized()
    try:
        with _one_process_is_meant():
            load(wanted, storage_reader=reader, planner=planner, no_dist=no_dist)
    except CheckpointException as error:
        reasons = {str(reason) for reason, _ in error.failures.values()}
        raise CheckpointError(f"{folder} cannot be loaded: {'; '.join(sorted(reasons))}") from error


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """The weights alone, into a model in one process. Raises CheckpointError, also for damage."""
    _require_whole(folder, problem_of(folder))
    weights = get_model_state_dict(model, options=_TRAINED)
    wanted = {"model": _without_frozen(weights, model)}
    _load(wanted, folder)
    set_model_state_dict(model, wanted["model"], options=_TRAINED)


def _remove(folder: Path) -> None:
    # Renamed first: a removal that is cut short leaves nothing that looks complete.
    gone = folder.with_name(folder.name + ".removed")
    shutil.rmtree(gone, ignore_errors=True)
    shutil.rmtree(folder.rename(gone), ignore_errors=True)


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _try_out(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=root):
        pass


def _make_way(folder: Path) -> None:
    """Remove a checkpoint that is written anew; a damaged one is set aside."""
    if problem_of(folder) is None:
        _remove(folder)
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
        number += 1
    folder.rename(aside)


def _tensors(state: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(path, tensor) of everything in a state; of sharded ones what this rank has."""
    if isinstance(state, DTensor):
        yield name, state.to_local()
    elif isinstance(state, torch.Tensor):
        yield name, state
    elif isinstance(state, Mapping):
        for key, part in state.items():
            yield from _tensors(part, f"{name}.{key}" if name else str(key))
    elif isinstance(state, list | tuple):
        for index, part in enumerate(state):
            yield from _tensors(part, f"{name}.{index}")


def _is_finite(value: torch.Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


class Checkpoints:
    """Checkpoints of one run, made by all ranks at a time; `run` is what must be equal for a
    resumed run to be the same one, `facts` are kept with it for other readers."""

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
        self._damaged: set[Path] = set()
        self._writer = CheckpointWriter(ranks)
        self._begun: Path | None = None

    def prepare(self) -> None:
        """Make the folder, and try whether it can be written, before hours of training count on it.

        Raises SaveError on all ranks.
        """
        try:
            first_does(self._ranks, lambda: _try_out(self._root))
        except SaveError as error:
            raise SaveError(f"--checkpoint-dir {self._root}: {error}") from None

    def save(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Path:
        """Write the state after `step` steps, and wait until that is done: `begin`, `finish`."""
        self.begin(step, model, optimizer)
        folder = self.finish()
        assert folder is not None
        return folder

    def begin(self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy the state after `step` steps and write it in the background; all ranks call this. It
        waits for the checkpoint before, so that there is one copy. Older checkpoints are removed
        once this one is complete.

        Raises NotFiniteError, and what `finish` raises of the checkpoint before, on all ranks.
        """
        self.finish()
        state = {**_state(model, optimizer), **_random_state(self._ranks, model)}
        self._require_finite(step, state)
        final = self._root / f"step-{step:08d}"
        partial = final.with_name(final.name + ".partial")
        self._begun = final
        with self._named_refusal():
            first_does(self._ranks, lambda: _make_empty(partial))
            self._writer.begin(
                partial, state, lambda entries: self._complete(partial, final, entries)
            )

    def finish(self) -> Path | None:
        """Wait for the checkpoint that was begun; its folder, None where there is none.

        Raises SaveError where files cannot be written, on all ranks; then nothing was removed.
        """
        if self._begun is None:
            return None
        with self._named_refusal():
            self._writer.finish()
        final, self._begun = self._begun, None
        return final

    @contextmanager
    def _named_refusal(self) -> Iterator[None]:
        """A SaveError names the checkpoint, of which nothing is left."""
        try:
            yield
        except SaveError as error:
            assert self._begun is not None
            final, self._begun = self._begun, None
            if self._ranks.is_first:
                shutil.rmtree(final.with_name(final.name + ".partial"), ignore_errors=True)
            raise SaveError(
                f"{final} cannot be written: {error}; older checkpoints are kept. Make room, or "
                "name another --checkpoint-dir"
            ) from None

    def _require_finite(self, step: int, state: Mapping[str, Any]) -> None:
        mine = next((name for name, value in _tensors(state) if not _is_finite(value)), None)
        for name in gathered(mine):
            if name is not None:
                raise NotFiniteError(
                    f"after step {step} {name} holds values that are not finite: nothing was "
                    "saved, and nothing removed. Go on from the newest checkpoint with a smaller "
                    "--learning-rate or --clip, or look at the data of these steps"
                )

    def _complete(self, partial: Path, final: Path, entries: Mapping[str, Entry]) -> None:
        run = {**self._run, **self._facts, "world": self._ranks.world}
        write_durably(partial / _RUN, json.dumps(run))
        seal(partial, {**entries, **entries_of([partial / METADATA, partial / _RUN])})
        if final.exists():
            _make_way(final)
        partial.rename(final)
        self._damaged.discard(final)
        flush_folder(self._root)
        self._prune()

    def _prune(self) -> None:
        whole = [folder for folder in finished(self._root) if folder not in self._damaged]
        for folder in whole[: -self._keep]:
            _remove(folder)

    def find(self, resume: str) -> Path | None:
        """The checkpoint that `resume` ("never", "auto" or a folder) means, the same on all ranks;
        its files are as they were written.

        Raises CheckpointError for a folder that is no whole checkpoint, where every checkpoint is
        damaged, and for "never" where there are checkpoints: a later `auto` could not tell them
        from the new ones.
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
            _require_whole(Path(resume), self._problem_of(Path(resume)))
            return Path(resume)
        return self._newest()

    def _problem_of(self, folder: Path) -> str | None:
        """What is damaged; every rank reads its share."""
        mine = problem_of(folder, self._ranks.rank, self._ranks.world)
        return next((problem for problem in gathered(mine) if problem is not None), None)

    def _newest(self) -> Path | None:
        found = from_first(_renamed(self._root) if self._ranks.is_first else [])
        problems: list[str] = []
        for folder in reversed(found):
            problem = self._problem_of(folder)
            if problem is None:
                if self._ranks.is_first:
                    for passed_over in problems:
                        _warn_of_damage(passed_over)
                return folder
            problems.append(problem)
            self._damaged.add(folder)
        if problems:
            raise UnreadableCheckpointError(
                f"every checkpoint in {self._root} is damaged: {'; '.join(problems)}. To begin "
                "anew, name another --checkpoint-dir"
            )
        return None

    def load(self, folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Restore model, optimizer and random numbers; the number of finished steps.

        Raises CheckpointError where the checkpoint is of another run.
        """
        saved = self._check(folder)
        state = _state(model, optimizer)
        self._tell_changes(folder, saved.get("flags", {}))
        same_world = saved.get("world") == self._ranks.world
        random = _random_state(self._ranks, model) if same_world else {}
        wanted = {**state, **random}
        _load(wanted, folder)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=wanted["model"],
            optim_state_dict=wanted["optimizer"],
            options=_TRAINED,
        )
        if same_world:
            key = _random_key(self._ranks)
            torch.set_rng_state(wanted[key])
            if (module := _device_generator(model)) is not None:
                module.set_rng_state(wanted[f"device_{key}"])
        elif self._ranks.is_first:
            warnings.warn(
                f"{folder} was written by {saved.get('world')} processes, this run has "
                f"{self._ranks.world}: random numbers (dropout) start anew",
                ResumeWarning,
                stacklevel=2,
            )
        return step_of(folder)

    def _tell_changes(self, folder: Path, flags: Mapping[str, Any]) -> None:
        """A ResumeWarning names flags that are others than those of the checkpoint."""
        own = self._facts.get("flags", {})
        changed = [
            f"--{name.replace('_', '-')} {own[name]} (was {value})"
            for name, value in flags.items()
            if name in own and own[name] != value
        ]
        if changed and self._ranks.is_first:
            warnings.warn(
                f"{folder} was written with other flags: this run goes on with "
                f"{', '.join(changed)}, and has another loss curve",
                ResumeWarning,
                stacklevel=3,
            )

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
    weights, moments = get_state_dict(model, optimizer, options=_TRAINED)
    return {"model": _without_frozen(weights, model), "optimizer": moments}


def _without_frozen(weights: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """torch leaves out a frozen parameter that is tied under the first of its names alone."""
    found = model.named_parameters(remove_duplicate=False)
    frozen = {name.removeprefix("module.") for name, value in found if not value.requires_grad}
    return {name: value for name, value in weights.items() if name not in frozen}


def _random_key(ranks: Ranks) -> str:
    return f"random_{ranks.rank}"


def _random_state(ranks: Ranks, model: torch.nn.Module) -> dict[str, Any]:
    """States of the generators that a step draws from: the CPU's, and that of the model's device
    where it has its own."""
    states = {_random_key(ranks): torch.get_rng_state()}
    if (module := _device_generator(model)) is not None:
        states[f"device_{_random_key(ranks)}"] = module.get_rng_state().cpu()
    return states


def _device_generator(model: torch.nn.Module) -> Any:
    """The module of torch for the model's device (`torch.cuda`, say), where it has a generator."""
    device = next(model.parameters()).device
    module = None if device.type == "cpu" else torch.get_device_module(device)
    return module if hasattr(module, "get_rng_state") else None
