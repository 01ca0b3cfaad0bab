"""The ways in which the generator cuts a region into tiles, of which users get the fastest one."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trnx.nki_kernels.generator import kernel, tile
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware
from trnx.simulator.lru_cache import LruCache

# For `drawn.py`.
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.append(HERE)


class Cuts:
    """Finds all cuts of a region, and runs one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(kernel, "_stores", [])

    def of(self, made: Any, target: str = "trn2") -> list[TiledRegion]:
        """All that are found, however slow."""
        self._monkeypatch.setattr(tile, "MOST_TILINGS", 1000)
        self._monkeypatch.setattr(tile, "_WORTH_A_TRY", math.inf)
        found: list[TiledRegion] = []

        def tilings(*arguments: Any) -> list[list[TiledRegion]]:
            found.extend(region for group in tile.tilings(*arguments) for region in group)
            return [found[:1]]

        self._use(tilings)
        assert made.kernel.supports(made.bindings, hardware(target)) is None
        return found

    def check(
        self, made: Any, cuts: Iterable[TiledRegion], target: str = "trn2", **tolerance: float
    ) -> None:
        """The values of each of these, one at least, are eager's."""
        every = list(cuts)
        assert every
        for cut in every:
            self._use(lambda *_, cut=cut: [[cut]])
            made.check(target, **tolerance)

    def results(
        self, made: Any, cuts: Iterable[TiledRegion], target: str = "trn2"
    ) -> Iterator[torch.Tensor]:
        """The first result of each of these, one at least."""
        every = list(cuts)
        assert every
        for cut in every:
            self._use(lambda *_, cut=cut: [[cut]])
            yield made.run(target)[0]

    def _use(self, tilings: Any) -> None:
        self._monkeypatch.setattr(kernel, "tilings", tilings)
        self._monkeypatch.setattr(kernel, "_SOURCES", LruCache(8))


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> Cuts:
    return Cuts(monkeypatch)
