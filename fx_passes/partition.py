"""Cut the canonical graph into regions: legality, then profit, then the fallback for the rest.

1. kernels of the registry, biggest patterns first (`select_kernels.py`);
2. generated kernels over what is left (`grow.py`, `form_generated.py`), many alike as one
   (`merge_alike.py`); predicted times decide what 1 takes (`kernel_units.py`);
3. fallback regions over what is left, by the policy: `auto` (the first engine that takes a node; of
   those that take a whole region the cheapest), `xla` or `eager` (that engine first), `error`
   (raise, and say every op that has no NKI kernel);
4. one schedule of everything (`schedule.py`), and the ledger of all that does not run on NKI.

`select="none"` leaves out the first two steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.errors import FallbackForbiddenError, UnsupportedOpError
from trnx.fx_passes.kernel_units import KernelUnits, Means, rest_of
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.nodes import is_compute, op_name
from trnx.fx_passes.numbers import run_time_numbers
from trnx.fx_passes.order import Order, Unit, single_units
from trnx.fx_passes.profit import Profit, Select
from trnx.fx_passes.region import (
    Engine,
    FallbackEngine,
    Generator,
    LedgerEntry,
    Plan,
    Predictor,
    Region,
)
from trnx.fx_passes.schedule import Scheduler, Step
from trnx.fx_passes.source import source_line
from trnx.fx_passes.symbolic import depends_on_data
from trnx.nki_kernels.spec import Kernel
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

Policy = Literal["auto", "xla", "eager", "error"]


def partition(
    gm: fx.GraphModule,
    *,
    kernels: Iterable[Kernel],
    hardware: Hardware,
    engines: Sequence[FallbackEngine],
    generator: Generator | None = None,
    select: Select = "profit",
    policy: Policy = "auto",
    predictor: Predictor | None = None,
) -> Plan:
    """The plan of the canonical graph `gm`, which is not changed.

    Without a `generator` only the kernels of the registry are used; without a `predictor` kernels
    are judged by the roofline. Raises FallbackForbiddenError
    under policy `error`, and UnsupportedOpError where no engine takes an op.
    """
    refusals = Refusals()
    unsized = _unsized(gm.graph)
    for node in unsized:
        refusals.note(node, "no program can be made for sizes that depend on data", advice.DATA)
    forbidden = policy == "error"
    profit = Profit(hardware, () if forbidden else tuple(engines), select, predictor)
    fallback = _Fallback(_preferred(engines, policy), policy)

    def off_nki(units: Sequence[Unit]) -> float:
        return fallback.seconds(_steps(gm.graph, units, fallback, Refusals()))

    units: list[Unit] = []
    if select != "none":
        off = off_nki if profit.engines else None
        means = Means(tuple(kernels), hardware, profit, generator)
        units = KernelUnits(gm.graph, means, unsized, off).find(refusals)
    rest = rest_of(gm.graph, units)
    if select == "none":
        for node in rest:
            refusals.note(node, "select='none'", advice.SELECT)
    if forbidden and rest:
        raise FallbackForbiddenError([refusals.entry(n, "eager") for n in rest])
    steps = _steps(gm.graph, units, fallback, refusals)
    regions = tuple(step for step in steps if isinstance(step, Region))
    _note_numbers(gm.graph, regions, refusals)
    return Plan(gm, regions, _ledger(steps, refusals), steps)


def _steps(
    graph: fx.Graph, units: Sequence[Unit], fallback: _Fallback, refusals: Refusals
) -> tuple[Step, ...]:
    """The schedule of `units` and, in regions of the fallback, of all other nodes."""
    kinds = {node: fallback.engine_of(node, refusals) for node in rest_of(graph, units)}
    order = Order(graph, single_units(graph, units, kinds))
    return Scheduler(order, fallback.by_name, fallback.choose).run()


def _unsized(graph: fx.Graph) -> frozenset[fx.Node]:
    """The compute nodes that read or give tensors whose sizes depend on data."""
    return frozenset(
        node
        for node in graph.nodes
        if is_compute(node)
        and any(depends_on_data(n.meta.get("val")) for n in (node, *node.all_input_nodes))
    )


def _preferred(engines: Sequence[FallbackEngine], policy: Policy) -> tuple[FallbackEngine, ...]:
    """The engines in the order in which they are asked."""
    return tuple(sorted(engines, key=lambda e: e.name != policy))


@dataclass(frozen=True)
class _Fallback:
    """The engines for what no kernel takes."""

    engines: tuple[FallbackEngine, ...]
    policy: Policy

    @property
    def by_name(self) -> dict[str, FallbackEngine]:
        return {engine.name: engine for engine in self.engines}

    def engine_of(self, node: fx.Node, refusals: Refusals) -> Engine:
        """The first engine that takes `node`; the refusals of those before it are remembered."""
        rejects: dict[str, Reject] = {}
        for engine in self.engines:
            reject = engine.supports(node)
            if reject is None:
                for reason, before in rejects.items():
                    refusals.note(node, reason, before.advice)
                return engine.name
            rejects[f"{engine.name}: {reject.reason}"] = reject
        raise UnsupportedOpError(op_name(node), source_line(node) or "unknown line", list(rejects))

    def choose(self, kind: str, nodes: Sequence[fx.Node]) -> Engine:
        """The engine of a finished region: under `auto` the cheapest that takes all of it."""
        first = self.by_name[kind]
        if self.policy != "auto":
            return first.name
        able = [e for e in self.engines if e is first or not any(e.supports(n) for n in nodes)]
        return min(able, key=lambda e: e.cost(nodes)).name

    def seconds(self, steps: Iterable[Step]) -> float:
        """Predicted seconds of the engines' regions."""
        regions = (step for step in steps if isinstance(step, Region))
        by_name = self.by_name
        return sum(
            by_name[region.engine].cost([node for node in region.nodes if is_compute(node)])
            for region in regions
            if region.engine in by_name
        )


def _note_numbers(graph: fx.Graph, regions: Iterable[Region], refusals: Refusals) -> None:
    """Remember which programs are made for the values of numbers that change from call to call."""
    numbers = run_time_numbers(graph)
    for region in regions:
        kernel = region.match.kernel.name if region.match else ""
        maker = f"kernel {kernel}" if kernel else region.engine
        for node in region.nodes if region.engine != "eager" else ():
            names = ", ".join(n.name for n in node.all_input_nodes if n in numbers)
            if names:
                reason = f"{maker} is made for each value of the number {names}"
                refusals.add(node, Reject(reason, node, kernel, advice.NUMBER))


def _ledger(steps: Sequence[Step], refusals: Refusals) -> tuple[LedgerEntry, ...]:
    """An entry for each compute node off NKI, and for each near miss of one that is on it."""
    regions = [step for step in steps if isinstance(step, Region)]
    entries: list[LedgerEntry] = []
    for region in regions:
        for node in region.nodes:
            if not is_compute(node):
                continue
            if region.engine != "nki":
                entries.append(refusals.entry(node, region.engine))
            elif miss := refusals.near_miss(node):
                entries.append(miss)
    return tuple(entries)
