"""Ranks: one kernel launched on several devices of one process, which meet in `nki.collectives`.

Each rank has its own arguments, memory and results. Ranks run one after the other (see `baton`), so
a ring may have any size, and runs are deterministic. The module `rank_programs` runs kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnx.simulator.errors import TrnxError
from trnx.simulator.multicore.baton import Baton


class RankArgumentsError(TrnxError):
    """The arguments do not fit the number of ranks."""


@dataclass(frozen=True)
class Rank:
    """One rank of a launch."""

    index: int
    count: int
    _baton: Baton | None = field(default=None, repr=False)
    # The turns of all ranks: see `note`.
    _order: list[tuple[int, int]] = field(default_factory=list, repr=False)

    @property
    def has_partners(self) -> bool:
        """True where other ranks take part in what this one does."""
        return self._baton is not None

    def note(self, steps: int) -> None:
        """This rank's turn ends; it has recorded so many steps."""
        if self.has_partners:
            self._order.append((self.index, steps))

    def meet(
        self, key: Hashable, parties: Sequence[int], payload: Any, steps: int
    ) -> dict[int, Any] | None:
        """Wait for the ranks `parties`; the last gets everyone's payload, the others None. `steps`
        is how many this rank has recorded.
        """
        if self._baton is None:
            return {self.index: payload}
        self.note(steps)
        return self._baton.meet(self.index, key, frozenset(parties), payload)


SINGLE = Rank(0, 1)


class _Representative(Rank):
    """A rank whose partners are taken to do the same; nothing arrives."""

    def meet(
        self, _key: Hashable, _parties: Sequence[int], _payload: Any, _steps: int
    ) -> dict[int, Any] | None:
        return None


def one_of(ranks: int, index: int = 0) -> Rank:
    """One rank of several, to trace a kernel with collectives without the others: for predictions,
    as its Program moves nothing between ranks.
    """
    if not 0 <= index < ranks:
        raise RankArgumentsError(f"rank {index} is not one of {ranks}")
    return _Representative(index, ranks)
