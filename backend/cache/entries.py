"""One entry as JSON: its key in parts, its value, and checksums of both. Nothing is unpickled.

The checksum of the key is the file's name, so that an entry cannot stand for another; that of the
value finds damage. Neither says who wrote an entry: `Kind.is_code` names what is only taken from
files that nobody else can write (`folder.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trnx.backend.cache.errors import DamagedEntryError

FORMAT = "trnx-cache"
VERSION = 1
LARGEST = 64 << 20


@dataclass(frozen=True)
class Kind:
    """A sort of entries. `is_code`: what is read would be executed."""

    name: str
    is_code: bool = False


@dataclass(frozen=True)
class Key:
    """What a value depends on: name of the part -> its text."""

    kind: Kind
    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """SHA-256 of kind and parts, in hexadecimal: the name of the entry's file."""
        return _digest([self.kind.name, dict(self.parts)])

    def differs_from(self, parts: Mapping[str, str]) -> tuple[str, ...]:
        """The names of the parts that are not those of another key."""
        names = (*self.parts, *(name for name in parts if name not in self.parts))
        return tuple(name for name in names if self.parts.get(name) != parts.get(name))


@dataclass(frozen=True)
class Entry:
    """A key and its value, which is JSON."""

    key: Key
    value: Any

    def to_bytes(self) -> bytes:
        """The file. Raises ValueError or TypeError for a value that is no JSON."""
        return _canonical(
            {
                "format": FORMAT,
                "version": VERSION,
                "kind": self.key.kind.name,
                "key": dict(self.key.parts),
                "sha256": _digest(self.value),
                "value": self.value,
            }
        )


def text_digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal: a part of a key that is too long to be written out."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_entry(data: bytes, kinds: Mapping[str, Kind]) -> Entry:
    """The entry in a file, both checksums recomputed. Raises DamagedEntryError."""
    try:
        given = json.loads(data)
        if not isinstance(given, dict) or given.get("format") != FORMAT:
            raise ValueError("it is no entry of the cache")
        if given.get("version") != VERSION:
            raise ValueError(f"version {given.get('version')!r} of the format")
        parts = given["key"]
        if not isinstance(parts, dict) or not all(type(part) is str for part in parts.values()):
            raise ValueError("its key has no parts")
        if _digest(given["value"]) != given["sha256"]:
            raise ValueError("its value is not what was written")
        return Entry(Key(kinds[given["kind"]], parts), given["value"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedEntryError(f"{type(error).__name__}: {error}") from error


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()
