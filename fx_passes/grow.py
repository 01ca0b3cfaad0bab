"""Grow regions for the generator: nodes that it lowers, connected, over one iteration space.

Nodes are visited once, in topological order; each joins the clusters of its producers where the
shapes agree and no path leaves the merged cluster and comes back. Only the newest clusters are
open, which bounds the work per node, so time is linear in the graph. A number in a tensor that many
read (a learning rate) connects nothing: what computes it is a region of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.order import Order, Unit
from trnx.fx_passes.symbolic import known_equal, same_number
from trnx.nki_kernels.hints import product

MAX_NODES = 48  # of one generated kernel: beyond it, its tiles do not fit SBUF together
OPEN_CLUSTERS = 48  # how far back a node may find its cluster
MANY = 8  # readers of a number in a tensor, beyond which it connects nothing

Space = tuple[Any, ...]


@dataclass(eq=False)
class _Cluster:
    """A region in the making. `bits` name it in masks; `up` holds the clusters that it depends
    on.
    """

    bits: int
    space: Space
    units: list[Unit] = field(default_factory=list)
    before: dict[Unit, None] = field(default_factory=dict)
    up: int = 0


def iteration_space(node: fx.Node) -> Space:
    """The largest shape among the node's result and tensor arguments."""
    values = [node.meta.get("val"), *(a.meta.get("val") for a in node.all_input_nodes)]
    lists = [value if isinstance(value, (tuple, list)) else [value] for value in values]
    items = [item for values in lists for item in values]
    shapes = [tuple(v.shape) for v in items if isinstance(v, torch.Tensor)]
    spaces = [s for s in shapes if len(s) == max(map(len, shapes))]
    space: Space = ()
    for shape in spaces:
        space = joined(space, shape) or space
    return space


def joined(a: Space, b: Space) -> Space | None:
    """The space over which both run, or None: equal from the right with ones, or one leads the
    other.
    """
    if len(a) < len(b):
        a, b = b, a
    if b and len(b) < len(a) and all(same_number(x, y) for x, y in zip(a, b, strict=False)):
        return a
    wide = list(a)
    for place in range(1, len(b) + 1):
        x, y = a[-place], b[-place]
        if same_number(x, y) or known_equal(y, 1):
            continue
        if not known_equal(x, 1):
            return None
        wide[-place] = y
    return tuple(wide)


class _Grower:
    def __init__(self, order: Order, joins: Callable[[fx.Node], bool]) -> None:
        self._order = order
        self._joins = joins
        self._cluster: dict[Unit, _Cluster] = {}
        self._up: dict[Unit, int] = {}
        self._by_bit: list[_Cluster] = []
        self._open = 0
        self._shared = _shared_numbers(order)

    def run(self) -> list[list[Unit]]:
        for unit in _by_component(self._order, self._shared):
            if unit.kind == "compute" and self._joins(unit.nodes[0]):
                self._place(unit)
            else:
                self._up[unit] = self._reach_of(self._order.before[unit])
        clusters = dict.fromkeys(self._cluster.values())
        return [cluster.units for cluster in clusters]

    def _reach(self, unit: Unit) -> int:
        """The open clusters that `unit` is in or depends on."""
        cluster = self._cluster.get(unit)
        bits = self._up[unit] if cluster is None else cluster.bits | cluster.up
        return self._closed(bits)

    def _reach_of(self, units: Sequence[Unit]) -> int:
        bits = 0
        for unit in units:
            bits |= self._reach(unit)
        return bits

    def _closed(self, bits: int) -> int:
        """`bits` and all that the clusters in it depend on."""
        bits &= self._open
        todo, seen = bits, 0
        while todo:
            low = todo & -todo
            cluster = self._by_bit[low.bit_length() - 1]
            seen |= cluster.bits
            bits |= (cluster.bits | cluster.up) & self._open
            todo = bits & ~seen
        return bits

    def _place(self, unit: Unit) -> None:
        before = self._order.before[unit]
        space = iteration_space(unit.nodes[0])
        is_shared = unit in self._shared
        alike = (u for u in before if u in self._cluster and (u in self._shared) == is_shared)
        near = dict.fromkeys(self._cluster[u] for u in alike)
        chosen: list[_Cluster] = []
        for cluster in sorted(near, key=lambda c: -c.bits):
            both = joined(space, cluster.space)
            size = 1 + sum(len(c.units) for c in [*chosen, cluster])
            if both is None or size > MAX_NODES or not cluster.bits & self._open:
                continue
            if product(both) > max(product(space), product(cluster.space)):
                continue  # an axis that was reduced, and another one: all would run for each pair
            if self._is_acyclic([*chosen, cluster], before):
                chosen.append(cluster)
                space = both
        self._merge(unit, chosen, space)

    def _is_acyclic(self, merged: Sequence[_Cluster], before: Sequence[Unit]) -> bool:
        """True where no path leaves `merged` and comes back, to one of them or to the new unit."""
        bits = 0
        for cluster in merged:
            bits |= cluster.bits
        inside = set(merged)
        sources = dict.fromkeys(before)
        for cluster in merged:
            sources.update(cluster.before)
        outside = (u for u in sources if self._cluster.get(u) not in inside)
        return not any(self._reach(u) & bits for u in outside)

    def _merge(self, unit: Unit, chosen: list[_Cluster], space: Space) -> None:
        before = self._order.before[unit]
        if chosen:
            target, *rest = chosen
        else:
            target, rest = _Cluster(1 << len(self._by_bit), space), []
            self._by_bit.append(target)
            if len(self._by_bit) > OPEN_CLUSTERS:
                self._open &= ~self._by_bit[-1 - OPEN_CLUSTERS].bits
        self._open |= target.bits
        for other in rest:
            target.units.extend(other.units)
            target.before.update(other.before)
            target.bits |= other.bits
            self._open |= other.bits
            target.up |= other.up
            for member in other.units:
                self._cluster[member] = target
            for place in _places(other.bits):
                self._by_bit[place] = target
        target.up = (target.up | self._reach_of(before)) & ~target.bits
        target.space = space
        target.units.append(unit)
        target.before.update(dict.fromkeys(before))
        self._cluster[unit] = target


def _shared_numbers(order: Order) -> frozenset[Unit]:
    """The units that compute a number in a tensor which more than MANY read, and those that lead to
    nothing else."""
    readers: dict[Unit, list[Unit]] = {}
    ordered = order.sorted()
    for unit in ordered:
        for before in order.before[unit]:
            readers.setdefault(before, []).append(unit)
    found: set[Unit] = set()
    for unit in reversed(ordered):
        after = readers.get(unit, [])
        leads = len(after) > MANY or (after and all(u in found for u in after))
        if unit.kind == "compute" and leads and all(map(_is_number, unit.nodes)):
            found.add(unit)
    return frozenset(found)


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.ndim == 0


def _by_component(order: Order, shared: frozenset[Unit]) -> list[Unit]:
    """The units in a topological order, those that are connected side by side: what is done to many
    tensors step by step is as local as if it were done tensor by tensor."""
    ordered = order.sorted()
    # Of numbers and inputs alone, which connect nothing.
    made: dict[Unit, None] = {}
    component: dict[Unit, list[Unit]] = {}
    for unit in ordered:
        connects = unit.kind != "glue" and unit not in shared
        if not connects and all(before in made for before in order.before[unit]):
            made[unit] = None
            continue
        near = [component[before] for before in order.before[unit] if before not in made]
        merged, *rest = sorted({id(c): c for c in near}.values(), key=len, reverse=True) or [[]]
        for other in rest:
            merged += other
            component.update(dict.fromkeys(other, merged))
        merged.append(unit)
        component[unit] = merged
    place = {unit: i for i, unit in enumerate(ordered)}
    groups = {id(group): group for group in component.values()}.values()
    ranked = [sorted(group, key=place.__getitem__) for group in groups]
    ranked.sort(key=lambda group: place[group[0]])
    return [*made, *(unit for group in ranked for unit in group)]


def _places(bits: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def grow(order: Order, joins: Callable[[fx.Node], bool]) -> tuple[tuple[fx.Node, ...], ...]:
    """Convex clusters of the nodes for which `joins` is true, each in topological order.

    Considered are the units of kind `compute`. Clusters do not depend on each other in a circle,
    nor through the other units.
    """
    clusters = _Grower(order, joins).run()
    place = {unit: i for i, unit in enumerate(order.sorted())}
    found = []
    for units in clusters:
        nodes = [n for unit in sorted(units, key=place.__getitem__) for n in unit.nodes]
        found.append(tuple(nodes))
    return tuple(found)
