"""From units to steps: a list schedule that keeps each fallback engine going as long as it can.

Regions of a fallback engine are stretches of one topological order, so they are convex by
construction. Collectives begin as soon as they can, what they depend on comes before what they do
not, and is waited for when nothing else can run: what may overlap, overlaps.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx

from trnx.fx_passes.aliasing import storage_root
from trnx.fx_passes.extract import inputs_of
from trnx.fx_passes.match import bound_nodes
from trnx.fx_passes.nodes import (
    has_effect,
    is_call,
    is_compute,
    is_factory,
    is_getitem,
    is_glue,
    is_mutation,
    is_number,
    op_name,
)
from trnx.fx_passes.numbers import run_time_numbers
from trnx.fx_passes.order import Order, Unit, awaited
from trnx.fx_passes.region import Engine, FallbackEngine, KernelMatch, Region

Step = Region | fx.Node
# Collectives that read what the graph computes begin at once. Those that read its inputs (weights
# that are gathered) would all begin first, and their results be in memory together: so many may be
# under way or waited for in vain.
_AHEAD = 4


@dataclass
class _Run:
    """The fallback region that is being filled.

    `blocked` is glue that follows from the region but cannot be in it: what reads it has to be in
    another one.
    """

    kind: str
    nodes: list[fx.Node] = field(default_factory=list)
    members: set[Unit] = field(default_factory=set)
    blocked: set[Unit] = field(default_factory=set)


class Scheduler:
    """One pass over the units; `choose` picks the engine of a finished fallback region."""

    def __init__(
        self,
        order: Order,
        engines: Mapping[str, FallbackEngine],
        choose: Callable[[str, Sequence[fx.Node]], Engine],
    ) -> None:
        self._order = order
        self._engines = engines
        self._choose = choose
        self._waiting = {unit: len(order.before[unit]) for unit in order.units}
        self._ready: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self._index = {unit: i for i, unit in enumerate(order.units)}
        self._written = {
            storage_root(node.all_input_nodes[0])
            for unit in order.units
            for node in unit.nodes
            if is_mutation(node)
        }
        # A region that read these would be made anew for each of their values.
        self._run_time = run_time_numbers(order.graph)
        self._urgency = order.urgency()
        self._early = order.early_collectives()
        self._under_way: set[fx.Node] = set()
        self._steps: list[Step] = []
        self._run: _Run | None = None
        self._regions = 0

    def run(self) -> tuple[Step, ...]:
        """All steps, without glue that nothing needs."""
        for first in self._order.units:
            if not self._waiting[first]:
                self._push(first)
        while unit := self._next():
            self._place(unit)
            for after in self._order.after[unit]:
                self._waiting[after] -= 1
                if not self._waiting[after]:
                    self._push(after)
        self._close()
        return _needed(self._steps)

    def _push(self, unit: Unit) -> None:
        urgency = self._urgency.get(unit, len(self._order.units))
        place = (urgency, self._order.position(unit), self._index[unit])
        heapq.heappush(self._ready[unit.kind], place)

    def _pop(self, kind: str) -> Unit:
        return self._order.units[heapq.heappop(self._ready[kind])[2]]

    def _next(self) -> Unit | None:
        """Glue first, then a collective, more of the open region, kernels, another fallback region,
        and a wait last."""
        current = self._run.kind if self._run else ""
        for kind in ("glue", "collective", current, "nki"):
            if self._ready[kind] and not (kind == "collective" and self._is_too_early()):
                return self._pop(kind)
        held = ("collective", "wait")
        others = [kind for kind, heap in self._ready.items() if heap and kind not in held]
        if others:
            return self._pop(min(others, key=lambda k: self._ready[k][0]))
        last = next((kind for kind in reversed(held) if self._ready[kind]), None)
        return None if last is None else self._pop(last)

    def _is_too_early(self) -> bool:
        unit = self._order.units[self._ready["collective"][0][2]]
        return unit in self._early and len(self._under_way) >= _AHEAD

    def _place(self, unit: Unit) -> None:
        run = self._run
        if unit.kind == "glue":
            if run and any(before in run.members for before in self._order.before[unit]):
                run.nodes.extend(unit.nodes)
                run.members.add(unit)
                if self._reads_blocked(run, unit) or not self._may_hold(run.kind, unit.nodes[0]):
                    run.blocked.add(unit)
            else:
                self._steps.extend(unit.nodes)
            return
        if unit.kind in ("collective", "wait"):
            self._place_between_ranks(unit)
            return
        if unit.kind == "nki":
            self._close()
            assert isinstance(unit.payload, KernelMatch)
            self._steps.append(self._kernel_region(unit, unit.payload))
            return
        if run is None or run.kind != unit.kind or self._reads_blocked(run, unit):
            self._close()
            run = self._run = _Run(unit.kind)
        run.nodes.extend(unit.nodes)
        run.members.add(unit)

    def _place_between_ranks(self, unit: Unit) -> None:
        """A collective goes in front of an open run that it does not need."""
        run, first = self._run, unit.nodes[0]
        needs = run is not None and any(u in run.members for u in self._order.before[unit])
        if needs or unit.kind == "wait":
            self._close()
        if unit.kind == "wait":
            source = awaited(first)
            if source is not None:
                self._under_way.discard(source)
            self._steps.append(first)
            return
        if any(awaited(user) is first for item in unit.nodes for user in item.users):
            self._under_way.add(first)
        name = self._name(op_name(first).split(".")[1])
        self._steps.append(collective_region(name, unit.nodes))

    def _reads_blocked(self, run: _Run, unit: Unit) -> bool:
        return any(before in run.blocked for before in self._order.before[unit])

    def _name(self, what: str) -> str:
        self._regions += 1
        return f"region_{self._regions - 1}_{what}"

    def _kernel_region(self, unit: Unit, match: KernelMatch) -> Region:
        outputs = tuple(n for n in match.results if n is not None)
        return Region(
            self._name(match.kernel.name),
            "nki",
            unit.nodes,
            bound_nodes(match.bindings),
            outputs,
            match,
        )

    def _close(self) -> None:
        """Turn the open run into a region, and the glue that follows from it into steps."""
        if self._run is None:
            return
        run, self._run = self._run, None
        nodes = self._with_glue(run)
        outputs = values_used_outside(nodes)
        engine = self._choose(run.kind, nodes)
        self._steps.append(Region(self._name(engine), engine, nodes, inputs_of(nodes), outputs))
        self._steps.extend(n for n in run.nodes if is_glue(n))

    def _with_glue(self, run: _Run) -> tuple[fx.Node, ...]:
        """The run's nodes, the glue among them that they use, and copies of the glue in front of
        them.
        """
        own = set(run.nodes)
        blocked = {node for unit in run.blocked for node in unit.nodes}
        wanted: set[fx.Node] = set()
        todo = [a for n in run.nodes if not is_glue(n) for a in n.all_input_nodes]
        while todo:
            node = todo.pop()
            held = node in own and is_glue(node) and node not in blocked
            if node in wanted or not (held or self._may_copy(run.kind, node)):
                continue
            wanted.add(node)
            todo.extend(node.all_input_nodes)
        keep = {n for n in run.nodes if not is_glue(n)} | wanted
        front = sorted((n for n in wanted if n not in own), key=self._position)
        return (*front, *(n for n in run.nodes if n in keep))

    def _position(self, node: fx.Node) -> int:
        return self._order.node_position(node)

    def _may_hold(self, kind: str, node: fx.Node) -> bool:
        """True for glue that the engine `kind` can evaluate."""
        if not is_call(node) or not is_glue(node) or has_effect(node) or is_number(node):
            return False
        if is_factory(node) and not self._run_time.isdisjoint(node.all_input_nodes):
            return False
        return is_getitem(node) or self._engines[kind].supports(node) is None

    def _may_copy(self, kind: str, node: fx.Node) -> bool:
        """True for glue in front of a region that the region may evaluate once more."""
        if node.op == "get_attr":
            return "val" not in node.meta  # the body of a higher-order op
        if not self._may_hold(kind, node) or storage_root(node) in self._written:
            return False
        return not is_getitem(node) or self._may_copy(kind, node.all_input_nodes[0])


def collective_region(name: str, nodes: tuple[fx.Node, ...]) -> Region:
    """The region of a collective and its getitems. All its tensors are outputs, also one that
    nobody uses: it has to be waited for."""
    outputs = nodes[1:] or nodes
    return Region(name, "collective", nodes, inputs_of(nodes), outputs)


def values_used_outside(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """What a region of `nodes` hands out: computed values, also those that are read through glue.

    Glue of the region that is used outside is evaluated there again, from the value behind it. A
    multi-output node is no value of its own: its getitems are.
    """
    inside, leaving = set(nodes), set()
    for node in reversed(nodes):
        if any(user not in inside or (is_glue(user) and user in leaving) for user in node.users):
            leaving.add(node)
    return tuple(
        n
        for n in nodes
        if n in leaving and not is_glue(n) and not isinstance(n.meta.get("val"), (tuple, list))
    )


def _needed(steps: Sequence[Step]) -> tuple[Step, ...]:
    """`steps` without glue that neither a region, nor an effect, nor the output reads."""
    wanted: set[fx.Node] = set()
    for step in steps:
        nodes = step.nodes if isinstance(step, Region) else (step,)
        for node in nodes:
            if any(user.op == "output" for user in node.users):
                wanted.add(node)
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, Region):
            wanted.update(step.inputs)
        elif step in wanted or has_effect(step):
            wanted.update(step.all_input_nodes)
        else:
            continue
        kept.append(step)
    return tuple(reversed(kept))


def computed(steps: Sequence[Step]) -> set[fx.Node]:
    """The compute nodes that the regions among `steps` hold."""
    return {n for s in steps if isinstance(s, Region) for n in s.nodes if is_compute(n)}
