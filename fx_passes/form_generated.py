"""Regions for the generator: grown, then offered whole, then in halves until it takes them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.extract import extract, inputs_of
from trnx.fx_passes.forms import form_of
from trnx.fx_passes.grow import grow
from trnx.fx_passes.ledger import Refusals
from trnx.fx_passes.nodes import has_tensor, is_mutation, is_random
from trnx.fx_passes.order import Order, Unit
from trnx.fx_passes.profit import Profit
from trnx.fx_passes.region import Generator, KernelMatch
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware


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


class _Offers:
    """Offers groups of nodes to the generator; `taken` are the units of those that it took, and
    that pay. Of groups of one form, as an optimizer has one for each parameter, the first that is
    taken lends its kernel to the others, with bindings named as its own."""

    def __init__(
        self, generator: Generator, hardware: Hardware, profit: Profit, refusals: Refusals
    ) -> None:
        self.taken: list[Unit] = []
        self._generator = generator
        self._hardware = hardware
        self._profit = profit
        self._refusals = refusals
        self._known: dict[Hashable, KernelMatch] = {}

    def make(self, nodes: tuple[fx.Node, ...]) -> None:
        """Offer `nodes` whole, then in halves until there is an answer about each."""
        inputs, outputs = inputs_of(nodes), outputs_of(nodes)
        form = form_of(nodes, outputs)
        if known := self._known.get(form):
            bindings = dict(zip(known.bindings, inputs, strict=True))
            self._take(nodes, KernelMatch(known.kernel, bindings, outputs))
            return
        kernel = self._generator.fused_kernel(extract(nodes, inputs, outputs), self._hardware)
        if not isinstance(kernel, Reject):
            match = KernelMatch(kernel, {node.name: node for node in inputs}, outputs)
            reject = self._profit.refuse(match, nodes)
            if reject is None:
                self._known[form] = match
                self._take(nodes, match)
            else:
                for node in nodes:
                    self._refusals.add(node, reject)
            return
        if len(nodes) == 1:
            self._refusals.add(nodes[0], _about_generated(kernel, nodes[0]))
            return
        # A prefix and the rest of a topological order are convex, and edges go one way between
        # them.
        half = len(nodes) // 2
        self.make(nodes[:half])
        self.make(nodes[half:])

    def _take(self, nodes: tuple[fx.Node, ...], match: KernelMatch) -> None:
        self.taken.append(Unit("nki", nodes, match))
