"""What `trnx cache` answers: `stats`, `verify`, `gc`, `export`, `import`; each JSON-ready."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trnx.backend.cache.cache import KINDS, Cache
from trnx.backend.cache.entries import Entry, read_entry
from trnx.backend.cache.errors import CacheArchiveError, DamagedEntryError
from trnx.backend.cache.folder import Stored

ARCHIVE = "trnx-cache-archive"
VERSION = 1


@dataclass(frozen=True)
class Answer:
    """A command's result: what is printed, and with `--json` as an object."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True)
class Stats(Answer):
    """Entries and bytes by kind; `is_private`: nobody else can write, so that code is read."""

    folder: str
    most_bytes: int
    is_private: bool
    entries: dict[str, int]
    nbytes: dict[str, int]

    def __str__(self) -> str:
        if not any(self.entries.values()):
            return f"{self.folder}: nothing is kept yet"
        rights = "only you can write to it" if self.is_private else "others can write: no code read"
        total = sum(self.nbytes.values())
        bound = f"{total / 1e6:.1f} of {self.most_bytes / 1e6:.0f} MB"
        lines = [f"{self.folder}: {sum(self.entries.values())} entries, {bound} ({rights})"]
        for kind, count in self.entries.items():
            lines.append(f"  {kind:<12}{count:>8} entries{self.nbytes[kind] / 1e6:>10.2f} MB")
        return "\n".join(lines)


@dataclass(frozen=True)
class Verified(Answer):
    """All entries read; `damaged` has those that are not what was written, with the reason."""

    folder: str
    entries: int
    damaged: dict[str, str] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether every entry is as it was written."""
        return not self.damaged

    def __str__(self) -> str:
        lines = [f"{path}: {reason}" for path, reason in self.damaged.items()]
        lines.append(f"{self.folder}: {self.entries} entries, {len(self.damaged)} damaged")
        return "\n".join(lines)


@dataclass(frozen=True)
class Collected(Answer):
    """What `gc` removed."""

    folder: str
    removed: int
    removed_bytes: int
    left_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.removed} entries of {self.removed_bytes / 1e6:.2f} MB removed, "
            f"{self.left_bytes / 1e6:.2f} MB left"
        )


@dataclass(frozen=True)
class Moved(Answer):
    """What `export` wrote or `import` took in. `left_out` counts entries by the reason."""

    file: str
    entries: int
    left_out: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.file}: {self.entries} entries"]
        lines += [f"  {count} left out: {reason}" for reason, count in self.left_out.items()]
        return "\n".join(lines)


def stats(cache: Cache) -> Stats:
    """Entries and bytes."""
    count: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    nbytes: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    for stored in cache.folder.entries():
        kind = stored.path.parent.parent.name
        count[kind] += 1
        nbytes[kind] += stored.nbytes
    path, private = str(cache.folder.path), cache.folder.is_private()
    return Stats(path, cache.most_bytes, private, dict(count), dict(nbytes))


def read_stored(stored: Stored) -> Entry:
    """The entry in a file of the cache. Raises DamagedEntryError."""
    try:
        entry = read_entry(stored.path.read_bytes(), KINDS)
    except OSError as error:
        raise DamagedEntryError(str(error)) from error
    if (entry.key.kind.name, entry.key.digest) != (stored.path.parts[-3], stored.path.stem):
        raise DamagedEntryError("it is the entry of another key")
    return entry


def verify(cache: Cache, *, remove: bool = False) -> Verified:
    """Read every entry and recompute its checksums; with `remove` damaged ones leave."""
    damaged: dict[str, str] = {}
    count = 0
    for stored in cache.folder.entries():
        count += 1
        try:
            read_stored(stored)
        except DamagedEntryError as error:
            if not stored.path.exists():  # it left meanwhile
                continue
            damaged[str(stored.path)] = str(error)
            if remove:
                stored.path.unlink(missing_ok=True)
    return Verified(str(cache.folder.path), count, damaged)


def collect(cache: Cache, megabytes: int | None) -> Collected:
    """Remove the entries that were not used for longest, down to the bound or to `megabytes`."""
    most = cache.most_bytes if megabytes is None else megabytes << 20
    count, freed = cache.folder.shrink(most)
    left = sum(stored.nbytes for stored in cache.folder.entries())
    return Collected(str(cache.folder.path), count, freed, left)


def export_to(cache: Cache, file: Path) -> Moved:
    """Write all entries but code to one file of JSON lines. Raises CacheArchiveError."""
    left_out: Counter[str] = Counter()
    lines = [json.dumps({"format": ARCHIVE, "version": VERSION}).encode()]
    for stored in cache.folder.entries():
        try:
            entry = read_stored(stored)
        except DamagedEntryError:
            left_out["damaged"] += 1
            continue
        if entry.key.kind.is_code:
            left_out["code, which is generated again where it is needed"] += 1
        else:
            lines.append(entry.to_bytes())
    try:
        file.write_bytes(b"\n".join(lines) + b"\n")
    except OSError as error:
        raise CacheArchiveError(f"{file} cannot be written: {error}") from error
    return Moved(str(file), len(lines) - 1, dict(left_out))


def import_from(cache: Cache, file: Path) -> Moved:
    """Take in what `export_to` wrote, on this machine or another. Raises CacheArchiveError."""
    try:
        first, *lines = file.read_bytes().splitlines() or [b""]
        head = json.loads(first)
    except (OSError, ValueError) as error:
        raise CacheArchiveError(
            f"{file} cannot be read as an archive of trnx cache export: {error}"
        ) from error
    if head != {"format": ARCHIVE, "version": VERSION}:
        raise CacheArchiveError(f"{file} was not written by trnx cache export of this trnx")
    left_out: Counter[str] = Counter()
    taken = 0
    for line in lines:
        try:
            entry = read_entry(line, KINDS)
        except DamagedEntryError as error:
            left_out[f"damaged ({error})"] += 1
            continue
        if entry.key.kind.is_code:
            left_out["code, which is never taken from elsewhere"] += 1
            continue
        try:
            cache.deposit(entry)
        except OSError as error:
            raise CacheArchiveError(f"{cache.folder.path} cannot be written: {error}") from error
        taken += 1
    return Moved(str(file), taken, dict(left_out))
