"""What each pass of the compiler does to every published time that it touches: `passes.py [--json]
[--bench FILE]`.

A pass touches a point whose prediction changes when it is left out. Its bar: the middle error of
the points that it touches at least halves, and none gets worse by more than 5 %. The points are the
held-out kernels, which are written for this repository, and those of `FILE`: what
`scripts/conformance/nki_bench_times.py --json` and `scripts/bench/aws_passes.py` printed of other
people's kernels, one object a line.

Exit status 0 if and only if every pass touches a point and holds its bar.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from held_out import HELD_OUT, LIBRARY, PREAMBLE_NS, HeldOut
from predict import predict, program

from trnx.simulator.timing.compiler import EVERY, Pass

LOSS_BAR, SHARE_BAR = 0.05, 0.5


@dataclass(frozen=True)
class Touched:
    """A point that a pass touches: relative errors, positive where the prediction is too slow."""

    compiler_pass: str
    name: str
    target: str
    what: str
    measured_ns: float
    error: float
    error_without: float
    is_ours: bool

    @property
    def loss(self) -> float:
        """How much further from the measured time the pass takes it; negative for a gain."""
        return abs(self.error) - abs(self.error_without)

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        verdict = "worse" if self.loss > LOSS_BAR else ""
        measured = f"{self.measured_ns / 1e3:.1f} us"
        return (
            self.compiler_pass, self.name, self.target, self.what, measured,
            f"{self.error:+.1%}", f"{self.error_without:+.1%}", f"{self.loss:+.1%}", verdict,
        )  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A pass against its bar."""

    compiler_pass: str
    points: int
    error: float
    error_without: float
    loss: float

    @property
    def holds(self) -> bool:
        """Whether the middle error at least halves and no point loses too much."""
        halves = self.error <= SHARE_BAR * self.error_without
        return self.points > 0 and halves and self.loss <= LOSS_BAR

    def line(self) -> str:
        """For people."""
        if not self.points:
            return f"{self.compiler_pass}: touches no point: FAILS"
        return (
            f"{self.compiler_pass}: {self.points} points, middle error {self.error:.1%} with it, "
            f"{self.error_without:.1%} without it, worst loss {self.loss:+.1%}: "
            f"{'holds' if self.holds else 'FAILS'}"
        )


def touched(points: Sequence[HeldOut]) -> Iterator[Touched]:
    """The held-out points that passes touch."""
    for point in points:
        traced = program(point)
        error = predict(point, traced=traced) / point.ns - 1
        for one in Pass:
            without = predict(point, traced=traced, passes=EVERY - {one}) / point.ns - 1
            if without != error:
                yield Touched(
                    one.name, point.name, point.target, point.what, point.ns, error, without, True
                )


def benched(lines: Sequence[str]) -> Iterator[Touched]:
    """Other people's kernels, out of the objects that were printed; `cores` started a NEFF."""
    for line in lines:
        for row in json.loads(line)["kernels"] if line.startswith("{") else ():
            start = PREAMBLE_NS.get((LIBRARY, "trn2", row.get("cores", 0)), 0.0)
            measured = row["measured"]
            error = (start + row["usual"]) / measured - 1
            for name, ns in row["without"].items():
                if ns != row["usual"]:
                    yield Touched(
                        name, row["operator"], "trn2", row["name"], measured, error,
                        (start + ns) / measured - 1, False,
                    )  # fmt: skip


def judge(found: Sequence[Touched]) -> list[Judged]:
    """Every pass against its bar."""
    judged = []
    for one in Pass:
        own = [point for point in found if point.compiler_pass == one.name]
        middle = [
            statistics.median([abs(value) for value in values] or [0.0])
            for values in ([p.error for p in own], [p.error_without for p in own])
        ]
        loss = max((point.loss for point in own), default=0.0)
        judged.append(Judged(one.name, len(own), middle[0], middle[1], loss))
    return judged


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the points and the bars; 0 where every bar holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, help="other people's kernels, an object a line")
    parser.add_argument("--only", default="", help="a part of NAME WHAT of held-out points")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args(arguments)
    points = [point for point in HELD_OUT if options.only in f"{point.name} {point.what}"]
    header = ("pass", "kernels", "chip", "point", "measured", "with it", "without", "loss", "")
    print("\n".join(f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header))))
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # findings that a device's front end may judge otherwise
        lines = options.bench.read_text().splitlines() if options.bench is not None else []
        for point in itertools.chain(touched(points), benched(lines)):
            print(f"| {' | '.join(point.cells())} |", flush=True)
            found.append(point)
    judged = judge(found)
    print("\n" + "\n".join(one.line() for one in judged))
    if options.json:
        passes = [{**asdict(one), "holds": one.holds} for one in judged]
        print(json.dumps({"points": [asdict(point) for point in found], "passes": passes}))
    return 0 if all(one.holds for one in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
