"""The process's cache, as the environment says, and torch's artefacts, which carry its entries.

`torch.compiler.save_cache_artifacts()` holds every entry that this process read or wrote, and
`torch.compiler.load_cache_artifacts(data)` puts them into the cache of the process that loads
(trnx must be imported by then). Code is neither saved nor loaded.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trnx.backend.cache.cache import KINDS, Cache, Lookup
from trnx.backend.cache.entries import read_entry
from trnx.backend.cache.errors import CacheOffError, DamagedEntryError
from trnx.backend.environment import CACHE_DIR, cache_settings
from trnx.backend.torch_internals import register_artifact

log = logging.getLogger(__name__)


def current() -> Cache | None:
    """The cache that the environment names now, None where it is off."""
    settings = cache_settings()
    return None if settings is None else _cache(*settings)


@functools.lru_cache(maxsize=16)
def _cache(folder: Path, most_bytes: int) -> Cache:
    return Cache(folder, most_bytes, record=_record)


def required() -> Cache:
    """The cache. Raises CacheOffError where it is off."""
    cache = current()
    if cache is None:
        raise CacheOffError(
            f"the compile cache is off: set {CACHE_DIR} to a folder, or leave it out for the one "
            "of your home"
        )
    return cache


@contextmanager
def recorded(cache: Cache) -> Iterator[list[Lookup]]:
    """The look-ups while the block runs."""
    before, cache.lookups = cache.lookups, []
    try:
        yield cache.lookups
    finally:
        cache.lookups = before


def _load(digest: str, data: bytes) -> None:
    """One of torch's artefacts, which may come from anywhere: checked, and never code."""
    cache = current()
    if cache is None:
        return
    try:
        entry = read_entry(data, KINDS)
        if entry.key.digest != digest or entry.key.kind.is_code:
            raise DamagedEntryError("it is not what was saved")
        cache.deposit(entry)
    except (DamagedEntryError, OSError) as error:
        log.warning("artefact %s is not taken into the compile cache: %s", digest[:12], error)


_record = register_artifact("trnx", _load)
