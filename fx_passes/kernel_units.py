"""The units of a graph that kernels run: those of the registry, then generated ones, many alike as
one.

Where several ways to take a graph apart are legal, each is planned, and predicted seconds decide.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from torch import fx

from trnx.fx_passes.extract import extract, inputs_of
from trnx.fx_passes.form_generated import generated_units
from trnx.fx_passes.forms import form_of
from trnx.fx_passes.leave_to_fusion import without_adjoining, without_fusible
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.match import GraphMatch
from trnx.fx_passes.merge_alike import merge_alike
from trnx.fx_passes.nodes import is_compute
from trnx.fx_passes.order import Order, Unit, read_after_write, single_units
from trnx.fx_passes.profit import Profit
from trnx.fx_passes.region import Generator, KernelMatch
from trnx.fx_passes.select_kernels import find_kernels
from trnx.fx_passes.split_matches import Refused, nothing, refused_at, slower_matches
from trnx.nki_kernels.spec import Kernel
from trnx.simulator.hardware import Hardware

Matches = tuple[GraphMatch, ...]


@dataclass(frozen=True)
class Means:
    """What units are made with; without a `generator` those of the registry's kernels alone."""

    kernels: tuple[Kernel, ...]
    hardware: Hardware
    profit: Profit
    generator: Generator | None


class KernelUnits:
    """Finds the units of one graph. `unsized` nodes are in none that has others. `off_nki` gives
    the predicted seconds of what units leave to the fallback; it is not asked where plans leave the
    same. Matches that are `refused` are not taken; where it is None, those that are slower than
    what would run without them."""

    def __init__(
        self,
        graph: fx.Graph,
        means: Means,
        unsized: frozenset[fx.Node] = frozenset(),
        off_nki: Callable[[Sequence[Unit]], float] | None = None,
        refused: Refused | None = None,
    ) -> None:
        self._graph = graph
        self._means = means
        self._barred = read_after_write(graph) | unsized
        self._off_nki = off_nki
        self._refused = refused
        self._apart: dict[Hashable, float | None] = {}

    def find(self, refusals: Refusals) -> list[Unit]:
        """The units; what speaks against others goes to `refusals`."""
        found = self._matches(refusals, self._refused or nothing)
        generator = self._means.generator
        if generator is None:
            return _as_units(found)
        matches = self._settled(found, generator)
        if self._refused is None and self._means.profit.select == "profit":
            matches = self._split(found, matches, generator, refusals)
        units = self._units_of(matches, generator, refusals)
        count, order = len(matches), self._order_around(units)
        merged = merge_alike(units[count:], order, generator, self._means.hardware)
        return [*units[:count], *merged]

    def _matches(self, refusals: Refusals, refused: Refused) -> Matches:
        means = self._means
        return find_kernels(
            self._graph, means.kernels, means.hardware, means.profit, refusals, self._barred,
            self._seconds_apart, refused,
        )  # fmt: skip

    def _settled(self, found: Matches, generator: Generator) -> Matches:
        """Those that the generator does not do better."""
        matches = found
        for left in (without_fusible, without_adjoining):
            fewer = left(found, generator, self._means.hardware)
            if len(fewer) < len(matches) and self._pays(matches, fewer, generator):
                matches = fewer
        return matches

    def _split(
        self, found: Matches, matches: Matches, generator: Generator, refusals: Refusals
    ) -> Matches:
        """`matches`, or those without what other kernels do faster, where the whole plan is."""
        hardware = self._means.hardware
        slower = slower_matches(found, generator, hardware, self._seconds_with)
        if not slower:
            return matches
        others = self._settled(self._matches(Refusals(), refused_at(slower)), generator)
        if not self._pays(matches, others, generator):
            return matches
        for (_, root), reject in slower.items():
            refusals.add(root, reject)
        return others

    def _pays(self, matches: Matches, others: Matches, generator: Generator) -> bool:
        """Whether the plan of the others leaves no more nodes to the fallback, and is faster."""
        now = self._units_of(matches, generator, Refusals())
        then = self._units_of(others, generator, Refusals())
        left, less = rest_of(self._graph, now), rest_of(self._graph, then)
        if len(less) > len(left):
            return False
        if self._off_nki is None and len(less) < len(left):
            return True
        gain = self._seconds(now) - self._seconds(then)
        if self._off_nki is not None and less != left:
            gain += self._off_nki(now) - self._off_nki(then)
        return gain > 0.0

    def _units_of(
        self, matches: Sequence[GraphMatch], generator: Generator, refusals: Refusals
    ) -> list[Unit]:
        """The units of matches, and generated ones of what is left."""
        units, means = _as_units(matches), self._means
        order = self._order_around(units)
        return [
            *units,
            *generated_units(
                order, generator, means.hardware, means.profit, refusals, self._barred
            ),
        ]

    def _order_around(self, units: Sequence[Unit]) -> Order:
        """The order of `units` and of every other op by itself."""
        kinds = dict.fromkeys(rest_of(self._graph, units), "compute")
        return Order(self._graph, single_units(self._graph, units, kinds))

    def _seconds(self, units: Sequence[Unit]) -> float:
        found = [unit.payload for unit in units if isinstance(unit.payload, KernelMatch)]
        return sum(map(self._means.profit.nki_seconds, found))

    def _seconds_apart(self, match: GraphMatch) -> float | None:
        """Predicted seconds of a match's nodes without its kernel; None where some are left."""
        kernel = match.match.kernel
        results = [node for node in match.match.results if node is not None]
        form = (id(kernel), form_of(match.nodes, results))
        if form not in self._apart:
            others = tuple(one for one in self._means.kernels if one is not kernel)
            means = replace(self._means, kernels=others)
            self._apart[form] = self._seconds_of_part(match.nodes, results, means, nothing)
        return self._apart[form]

    def _seconds_with(
        self, nodes: Sequence[fx.Node], results: Sequence[fx.Node], refused: Refused
    ) -> float | None:
        """The same for a group of nodes that hands these results on, and all kernels."""
        return self._seconds_of_part(nodes, results, self._means, refused)

    def _seconds_of_part(
        self, nodes: Sequence[fx.Node], results: Sequence[fx.Node], means: Means, refused: Refused
    ) -> float | None:
        part = extract(nodes, inputs_of(nodes), results).graph
        units = KernelUnits(part, means, refused=refused).find(Refusals())
        return None if rest_of(part, units) else self._seconds(units)


def rest_of(graph: fx.Graph, units: Iterable[Unit]) -> list[fx.Node]:
    """The compute nodes that no unit holds."""
    taken = {node for unit in units for node in unit.nodes}
    return [node for node in graph.nodes if is_compute(node) and node not in taken]


def _as_units(matches: Iterable[GraphMatch]) -> list[Unit]:
    return [Unit("nki", match.nodes, match.match) for match in matches]
