"""Kernels of one op whose operand a generated kernel would have on the chip already.

A sum of what a chain of pointwise ops gives, for instance: a kernel of its own reads from memory
what the chain had to write there. Whether leaving the op to the generator is faster is asked of the
predictor (`partition.py`). Where sizes are symbols the op stays: a sum over padding that its own
region has written is exact, and every size would be a program of its own (`padding/rules.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def generated(node: fx.Node) -> bool:
        return is_compute(node) and generator.supports_node(node, hardware) is None

    def joins(node: fx.Node, op: fx.Node) -> bool:
        return any(user is not op and user in node.users for user in op.users)

    def is_fusible(match: GraphMatch) -> bool:
        compute = [node for node in match.nodes if is_compute(node)]
        if len(compute) != 1:
            return False
        (op,) = compute
        if any(is_symbolic(size) for source in op.all_input_nodes for size in _sizes(source)):
            return False
        sources = [n for n in op.all_input_nodes if is_compute(n) and n not in claimed]
        near = [n for n in sources if len(n.users) == 1 or joins(n, op)]
        return bool(near) and generated(op) and all(map(generated, near))

    return tuple(match for match in matches if not is_fusible(match))


def _sizes(node: fx.Node) -> list[Any]:
    return [size for tensor in tensors([node.meta.get("val")]) for size in tensor.shape]
