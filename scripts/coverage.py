"""How much of a suite of models runs on NKI, as `trnx.explain` says; the worst ones first.

`--suite models`: 39 architectures of transformers and diffusers (`suites/hugging_face.py`).
`--suite kernelbench --checkout PATH`: KernelBench's problems of levels 1 to 3, from a checkout or
its Git directory (`suites/kernelbench.py` says at which sizes). `--train` explains forward and
backward of the models in training mode.

Printed for each model: the shares on NKI of the FLOPs of matrix products, of the bytes that
compute nodes read and write, and of the nodes; after them, what is off NKI by op: in how many
models, nodes, bytes, predicted microseconds (a region's time is split by bytes), the reason.
`--markdown` prints the table of `docs/coverage.md`.

Each model runs in a process of its own, within limits of time and memory; one that fails is listed
with its error. `--results FILE` keeps outcomes, one JSON object a line: what is in it is not
computed again.

    OMP_NUM_THREADS=1 python scripts/coverage.py --suite models --json

Bars (not applied with `--only`): models, FLOPs >= 95 % in all 39, bytes >= 90 % in 35, nodes >=
90 % in 30; in training 33, 30 and 28. KernelBench: FLOPs >= 95 % in 97 % of the problems, bytes >=
90 % in 85 %. In both: no op is off NKI without a kernel or rule unless `docs/coverage.md` names it.
`--json` prints one object as the last line; exit status 0 means that the bars hold.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from suites import hugging_face, kernelbench
from suites.apart import run_apart
from suites.case import Case

import trnx

SECONDS = 300
GIGABYTES = 16
FLOPS, BYTES, NODES = 0.95, 0.90, 0.90
# In how many models the shares are reached: (FLOPs, bytes, nodes).
MODEL_BARS = {False: (39, 35, 30), True: (33, 30, 28)}
KERNELBENCH_SHARES = (0.97, 0.85)
DOCS = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
# Not where a kernel has the op, and says why it does not take it here.
NO_RULE = re.compile(r"^(?!kernel ).*(has no rule for generated kernels|no kernel has a pattern)")


@dataclass
class Op:
    """What one op of a model has off NKI; `bytes` of operands and results, `seconds` predicted."""

    nodes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    reason: str = ""


@dataclass
class Outcome:
    """One model. Shares are from 0 to 1, None where there is nothing of which to take one."""

    name: str
    train: bool
    flops: float | None = None
    bytes: float | None = None
    nodes: float | None = None
    graph_breaks: int = 0
    predicted_seconds: float = 0.0
    ops: dict[str, Op] = field(default_factory=dict)
    error: str = ""

    def reaches(self) -> tuple[bool, bool, bool]:
        """Whether the shares of FLOPs, bytes and nodes are those that the bars ask for."""
        shares = ((self.flops, FLOPS), (self.bytes, BYTES), (self.nodes, NODES))
        a, b, c = (not self.error and (s is None or s >= bar) for s, bar in shares)
        return a, b, c


def measure(case: Case, train: bool) -> Outcome:
    """Explain one model."""
    built = case.build(train)
    with torch.set_grad_enabled(train):
        found = trnx.explain(built.model, *built.args, **built.kwargs)
    reports = found.reports
    return Outcome(
        case.name,
        train,
        reports.flops_on_nki,
        reports.bytes_on_nki,
        reports.nodes_on_nki,
        sum(found.graph_breaks.values()),
        reports.predicted_seconds,
        off_nki(reports),
    )


def off_nki(reports: Iterable[Any]) -> dict[str, Op]:
    """What is off NKI, by op."""
    ops: dict[str, Op] = defaultdict(Op)
    for report in reports:
        for entry in report.fallbacks:
            ops[entry.op].reason = ops[entry.op].reason or entry.reason
        for region in report.regions:
            if region.engine == "nki":
                continue
            for name, size in zip(region.ops, region.op_bytes, strict=True):
                op = ops[name]
                op.nodes += 1
                op.bytes += size
                op.seconds += region.predicted_seconds * size / (region.operand_bytes or 1)
    return dict(ops)


def run(case: Case, train: bool, seconds: int, gigabytes: int) -> Outcome:
    """One model in a process of its own."""
    outcome, error = run_apart(lambda: measure(case, train), seconds, gigabytes)
    return Outcome(case.name, train, error=error) if error else outcome


def read(values: dict[str, Any]) -> Outcome:
    """An outcome from its JSON form."""
    ops = {name: Op(**op) for name, op in values["ops"].items()}
    return Outcome(**{**values, "ops": ops})


def run_all(cases: Sequence[Case], arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Outcomes as they come; those in the file of results as they are there."""
    known: dict[tuple[str, bool], Outcome] = {}
    path: Path | None = arguments.results
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            outcome = read(json.loads(line))
            known[outcome.name, outcome.train] = outcome
    for number, case in enumerate(cases, start=1):
        found = known.get((case.name, arguments.train))
        if found is None:
            found = run(case, arguments.train, arguments.seconds, arguments.gigabytes)
            if path is not None:
                with path.open("a") as file:
                    file.write(json.dumps(asdict(found)) + "\n")
            print(f"[{number}/{len(cases)}] {_row(found)}", file=sys.stderr, flush=True)
        yield found


def percent(share: float | None) -> str:
    """Whole percent, never rounded up to 100."""
    return "-" if share is None else f"{int(100 * share + 1e-9)} %"


def _row(o: Outcome) -> str:
    if o.error:
        return f"{o.name}: {o.error}"
    shares = f"FLOPs {percent(o.flops)}, bytes {percent(o.bytes)}, nodes {percent(o.nodes)}"
    worst = ", ".join(_short(name) for name in _worst(o.ops)[:5])
    return f"{o.name}: {shares}" + (f"; off NKI: {worst}" if worst else "")


def _short(op: str) -> str:
    return op.removeprefix("aten.").removesuffix(".default")


def _worst(ops: dict[str, Op]) -> list[str]:
    """Most bytes first."""
    return sorted(ops, key=lambda name: (-ops[name].bytes, name))


def by_op(outcomes: Iterable[Outcome]) -> list[tuple[str, int, Op]]:
    """Op, in how many models it is off NKI, and its sums; most predicted time first."""
    total: dict[str, Op] = defaultdict(Op)
    models: dict[str, int] = defaultdict(int)
    for outcome in outcomes:
        for name, op in outcome.ops.items():
            one = total[name]
            one.nodes += op.nodes
            one.bytes += op.bytes
            one.seconds += op.seconds
            one.reason = one.reason or op.reason
            models[name] += 1
    return [(n, models[n], total[n]) for n in sorted(total, key=lambda n: -total[n].seconds)]


def documented() -> set[str]:
    """The ops that the docs say stay off NKI: the first column of the page's second table."""
    if not DOCS.exists():
        return set()
    _, _, rest = DOCS.read_text().partition("\n## What stays off NKI")
    section, _, _ = rest.partition("\n## ")
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def without_kernel(outcomes: Iterable[Outcome]) -> list[str]:
    """Ops off NKI for want of a kernel or rule that the docs do not name."""
    named = documented()
    found = {n for o in outcomes for n, op in o.ops.items() if NO_RULE.search(op.reason)}
    return sorted(n for n in found if _short(n).partition(".")[0] not in named)


def bars_hold(outcomes: Sequence[Outcome], suite: str, train: bool) -> bool:
    """Whether the bars of the suite hold."""
    counts = [sum(column) for column in zip(*(o.reaches() for o in outcomes), strict=True)]
    if suite == "models":
        bars: Sequence[float] = MODEL_BARS[train]
    else:
        bars = [share * len(outcomes) for share in KERNELBENCH_SHARES]
    enough = all(count >= bar for count, bar in zip(counts, bars, strict=False))
    return bool(outcomes) and enough and not without_kernel(outcomes)


def show(outcomes: Sequence[Outcome]) -> None:
    """Both tables."""
    order = sorted(outcomes, key=lambda o: (not o.error, o.flops or 1.0, o.bytes or 1.0))
    for outcome in order:
        print(_row(outcome))
    print(f"\n{'op off NKI':48} models  nodes      bytes         us  reason")
    for name, models, op in by_op(outcomes):
        print(
            f"{_short(name):48} {models:6} {op.nodes:6} {op.bytes:10} {op.seconds * 1e6:10.1f}  "
            f"{op.reason[:160]}"
        )
    total = len(outcomes)
    flops, size, nodes = (sum(c) for c in zip(*(o.reaches() for o in outcomes), strict=True))
    print(
        f"\n{total} models: FLOPs >= {FLOPS:.0%} in {flops}, bytes >= {BYTES:.0%} in {size}, "
        f"nodes >= {NODES:.0%} in {nodes}; {sum(bool(o.error) for o in outcomes)} failed"
    )
    if missing := without_kernel(outcomes):
        print(f"without a kernel or rule, and not in the docs: {', '.join(missing)}")


def markdown(outcomes: Sequence[Outcome]) -> str:
    """The table of the docs: a row for each model."""
    lines = [
        "| model | FLOPs | bytes | nodes | off NKI, most bytes first |",
        "|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        shares = [percent(share) for share in (outcome.flops, outcome.bytes, outcome.nodes)]
        ops = ", ".join(f"`{_short(name)}`" for name in _worst(outcome.ops)[:4])
        lines.append(f"| {' | '.join([outcome.name, *shares, outcome.error or ops or '-'])} |")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--suite", choices=("kernelbench", "models"), required=True)
    parser.add_argument("--checkout", type=Path, help="KernelBench, for its suite")
    parser.add_argument("--train", action="store_true", help="forward and backward, for training")
    parser.add_argument("--only", help="regular expression on the model's name")
    parser.add_argument("--results", type=Path, help="a file that keeps outcomes")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="limit for one model")
    parser.add_argument("--gigabytes", type=int, default=GIGABYTES, help="limit for one model")
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs alone")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    if arguments.suite == "kernelbench" and arguments.checkout is None:
        parser.error("--suite kernelbench needs --checkout PATH of ScalingIntelligence/KernelBench")
    return arguments


def main() -> int:
    """Run, print the tables; 0 where the bars hold."""
    arguments = _arguments()
    if arguments.suite == "models":
        cases = hugging_face.cases()
    else:
        cases = kernelbench.cases(arguments.checkout)
    cases = [c for c in cases if not arguments.only or re.search(arguments.only, c.name)]
    outcomes = list(run_all(cases, arguments))
    if not outcomes:
        sys.exit(f"no model's name matches {arguments.only!r}")
    if arguments.markdown:
        print(markdown(outcomes))
        return 0
    show(outcomes)
    whole = not arguments.only
    passed = bars_hold(outcomes, arguments.suite, arguments.train) if whole else True
    if arguments.json:
        print(json.dumps({"passed": passed, "models": [asdict(o) for o in outcomes]}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
