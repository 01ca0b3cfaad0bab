"""Named errors and warnings of the job entry points."""

from __future__ import annotations

from trnx.simulator.errors import TrnxError


class JobError(TrnxError):
    """Root of the errors of `trnx.jobs`."""


class MissingJobsExtraError(JobError):
    """An entry point without the packages of the extra that it needs."""


class FlagError(JobError):
    """Flags that contradict each other, or what the machine has."""


class DataError(JobError):
    """Training text that is missing, or too short."""


class ModelError(JobError):
    """A model or tokenizer that cannot be built from what was given."""


class CheckpointError(JobError):
    """A checkpoint that is missing, incomplete, or of another run."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint whose files are cut short, or are something else."""


class SaveError(CheckpointError):
    """A checkpoint that could not be written: a full disk, a quota, a folder that is gone."""


class TrackerError(JobError):
    """Metrics that cannot go where the flags send them."""


class NotFiniteError(JobError):
    """Parameters or moments that are no numbers any more: no later step can mend them."""


class SkippedSaveWarning(UserWarning):
    """A checkpoint that was not written, because the loss is no finite number."""


class LostMetricsWarning(UserWarning):
    """A place for metrics that cannot be written any more; training goes on."""


class NoGraphWarning(UserWarning):
    """A compiled module ran without a graph: TorchDynamo captured nothing of it."""


class ResumeWarning(UserWarning):
    """A resumed run that cannot be the continuation bit by bit."""
