"""Leave one family out: the errors of each family of held-out kernels, predicted without what was
taken from it.

Most constants come from rows of `points.py`, which are no family here. Three families set some; in
their own rows these have the value that is left: a documented one, or that of another family. So
every point is judged, also those that set something.

Bars of a chip: the median within 8 %, 80 % of the points between -20 and +25 %, no family with a
mean beyond 25 %, and no point beyond a factor of two, unless `EXPLAINED` has its cause.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from held_out import HeldOut

MEDIAN_BAR, FAMILY_BAR = 0.08, 0.25
LOW_BAR, HIGH_BAR, SHARE_BAR = -0.20, 0.25, 0.80
LEAST, MOST = -0.5, 1.0  # a factor of two


@dataclass(frozen=True)
class Without:
    """What a family's rows are predicted with instead: fields of `Hardware` and `Timing`, and the
    start of the NEFF in ns by cores.
    """

    source: str
    hardware: Mapping[str, float] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    preamble: Mapping[int, float] = field(default_factory=dict)


WITHOUT = {
    "C-III mlp_tkg": Without(
        "the documented 23 bytes a ns of an engine; 658 GB/s of HBM by the slope of qkv_tkg; the "
        "start that other families of nki-library leave: one core 12.8 us, attention_cte of 155 "
        "us; two cores 29.9 us, the mean of attention_cte, qkv_tkg and rmsnorm_quant below 140 us",
        {"dma_engine_rate": 23e9, "hbm_efficiency": 658 / 725},
        preamble={1: 12800.0, 2: 29900.0},
    ),
    "C-III qkv_tkg": Without(
        "652 GB/s of HBM and the rest by the slope of mlp_tkg", {"hbm_efficiency": 652 / 725}
    ),
    "C-II pool": Without(
        "the start that rmsnorm_qkv leaves: 6.2 us, the mean below 50 us", preamble={1: 6200.0}
    ),
}

# (name, a part of what) of a point beyond a factor of two -> its cause, which a published number
# shows. A guess is no cause.
EXPLAINED: dict[tuple[str, str], str] = {
    ("C-III mlp_tkg", "[1, 4096]"): (
        "its 25.6 us are less than the start of the NEFF that other families of two cores have, 28 "
        "us and more"
    ),
}


@dataclass(frozen=True)
class Judged:
    """The points of a chip against the bars; `far` are beyond a factor of two without a cause,
    `families` have a mean beyond the bar.
    """

    target: str
    points: int
    median: float
    within: float
    far: tuple[str, ...]
    families: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether all bars hold."""
        near = abs(self.median) <= MEDIAN_BAR and self.within >= SHARE_BAR
        return near and not self.far and not self.families

    def line(self) -> str:
        """In words."""
        text = (
            f"{self.target}, {self.points} points, each family predicted without what it set: "
            f"median {self.median:+.1%}, {self.within:.0%} between {LOW_BAR:+.0%} and "
            f"{HIGH_BAR:+.0%}; beyond a factor of two: {', '.join(self.far) or 'none unexplained'}"
        )
        return f"{text}; families with a mean beyond 25 %: {', '.join(self.families) or 'none'}"

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {**vars(self), "holds": self.holds}


def explained(point: HeldOut) -> str:
    """Why a point is beyond a factor of two, where that is known."""
    return next(
        (
            cause
            for (name, part), cause in EXPLAINED.items()
            if name == point.name and part in point.what
        ),
        "",
    )


def judge_families(errors: Sequence[tuple[HeldOut, float]]) -> list[Judged]:
    """The bars by chip; `errors` are those of points without what their family set."""
    results = []
    for target in sorted({point.target for point, _ in errors}, reverse=True):
        own = [(point, error) for point, error in errors if point.target == target]
        numbers = [error for _, error in own]
        families: dict[str, list[float]] = {}
        for point, error in own:
            families.setdefault(point.name, []).append(error)
        results.append(
            Judged(
                target,
                len(own),
                statistics.median(numbers),
                sum(LOW_BAR <= error <= HIGH_BAR for error in numbers) / len(own),
                tuple(
                    f"{point.name} {point.what}"
                    for point, error in own
                    if not LEAST <= error <= MOST and not explained(point)
                ),
                tuple(
                    name
                    for name, found in families.items()
                    if abs(statistics.fmean(found)) > FAMILY_BAR
                ),
            )
        )
    return results
