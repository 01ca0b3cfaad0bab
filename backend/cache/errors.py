"""Errors of the compile cache. A compilation never fails for them; commands do."""

from __future__ import annotations

from trnx.backend.errors import BackendError


class CacheError(BackendError):
    """Root of the errors of the compile cache."""


class DamagedEntryError(CacheError):
    """An entry is not what was written."""


class CacheArchiveError(CacheError):
    """A file that `trnx cache export` did not write."""


class CacheOffError(CacheError):
    """A command needs the cache, and it is off."""
