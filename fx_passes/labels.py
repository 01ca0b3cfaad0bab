"""What a user calls a region: the path of its module in the model, and the shapes of its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.flops import node_flops
from trnx.fx_passes.nodes import arguments, aten
from trnx.fx_passes.region import Region
from trnx.fx_passes.source import module_of
from trnx.nki_kernels.hints import hint_int


def main_node(nodes: Sequence[fx.Node]) -> fx.Node | None:
    """The node with the most FLOPs of matrix products, the last of those that have as many."""
    return max(reversed(nodes), key=node_flops, default=None)


def layer_of(nodes: Sequence[fx.Node]) -> str:
    """The path of the module that the region's main node belongs to, as `encoder.layer.3.query`;
    of the last node that has one where the main node has none, else an empty string."""
    main = main_node(nodes)
    candidates = [*reversed(nodes)] if main is None else [main, *reversed(nodes)]
    return next((path for node in candidates if (path := module_of(node)[0])), "")


def shapes_of(nodes: Sequence[fx.Node]) -> str:
    """`MxKxN` of a linear product, `BxMxKxN` of a batched one, else the shape of the main node's
    (first) result; sizes are those seen at capture."""
    main = main_node(nodes)
    if main is None:
        return ""
    sizes = _product(main) or _result(main.meta.get("val"))
    return "x".join(map(str, sizes))


def _product(node: fx.Node) -> list[int]:
    if node.target not in (aten.linear.default, aten.bmm.default):
        return []
    x, weight = (_result(operand.meta.get("val")) for operand in arguments(node)[:2])
    if node.target is aten.bmm.default:
        return [*x, weight[-1]]
    rows = 1
    for size in x[:-1]:
        rows *= size
    return [rows, x[-1], weight[0]]


def _result(value: Any) -> list[int]:
    if isinstance(value, (tuple, list)):
        value = next((item for item in value if isinstance(item, torch.Tensor)), None)
    return [hint_int(size) for size in value.shape] if isinstance(value, torch.Tensor) else []


def region_reads(regions: Sequence[Region]) -> dict[str, tuple[str, ...]]:
    """For each region the names of those whose results it reads, also through views."""
    of_node = {node: region.name for region in regions for node in region.nodes}
    behind: dict[fx.Node, frozenset[str]] = {}

    def sources(node: fx.Node) -> frozenset[str]:
        if node in of_node:
            return frozenset({of_node[node]})
        if node not in behind:
            behind[node] = frozenset().union(*map(sources, node.all_input_nodes))
        return behind[node]

    order = {region.name: index for index, region in enumerate(regions)}
    return {
        region.name: tuple(
            sorted(
                frozenset().union(*map(sources, region.inputs)) - {region.name},
                key=order.__getitem__,
            )
        )
        for region in regions
    }
