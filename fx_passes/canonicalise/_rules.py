"""How most canonicalisations are written: a table from operator to a rule for one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.aliasing import Aliasing, same_layout
from trnx.fx_passes.metadata import fake_call, insert_call, replace

# A rule returns the node that replaces its argument, or None where the node stays.
Rule = Callable[[fx.Node], fx.Node | None]


def rule_run(rules: Mapping[Any, Rule]) -> Callable[[fx.GraphModule], fx.GraphModule]:
    """What a pass runs that applies `rules` to every node once, in order."""

    def run(gm: fx.GraphModule) -> fx.GraphModule:
        for node in list(gm.graph.nodes):
            rule = rules.get(node.target) if node.op == "call_function" else None
            new = rule(node) if rule is not None else None
            if new is not None:
                replace(node, new)
        return gm

    return run


def erase_unused(node: fx.Node) -> None:
    """Erase `node`, which nothing uses, and what only it used."""
    sources = node.all_input_nodes
    node.graph.erase_node(node)
    for source in sources:
        if source.op == "call_function" and not source.users:
            erase_unused(source)


def removal_run(source_of: Rule) -> Callable[[fx.GraphModule], fx.GraphModule]:
    """What a pass runs that lets users of a node read `source_of(node)`, an equal value, where
    aliasing allows.
    """

    def run(gm: fx.GraphModule) -> fx.GraphModule:
        aliasing = Aliasing(gm.graph)
        for node in list(gm.graph.nodes):
            source = source_of(node) if node.op == "call_function" else None
            if source is not None and aliasing.can_stand_in(node, source):
                aliasing.replaced(node, source)
                replace(node, source)
        return gm

    return run


def call_if_same(
    node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any = None
) -> fx.Node | None:
    """A call in the place of `node`, where it gives a tensor of the same layout and dtype."""
    value = fake_value(node, target, args, kwargs or {})
    known = node.meta.get("val")
    if value is None or not isinstance(known, torch.Tensor) or not same_layout(value, known):
        return None
    return insert_call(node, target, args, kwargs, value=known)


def fake_value(
    node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any
) -> torch.Tensor | None:
    """The fake result of a call, or None where the operator refuses the arguments."""
    try:
        value = fake_call(node.graph, target, args, kwargs, "val")
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    return value if isinstance(value, torch.Tensor) else None
