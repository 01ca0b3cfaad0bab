"""AWS's kernels and ours on the same problems, predicted by the same timing model.

    python scripts/bench/versus_aws.py --checkout NKI_LIBRARY --checkout NEURON_SDK [--json]

Their kernels come from the checkouts (nki-library is patched in a scratch copy, as in
`scripts/conformance/nki_library`), ours are what `torch.compile` plans for the same function. Both
are traced for trn2 from shapes alone, on one core or as two programs of a logical core, and
scheduled. `published` is a time that a test of nki-library expects on a device, start of the NEFF
included. `--rows TEXT ...` takes the rows whose name contains one of the texts; `--keep FILE` adds
each row to a file, as a line of JSON, and takes from it those that are there, so that a run that
was cut off goes on; `--json` prints one object as the last line.

Bars, on the same LNC: at least 60 problems of which both sides have a time, ours not slower on
90 % of the rows, never by more than 10 %, and the median of ours over theirs at most 0.85. A row of
which a part of ours is off NKI counts as slower. Where their kernel is not as exact as eager, so
that both sides do not solve the same problem, a line below the row has the errors of both; the row
counts as any other. Rows on which ours is slower are listed at the
end, worst first, with what bounds both sides. Exit status 0 means that the bars hold; what their
kernel refuses is listed and counts for neither side.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from versus_checkouts import Checkouts, traced
from versus_errors import errors, text
from versus_problems import Problem, problems

import trnx
from trnx.backend.options import on_cores
from trnx.simulator.errors import TrnxError
from trnx.simulator.timing.profile import QueueTime, profile_program

TARGET = "trn2"
PROBLEMS, NOT_SLOWER, WORST, MEDIAN = 60, 0.90, 1.10, 0.85


@dataclass(frozen=True)
class Time:
    """A side of a row: microseconds, and the three busiest queues with the longest wait of each."""

    us: float
    busiest: str
    off_nki: tuple[str, ...] = ()
    regions: int = 1


def row_name(problem: str, lnc: int) -> str:
    """Of a row, unique."""
    return f"{problem}, LNC {lnc}"


@dataclass(frozen=True)
class Row:
    """A problem on one LNC; `refused` is why their kernel has no time, `errors` those of both sides
    where theirs is not as exact as eager (`versus_errors.py`)."""

    problem: str
    lnc: int
    ours: Time
    theirs: Time | None
    published_us: float | None = None
    refused: str = ""
    errors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique."""
        return row_name(self.problem, self.lnc)

    @property
    def ratio(self) -> float | None:
        """Ours over theirs."""
        return None if self.theirs is None else self.ours.us / self.theirs.us

    @property
    def is_slower(self) -> bool:
        """Also where a part of ours is off NKI: XLA's time is an estimate, not a schedule."""
        return self.ratio is not None and (self.ratio > 1.0 or bool(self.ours.off_nki))

    def text(self) -> str:
        """A line of the table."""
        published = "" if self.published_us is None else f"  published {self.published_us:.1f}"
        off = f"  off NKI: {', '.join(self.ours.off_nki)}" if self.ours.off_nki else ""
        if self.theirs is None:
            return f"{self.name:<62}{self.ours.us:9.1f}        -     -  {self.refused}{off}"
        times = f"{self.ours.us:9.1f}{self.theirs.us:9.1f}{self.ratio:6.2f}"
        line = f"{self.name:<62}{times}{published}{off}"
        return f"{line}\n{text(self.errors)}" if self.errors else line

    def profile(self) -> str:
        """What bounds both sides."""
        assert self.theirs is not None
        return (
            f"{self.ratio:5.2f} {self.name}\n      ours   {self.ours.us:9.1f} us, "
            f"{self.ours.regions} regions: {self.ours.busiest}\n"
            f"      theirs {self.theirs.us:9.1f} us: {self.theirs.busiest}"
            + (f"\n{text(self.errors)}" if self.errors else "")
        )


def ours(problem: Problem, lnc: int) -> Time:
    """What `torch.compile` plans."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = [given.tensor() for given in problem.inputs]
    compiled = torch.compile(problem.ours, backend="trnx", options={"target": TARGET, "lnc": lnc})
    for tensor in inputs:
        tensor.requires_grad_(problem.backward and tensor.is_floating_point())
    with torch.set_grad_enabled(problem.backward):
        profile = trnx.profile(compiled, *inputs, target=TARGET)
    regions = [
        region
        for region in profile.regions
        if not problem.backward or region.graph.endswith(".backward")
    ]
    off = {op for region in regions if region.engine != "nki" for op in region.ops}
    seconds = sum(region.seconds for region in regions)
    queues = [queue for r in regions if r.profile is not None for queue in r.profile.queues]
    return Time(seconds * 1e6, _busiest(queues, seconds), tuple(sorted(off)), len(regions))


def theirs(checkouts: Checkouts, problem: Problem, lnc: int) -> Time:
    """Their kernel's schedule. Raises what their code and the simulator raise."""
    with redirect_stdout(io.StringIO()):  # they log there
        arguments = problem.arguments(checkouts, lnc)
        program = traced(_kernel(checkouts, problem.kernel), arguments, TARGET, lnc)
    profile = profile_program(program, on_cores(TARGET, lnc))
    return Time(profile.total_seconds * 1e6, _busiest(profile.queues, profile.total_seconds))


def _kernel(checkouts: Checkouts, place: str) -> Callable[..., Any]:
    if ":" in place:
        found: Callable[..., Any] = checkouts.named(place)
        return found
    import versus_wrappers

    wrapper: Callable[..., Any] = getattr(versus_wrappers, place)
    return wrapper


def _busiest(queues: Iterable[QueueTime], seconds: float) -> str:
    busy: dict[str, float] = {}
    stalled: dict[str, dict[str, float]] = {}
    for queue in queues:
        busy[queue.name] = busy.get(queue.name, 0.0) + queue.busy_seconds
        waits = stalled.setdefault(queue.name, {})
        for reason, waited in queue.stalled.items():
            waits[reason] = waits.get(reason, 0.0) + waited
    parts = []
    for name in sorted(busy, key=lambda name: -busy[name])[:3]:
        part = f"{name} {busy[name] / seconds:.0%}"
        if stalled[name]:
            reason = max(stalled[name], key=lambda reason: stalled[name][reason])
            part += f" (waits for {reason} {stalled[name][reason] / seconds:.0%})"
        parts.append(part)
    return ", ".join(parts)


def compared(checkouts: Checkouts, problem: Problem, lnc: int) -> Row:
    """One row."""
    row = {"problem": problem.name, "lnc": lnc, "published_us": problem.published.get(lnc)}
    own = ours(problem, lnc)
    try:
        other = theirs(checkouts, problem, lnc)
        return Row(**row, ours=own, theirs=other, errors=_errors(checkouts, problem))
    except (AssertionError, TrnxError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return Row(**row, ours=own, theirs=None, refused=why)


def _errors(checkouts: Checkouts, problem: Problem) -> Mapping[str, Mapping[str, float]]:
    if not problem.inexact:
        return {}
    kernel = _kernel(checkouts, problem.kernel)
    columns = problem.inputs[0].shape[-1]
    return errors(problem.ours, kernel, problem.inexact, columns, TARGET)


@dataclass(frozen=True)
class Kept:
    """Rows in a file, one JSON object a line; without a path nothing is kept."""

    path: Path | None

    def rows(self) -> dict[str, Row]:
        """By name."""
        lines = self.path.read_text().splitlines() if self.path and self.path.exists() else []
        found = map(_row, map(json.loads, lines))
        return {row.name: row for row in found}

    def add(self, row: Row) -> None:
        """One more."""
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")


def _row(values: Mapping[str, Any]) -> Row:
    own, other = values["ours"], values["theirs"]
    own = Time(**{**own, "off_nki": tuple(own["off_nki"])})
    return Row(**{**values, "ours": own, "theirs": None if other is None else Time(**other)})


def verdict(rows: Sequence[Row]) -> Mapping[str, Any]:
    """The numbers of the bars, and whether each holds."""
    known = [row for row in rows if row.ratio is not None]
    ratios = sorted(row.ratio for row in known if row.ratio is not None) or [float("inf")]
    count = len({row.problem for row in known})
    not_slower = sum(not row.is_slower for row in known) / len(ratios)
    median = statistics.median(ratios)
    return {
        "problems": count, "compared": len(known), "refused": len(rows) - len(known),
        "not_slower": not_slower, "worst": ratios[-1], "median": median,
        "bars": {
            "problems": count >= PROBLEMS, "not_slower": not_slower >= NOT_SLOWER,
            "worst": ratios[-1] <= WORST, "median": median <= MEDIAN,
        },
    }  # fmt: skip


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, action="append")
    parser.add_argument("--rows", nargs="+", default=[""], help="texts in the names of rows")
    parser.add_argument("--keep", type=Path, help="a file of rows, which a later run goes on with")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="versus_aws_") as scratch:
        checkouts = Checkouts(options.checkout, Path(scratch))
        rows = []
        kept = Kept(options.keep)
        known = kept.rows()
        for problem, lnc in _chosen(checkouts, options.rows):
            row = known.get(row_name(problem.name, lnc))
            if row is None:
                row = compared(checkouts, problem, lnc)
                kept.add(row)
            rows.append(row)
            print(rows[-1].text(), flush=True)
    numbers = verdict(rows)
    slower = [row for row in rows if row.is_slower]
    print(f"slower than AWS's on {len(slower)} of {numbers['compared']} rows:")
    for row in sorted(slower, key=lambda row: -(row.ratio or 0.0)):
        print(row.profile())
    print(
        f"{numbers['problems']} problems, not slower on {numbers['not_slower']:.0%} of the rows, "
        f"worst {numbers['worst']:.2f}, median {numbers['median']:.2f}"
    )
    held = all(numbers["bars"].values())
    if options.json:
        listed = [{"name": row.name, "ratio": row.ratio, **asdict(row)} for row in rows]
        print(json.dumps({"rows": listed, **numbers, "bars_hold": held}))
    return 0 if held else 1


def _chosen(checkouts: Checkouts, texts: Sequence[str]) -> list[tuple[Problem, int]]:
    found = []
    for problem in problems():
        place = problem.kernel.partition(":")[0]
        for lnc in problem.lncs:
            name = row_name(problem.name, lnc)
            if checkouts.has(place) and any(text in name for text in texts):
                found.append((problem, lnc))
    return found


if __name__ == "__main__":
    sys.exit(main())
