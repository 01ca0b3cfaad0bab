"""`trnx plan` against published throughput of whole models: `throughput.py [--json] [--only TEXT]`.

One row for each point of `throughput_points.py`: published, predicted for the published mesh, error
(positive where the prediction is too fast). Bars: the median of the errors without sign is at most
20 %, and four in five are within 40 %; both are printed for each kind of point too. Exit status 0
means that both hold over what was asked for. `--only` keeps the points of a kind, or whose names
hold a text. With `--json` the last line is one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from throughput_points import ThroughputPoint, points

from trnx.backend.plan.description import describe
from trnx.backend.plan.kernels import Seconds, head_seconds
from trnx.backend.plan.step import step_of

MEDIAN_BAR, MOST_BAR, SHARE_BAR = 0.20, 0.40, 0.80


@dataclass(frozen=True)
class Result:
    """A point, and what a second is predicted to bring."""

    point: ThroughputPoint
    predicted: float

    @property
    def error(self) -> float:
        """Relative, positive where the prediction is too fast."""
        return self.predicted / self.point.published - 1

    def line(self) -> str:
        """The row of the table."""
        point = self.point
        cells = (point.name, f"{point.cluster.nodes} x {point.cluster.instance}", str(point.mesh))
        numbers = (f"{point.published:.6g}", f"{self.predicted:.6g}", f"{self.error:+.1%}")
        return f"| {' | '.join((*cells, *numbers))} |"

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        point = self.point
        return {
            "name": point.name,
            "kind": point.kind,
            "instance": point.cluster.instance,
            "nodes": point.cluster.nodes,
            "mesh": point.mesh.to_dict(),
            "published": point.published,
            "predicted": self.predicted,
            "error": self.error,
            "source": point.source,
        }


def _nothing(*_: Any) -> Seconds:
    return Seconds(0.0, 0.0, 0.0, 0.0)


def predict(point: ThroughputPoint) -> Result:
    """The step of the published mesh."""
    head = head_seconds if point.has_head else _nothing
    step = step_of(describe(point.config), point.cluster, point.mesh, point.work, head=head)
    return Result(point, point.work.batch / step.total)


def median_of(results: Sequence[Result]) -> float:
    """Of the errors without sign."""
    return statistics.median(abs(result.error) for result in results)


def within(results: Sequence[Result]) -> int:
    """How many errors are at most 40 %."""
    return sum(abs(result.error) <= MOST_BAR for result in results)


def holds(results: Sequence[Result]) -> bool:
    """Whether both bars hold."""
    return median_of(results) <= MEDIAN_BAR and within(results) >= SHARE_BAR * len(results)


def summary(name: str, results: Sequence[Result]) -> str:
    """One line about some of the points."""
    near = f"within 40%: {within(results)} of {len(results)}"
    return f"{name}: median error {median_of(results):.1%}; {near}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args(arguments)
    print("| point | machine | mesh | published | predicted | error |\n|---|---|---|---|---|---|")
    results = []
    for point in points():
        if options.only in point.name or options.only == point.kind:
            results.append(predict(point))
            print(results[-1].line(), flush=True)
    if not results:
        parser.error(f"no point has {options.only!r} in its name")
    kinds: dict[str, list[Result]] = {}
    for result in results:
        kinds.setdefault(result.point.kind, []).append(result)
    for kind, own in kinds.items():
        print(summary(kind, own))
    print(summary("all", results) + " (bars 20%, 80%)")
    if options.json:
        rows = [result.to_dict() for result in results]
        seen = {"median_error": median_of(results), "within": within(results)}
        print(json.dumps({"points": rows, **seen, "bars_hold": holds(results)}))
    return 0 if holds(results) else 1


if __name__ == "__main__":
    sys.exit(main())
