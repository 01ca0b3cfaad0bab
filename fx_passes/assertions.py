"""Numbers that are known only as long as an assertion holds."""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.nodes import has_tensor, is_assertion

_VALUE = torch.ops.aten._local_scalar_dense.default


def asserted_numbers(graph: fx.Graph) -> frozenset[fx.Node]:
    """The numbers that assertions of `graph` read and that the inputs' sizes do not determine.

    Their metadata may say what the assertion is there to find out: behind
    `torch._check(x.nonzero().size(0) == 4)` the size is a 4. It does not stand for them, then.
    """
    read: set[fx.Node] = set()
    pending = [a for node in graph.nodes if is_assertion(node) for a in node.all_input_nodes]
    while pending:
        node = pending.pop()
        if node.op == "call_function" and not has_tensor(node) and node not in read:
            read.add(node)
            pending += node.all_input_nodes
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node in read and any(_is_computed(node, a) or a in found for a in node.all_input_nodes):
            found.add(node)
    return frozenset(found)


def _is_computed(number: fx.Node, source: fx.Node) -> bool:
    """Whether `number` is a value of the tensor `source`, or its size and no input's."""
    return has_tensor(source) and (number.target is _VALUE or source.op == "call_function")
