"""Regions for the generator: grown, then offered whole, then in halves until it takes them.

A kernel that is far from its limit is compared with two: tensors that lie in different orders may
be read as they lie by one of them each, where what the first one reduces is all that they share.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.extract import extract, inputs_of
from trnx.fx_passes.forms import form_of
from trnx.fx_passes.grow import grow
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.match import bindings_spec
from trnx.fx_passes.nodes import has_tensor, is_mutation, is_random
from trnx.fx_passes.order import Order, Unit
from trnx.fx_passes.profit import Profit
from trnx.fx_passes.region import Generator, KernelMatch
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

# Kernels that take so many times their limit, and that of two, are compared with two.
_FAR, _FAR_FROM_TWO = 1.4, 1.15
# Each place to cut costs two kernels that are planned and scheduled.
_MOST_PLACES = 4


def outputs_of(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """The nodes that something outside uses."""
    inside = set(nodes)
    return tuple(n for n in nodes if any(user not in inside for user in n.users))


def generated_units(
    order: Order,
    generator: Generator,
    hardware: Hardware,
    profit: Profit,
    refusals: Refusals,
    barred: frozenset[fx.Node] = frozenset(),
) -> tuple[Unit, ...]:
    """Units of kind `nki` whose payload is the `KernelMatch` of a generated kernel."""

    def joins(node: fx.Node) -> bool:
        if node in barred or is_mutation(node) or is_random(node):
            return False
        reject = generator.supports_node(node, hardware)
        if reject is None and not has_tensor(node):
            reject = Reject("a node that returns several tensors is not generated", node)
        if reject is not None:
            refusals.add(node, _about_generated(reject, node))
        return reject is None

    offers = _Offers(generator, hardware, profit, refusals)
    for nodes in grow(order, joins):
        offers.make(nodes)
    return tuple(offers.taken)


def _about_generated(reject: Reject, node: fx.Node) -> Reject:
    reason = f"no kernel is generated: {reject.reason}"
    return Reject(reason, node, advice=reject.advice or advice.GENERATED)


def _reduces(node: fx.Node) -> bool:
    """Whether a node gives less than it takes; not known where sizes are symbols."""
    tensors = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    sizes = [t.numel() for t in tensors if isinstance(t, torch.Tensor)]
    return all(isinstance(size, int) for size in sizes) and sizes[:1] < [max(sizes, default=0)]


class _Offers:
    """Offers groups of nodes to the generator; `taken` are the units of those that it took, and
    that pay. Of groups of one form, as an optimizer has one for each parameter, the first that is
    taken lends its kernel to the others, with bindings named as its own, or where it is cut."""

    def __init__(
        self, generator: Generator, hardware: Hardware, profit: Profit, refusals: Refusals
    ) -> None:
        self.taken: list[Unit] = []
        self._generator = generator
        self._hardware = hardware
        self._profit = profit
        self._refusals = refusals
        self._known: dict[Hashable, KernelMatch] = {}
        self._cuts: dict[Hashable, int] = {}

    def make(self, nodes: tuple[fx.Node, ...]) -> None:
        """Offer `nodes` whole, then in halves until there is an answer about each."""
        inputs, outputs = inputs_of(nodes), outputs_of(nodes)
        form = form_of(nodes, outputs)
        if known := self._known.get(form):
            bindings = dict(zip(known.bindings, inputs, strict=True))
            self._take(nodes, KernelMatch(known.kernel, bindings, outputs))
            return
        if at := self._cuts.get(form, 0):
            self._make_two(nodes, at)
            return
        offered = self._offer(nodes)
        if not isinstance(offered, Reject):
            reject = self._profit.refuse(offered, nodes)
            if reject is None and (at := self._cut(nodes, offered)):
                self._cuts[form] = at
                self._make_two(nodes, at)
            elif reject is None:
                self._known[form] = offered
                self._take(nodes, offered)
            else:
                for node in nodes:
                    self._refusals.add(node, reject)
            return
        if len(nodes) == 1:
            self._refusals.add(nodes[0], _about_generated(offered, nodes[0]))
            return
        self._make_two(nodes, len(nodes) // 2)

    def _make_two(self, nodes: tuple[fx.Node, ...], at: int) -> None:
        """Offer the first `at` of `nodes` and the rest: a prefix and the rest of a topological
        order are convex, and edges go one way between them."""
        self.make(nodes[:at])
        self.make(nodes[at:])

    def _offer(self, nodes: tuple[fx.Node, ...]) -> KernelMatch | Reject:
        """The kernel of a group."""
        inputs, outputs = inputs_of(nodes), outputs_of(nodes)
        kernel = self._generator.fused_kernel(extract(nodes, inputs, outputs), self._hardware)
        if isinstance(kernel, Reject):
            return kernel
        return KernelMatch(kernel, {node.name: node for node in inputs}, outputs)

    def _cut(self, nodes: tuple[fx.Node, ...], match: KernelMatch) -> int:
        """How many of `nodes` are better in a kernel of their own: up to a reduction; 0 where one
        kernel is the best, near enough to its limit, or of many reductions."""
        places = [at for at, node in enumerate(nodes[:-1], 1) if _reduces(node)]
        if self._profit.predictor is None or not 0 < len(places) <= _MOST_PLACES:
            return 0
        seconds, cost = self._profit.nki_seconds(match), match.kernel.cost(bindings_spec(match))
        limit = self._hardware.roofline_seconds(0, cost.vector_flops, cost.hbm_bytes)
        one, two = (limit + many * self._hardware.region_seconds for many in (1, 2))
        if seconds <= max(_FAR * one, _FAR_FROM_TWO * two):
            return 0
        found = {at: self._seconds(nodes[:at]) + self._seconds(nodes[at:]) for at in places}
        best = min(places, key=found.__getitem__)
        return best if found[best] < seconds else 0

    def _seconds(self, nodes: tuple[fx.Node, ...]) -> float:
        """Predicted seconds of a group as one kernel, infinite where there is none."""
        offered = self._offer(nodes)
        return math.inf if isinstance(offered, Reject) else self._profit.nki_seconds(offered)

    def _take(self, nodes: tuple[fx.Node, ...], match: KernelMatch) -> None:
        self.taken.append(Unit("nki", nodes, match))
