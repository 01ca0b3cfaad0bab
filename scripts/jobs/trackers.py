"""Where a run's numbers go beside standard output: JSON lines, TensorBoard, Weights & Biases.

A place that cannot be written any more (a full disk) is named once and left: training goes on.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from trnx.jobs.devices import Ranks
from trnx.jobs.errors import LostMetricsWarning, MissingJobsExtraError, TrackerError

_NOT_SCALARS = ("step", "rank")


class Tracker(Protocol):
    """Takes lines of metrics; `name` is for messages."""

    name: str

    def write(self, values: Mapping[str, Any]) -> None:
        """One line. Raises OSError."""

    def close(self) -> None:
        """Write what is left. Raises OSError. Also called of one that is dropped."""


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line that belongs to a step, by their names; none of another line."""
    if "step" not in values or values.get("event") == "resume":
        return {}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and name not in _NOT_SCALARS
    }


class JsonLines:
    """`rank-N.jsonl` in a folder."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        path = folder / f"rank-{ranks.rank}.jsonl"
        self.name = str(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Without a buffer: what could not be written is not tried again.
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise TrackerError(f"--metrics-dir {folder}: {error.strerror}") from None

    def write(self, values: Mapping[str, Any]) -> None:
        """See Tracker."""
        line = f"{json.dumps(values)}\n".encode()
        while line:
            line = line[self._file.write(line) :]

    def close(self) -> None:
        """See Tracker."""
        self._file.close()


class TensorBoard:
    """An event file for TensorBoard in a folder; each number is a scalar of its step."""

    name = "TensorBoard's event file"

    def __init__(self, folder: Path) -> None:
        with _package("tensorboard", "--tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        writer: Any = SummaryWriter  # torch types it where tensorboard is installed
        try:
            # Into the file at every line: one that waits in memory is lost to a kill.
            self._writer = writer(str(folder), max_queue=1)
        except OSError as error:
            raise TrackerError(f"--tensorboard {folder}: {error.strerror}") from None

    def write(self, values: Mapping[str, Any]) -> None:
        """See Tracker."""
        for name, value in scalars(values).items():
            self._writer.add_scalar(name, value, values["step"])
        self._writer.flush()

    def close(self) -> None:
        """See Tracker."""
        self._writer.close()


class WeightsAndBiases:
    """A run in a project of Weights & Biases. What wandb reads from its environment holds:
    WANDB_MODE=offline writes to a folder, WANDB_RUN_ID continues a run."""

    name = "Weights & Biases"

    def __init__(self, project: str, configuration: Mapping[str, Any]) -> None:
        with _package("wandb", "--wandb"):
            import wandb
        self._run = _started(wandb, project, configuration)

    def write(self, values: Mapping[str, Any]) -> None:
        """See Tracker."""
        if found := scalars(values):
            self._run.log(found, step=values["step"])

    def close(self) -> None:
        """See Tracker."""
        self._run.finish()


def _started(wandb: ModuleType, project: str, configuration: Mapping[str, Any]) -> Any:
    try:
        return wandb.init(
            project=project,
            config=dict(configuration),
            resume="allow",
            # Nothing but what is logged leaves the machine.
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )
    except (wandb.Error, OSError, ValueError) as error:
        raise TrackerError(
            f"--wandb {project}: {error}; `wandb login` names the account, WANDB_MODE=offline "
            "needs none"
        ) from None


@contextmanager
def _package(name: str, flag: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name:
            raise
        raise MissingJobsExtraError(
            f"{flag} needs the package {name}: pip install 'trnx[training]'"
        ) from None


class Trackers:
    """Several as one. Each is dropped, with a LostMetricsWarning, at the first OSError."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers

    def write(self, values: Mapping[str, Any]) -> None:
        """One line."""
        for tracker in tuple(self._trackers):
            with self._kept(tracker):
                tracker.write(values)

    def close(self) -> None:
        """End all of them."""
        for tracker in tuple(self._trackers):
            with self._kept(tracker):
                tracker.close()
        self._trackers.clear()

    @contextmanager
    def _kept(self, tracker: Tracker) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._trackers.remove(tracker)
            with suppress(OSError):
                tracker.close()
            warnings.warn(
                f"{tracker.name} cannot be written: {error.strerror or error}; training goes on "
                "without it",
                LostMetricsWarning,
                stacklevel=2,
            )


def make_trackers(
    metrics: Path | None,
    tensorboard: Path | None,
    project: str | None,
    ranks: Ranks,
    configuration: Mapping[str, Any],
) -> Trackers:
    """What the flags ask for; all but JSON lines are the first rank's. Raises TrackerError, and
    MissingJobsExtraError on every rank."""
    found: list[Tracker] = []
    if metrics is not None:
        found.append(JsonLines(metrics, ranks))
    if ranks.is_first and tensorboard is not None:
        found.append(TensorBoard(tensorboard))
    if ranks.is_first and project is not None:
        os.environ.setdefault("WANDB_SILENT", "true")  # standard output has JSON lines alone
        found.append(WeightsAndBiases(project, configuration))
    return Trackers(found)
