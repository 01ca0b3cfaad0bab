"""A region as a graph module of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import fx

from trnx.fx_passes.region import Region
from trnx.nki_kernels.lazy_module import LazyModule


def inputs_of(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """The nodes that `nodes` read from outside, in the order of their first use."""
    inside = set(nodes)
    found: dict[fx.Node, None] = {}
    for node in nodes:
        found.update((a, None) for a in node.all_input_nodes if a not in inside)
    return tuple(found)


def extract(
    nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """`nodes` as a graph module: placeholders named like `inputs`, the output a tuple of `outputs`.

    Nodes keep their names and `meta`. Submodules that the nodes call by attribute are not carried
    over: attributes are inputs. Its code is generated when it is first called.
    """
    return LazyModule(_root(nodes), _graph_of(nodes, inputs, outputs))


def region_module(region: Region) -> fx.GraphModule:
    """What `FallbackEngine.compile` takes: inputs and outputs in the order of the region's."""
    graph = _graph_of(region.nodes, region.inputs, region.outputs)
    return fx.GraphModule(_root(region.nodes), graph)


def _root(nodes: Sequence[fx.Node]) -> torch.nn.Module:
    owner = nodes[0].graph.owning_module if nodes else None
    return owner if owner is not None else torch.nn.Module()


def _graph_of(
    nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.Graph:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return graph
