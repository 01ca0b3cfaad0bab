"""Predicted time of generated kernels against the limit of the chip, over a seeded grid of graphs.

Graphs of `random_graphs.py` are planned for `--target` from fake tensors: nothing is executed. A
graph's limit is the largest of: every input read and every result written once at the rate of the
DMA engines; its passes of VectorE and of ScalarE at one element a cycle and lane. ScalarE loads a
table of 1.28 us for each family of functions (a published measurement, `Timing.scalar_table_ns`),
the first one before its data have come: the others are part of its work. VectorE's fast modes for
two bytes an element, and sums on TensorE or ScalarE, take less than these passes: the time of a
graph may be below its limit. The launch of the graph is left out on both sides, as in `kernels.py`;
the fixed latency of the first load and the last store (`Hardware.region_seconds`) is part of the
limit, once a graph, as it is part of every estimate of the backend (`backend/prediction.py`,
`fallback/cost.py`).

`--seed`, `--n`; `--worst N` rows are printed; `--json` prints one object as the last line. Exit
status 0 means that the time is at most 1.4x of the limit in 90 % of the graphs and 2x in all,
that all of them run on NKI, and that every time is a schedule's: a kernel that cannot be traced or
scheduled has an estimate alone, which says nothing about it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from random_graphs import Graph, graphs
from torch._subclasses.fake_tensor import FakeTensorMode

import trnx
from trnx.simulator.costs.constants import timing
from trnx.simulator.costs.vector import table_of
from trnx.simulator.hardware import Hardware, hardware

MOST, ALL, SHARE = 1.4, 2.0, 0.9


@dataclass(frozen=True)
class Result:
    """One graph: predicted and least microseconds, which limit that is, and the kernels."""

    graph: str
    kind: str
    nbytes: int
    us: float
    limit_us: float
    limit: str
    kernels: tuple[str, ...]
    on_nki: bool
    scheduled: bool

    @property
    def ratio(self) -> float:
        """Predicted time over the limit."""
        return self.us / self.limit_us

    def text(self) -> str:
        """A line of the table."""
        where = ", ".join(self.kernels) if self.on_nki else "off NKI"
        where += "" if self.scheduled else ", not scheduled"
        times = f"{self.us:8.1f} of {self.limit_us:6.1f} us {self.limit:<8}"
        return f"{self.ratio:6.2f}x {times}{self.graph} [{where}]"


def limits(graph: Graph, nbytes: int, chip: Hardware) -> dict[str, float]:
    """Seconds of each resource."""
    elements = math.prod(graph.operands[0].shape) / chip.partitions
    vector, scalar = graph.passes()
    later_tables = max(0, len({table_of(name) for name in graph.functions}) - 1)
    return {
        "DMA": nbytes / chip.dma_bytes_per_second,
        "VectorE": vector * elements / chip.vector_clock,
        "ScalarE": scalar * elements / chip.scalar_clock
        + later_tables * timing(chip).scalar_table_ns / 1e9,
    }


def measure(graph: Graph, target: str) -> Result:
    """The prediction for one graph."""
    torch._dynamo.reset()
    with FakeTensorMode():
        inputs = graph.inputs()
        result = graph(*inputs)
    compiled = torch.compile(graph.__call__, backend="trnx", options={"target": target})
    profile = trnx.profile(compiled, *inputs, target=target)
    nbytes = sum(t.numel() * t.element_size() for t in (*inputs, result))
    found = limits(graph, nbytes, profile.chip)
    limit = max(found, key=lambda name: found[name])
    least = profile.chip.region_seconds + found[limit]
    regions = profile.regions
    return Result(
        str(graph), graph.kind, nbytes, sum(r.seconds for r in regions) * 1e6, least * 1e6, limit,
        tuple(r.kernel or "" for r in regions), all(r.engine == "nki" for r in regions),
        all(r.by == "schedule" for r in regions if r.engine == "nki"),
    )  # fmt: skip


def print_results(results: Sequence[Result], worst: int) -> None:
    """The worst ones first, then classes and the distribution."""
    for r in sorted(results, key=lambda r: -r.ratio)[:worst]:
        print(r.text())
    kinds = defaultdict(list)
    for r in results:
        kinds[r.kind].append(r.ratio)
    for kind, ratios in sorted(kinds.items(), key=lambda item: -max(item[1])):
        good = sum(ratio <= MOST for ratio in ratios)
        print(f"{kind:<12}{good:>4} of {len(ratios):>3} within {MOST}x, worst {max(ratios):.2f}x")
    ordered = sorted(r.ratio for r in results)
    tenths = [ordered[min(len(ordered) - 1, len(ordered) * i // 10)] for i in range(1, 10)]
    print("deciles: " + " ".join(f"{ratio:.2f}" for ratio in tenths) + f", most {ordered[-1]:.2f}")


def holds(results: Sequence[Result]) -> bool:
    """Whether the bars hold; says so."""
    good = sum(r.ratio <= MOST for r in results) / len(results)
    bad = sum(r.ratio > ALL for r in results)
    off = sum(not r.on_nki for r in results)
    estimated = sum(not r.scheduled for r in results)
    print(f"<= {MOST}x: {good:.1%} (bar {SHARE:.0%}); > {ALL}x: {bad} (bar 0); off NKI: {off}")
    print(f"not scheduled: {estimated} (bar 0)")
    return good >= SHARE and not bad and not off and not estimated


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="trn2", type=lambda name: hardware(name).target)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--n", default=200, type=int, help="graphs")
    parser.add_argument("--worst", default=20, type=int, help="rows that are printed")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    if options.n < 1:
        parser.error(f"--n {options.n} is not positive")
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    results = [measure(graph, options.target) for graph in graphs(options.seed, options.n)]
    print_results(results, options.worst)
    held = holds(results)
    if options.json:
        rows = [{**asdict(r), "ratio": r.ratio} for r in results]
        print(json.dumps({"seed": options.seed, "rows": rows, "bars_hold": held}))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
