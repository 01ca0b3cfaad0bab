"""What a training run reports: one JSON line for each logged step, and a summary over all ranks."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

import torch.distributed as dist

from trnx.jobs.devices import Ranks
from trnx.jobs.trackers import Trackers


class Metrics:
    """JSON lines: those of the first rank on standard output, and every rank's own in its
    trackers."""

    def __init__(self, trackers: Trackers, ranks: Ranks) -> None:
        self._ranks = ranks
        self._trackers = trackers

    def write(self, **values: Any) -> None:
        """One line."""
        line = {**values, "rank": self._ranks.rank}
        self._trackers.write(line)
        if self._ranks.is_first:
            print(json.dumps(line), flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._trackers.close()


@dataclass
class Outcome:
    """What a run did on one rank: losses (equal on all ranks), the share of linear FLOPs on NKI and
    tokens per second of each logged step, and the seconds that its graphs are predicted to take on
    the target. `skipped` are modules that ran without a graph."""

    first_step: int
    losses: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    graph_breaks: int = 0
    stopped: bool = False
    checkpoint: str | None = None

    @property
    def speed(self) -> float | None:
        """Tokens per second: the median. The first logged speed is that of compilation, and counts
        only where there is no other."""
        speeds = self.speeds[1:] or self.speeds
        return statistics.median(speeds) if speeds else None


@dataclass(frozen=True)
class Summary:
    """A run over all ranks."""

    first_step: int
    steps: int
    loss_first: float | None
    loss_last: float | None
    tokens_per_second: float | None
    nki_share_min: float | None
    nki_share_by_rank: list[float | None]
    skipped: list[str]
    graph_breaks: int
    stopped: bool
    checkpoint: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def summarize(outcome: Outcome) -> Summary:
    """The summary of all ranks' outcomes; every rank calls this and gets the same."""
    mine = (min(outcome.shares, default=None), outcome.skipped, outcome.graph_breaks)
    everyone: list[Any] = [mine]
    if dist.is_initialized():
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
    shares = [share for share, _, _ in everyone]
    known = [share for share in shares if share is not None]
    return Summary(
        first_step=outcome.first_step,
        steps=len(outcome.losses),
        loss_first=outcome.losses[0] if outcome.losses else None,
        loss_last=outcome.losses[-1] if outcome.losses else None,
        tokens_per_second=outcome.speed,
        nki_share_min=min(known, default=None),
        nki_share_by_rank=shares,
        skipped=sorted({name for _, names, _ in everyone for name in names}),
        graph_breaks=max(count for _, _, count in everyone),
        stopped=outcome.stopped,
        checkpoint=outcome.checkpoint,
    )
