"""Units and the order between them.

A unit is what runs as one: a kernel's match, a generated region, one other compute node, one glue
node. Edges are data flow, and what effects demand: random ops keep their order, and collectives
theirs, which is the same on all ranks whatever else a rank's plan is; a read stays on its side of a
write, and a collective reads until it is waited for.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from trnx.fx_passes.aliasing import storage_root
from trnx.fx_passes.errors import GraphInvariantError
from trnx.fx_passes.nodes import (
    getitems,
    is_assertion,
    is_call,
    is_collective,
    is_compute,
    is_getitem,
    is_glue,
    is_mutation,
    is_random,
    is_wait,
    schema_of,
)


def effect_edges(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Node -> earlier nodes that it must follow although it reads nothing of theirs."""
    edges: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
    written = {root for n in graph.nodes for root in _filled_roots(n)}
    last_random: fx.Node | None = None
    last_collective: fx.Node | None = None
    readers: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
    writer: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if not is_call(node):
            continue
        if is_random(node) or is_assertion(node):
            if last_random is not None:
                edges[node].append(last_random)
            last_random = node
        if is_collective(node):
            if last_collective is not None:
                edges[node].append(last_collective)
            last_collective = node
        if not written:
            continue
        writes = set(_filled_roots(node))
        for root in {storage_root(a) for a in read_nodes(node)} & written:
            if root in writer and writer[root] is not node:
                edges[node].append(writer[root])
            if root in writes:
                edges[node].extend(r for r in readers[root] if r is not node)
                readers[root] = []
                writer[root] = node
            else:
                readers[root].append(node)
    return edges


def awaited(node: fx.Node) -> fx.Node | None:
    """The collective that `node` waits for, where it stands in the graph."""
    if not is_wait(node):
        return None
    root = storage_root(node)
    source = root.args[0] if is_getitem(root) else root
    return source if isinstance(source, fx.Node) and is_collective(source) else None


def read_nodes(node: fx.Node) -> list[fx.Node]:
    """What `node` reads; a wait ends the reading of the collective's operands."""
    source = awaited(node)
    return [*node.all_input_nodes, *(source.all_input_nodes if source is not None else ())]


def _filled_roots(node: fx.Node) -> tuple[fx.Node, ...]:
    """The storages that `node` writes; a collective has written its result when it was waited
    for."""
    if is_wait(node):
        return (storage_root(node),)
    return _written_roots(node) if is_mutation(node) else ()


def _written_roots(node: fx.Node) -> tuple[fx.Node, ...]:
    """The storages that a mutation writes, by its schema."""
    schema = schema_of(node)
    roots: list[fx.Node] = []
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        items = value if isinstance(value, (list, tuple)) else (value,)
        roots.extend(storage_root(item) for item in items if isinstance(item, fx.Node))
    return tuple(roots)


def read_after_write(graph: fx.Graph) -> frozenset[fx.Node]:
    """Nodes that touch a storage which is written and then read: nothing may be fused across the
    write.
    """
    touched: defaultdict[fx.Node, list[fx.Node]] = defaultdict(list)
    written: set[fx.Node] = set()
    hazardous: set[fx.Node] = set()
    for node in graph.nodes:
        if not is_call(node):
            continue
        for argument in node.all_input_nodes:
            root = storage_root(argument)
            touched[root].append(node)
            if root in written:
                hazardous.add(root)
        if is_mutation(node):
            written.update(_written_roots(node))
    return frozenset(node for root in hazardous for node in touched[root])


@dataclass(frozen=True, eq=False)
class Unit:
    """Nodes that run as one; `kind` is what a scheduler groups by."""

    kind: str
    nodes: tuple[fx.Node, ...]
    payload: object = None


def single_units(
    graph: fx.Graph, taken: Iterable[Unit], kind_of: Mapping[fx.Node, str]
) -> tuple[Unit, ...]:
    """`taken`, and a unit for each call outside them. Getitems of compute nodes join their
    source.
    """
    units = list(taken)
    inside = {n for unit in units for n in unit.nodes if not is_glue(n)}
    for node in graph.nodes:
        if not is_call(node) or node in inside:
            continue
        if is_compute(node) or is_collective(node):
            kind = kind_of[node] if is_compute(node) else "collective"
            units.append(Unit(kind, (node, *getitems(node))))
            inside.update(getitems(node))
        elif is_wait(node):
            units.append(Unit("wait", (node,)))
        else:
            units.append(Unit("glue", (node,)))
    return tuple(units)


class Order:
    """The graph of units."""

    def __init__(self, graph: fx.Graph, units: Sequence[Unit]) -> None:
        self.graph = graph
        self.units = tuple(units)
        position = self._node_position = {node: i for i, node in enumerate(graph.nodes)}
        # Glue within a kernel's match is evaluated by itself too, so it is its own unit's.
        self.unit_of: dict[fx.Node, Unit] = {}
        for unit in units:
            for node in unit.nodes:
                if unit.kind == "glue" or not is_glue(node):
                    self.unit_of[node] = unit
        self._position = {unit: position[unit.nodes[-1]] for unit in units}
        extra = effect_edges(graph)
        self.before: dict[Unit, tuple[Unit, ...]] = {}
        self.after: defaultdict[Unit, list[Unit]] = defaultdict(list)
        for unit in units:
            inside = set(unit.nodes)
            sources = [a for n in unit.nodes for a in (*n.all_input_nodes, *extra.get(n, ()))]
            found = dict.fromkeys(
                self.unit_of[s] for s in sources if s in self.unit_of and s not in inside
            )
            found.pop(unit, None)
            self.before[unit] = tuple(found)
            for source in found:
                self.after[source].append(unit)

    def node_position(self, node: fx.Node) -> int:
        """The place of the node in the graph."""
        return self._node_position[node]

    def position(self, unit: Unit) -> int:
        """The place of the unit's last node in the graph."""
        return self._position[unit]

    @property
    def _has_collectives(self) -> bool:
        return any(unit.kind == "collective" for unit in self.units)

    def urgency(self) -> dict[Unit, int]:
        """Of each unit that a collective depends on: the place of the first such collective."""
        found: dict[Unit, int] = {}
        for unit in reversed(self.sorted()) if self._has_collectives else ():
            places = [found[after] for after in self.after[unit] if after in found]
            if unit.kind == "collective":
                places.append(self._position[unit])
            if places:
                found[unit] = min(places)
        return found

    def early_collectives(self) -> frozenset[Unit]:
        """Those that read what is there before anything is computed: inputs of the graph, views of
        them, and what such collectives give."""
        if not self._has_collectives:
            return frozenset()
        early = {unit for unit in self.units if unit.kind in ("glue", "wait", "collective")}
        for unit in self.sorted():
            if unit in early and any(u not in early for u in self.before[unit]):
                early.discard(unit)
        return frozenset(unit for unit in early if unit.kind == "collective")

    def sorted(self) -> tuple[Unit, ...]:
        """The units in a topological order, close to the graph's."""
        waiting = {unit: len(self.before[unit]) for unit in self.units}
        ready = [(self._position[u], i) for i, u in enumerate(self.units) if not waiting[u]]
        index = {unit: i for i, unit in enumerate(self.units)}
        heapq.heapify(ready)
        done: list[Unit] = []
        while ready:
            unit = self.units[heapq.heappop(ready)[1]]
            done.append(unit)
            for after in self.after[unit]:
                waiting[after] -= 1
                if not waiting[after]:
                    heapq.heappush(ready, (self._position[after], index[after]))
        if len(done) != len(self.units):
            stuck = next(u for u in self.units if waiting[u])
            raise GraphInvariantError(f"regions around {stuck.nodes[-1].name} depend on each other")
        return tuple(done)
