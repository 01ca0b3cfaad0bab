"""Parts of a region: nodes that share no computed value with others, and in a region that is small
enough to be one part no tensor but numbers.

A region of several parts is one kernel that runs them one after the other, each over an iteration
space of its own: an optimizer's step over many parameters is a part for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from trnx.nki_kernels.lazy_module import LazyModule

# Up to so many nodes are one part where they read one tensor.
_SMALL = 48


@dataclass(frozen=True)
class Part:
    """A part as a graph module; `inputs` and `outputs` are the indices that its placeholders and
    outputs have among those of the region."""

    gm: fx.GraphModule
    inputs: Sequence[int]
    outputs: Sequence[int]


def parts_of(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> tuple[Part, ...]:
    """The parts of a region of `nodes`, in their order; none where the region is one part."""
    groups = _connected(nodes)
    if len(groups) < 2:
        return ()
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    return tuple(_part(gm, group, placeholders, outputs) for group in groups)


def _connected(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    parent: dict[fx.Node, fx.Node] = {}

    def root(node: fx.Node) -> fx.Node:
        while parent.setdefault(node, node) is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    inside = set(nodes)
    is_small = len(nodes) <= _SMALL
    for node in nodes:
        for argument in node.all_input_nodes:
            if argument in inside or (is_small and not _is_number(argument)):
                parent[root(node)] = root(argument)
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        groups.setdefault(root(node), []).append(node)
    return list(groups.values())


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.ndim == 0


def _part(
    gm: fx.GraphModule,
    nodes: Sequence[fx.Node],
    placeholders: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
) -> Part:
    used = {argument for node in nodes for argument in node.all_input_nodes}
    inputs = [i for i, node in enumerate(placeholders) if node in used]
    inside = set(nodes)
    results = [i for i, node in enumerate(outputs) if node in inside]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (placeholders[i] for i in inputs):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[outputs[i]] for i in results))
    return Part(LazyModule(gm, graph), inputs, results)
