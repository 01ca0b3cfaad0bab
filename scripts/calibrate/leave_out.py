"""Leave one out: each measured constant, derived again from every other row that tells it.

The rule of derivation is one for all: the value with which the model predicts the row exactly (for
the boundary `dma_small_row_bytes`, the smallest power of two that predicts it best). What the row
left out would have been predicted as, and how far the other rows are off then, is the held-out
error.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from measures import MEASURES, Chip
from points import POINTS, Point

from trnx.simulator.costs.constants import TIMINGS

_BOUNDARIES = (256, 512, 1024, 2048, 4096, 8192)
_STEPS = 12
_EXACT = 5e-4  # of a row's time


@dataclass(frozen=True)
class Derived:
    """A constant's value from one row; `left_out` is the error of the row that sets it in the
    model, `worst` the largest of all other rows that the constant matters to.
    """

    constant: str
    target: str
    row: str
    value: float
    left_out: float
    worst: float
    worst_row: str
    is_used: bool

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return dict(vars(self))


@functools.cache
def predicted(point: Point, chip: Chip) -> float:
    """ns that the model says for a row."""
    return MEASURES[point.measure[0]](chip, *point.measure[1:])


def derive(point: Point, chip: Chip, constant: str) -> float:
    """The value of a constant that predicts the row."""
    if constant == "dma_small_row_bytes":
        return min(
            _BOUNDARIES,
            key=lambda n: (round(abs(_error(point, chip.with_constant(constant, n))), 4), n),
        )
    value = float(getattr(chip.constants, constant))
    previous, error_before = value * 0.9, _error(point, chip.with_constant(constant, value * 0.9))
    for _ in range(_STEPS):
        error = _error(point, chip.with_constant(constant, value))
        if abs(error) < _EXACT or error == error_before:
            break
        slope = (error - error_before) / (value - previous)
        previous, error_before = value, error
        value = max(value - error / slope, value / 4)
    return value


def _error(point: Point, chip: Chip) -> float:
    return predicted(point, chip) / point.ns - 1


def _affected(constant: str, targets: Sequence[str], points: Sequence[Point]) -> list[Point]:
    """Judged rows of these chips that the constant matters to."""
    found = []
    for point in points:
        if point.target not in targets or point.bar is None:
            continue
        # Whole kernels take seconds: only for what they are known to tell.
        if point.measure[0] == "matmul" and not constant.startswith("dma_small_row"):
            continue
        chip = Chip.of(point.target)
        more = chip.with_constant(constant, 1.5 * getattr(chip.constants, constant))
        if predicted(point, more) != predicted(point, chip):
            found.append(point)
    return found


def _targets(constant: str, target: str) -> list[str]:
    """Chips that share the constant with `target`."""
    value = getattr(TIMINGS[target], constant)
    return [chip for chip, own in TIMINGS.items() if getattr(own, constant) == value]


def leave_out(points: Sequence[Point] = POINTS) -> list[Derived]:
    """Every measured constant from every row that tells it."""
    results = []
    for setting in points:
        if not setting.sets:
            continue
        constant = setting.sets
        targets = _targets(constant, setting.target)
        rows = [
            point
            for point in points
            if point is setting or (constant in point.tells and point.target in targets)
        ]
        affected = _affected(constant, targets, points)
        for row in rows:
            value = derive(row, Chip.of(row.target), constant)
            errors = {
                point.name: _error(point, Chip.of(point.target).with_constant(constant, value))
                for point in affected
                if point is not row
            }
            worst = max(errors, key=lambda name: abs(errors[name]), default="")
            left_out = _error(setting, Chip.of(setting.target).with_constant(constant, value))
            results.append(
                Derived(
                    constant, setting.target, row.name, value, left_out,
                    errors.get(worst, 0.0), worst, row is setting,
                )
            )  # fmt: skip
    return results
