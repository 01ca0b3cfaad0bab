"""A cache in a folder of each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnx.backend.cache.cache import Cache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder, which is not there yet, in one that nobody else can write to."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private / "cache"


@pytest.fixture
def cache(folder: Path) -> Cache:
    """An empty cache."""
    return Cache(folder, 1 << 20, wait_seconds=5.0)
