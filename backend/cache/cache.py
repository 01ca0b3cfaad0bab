"""`Cache`: values by key, kept in a folder. A compilation never fails for it.

What cannot be read is computed again, and a warning says so; where nothing can be written (a
read-only or full folder) one warning says so and the process goes on without writing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from trnx.backend.cache.entries import Entry, Key, Kind, read_entry
from trnx.backend.cache.errors import DamagedEntryError
from trnx.backend.cache.folder import Folder
from trnx.backend.cache.turns import WAIT_SECONDS, leave, take, wait

log = logging.getLogger(__name__)

Value = TypeVar("Value")

PREDICTION = Kind("prediction")
PLAN = Kind("plan")
SOURCE = Kind("source", is_code=True)
SUBSET = Kind("subset")
PROGRAM = Kind("program", is_code=True)
GRAPH = Kind("graph", is_code=True)
_ALL = (PREDICTION, PLAN, SOURCE, SUBSET, PROGRAM, GRAPH)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _ALL}

Record = Callable[[str, bytes], None]

# The entries are counted so many times while as much as the bound is written.
_LOOKS = 16
# What reading JSON of another form raises.
_OTHER_FORM = (KeyError, TypeError, ValueError, AttributeError, IndexError)


def _no_record(digest: str, data: bytes) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True)
class Codec(Generic[Value]):
    """A value as JSON and back. `encode` gives None for what is not kept; `decode` raises
    DamagedEntryError, or what reading JSON of another form raises."""

    encode: Callable[[Value], Any]
    decode: Callable[[Any], Value]


@dataclass(frozen=True)
class Lookup:
    """One question to the cache: `hit`, `miss`, `damaged` or `foreign` (code that others could
    have written)."""

    key: Key
    outcome: str


class Cache:
    """The entries below `folder`, of at most `most_bytes`.

    `counts` has the outcomes of look-ups, and what was `written`, `refused` (by the folder) and
    `waited` for (computed by another process at the same time). `record` is told every entry that
    is used or written, but for code.
    """

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        *,
        record: Record = _no_record,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.folder = Folder(folder)
        self.most_bytes = most_bytes
        self.counts: Counter[str] = Counter()
        self.lookups: list[Lookup] | None = None  # written down where somebody asks for them
        self._record = record
        self._wait_seconds = wait_seconds
        self._is_writable = True

    def get_or_make(self, key: Key, make: Callable[[], Value], codec: Codec[Value]) -> Value:
        """The value for `key`: from the folder, from who computes it just now, or by `make`."""
        found = self._get(key, codec)
        if found is not None:
            return found[0]
        if not self._is_writable:
            return make()
        lock = self.folder.lock(key.kind.name, key.digest)
        try:
            self.folder.make_parent(lock)
            is_first = take(lock)
        except OSError as error:
            self._refuse(error)
            return make()
        try:
            if not is_first and (found := self._awaited(key, lock, codec)) is not None:
                return found[0]
            value = make()
            self._put(key, value, codec)
            return value
        finally:
            if is_first:
                leave(lock)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing is written while the block runs."""
        before, self._is_writable = self._is_writable, False
        try:
            yield
        finally:
            self._is_writable = before

    def _awaited(self, key: Key, lock: Path, codec: Codec[Value]) -> tuple[Value] | None:
        place = self.folder.place(key.kind.name, key.digest)
        if not wait(lock, place.exists, self._wait_seconds):
            return None
        found = self._get(key, codec)
        self.counts["waited"] += found is not None
        return found

    def _get(self, key: Key, codec: Codec[Value]) -> tuple[Value] | None:
        """The value in a tuple, None where there is none to be used."""
        place = self.folder.place(key.kind.name, key.digest)
        outcome, found = "miss", None
        try:
            file = self.folder.read(place)
            if file is not None and key.kind.is_code and not file.is_private:
                outcome = "foreign"
            elif file is not None:
                entry = read_entry(file.data, KINDS)
                if entry.key.digest != key.digest:
                    raise DamagedEntryError("it is the entry of another key")
                found = (codec.decode(entry.value),)
                outcome = "hit"
                self._tell(entry.key, file.data)
        except (OSError, DamagedEntryError, *_OTHER_FORM) as error:
            outcome = "damaged"
            log.warning("%s is computed again: %s", place, error)
        self.counts[outcome] += 1
        if self.lookups is not None:
            self.lookups.append(Lookup(key, outcome))
        return found

    def _put(self, key: Key, value: Value, codec: Codec[Value]) -> None:
        encoded = codec.encode(value)
        if encoded is None:
            return
        try:
            self.deposit(Entry(key, encoded))
        except OSError as error:
            self._refuse(error)

    def deposit(self, entry: Entry) -> None:
        """Write an entry in place of the one there is. Raises OSError."""
        data = entry.to_bytes()
        self.folder.write(self.folder.place(entry.key.kind.name, entry.key.digest), data)
        self.counts["written"] += 1
        self._tell(entry.key, data)
        if self.folder.note_written(len(data)) > self.most_bytes // _LOOKS:
            self.folder.shrink(self.most_bytes)

    def _tell(self, key: Key, data: bytes) -> None:
        if not key.kind.is_code:
            self._record(key.digest, data)

    def _refuse(self, error: OSError) -> None:
        """The folder takes nothing: once told, and not tried again."""
        self.counts["refused"] += 1
        self._is_writable = False
        log.warning(
            "the compile cache %s cannot be written (%s); compilation goes on without it. Set "
            "TRNX_CACHE_DIR to a folder of yours with space, or to 'off'",
            self.folder.path,
            error,
        )
