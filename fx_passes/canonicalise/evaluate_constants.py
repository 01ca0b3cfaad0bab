"""What depends on constants alone is computed now and becomes an attribute of the graph module.

Masks and position tables of static sizes, mostly. Not what a graph output shares storage with
(every call returns a fresh tensor), not random ops, and not what is larger than `MAX_ELEMENTS`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.aliasing import Aliasing, same_layout
from trnx.fx_passes.metadata import copied_meta, real_values, replace
from trnx.fx_passes.nodes import (
    UNFILLED,
    has_effect,
    has_tensor,
    is_compute,
    is_factory,
    is_random,
)
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic

MAX_ELEMENTS = 1 << 20


def _is_static(node: fx.Node) -> bool:
    """True for a tensor on the CPU whose sizes are known and not too large."""
    if not has_tensor(node):
        return False
    value = node.meta["val"]
    sizes = (*value.shape, *value.stride())
    if any(is_symbolic(size) for size in sizes) or value.device.type != "cpu":
        return False
    return bool(value.numel() <= MAX_ELEMENTS)


def _is_constant(node: fx.Node, known: set[fx.Node]) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if has_effect(node) or is_random(node) or node.target in UNFILLED or not _is_static(node):
        return False
    # A factory may take symbolic numbers (`full` with a symbolic value): no constants, then.
    inputs = set(node.all_input_nodes)
    return (is_factory(node) or bool(inputs)) and inputs <= known


def _evaluate(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """The value of `node`; those that it needs are computed first and kept in `values`."""
    if node not in values:
        for argument in node.all_input_nodes:
            _evaluate(argument, values)
        args = fx.node.map_arg(node.args, values.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[node]


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    aliasing = Aliasing(gm.graph)
    known: set[fx.Node] = set()
    computed: set[fx.Node] = set()
    for node in gm.graph.nodes:
        if _is_constant(node, known):
            known.add(node)
            if is_compute(node) or any(a in computed for a in node.all_input_nodes):
                computed.add(node)
    # What is worth a stored tensor: the last constant of a chain that computes something.
    inner = {node for node in known if not aliasing.escapes(node)}
    ends = [
        n for n in gm.graph.nodes if n in inner and n in computed and not n.users.keys() <= inner
    ]
    values: dict[fx.Node, Any] = {}
    for node in ends:
        with real_values():
            _store(gm, node, _evaluate(node, values), values)
    return gm


def _store(
    gm: fx.GraphModule, node: fx.Node, value: torch.Tensor, values: dict[fx.Node, Any]
) -> None:
    if not same_layout(value, node.meta["val"]):
        return
    name = f"constant_{node.name}"
    gm.register_buffer(name, value.detach(), persistent=False)
    with gm.graph.inserting_before(node):
        new = gm.graph.get_attr(name)
    new.meta = copied_meta(node)
    new.meta["val"] = node.meta["val"]
    values[new] = value
    replace(node, new)


EVALUATE_CONSTANTS = Pass(
    "evaluate_constants",
    _run,
    requires=("constants_are_numbers",),  # else they become tensors
    ensures=("constants_computed",),
    breaks=("constants_are_numbers",),  # where one has a single element
)
