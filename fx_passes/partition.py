"""Cut the canonical graph into regions: legality, then profit, then the fallback for the rest.

1. kernels of the registry, biggest patterns first (`select_kernels.py`);
2. generated kernels over what is left (`grow.py`, `form_generated.py`), many alike as one
   (`merge_alike.py`);
3. fallback regions over what is left, by the policy: `auto` (the first engine that takes a node; of
   those that take a whole region the cheapest), `xla` or `eager` (that engine first), `error`
   (raise, and say every op that has no NKI kernel);
4. one schedule of everything (`schedule.py`), and the ledger of all that does not run on NKI.

`select="none"` leaves out the first two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.errors import FallbackForbiddenError, UnsupportedOpError
from trnx.fx_passes.extract import extract, inputs_of
from trnx.fx_passes.form_generated import generated_units
from trnx.fx_passes.forms import form_of
from trnx.fx_passes.leave_to_fusion import without_adjoining, without_fusible
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.match import GraphMatch
from trnx.fx_passes.merge_alike import merge_alike
from trnx.fx_passes.nodes import is_compute, op_name
from trnx.fx_passes.numbers import run_time_numbers
from trnx.fx_passes.order import Order, Unit, read_after_write, single_units
from trnx.fx_passes.profit import Profit, Select
from trnx.fx_passes.region import (
    Engine,
    FallbackEngine,
    Generator,
    KernelMatch,
    LedgerEntry,
    Plan,
    Predictor,
    Region,
)
from trnx.fx_passes.schedule import Scheduler, Step
from trnx.fx_passes.select_kernels import find_kernels
from trnx.fx_passes.source import source_line
from trnx.fx_passes.split_matches import Refused, nothing, refused_at, slower_matches
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
        units = _kernel_units(
            gm.graph, kernels, hardware, profit, refusals, generator, unsized, off
        )
    rest = _rest(gm.graph, units)
    if select == "none":
        for node in rest:
            refusals.note(node, "select='none'", advice.SELECT)
    if forbidden and rest:
        raise FallbackForbiddenError([refusals.entry(n, "eager") for n in rest])
    steps = _steps(gm.graph, units, fallback, refusals)
    regions = tuple(step for step in steps if isinstance(step, Region))
    _note_numbers(gm.graph, regions, refusals)
    return Plan(gm, regions, _ledger(steps, refusals), steps)


def _kernel_units(
    graph: fx.Graph,
    kernels: Iterable[Kernel],
    hardware: Hardware,
    profit: Profit,
    refusals: Refusals,
    generator: Generator | None,
    unsized: frozenset[fx.Node],
    off_nki: Callable[[Sequence[Unit]], float] | None = None,
    refused: Refused | None = None,
) -> list[Unit]:
    """Units of kernels. `off_nki` gives the predicted seconds of what they leave to the fallback;
    it is not asked where plans leave the same. Matches that are `refused` are not taken; where it
    is None, those that are slower than what would run without them."""
    barred = read_after_write(graph) | unsized
    every = tuple(kernels)

    known: dict[Hashable, float | None] = {}

    def seconds(units: Sequence[Unit]) -> float:
        found = [unit.payload for unit in units if isinstance(unit.payload, KernelMatch)]
        return sum(map(profit.nki_seconds, found))

    def apart(match: GraphMatch) -> float | None:
        kernel = match.match.kernel
        form = (id(kernel), form_of(match.nodes, _results(match)))
        if form not in known:
            others = [one for one in every if one is not kernel]
            known[form] = seconds_with(others, match.nodes, _results(match), nothing)
        return known[form]

    def seconds_with(
        kernels: Iterable[Kernel],
        nodes: Sequence[fx.Node],
        results: Sequence[fx.Node],
        refused: Refused,
    ) -> float | None:
        """Predicted seconds of nodes on these and generated kernels; None where some are left."""
        part = extract(nodes, inputs_of(nodes), results).graph
        none: frozenset[fx.Node] = frozenset()
        units = _kernel_units(
            part, kernels, hardware, profit, Refusals(), generator, none, refused=refused
        )
        return None if _rest(part, units) else seconds(units)

    def found_without(refusals: Refusals, refused: Refused) -> tuple[GraphMatch, ...]:
        return find_kernels(graph, every, hardware, profit, refusals, barred, apart, refused)

    found = found_without(refusals, refused or nothing)
    if generator is None:
        return _as_units(found)

    def units_of(matches: Sequence[GraphMatch], refusals: Refusals) -> list[Unit]:
        units = _as_units(matches)
        order = _order_around(graph, units)
        return [*units, *generated_units(order, generator, hardware, profit, refusals, barred)]

    def pays(matches: Sequence[GraphMatch], others: Sequence[GraphMatch]) -> bool:
        """Whether the plan of the others leaves no more nodes to the fallback, and is faster."""
        now, then = units_of(matches, Refusals()), units_of(others, Refusals())
        left, less = _rest(graph, now), _rest(graph, then)
        if len(less) > len(left):
            return False
        if off_nki is None and len(less) < len(left):
            return True
        gain = seconds(now) - seconds(then)
        if off_nki is not None and less != left:
            gain += off_nki(now) - off_nki(then)
        return gain > 0.0

    def settled(found: tuple[GraphMatch, ...]) -> tuple[GraphMatch, ...]:
        """Those that the generator does not do better."""
        matches = found
        for left in (without_fusible, without_adjoining):
            fewer = left(found, generator, hardware)
            if len(fewer) < len(matches) and pays(matches, fewer):
                matches = fewer
        return matches

    matches = settled(found)
    if refused is None and profit.select == "profit":
        slower = slower_matches(found, generator, hardware, partial(seconds_with, every))
        if slower:
            others = settled(found_without(Refusals(), refused_at(slower)))
            if pays(matches, others):
                matches = others
                for (_, root), reject in slower.items():
                    refusals.add(root, reject)
    units = units_of(matches, refusals)
    merged = merge_alike(units[len(matches) :], _order_around(graph, units), generator, hardware)
    return [*units[: len(matches)], *merged]


def _steps(
    graph: fx.Graph, units: Sequence[Unit], fallback: _Fallback, refusals: Refusals
) -> tuple[Step, ...]:
    """The schedule of `units` and, in regions of the fallback, of all other nodes."""
    kinds = {node: fallback.engine_of(node, refusals) for node in _rest(graph, units)}
    order = Order(graph, single_units(graph, units, kinds))
    return Scheduler(order, fallback.by_name, fallback.choose).run()


def _as_units(matches: Iterable[GraphMatch]) -> list[Unit]:
    return [Unit("nki", match.nodes, match.match) for match in matches]


def _order_around(graph: fx.Graph, units: Sequence[Unit]) -> Order:
    """The order of `units` and of every other op by itself."""
    kinds = dict.fromkeys(_rest(graph, units), "compute")
    return Order(graph, single_units(graph, units, kinds))


def _results(match: GraphMatch) -> list[fx.Node]:
    return [node for node in match.match.results if node is not None]


def _unsized(graph: fx.Graph) -> frozenset[fx.Node]:
    """The compute nodes that read or give tensors whose sizes depend on data."""
    return frozenset(
        node
        for node in graph.nodes
        if is_compute(node)
        and any(depends_on_data(n.meta.get("val")) for n in (node, *node.all_input_nodes))
    )


def _rest(graph: fx.Graph, units: Iterable[Unit]) -> list[fx.Node]:
    """The compute nodes that no unit holds."""
    taken = {node for unit in units for node in unit.nodes}
    return [node for node in graph.nodes if is_compute(node) and node not in taken]


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
