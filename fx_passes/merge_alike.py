"""Merge generated kernels of the same work that wait for nothing of each other into few large ones.

An optimizer's step is one small kernel a parameter, hundreds of them, each with the fixed cost of a
region. Merged are units of one level: the length of the longest chain of units before them. Edges
lead to higher levels, so however units of one level are merged, no circle arises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from torch import fx

from trnx.fx_passes.extract import extract, inputs_of
from trnx.fx_passes.form_generated import outputs_of
from trnx.fx_passes.nodes import has_tensor, val
from trnx.fx_passes.order import Order, Unit
from trnx.fx_passes.region import Generator, KernelMatch
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

# Fewer are left as they are: what they save is little beside their own time.
LEAST = 8
# Tensors that one kernel reads and writes, at most: 32 parameters of an AdamW step, or the norms of
# 144 gradients, with tens of instructions a tile for each part.
MOST_TENSORS = 288


def merge_alike(
    units: Sequence[Unit], order: Order, generator: Generator, hardware: Hardware
) -> tuple[Unit, ...]:
    """`units` of generated kernels, which are in `order`, with the alike ones merged."""
    levels = _levels(order)
    alike: defaultdict[tuple[int, str], list[Unit]] = defaultdict(list)
    for unit in units:
        alike[levels[unit], _kernel(unit)].append(unit)
    merged: list[Unit] = []
    for group in alike.values():
        if len(group) < LEAST:
            merged += group
            continue
        # Equal sizes side by side: a kernel has one function for each size.
        ranked = sorted(group, key=_sizes)
        count = -(-len(_tensors(ranked)) // MOST_TENSORS)
        each = -(-len(ranked) // count)
        for start in range(0, len(ranked), each):
            merged += _merged(ranked[start : start + each], order, generator, hardware)
    return tuple(merged)


def _kernel(unit: Unit) -> str:
    assert isinstance(unit.payload, KernelMatch)
    return unit.payload.kernel.name


def _tensors(units: Sequence[Unit]) -> set[fx.Node]:
    """What the units read and write: arguments of their kernels."""
    matches = [unit.payload for unit in units if isinstance(unit.payload, KernelMatch)]
    return {n for m in matches for n in (*m.bindings.values(), *m.results) if has_tensor(n)}


def _sizes(unit: Unit) -> str:
    return str([tuple(val(node).shape) for node in unit.nodes])


def _levels(order: Order) -> dict[Unit, int]:
    levels: dict[Unit, int] = {}
    for unit in order.sorted():
        levels[unit] = 1 + max((levels[before] for before in order.before[unit]), default=0)
    return levels


def _merged(
    units: Sequence[Unit], order: Order, generator: Generator, hardware: Hardware
) -> Sequence[Unit]:
    """One unit in place of `units`; themselves where the generator refuses it."""
    nodes: tuple[fx.Node, ...] = tuple(
        node for unit in sorted(units, key=order.position) for node in unit.nodes
    )
    inputs, outputs = inputs_of(nodes), outputs_of(nodes)
    if len(units) < 2:
        return units
    kernel = generator.fused_kernel(extract(nodes, inputs, outputs), hardware)
    if isinstance(kernel, Reject):
        return units
    match = KernelMatch(kernel, {node.name: node for node in inputs}, outputs)
    return (Unit("nki", nodes, match),)
