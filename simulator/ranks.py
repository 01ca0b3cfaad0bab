"""Ranks: one kernel launched on several devices of one process, which meet in `nki.collectives`.

    outputs = simulate_ranks(kernel, 4)([(x0,), (x1,), (x2,), (x3,)])

Each rank has its own arguments, memory and results. Ranks run one after the other (see `baton`), so
a ring may have any size, and runs are deterministic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnx.simulator.baton import Baton
from trnx.simulator.errors import TrnxError

RankArguments = Sequence[Any] | Mapping[str, Any]


class RankArgumentsError(TrnxError):
    """The arguments do not fit the number of ranks."""


@dataclass(frozen=True)
class Rank:
    """One rank of a launch."""

    index: int
    count: int
    _baton: Baton | None = field(default=None, repr=False)

    def meet(self, key: Hashable, parties: Sequence[int], brought: Any) -> dict[int, Any] | None:
        """Wait for the ranks `parties`; the last gets what each brought, the others None."""
        if self._baton is None:
            return {self.index: brought}
        return self._baton.meet(self.index, key, frozenset(parties), brought)


SINGLE = Rank(0, 1)


class _Representative(Rank):
    """A rank whose partners are taken to do the same; nothing arrives."""

    def meet(self, _key: Hashable, _parties: Sequence[int], _brought: Any) -> dict[int, Any] | None:
        return None


def one_of(ranks: int, index: int = 0) -> Rank:
    """One rank of several, to trace a kernel with collectives without the others: for predictions,
    as its Program moves nothing between ranks.
    """
    if not 0 <= index < ranks:
        raise RankArgumentsError(f"rank {index} is not one of {ranks}")
    return _Representative(index, ranks)


def simulate_ranks(
    kernel: Any,
    ranks: int,
    target: str = "trn2",
    *,
    grid: Any = None,
    strict: bool = True,
    warn: Collection[str] = (),
) -> Callable[[Sequence[RankArguments]], list[Any]]:
    """`simulate_ranks(kernel, n)(arguments)` runs the kernel on n ranks with values and all checks.

    `arguments` holds the arguments of every rank, positional or a mapping by name; the result is a
    list of what each rank's kernel returns. Every rank is a launch with `grid` (or of `kernel[2]`).
    `strict` and `warn` as in `trace`.
    """
    from trnx.simulator.tracing import simulate

    def call(arguments: Sequence[RankArguments]) -> list[Any]:
        if len(arguments) != ranks or ranks < 1:
            raise RankArgumentsError(f"{ranks} ranks need as many arguments, not {len(arguments)}")
        baton = Baton(ranks, "rank")
        results: list[Any] = [None] * ranks

        def body(index: int) -> None:
            rank = Rank(index, ranks, baton)
            run = simulate(kernel, target, grid, strict=strict, warn=warn, rank=rank)
            own = arguments[index]
            results[index] = run(**own) if isinstance(own, Mapping) else run(*own)

        baton.run([functools.partial(body, index) for index in range(ranks)])
        return results

    return call
