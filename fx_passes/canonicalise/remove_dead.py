"""Nodes that nobody uses go, but for effects and random ops, which move the generator's state."""

from __future__ import annotations

from torch import fx

from trnx.fx_passes.nodes import has_effect, is_random
from trnx.fx_passes.passes import Pass


def is_dead(node: fx.Node) -> bool:
    """True where `node` can be erased."""
    return not node.users and not has_effect(node) and not is_random(node)


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in reversed(list(gm.graph.nodes)):
        if is_dead(node):
            gm.graph.erase_node(node)
    return gm


REMOVE_DEAD = Pass(
    "remove_dead",
    _run,
    requires=("no_common_subexpressions",),
    ensures=("no_dead_nodes", "no_common_subexpressions"),
)
