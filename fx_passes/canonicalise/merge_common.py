"""Equal calls are made once. Never random ops, writes, or calls on a storage that is written."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.aliasing import Aliasing
from trnx.fx_passes.metadata import replace
from trnx.fx_passes.nodes import UNFILLED, getitems, has_effect, is_random, is_view
from trnx.fx_passes.passes import Pass
from trnx.nki_kernels.keys import key_of


def _may_merge(node: fx.Node) -> bool:
    if node.op != "call_function" or has_effect(node) or is_random(node):
        return False
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    return node.target not in UNFILLED


def _can_stand_in(aliasing: Aliasing, old: fx.Node, new: fx.Node) -> bool:
    """True where all users of `old`, and of each of its results, may read those of `new`."""
    if is_view(old) or not getitems(old):
        return aliasing.can_stand_in(old, new)
    return all(
        aliasing.can_stand_in(mine, its)
        for mine in getitems(old)
        for its in getitems(new)
        if mine.args[1] == its.args[1]
    )


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    aliasing = Aliasing(gm.graph)
    known: dict[Any, fx.Node] = {}
    for node in list(gm.graph.nodes):
        if not _may_merge(node):
            continue
        key = (node.target, key_of(node.args), key_of(sorted(node.kwargs.items())))
        first = known.setdefault(key, node)
        if first is node or aliasing.touches_written(node):
            continue
        if _can_stand_in(aliasing, node, first):
            aliasing.replaced(node, first)
            replace(node, first)
    return gm


MERGE_COMMON = Pass(
    "merge_common",
    _run,
    requires=("dims_named", "one_view_spelling", "one_overload", "run_time_numbers_are_tensors"),
    ensures=("no_common_subexpressions",),
)
