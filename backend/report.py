"""What was compiled: which op went where, why, and what it costs.

`last()` is the newest graph's report; `collect_reports()` gathers those of everything compiled
while a block runs, whatever the thread (a backward graph may compile when `backward()` first runs).
A report stays live: a kernel that refuses the sizes of a later call adds an entry to `fallbacks`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, overload

from trnx.backend.collectives import CollectiveEntry
from trnx.fx_passes.region import LedgerEntry
from trnx.nki_kernels.spec import Cost
from trnx.simulator.fork_locks import fork_lock

if TYPE_CHECKING:
    from trnx.backend.prediction import Prediction


@dataclass
class RegionReport:
    """One region. `layer` is the path of its module in the model, `shapes` the sizes of its work
    (`fx_passes/labels.py`). `reads` names the regions whose results it reads, also through views.

    `cost` is the kernel's own count for the sizes seen at capture.

    `model_flops` are the FLOPs of the region's matrix products as torch counts them,
    `op_bytes` the sizes of all operands and results of each of its `ops`.
    `prediction` is that of a kernel's region, `fallback_seconds` the estimate of any other.
    `executed_flops` are those of the kernel's `nc_matmul` instructions (simulator runner), 0 where
    the region had to run in eager, None where it is not known. `copied` names the bindings that are
    made contiguous at each call. `engine` is the target's; where another is faster on this machine,
    `host_engine` executes the region here, for `host_reason`. `padding` says of a kernel's region
    with symbolic sizes which of them go through buckets, or why it sees exact ones.
    """

    name: str
    engine: str
    kernel: str | None
    ops: list[str]
    source: str
    reads: tuple[str, ...] = ()
    layer: str = ""
    shapes: str = ""
    cost: Cost = field(default_factory=Cost)
    model_flops: int = 0
    op_bytes: Sequence[int] = ()
    prediction: Prediction | None = field(default=None, repr=False, compare=False)
    fallback_seconds: float = 0.0
    executed_flops: int | None = None
    copied: tuple[str, ...] = ()
    host_engine: str = ""
    host_reason: str = ""
    padding: str = ""

    @property
    def operand_bytes(self) -> int:
        """Sizes of all operands and results of its compute nodes."""
        return sum(self.op_bytes)

    @property
    def where(self) -> str:
        """The engine on the target, and the one here where it is another."""
        return f"{self.engine} ({self.host_engine} here)" if self.host_engine else self.engine

    @property
    def work(self) -> str:
        """The kernel, or the ops, and the sizes: `linear 128x384x384`."""
        # `aten.linear.default` -> `linear`; a function of Python has no more than its name.
        ops = counted(op.split(".")[-2] if "." in op else op for op in self.ops)
        return f"{self.kernel or ', '.join(ops)} {self.shapes}".strip()

    @property
    def label(self) -> str:
        """The same after the layer: `encoder.layer.3.attention.q: linear 128x384x384`."""
        return f"{self.layer}: {self.work}" if self.layer else self.work

    @property
    def predicted_seconds(self) -> float:
        """Time on the target, as a region of a launched graph."""
        return self.fallback_seconds if self.prediction is None else self.prediction.seconds

    @property
    def predicted_by(self) -> str:
        """What the prediction rests on: the `schedule` of a kernel's instructions (the only one
        that the error band holds for), or an `estimate` of the work."""
        return "estimate" if self.prediction is None else self.prediction.basis

    @property
    def alone(self) -> str:
        """Where one core of two has all the work of a kernel: why."""
        choice = None if self.prediction is None else self.prediction.choice
        return "" if choice is None else choice.reason

    @property
    def cores(self) -> int:
        """Physical cores that share the work."""
        launch = None if self.prediction is None else self.prediction.launch
        return 1 if launch is None else launch.cores

    @property
    def flops(self) -> int:
        """FLOPs of the model that the region does: a kernel's matrix products that stand for other
        work (a sum as a product with ones, a recomputation) do not count."""
        if self.executed_flops is None:
            return self.model_flops
        return min(self.model_flops, self.executed_flops)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "engine": self.engine,
            "kernel": self.kernel,
            "ops": list(self.ops),
            "source": self.source,
            "reads": list(self.reads),
            "layer": self.layer,
            "shapes": self.shapes,
            "label": self.label,
            "cost": asdict(self.cost),
            "model_flops": self.model_flops,
            "flops": self.flops,
            "executed_flops": self.executed_flops,
            "copied": list(self.copied),
            "host_engine": self.host_engine,
            "host_reason": self.host_reason,
            "padding": self.padding,
            "cores": self.cores,
            "alone": self.alone,
            "predicted_seconds": self.predicted_seconds,
            "predicted_by": self.predicted_by,
        }


@dataclass
class GraphReport:
    """One compiled graph. `kind` is forward, backward or inference; `name` is unique.

    `lnc` are the physical cores of a logical core. `runner_reason` says why the runner was chosen.
    `runs` counts the calls of the graph while somebody collected reports.
    `collectives` are those between ranks, which are neither.
    `fallbacks` are the ops that do not run on NKI, `near_misses` those that do, but not in the
    bigger kernel that nearly took them. `flops_total` counts the matrix products of the graph as
    torch's FlopCounterMode does; `bytes_*` are the sizes of all operands and results of compute
    nodes.
    """

    name: str
    kind: str
    target: str
    runner: str
    lnc: int = 1
    runner_reason: str = ""
    regions: list[RegionReport] = field(default_factory=list)
    fallbacks: list[LedgerEntry] = field(default_factory=list)
    near_misses: list[LedgerEntry] = field(default_factory=list)
    collectives: list[CollectiveEntry] = field(default_factory=list)
    compute_nodes: int = 0
    flops_total: int = 0
    bytes_total: int = 0
    compile_seconds: float = 0.0
    launch_seconds: float = 0.0
    shapes: int = 0  # specialisations made so far
    runs: int = 0
    buffer_bytes: int = 0  # owned by the latest specialisation, for intermediates

    @property
    def predicted_seconds(self) -> float:
        """One run of the graph on the target: its launch, and every region (an eager one has the
        launch of what comes after it in its own time)."""
        return self.launch_seconds + sum(region.predicted_seconds for region in self.regions)

    @property
    def flops_nki(self) -> int:
        """FLOPs of matrix products on NKI."""
        return sum(region.flops for region in self._on_nki)

    @property
    def nki_nodes(self) -> int:
        """Compute nodes on NKI."""
        return sum(len(region.ops) for region in self._on_nki)

    @property
    def bytes_nki(self) -> int:
        """Sizes of all operands and results of the compute nodes on NKI."""
        return sum(region.operand_bytes for region in self._on_nki)

    @property
    def stretches(self) -> int:
        """Runs of regions without a collective between them."""
        engines = ["collective", *(region.engine for region in self.regions)]
        return sum(a == "collective" != b for a, b in pairwise(engines))

    @property
    def _on_nki(self) -> list[RegionReport]:
        return [region for region in self.regions if region.engine == "nki"]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        flat = {k: v for k, v in vars(self).items() if not isinstance(v, list)}
        return {
            **flat,
            "predicted_seconds": self.predicted_seconds,
            "flops_nki": self.flops_nki,
            "nki_nodes": self.nki_nodes,
            "bytes_nki": self.bytes_nki,
            "regions": [
                {
                    **region.to_dict(),
                    "predicted_share": share(region.predicted_seconds, self.predicted_seconds),
                }
                for region in self.regions
            ],
            "fallbacks": [asdict(entry) for entry in self.fallbacks],
            "near_misses": [asdict(entry) for entry in self.near_misses],
            "collectives": [asdict(entry) for entry in self.collectives],
            "stretches": self.stretches,
        }

    def __str__(self) -> str:
        head = (
            f"{self.name} on {self.target}: {self.nki_nodes} of {self.compute_nodes} ops in "
            f"{sum(r.engine == 'nki' for r in self.regions)} NKI regions, "
            f"{percent(share(self.flops_nki, self.flops_total))} of FLOPs"
        )
        if self.runner_reason:
            head += f"\n  runner {self.runner} ({self.runner_reason})"
        rows = [f"  {r.name:<40} {r.where:<6} {', '.join(counted(r.ops))}" for r in self.regions]
        misses = [f"  {line}" for line in ledger_lines(self.fallbacks)]
        between = [f"  {line}" for line in counted(map(str, self.collectives))]
        found = [head, *rows, *(["  not on NKI:"] if misses else []), *misses]
        return "\n".join([*found, *(["  between ranks:"] if between else []), *between])


def counted(items: Iterable[str]) -> list[str]:
    """Each different item once, with how often it occurs, in the order of first occurrence."""
    counts: dict[str, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
    return [item if count == 1 else f"{count} x {item}" for item, count in counts.items()]


def ledger_lines(entries: Iterable[LedgerEntry]) -> list[str]:
    """One line for each different entry."""
    return counted(map(str, entries))


def share(part: float, whole: float) -> float | None:
    """`part / whole`; None where there is nothing to share."""
    return part / whole if whole else None


def percent(fraction: float | None) -> str:
    """A share as text."""
    return "n/a" if fraction is None else f"{100 * fraction:.1f} %"


class Reports(Sequence[GraphReport]):
    """Reports in the order of compilation or first run, with shares over all of them."""

    def __init__(self) -> None:
        self._reports: list[GraphReport] = []

    def add(self, report: GraphReport) -> None:
        """Append a report that is not there yet."""
        if not any(one is report for one in self._reports):
            self._reports.append(report)

    @overload
    def __getitem__(self, index: int) -> GraphReport: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[GraphReport]: ...
    def __getitem__(self, index: int | slice) -> GraphReport | Sequence[GraphReport]:
        return self._reports[index]

    def __len__(self) -> int:
        return len(self._reports)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self._reports)) or "no graph was compiled or run"

    @property
    def flops_on_nki(self) -> float | None:
        """Share of the matrix products' FLOPs, 0 to 1; None where there are none."""
        return share(sum(r.flops_nki for r in self), sum(r.flops_total for r in self))

    @property
    def nodes_on_nki(self) -> float | None:
        """Share of the canonical compute nodes, 0 to 1; None where there are none."""
        return share(sum(r.nki_nodes for r in self), sum(r.compute_nodes for r in self))

    @property
    def bytes_on_nki(self) -> float | None:
        """Share of the bytes that compute nodes read and write, 0 to 1; None where there are
        none."""
        return share(sum(r.bytes_nki for r in self), sum(r.bytes_total for r in self))

    @property
    def seconds_on_nki(self) -> float | None:
        """Share of the regions' predicted time, 0 to 1; launches of graphs and waiting for
        collectives do not count."""
        total = sum(region.predicted_seconds for report in self for region in report.regions)
        total -= self.predicted_seconds_on("collective")
        return share(self.predicted_seconds_on("nki"), total)

    @property
    def on_nki(self) -> dict[str, float | None]:
        """Every share by its name."""
        return {
            "flops": self.flops_on_nki,
            "bytes": self.bytes_on_nki,
            "ops": self.nodes_on_nki,
            "seconds": self.seconds_on_nki,
        }

    @property
    def compile_seconds(self) -> float:
        """Seconds spent in this backend, AOTAutograd's tracing not counted."""
        return sum(r.compile_seconds for r in self)

    @property
    def predicted_seconds(self) -> float:
        """One run of every graph on the target."""
        return sum(r.predicted_seconds for r in self)

    def predicted_seconds_on(self, engine: str) -> float:
        """Time of the regions of `nki`, `xla` or `eager`, or waiting for a `collective`."""
        regions = (region for report in self for region in report.regions)
        return sum(region.predicted_seconds for region in regions if region.engine == engine)

    @property
    def scheduled_seconds(self) -> float:
        """Time of the regions that are predicted by a schedule of their instructions."""
        regions = (region for report in self for region in report.regions)
        return sum(r.predicted_seconds for r in regions if r.predicted_by == "schedule")

    @property
    def fallbacks(self) -> list[LedgerEntry]:
        """The ledger over all graphs."""
        return [entry for report in self for entry in report.fallbacks]


class _Journal:
    """Where finished reports go: the newest one, and every open collection."""

    def __init__(self) -> None:
        self._lock = fork_lock(self, threading.Lock)
        self._open: list[Reports] = []
        self._last: GraphReport | None = None

    def publish(self, report: GraphReport) -> None:
        with self._lock:
            self._last = report
            for collection in self._open:
                collection.add(report)

    def ran(self, report: GraphReport) -> None:
        """Called by every run of a graph: nothing to do unless somebody collects."""
        if self._open:
            with self._lock:
                report.runs += 1
                for collection in self._open:
                    collection.add(report)

    @contextmanager
    def collecting(self) -> Iterator[Reports]:
        collection = Reports()
        with self._lock:
            self._open.append(collection)
        try:
            yield collection
        finally:
            with self._lock:
                self._open = [one for one in self._open if one is not collection]

    @property
    def last(self) -> GraphReport | None:
        with self._lock:
            return self._last


_journal = _Journal()


def publish(report: GraphReport) -> None:
    """Make a graph's report visible to `last` and to open collections."""
    _journal.publish(report)


# Makes the report of a graph that runs visible to open collections.
ran = _journal.ran


def last() -> GraphReport | None:
    """The report of the graph that was compiled last in this process, or None."""
    return _journal.last


@contextmanager
def collect_reports() -> Iterator[Reports]:
    """Collects the reports of all graphs compiled while the block runs."""
    with _journal.collecting() as collection:
        yield collection
