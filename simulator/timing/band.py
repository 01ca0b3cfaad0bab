"""How far predictions are off: the error band from published times of kernels that no constant was
taken from.

The band of a chip is the middle 80 % of the errors of its held-out kernels. Nothing was published
for trn3, whose model is that of trn2 with other clocks: it has trn2's band, marked as not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnx.simulator.hardware import hardware
from trnx.simulator.timing.band_errors import HELD_OUT_ERRORS

_TAIL = 0.1  # of the errors on each side


@dataclass(frozen=True)
class Band:
    """`low` and `high` are relative errors: a prediction of s seconds stands for a measured time
    between s / (1 + high) and s / (1 + low). `median` is the middle error of `points` kernels,
    measured on `judged_on`; `is_judged` is False where that is another chip.
    """

    target: str
    low: float
    high: float
    median: float
    points: int
    judged_on: str

    @property
    def is_judged(self) -> bool:
        """Whether kernels were measured on this very chip."""
        return self.target == self.judged_on

    @property
    def note(self) -> str:
        """The band in words."""
        text = (
            f"80 % of {self.points} held-out kernels on {self.judged_on} were predicted "
            f"{self.low:+.0%} to {self.high:+.0%} off, the middle one {self.median:+.0%}"
        )
        return text if self.is_judged else f"{text}; no measurement on {self.target} is public"

    def range_of(self, seconds: float) -> tuple[float, float]:
        """Between what a measured time would lie, for a predicted one."""
        return seconds / (1 + max(self.high, 0.0)), seconds / (1 + min(self.low, 0.0))


def error_band(target: str) -> Band | None:
    """The band of a chip; None where neither it nor one of its structure has held-out kernels."""
    chip = hardware(target).target
    judged_on = "trn2" if chip == "trn3" else chip
    errors = HELD_OUT_ERRORS.get(judged_on)
    if not errors:
        return None
    return Band(
        chip,
        _quantile(errors, _TAIL),
        _quantile(errors, 1 - _TAIL),
        _quantile(errors, 0.5),
        len(errors),
        judged_on,
    )


def _quantile(ordered: tuple[float, ...], share: float) -> float:
    """Linear between neighbours."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)
