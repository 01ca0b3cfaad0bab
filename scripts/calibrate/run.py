"""Predicted against published times: `run.py [--json] [--quick] [--write-band]`.

Three tables. Judged rows: measured, predicted, error, bar. Constants: each measured one derived
again from every other row that tells it, and how far the rest is off then (leave one out). Held-out
kernels by family, each without what was taken from it, against the bars of `leave_family_out.py`;
then one by one. The errors of those that no constant was taken from are the band that predictions
are given with (`simulator/timing/band.py`, written anew by `--write-band`).

Exit status 0 means that every bar holds and that the band is the one in the package. `--quick`
leaves out whole kernels. With `--json` the last line is one JSON object; the tables are Markdown as
in `docs/timing.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from band_data import band_file, is_current, write
from held_out import HELD_OUT, HeldOut
from leave_family_out import WITHOUT, judge_families
from leave_out import Derived, leave_out, predicted
from measures import Chip
from points import POINTS, Point
from predict import predict

from trnx.simulator.costs.constants import free_constants


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


def judge(points: Sequence[Point]) -> list[Result]:
    """Every row with its prediction."""
    return [Result(p, predicted(p, Chip.of(p.target))) for p in points]


def _markdown(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def table(results: Sequence[Result]) -> str:
    """The judged rows."""
    header = ("point", "chip", "what", "measured", "predicted", "error", "bar", "")
    return _markdown(header, [result.cells() for result in results])


def constants_table(derived: Sequence[Derived]) -> str:
    """Constants by the row that they come from."""
    header = ("constant", "chip", "from", "value", "row that sets it", "worst other", "")
    rows = [
        (
            d.constant, d.target, d.row, f"{d.value:.4g}", f"{d.left_out:+.1%}",
            f"{d.worst:+.1%} {d.worst_row}" if d.worst_row else "", "used" if d.is_used else "",
        )
        for d in derived
    ]  # fmt: skip
    return _markdown(header, rows)


def held_out_table(errors: Sequence[tuple[HeldOut, float]]) -> str:
    """Held-out kernels."""
    header = ("kernel", "chip", "what", "measured", "predicted", "error", "")
    rows = [
        (
            point.name, point.target, point.what, f"{point.ns / 1e3:.1f} us",
            f"{point.ns * (1 + error) / 1e3:.1f} us", f"{error:+.1%}",
            _rest(point),
        )
        for point, error in errors
    ]  # fmt: skip
    return _markdown(header, rows)


def _rest(point: HeldOut) -> str:
    if point.sets:
        return f"sets {point.sets}"
    return "" if point.is_described else "kernel unknown, not in the band"


def family_table(errors: Sequence[tuple[HeldOut, float]]) -> str:
    """Errors by kernel and chip, each family without what was taken from it."""
    families: dict[tuple[str, str], list[float]] = {}
    for point, error in errors:
        families.setdefault((point.name, point.target), []).append(error)
    header = ("kernels", "chip", "points", "least", "middle", "mean", "most", "instead of its own")
    rows = [
        (
            name, target, str(len(found)), f"{min(found):+.0%}", f"{statistics.median(found):+.0%}",
            f"{statistics.fmean(found):+.0%}", f"{max(found):+.0%}",
            WITHOUT[name].source if name in WITHOUT else "",
        )
        for (name, target), found in families.items()
    ]  # fmt: skip
    return _markdown(header, rows)


Errors = list[tuple[HeldOut, float]]


def held_out_errors(points: Sequence[HeldOut]) -> tuple[Errors, Errors]:
    """Relative errors, positive where the prediction is too slow: with the model as it is, and
    without what the family of a point set.
    """
    whole, without = [], []
    with warnings.catch_warnings():
        # Findings of our own kernels' source that a device's front end may judge otherwise.
        warnings.simplefilter("ignore")
        for point in points:
            error = predict(point) / point.ns - 1
            whole.append((point, error))
            if point.name in WITHOUT:
                error = predict(point, WITHOUT[point.name]) / point.ns - 1
            without.append((point, error))
    return whole, without


def _print_whole(errors: Errors, without: Errors, derived: list[Derived], write_band: bool) -> bool:
    tables = (constants_table(derived), family_table(without), held_out_table(errors))
    print("".join(f"\n{text}\n" for text in tables))
    for judged in judge_families(without):
        print(f"{judged.line()}: {'holds' if judged.holds else 'FAILS'}")
    text = band_file([(p.target, e) for p, e in errors if p.judges])
    if write_band:
        write(text)
    current = is_current(text)
    print("the band of the package is " + ("current" if current else "STALE: --write-band"))
    return current


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; 0 where every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="without whole kernels")
    parser.add_argument("--write-band", action="store_true", help="write simulator/timing/band.py")
    options = parser.parse_args(arguments)
    points = [p for p in POINTS if not (options.quick and p.measure[0] == "matmul")]
    results = judge(points)
    derived = leave_out(points)
    errors, without = ([], []) if options.quick else held_out_errors(HELD_OUT)
    constants = free_constants()
    failed = [result.point.name for result in results if result.holds is False]
    print(table(results))
    current = True
    if options.quick:
        print(f"\n{constants_table(derived)}")
    else:
        current = _print_whole(errors, without, derived, options.write_band)
    families = judge_families(without)
    failed += [f"families on {judged.target}" for judged in families if not judged.holds]
    print(f"\nfree constants (not documented by AWS): {len(constants)}")
    for constant in constants:
        print(f"* {constant}")
    print(f"\nbars that fail: {', '.join(failed) or 'none'}")
    if options.json:
        report = {
            "points": [result.to_dict() for result in results],
            "leave_one_out": [d.to_dict() for d in derived],
            "held_out": [
                {"name": p.name, "target": p.target, "what": p.what, "measured_ns": p.ns,
                 "error": error, "source": p.source, "in_band": p.judges}
                for p, error in errors
            ],
            "leave_one_family_out": [
                {"name": p.name, "target": p.target, "what": p.what, "error": error}
                for p, error in without
            ],
            "families": [judged.to_dict() for judged in families],
            "free_constants": constants,
            "free_constant_count": len(constants),
            "band_is_current": current,
            "failed": failed,
        }  # fmt: skip
        print(json.dumps(report))
    return 1 if failed or not current else 0


if __name__ == "__main__":
    sys.exit(main())
