"""Kernels whose ops a generated kernel may compute beside their neighbours, without the way through
memory between them.

A sum of what a chain of pointwise ops gives, for instance: a kernel of its own reads from memory
what the chain had to write there; and a norm, a residual and the next norm read each other's
results. Whether leaving the ops to the generator is faster is asked of the predictor
(`partition.py`). Where sizes are symbols the op stays: a sum over padding that its own region has
written is exact, and every size would be a program of its own (`padding/rules.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from trnx.fx_passes.match import GraphMatch
from trnx.fx_passes.nodes import is_compute, tensors
from trnx.fx_passes.region import Generator
from trnx.fx_passes.symbolic import is_symbolic
from trnx.simulator.hardware import Hardware


def without_fusible(
    matches: Sequence[GraphMatch], generator: Generator, hardware: Hardware
) -> tuple[GraphMatch, ...]:
    """The matches but those of one op that reads what only it reads, or what its user reads too,
    where the generator lowers all of them."""
    claimed = {node for match in matches for node in match.nodes}
    generated = lowered_by(generator, hardware)

    def joins(node: fx.Node, op: fx.Node) -> bool:
        return any(user is not op and user in node.users for user in op.users)

    def is_fusible(match: GraphMatch) -> bool:
        compute = compute_of(match)
        if len(compute) != 1 or has_symbols(match):
            return False
        (op,) = compute
        sources = [n for n in op.all_input_nodes if is_compute(n) and n not in claimed]
        near = [n for n in sources if len(n.users) == 1 or joins(n, op)]
        return bool(near) and generated(op) and all(map(generated, near))

    return tuple(match for match in matches if not is_fusible(match))


def without_adjoining(
    matches: Sequence[GraphMatch], generator: Generator, hardware: Hardware
) -> tuple[GraphMatch, ...]:
    """The matches but those, of any number of ops, that the generator lowers and that adjoin ops
    which it lowers too: those that no match has, and those of other such matches."""
    generated = lowered_by(generator, hardware)
    kept: list[GraphMatch] = []
    given_up: list[GraphMatch] = []
    for match in matches:
        is_lowered = not has_symbols(match) and all(map(generated, compute_of(match)))
        (given_up if is_lowered else kept).append(match)
    taken = {node for match in kept for node in match.nodes}

    def adjoins(match: GraphMatch) -> bool:
        own = compute_of(match)
        around = {n for op in own for n in (*op.all_input_nodes, *op.users)}
        others = (n for n in around - {*own} - taken if is_compute(n))
        return any(map(generated, others))

    leaves = {id(match) for match in given_up if adjoins(match)}
    return tuple(match for match in matches if id(match) not in leaves)


def compute_of(match: GraphMatch) -> list[fx.Node]:
    """The ops of a match."""
    return [node for node in match.nodes if is_compute(node)]


def lowered_by(generator: Generator, hardware: Hardware) -> Callable[[fx.Node], bool]:
    """Whether generated kernels run an op."""
    return lambda node: is_compute(node) and generator.supports_node(node, hardware) is None


def has_symbols(match: GraphMatch) -> bool:
    """Whether a size of what a match reads is a symbol."""
    sources = (source for op in compute_of(match) for source in op.all_input_nodes)
    return any(is_symbolic(size) for source in sources for size in _sizes(source))


def _sizes(node: fx.Node) -> list[Any]:
    return [size for tensor in tensors([node.meta.get("val")]) for size in tensor.shape]
