"""Writes a checkpoint while training goes on: `torch.distributed.checkpoint.async_save`.

`begin` copies the state into memory of its own and returns; threads write the copy, hash the files
and call `complete`. They talk to other ranks over a process group of their own, because collectives
of two threads over one group would meet in another order on another rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

from trnx.jobs.checksums import Entry, entries_of
from trnx.jobs.devices import Ranks
from trnx.jobs.errors import SaveError
from trnx.jobs.together import first_does, gathered

Complete = Callable[[Mapping[str, Entry]], None]


class CheckpointWriter:
    """One checkpoint at a time. Every rank makes a writer, and calls its methods in one order."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._group: dist.ProcessGroup | None = None
        if dist.is_initialized():
            self._group = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trnx-checkpoint")
        self._running: Future[None] | None = None

    def begin(self, folder: Path, state: dict[str, Any], complete: Complete) -> None:
        """Copy `state`, and start to write it into the empty `folder`; then the first rank calls
        `complete` with entries of all ranks' data files. The one before must be finished."""
        assert self._running is None
        if self._group is None:
            # Not for the length of a save: filters of warnings are shared by all threads.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable")
        upload = async_save(
            state, checkpoint_id=folder, process_group=self._group, no_dist=self._group is None
        )
        assert not isinstance(upload, AsyncSaveResponse)  # what torch's default stager gives
        self._running = self._thread.submit(self._publish, upload, folder, complete)

    def finish(self) -> None:
        """Wait for what was begun.

        Raises SaveError on all ranks where one of them could not write.
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def _publish(self, upload: Future[Any], folder: Path, complete: Complete) -> None:
        entries = self._entries(upload, folder)
        first_does(self._ranks, lambda: complete(entries), self._group)

    def _entries(self, upload: Future[Any], folder: Path) -> dict[str, Entry]:
        """Entries of all ranks' data files, once they are written. Raises SaveError."""
        problem, own = None, {}
        try:
            upload.result()
            own = entries_of(folder.glob(f"__{self._ranks.rank}_*"))
        except CheckpointException as error:
            problem = "; ".join(sorted({str(reason) for reason, _ in error.failures.values()}))
        except OSError as error:
            problem = str(error)
        entries: dict[str, Entry] = {}
        for found, theirs in gathered((problem, own), self._group):
            if found is not None:
                raise SaveError(found)
            entries |= theirs
        return entries
