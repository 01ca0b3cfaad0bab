"""Predicted against published times: `run.py [--json] [--quick]`.

Prints a row for each point and the free constants. Exit status 0 means that every bar holds.
`--quick` leaves out whole kernels. With `--json` the last line is one JSON object, without it the
table is Markdown as in `docs/timing.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from measures import MEASURES
from points import POINTS, Point

from trnx.simulator.timing.constants import free_constants


@dataclass(frozen=True)
class Result:
    """A point with its prediction."""

    point: Point
    predicted: float

    @property
    def error(self) -> float:
        """Relative, positive where the prediction is too slow."""
        return self.predicted / self.point.ns - 1

    @property
    def holds(self) -> bool | None:
        """Whether the bar holds; None where there is none."""
        return None if self.point.bar is None else abs(self.error) <= self.point.bar

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        point = self.point
        bar = "" if point.bar is None else f"{point.bar:.0%}"
        verdict = {None: "", True: "holds", False: "FAILS"}[self.holds]
        return (
            point.name, point.target, point.what, _time(point.ns), _time(self.predicted),
            f"{self.error:+.1%}", bar, f"sets {point.sets}" if point.sets else verdict,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        point = self.point
        return {
            "name": point.name,
            "target": point.target,
            "what": point.what,
            "measured_ns": point.ns,
            "predicted_ns": self.predicted,
            "error": self.error,
            "bar": point.bar,
            "holds": self.holds,
            "sets": point.sets,
            "source": point.source,
        }


def _time(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms" if ns >= 1e6 else f"{ns:.0f} ns"


def predict(points: Sequence[Point]) -> list[Result]:
    """Every point with its prediction."""
    return [Result(p, MEASURES[p.measure[0]](p.target, *p.measure[1:])) for p in points]


def table(results: Sequence[Result]) -> str:
    """Markdown."""
    header = ("point", "chip", "what", "measured", "predicted", "error", "bar", "")
    lines = [header, ("---",) * len(header), *(result.cells() for result in results)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 where every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="without whole kernels")
    options = parser.parse_args(arguments)
    points = [p for p in POINTS if not (options.quick and p.measure[0] == "matmul")]
    results = predict(points)
    constants = free_constants()
    failed = [result.point.name for result in results if result.holds is False]
    print(table(results))
    print(f"\nfree constants (not documented by AWS): {len(constants)}")
    for constant in constants:
        print(f"* {constant}")
    print(f"\nbars that fail: {', '.join(failed) or 'none'}")
    if options.json:
        points_json = [result.to_dict() for result in results]
        print(json.dumps({"points": points_json, "free_constants": constants, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
