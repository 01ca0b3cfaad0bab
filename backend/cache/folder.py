"""The cache's folder: atomic writes, a bound on its size, and who else could have written there.

An entry is `KIND/AB/ABCDEF....json`, named by its key. It is written to a temporary file and moved
into place, so that readers see all of it or nothing, on shared file systems too. The time of the
last use is the file's modification time; the entries that were not used for longest leave first.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trnx.backend.cache.entries import LARGEST

LOCK_SUFFIX = ".lock"
_ENTRY_SUFFIX = ".json"
# What all processes wrote since the entries were counted: a byte of this file for every so many
# bytes. To count tens of thousands of entries takes longer than to compile a small model.
_WRITTEN = "written"
_UNIT = 4096
_TEMPORARY = ".new-"
# A use is written down once in so many seconds: not every read is a write to a shared file system.
_USE_SECONDS = 60.0
# Locks and temporary files of processes that were killed.
_STALE_SECONDS = 3600.0
# What is left of the bound after entries had to leave, so that not every write makes some leave.
_LEFT = 0.8
# By others: by the group or by everybody.
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class File:
    """An entry's bytes; `is_private`: only this user could have written them."""

    data: bytes
    is_private: bool


@dataclass(frozen=True)
class Stored:
    """An entry on disk: its size in bytes and when it was last used, in seconds since 1970."""

    path: Path
    nbytes: int
    used: float


class Folder:
    """Files of entries below `path`, which is made with the first write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, kind: str, digest: str) -> Path:
        """Where an entry is."""
        return self.path / kind / digest[:2] / f"{digest}{_ENTRY_SUFFIX}"

    def lock(self, kind: str, digest: str) -> Path:
        """The file that is there while somebody computes the entry."""
        return self.place(kind, digest).with_suffix(LOCK_SUFFIX)

    def read(self, place: Path) -> File | None:
        """The file, None where there is none. Raises OSError, also for what is no regular file."""
        try:
            handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
                raise OSError(f"{place} is no file of an entry")
            data = file.read()
        with contextlib.suppress(OSError):  # a folder that cannot be written serves all the same
            if time.time() - status.st_mtime > _USE_SECONDS:
                os.utime(place)
        is_ours = status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE
        return File(data, is_ours and self.is_private())

    def write(self, place: Path, data: bytes) -> None:
        """Put an entry in its place. Raises OSError."""
        self.make_parent(place)
        handle, temporary = tempfile.mkstemp(".tmp", _TEMPORARY, place.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                # Who may read is a matter of the folder; nobody else may write. Nobody waits for
                # the disk: what a power cut damages is found by its checksum, and made again.
                os.fchmod(handle, 0o644)
            os.replace(temporary, place)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def note_written(self, nbytes: int) -> int:
        """How many bytes of entries all processes wrote since the last `shrink`, with `nbytes` of
        this one now; each write counts in units of 4 KiB. Raises OSError."""
        mode = stat.S_IMODE(self.path.stat().st_mode) & 0o666
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(self.path / _WRITTEN, flags, mode)
        try:
            os.write(handle, b"." * -(-nbytes // _UNIT))
            status = os.fstat(handle)
            if status.st_size <= _UNIT and status.st_uid == os.geteuid():
                os.fchmod(handle, mode)  # not less than the folder's, whatever this umask says
            return status.st_size * _UNIT
        finally:
            os.close(handle)

    def make_parent(self, place: Path) -> None:
        """The folders around `place`: a new cache is this user's alone; below it the rights are
        those of the folder itself. Raises OSError."""
        if place.parent.is_dir():
            return
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(self.path.stat().st_mode)
        for folder in (place.parent.parent, place.parent):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(mode)

    def is_private(self) -> bool:
        """Whether nobody else could write here, or put another folder in the place of this one."""
        try:
            path = self.path.resolve()
            first = path.stat()
            if first.st_uid != os.geteuid() or first.st_mode & _OTHERS_WRITE:
                return False
            return all(_is_safe(parent.stat()) for parent in path.parents)
        except OSError:
            return False

    def entries(self) -> Iterator[Stored]:
        """All entries; those that leave meanwhile are left out."""
        for path in self.path.glob(f"*/*/*{_ENTRY_SUFFIX}"):
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield Stored(path, status.st_size, status.st_mtime)

    def shrink(self, most_bytes: int) -> tuple[int, int]:
        """Remove what is left of killed processes, and where all entries are more than
        `most_bytes` the oldest ones. Returns the number of entries and their bytes that left."""
        self._remove_stale()
        with contextlib.suppress(OSError):
            (self.path / _WRITTEN).unlink()
        found = sorted(self.entries(), key=lambda entry: entry.used)
        total = sum(entry.nbytes for entry in found)
        if total <= most_bytes:
            return 0, 0
        count = freed = 0
        for entry in found:
            if total - freed <= most_bytes * _LEFT:
                break
            with contextlib.suppress(OSError):
                entry.path.unlink()
                count, freed = count + 1, freed + entry.nbytes
        return count, freed

    def _remove_stale(self) -> None:
        oldest = time.time() - _STALE_SECONDS
        for pattern in (f"*/*/{_TEMPORARY}*", f"*/*/*{LOCK_SUFFIX}"):
            for path in self.path.glob(pattern):
                with contextlib.suppress(OSError):
                    if path.lstat().st_mtime < oldest:
                        path.unlink()


def _is_safe(parent: os.stat_result) -> bool:
    """Whether a folder around the cache can be changed by this user and root alone, or lets
    everybody remove their own files only."""
    is_shared = bool(parent.st_mode & _OTHERS_WRITE) and not parent.st_mode & stat.S_ISVTX
    return not is_shared and parent.st_uid in (0, os.geteuid())
