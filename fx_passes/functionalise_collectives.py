"""In-place collectives of Dynamo's graph as functional ones and a copy: AOTAutograd takes no op
outside of ATen that returns its argument.

`all_reduce_`, `all_reduce_coalesced_`, `broadcast_`, `all_gather_into_tensor_out` and
`reduce_scatter_tensor_out` of `_c10d_functional` become the op without the ending, `wait_tensor`
and `copy_`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.passes import Pass


def _functional(target: Any) -> Callable[..., Any] | None:
    """The functional form of an in-place collective."""
    name = str(target).removesuffix(".default")
    library, _, op = name.partition(".")
    if library != "_c10d_functional" or not op.endswith(("_", "_out")):
        return None
    found: Callable[..., Any] = getattr(
        torch.ops._c10d_functional, op.removesuffix("_out").removesuffix("_")
    ).default
    return found


def _waited(graph: fx.Graph, made: fx.Node, written: fx.Node) -> None:
    wait = torch.ops._c10d_functional.wait_tensor.default
    graph.call_method("copy_", (written, graph.call_function(wait, (made,))))


def _replace(graph: fx.Graph, node: fx.Node, target: Callable[..., Any]) -> None:
    """Calls around `node`, whose users read what was written."""
    kwargs = dict(node.kwargs)
    written: Any = kwargs.pop("out", node.args[0])
    with graph.inserting_before(node):
        made = graph.call_function(target, node.args, kwargs)
        if isinstance(written, fx.Node):
            _waited(graph, made, written)
        else:
            for place, one in enumerate(written):
                _waited(graph, graph.call_function(operator.getitem, (made, place)), one)
    if isinstance(written, fx.Node):
        node.replace_all_uses_with(written)
    else:
        for user in list(node.users):
            assert user.target is operator.getitem
            user.replace_all_uses_with(written[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        target = _functional(node.target) if node.op == "call_function" else None
        if target is not None:
            _replace(gm.graph, node, target)
    return gm


FUNCTIONALISE_COLLECTIVES = Pass(
    "functionalise_collectives", _run, ensures=("collectives_are_functional",)
)
