"""Checksums of a checkpoint's files, in a file beside them: what was not written as it is read now
is found before anything of it is read.

`checksums.json` holds `{"format": 1, "files": {name: {"bytes": n, "sha256": hex}}}` of every other
file of the folder. It guards against damage, not against somebody who can write the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trnx.jobs.errors import UnreadableCheckpointError

CHECKSUMS = "checksums.json"
_FORMAT = 1
Entry = dict[str, Any]


def flush_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """Write a file that is there whole, or not at all, also after a loss of power."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    flush_folder(path.parent)


def entry_of(path: Path) -> Entry:
    """Size in bytes and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def entries_of(paths: Iterable[Path]) -> dict[str, Entry]:
    """Entries of files by their names."""
    return {path.name: entry_of(path) for path in sorted(paths)}


def seal(folder: Path, entries: Mapping[str, Entry] | None = None) -> None:
    """Write the checksums of a folder; `entries` of all its files, where they are known."""
    files = entries_of(_others(folder)) if entries is None else dict(entries)
    write_durably(folder / CHECKSUMS, json.dumps({"format": _FORMAT, "files": files}, indent=1))


def _others(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != CHECKSUMS]


def read_checksums(folder: Path) -> dict[str, Entry]:
    """The entries of a checkpoint.

    Raises UnreadableCheckpointError where there are none, or none that can be read.
    """
    path = folder / CHECKSUMS
    try:
        found = json.loads(path.read_bytes())
        known = found["format"] == _FORMAT and isinstance(found["files"], dict)
    except OSError as error:
        raise UnreadableCheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        known = False
    if not known:
        raise UnreadableCheckpointError(f"{path} cannot be read: it holds no checksums")
    entries: dict[str, Entry] = found["files"]
    return entries


def _file_problem(path: Path, entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return f"{path} cannot be read: its checksum is none"
    try:
        size = path.stat().st_size
        if size != entry.get("bytes"):
            return f"{path} cannot be read: {size} bytes, not the {entry.get('bytes')} written"
        if entry_of(path) != entry:
            return f"{path} cannot be read: its bytes are not those that were written"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return None


def problem_of(folder: Path, rank: int = 0, world: int = 1) -> str | None:
    """What is damaged in a checkpoint, None where nothing is; a rank looks at its share of files.

    Nothing is parsed but the checksums themselves.
    """
    try:
        entries = read_checksums(folder)
        names = sorted({*entries, *(path.name for path in _others(folder))})
    except UnreadableCheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{folder} cannot be read: {error.strerror}"
    for name in names[rank::world]:
        if name not in entries or Path(name).name != name:
            return f"{folder / name} cannot be read: the checkpoint was written without it"
        if problem := _file_problem(folder / name, entries[name]):
            return problem
    return None
