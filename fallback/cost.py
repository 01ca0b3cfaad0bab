"""Predicted seconds of a fallback region on the target: roofline of the work plus fixed costs.

On the device the NKI and the XLA regions of a graph are compiled into one executable, which is
launched once; an XLA region moves what enters and leaves it, and the operands and results of matrix
products. An eager region cuts that graph: it pays one more launch, a dispatch per op, and moves
every operand through HBM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

import trnx.nki_kernels.canonical_ops  # noqa: F401  registers torch.ops.trnx
from trnx.fx_passes.flops import node_flops
from trnx.fx_passes.symbolic import hint_int
from trnx.nki_kernels.spec import Cost
from trnx.simulator.hardware import Hardware

# Measured in the field on trn2: about 64 us for one eager op.
EAGER_OP_SECONDS = 64e-6

# Passes of the vector engines over the elements, where an op takes more than one.
_PASSES = {
    torch.ops.aten.native_layer_norm.default: 8,
    torch.ops.aten._softmax.default: 5,
    torch.ops.aten._log_softmax.default: 5,
    torch.ops.trnx.rms_norm.default: 4,
}


def leaves(value: Any) -> list[Any]:
    """What a node's metadata holds: itself, or the members of a (nested) sequence."""
    if isinstance(value, (tuple, list)):
        return [leaf for member in value for leaf in leaves(member)]
    return [value]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(math.prod(map(hint_int, t.shape)) * t.element_size() for t in tensors)


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(math.prod(map(hint_int, t.shape)) for t in tensors)


def node_cost(node: fx.Node) -> Cost:
    """Work of one node run on its own: every operand and result crosses HBM once."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return Cost()
    outputs = _tensors(node.meta.get("val"))
    inputs = [t for n in node.all_input_nodes for t in _tensors(n.meta.get("val"))]
    matmul = node_flops(node)
    passes = _PASSES.get(node.target, 1)
    vector = 0 if matmul else passes * max(_elements(outputs), _elements(inputs))
    return Cost(matmul, vector, _bytes(inputs) + _bytes(outputs))


def eager_seconds(nodes: Sequence[fx.Node], hw: Hardware) -> float:
    """The launch of the graph's second half; a dispatch and a pass over HBM for each op."""
    total = hw.launch_seconds if nodes else 0.0
    for node in nodes:
        cost = node_cost(node)
        if cost != Cost():
            work = hw.roofline_seconds(cost.matmul_flops, cost.vector_flops, cost.hbm_bytes)
            total += max(EAGER_OP_SECONDS, work)
    return total


def fused_seconds(nodes: Sequence[fx.Node], hw: Hardware) -> float:
    """HBM sees what enters and leaves the region, and products."""
    inside = set(nodes)
    total = Cost()
    crossing: dict[fx.Node, None] = {}
    for node in nodes:
        cost = node_cost(node)
        total += Cost(cost.matmul_flops, cost.vector_flops)
        crossing.update((n, None) for n in node.all_input_nodes if n not in inside)
        if cost.matmul_flops or any(user not in inside for user in node.users):
            crossing[node] = None
    moved = _bytes(t for n in crossing for t in _tensors(n.meta.get("val")))
    work = hw.roofline_seconds(total.matmul_flops, total.vector_flops, moved)
    return hw.region_seconds + work
