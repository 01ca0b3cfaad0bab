"""How most canonicalisations are written: a table from operator to a rule for one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from trnx.fx_passes.aliasing import Aliasing
from trnx.fx_passes.metadata import replace

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
