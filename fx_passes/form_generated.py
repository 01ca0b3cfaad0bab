"""Regions for the generator: grown, then offered whole, then in halves until it takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from trnx.fx_passes import advice
from trnx.fx_passes.extract import extract, inputs_of
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

    units: list[Unit] = []
    for nodes in grow(order, joins):
        _offer(nodes, generator, hardware, profit, refusals, units.append)
    return tuple(units)


def _about_generated(reject: Reject, node: fx.Node) -> Reject:
    reason = f"no kernel is generated: {reject.reason}"
    return Reject(reason, node, advice=reject.advice or advice.GENERATED)


def _offer(
    nodes: tuple[fx.Node, ...],
    generator: Generator,
    hardware: Hardware,
    profit: Profit,
    refusals: Refusals,
    take: Callable[[Unit], None],
) -> None:
    inputs, outputs = inputs_of(nodes), outputs_of(nodes)
    gm = extract(nodes, inputs, outputs)
    kernel = generator.fused_kernel(gm, hardware)
    if not isinstance(kernel, Reject):
        match = KernelMatch(kernel, {node.name: node for node in inputs}, outputs)
        reject = profit.refuse(match, nodes)
        if reject is None:
            take(Unit("nki", nodes, match))
        else:
            for node in nodes:
                refusals.add(node, reject)
        return
    if len(nodes) == 1:
        refusals.add(nodes[0], _about_generated(kernel, nodes[0]))
        return
    # A prefix and the rest of a topological order are convex, and edges go one way between them.
    half = len(nodes) // 2
    for part in (nodes[:half], nodes[half:]):
        _offer(part, generator, hardware, profit, refusals, take)
