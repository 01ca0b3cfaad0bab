"""`max` and `min` along a dimension whose indices nobody reads are `amax` and `amin`, which are
generated with what surrounds them."""

from __future__ import annotations

from typing import Any

from torch import fx

from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same, replace
from trnx.fx_passes.nodes import aten
from trnx.fx_passes.passes import Pass

_WITHOUT_INDICES: dict[Any, Any] = {
    aten.max.dim: aten.amax.default,
    aten.min.dim: aten.amin.default,
}


def _name(node: fx.Node) -> None:
    read = [item for item in node.users if item.users]
    if any(item.args[1] != 0 for item in read):
        return
    x, dim, keepdim = call_arguments(node)
    for item in read:
        new = call_if_same(item, _WITHOUT_INDICES[node.target], (x, [dim], keepdim))
        if new is not None:
            replace(item, new)


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target in _WITHOUT_INDICES:
            _name(node)
    return gm


NAME_EXTREMES = Pass("name_extremes", _run, ensures=("indices_of_extremes_are_read",))
