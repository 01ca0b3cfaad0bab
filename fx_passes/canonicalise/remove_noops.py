"""Remove what changes nothing: copies and views with the sizes, strides and dtype of their
argument.

A copy stays where a graph output, or a write to an input, would notice that it is gone
(`aliasing.py`).
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.aliasing import same_layout
from trnx.fx_passes.canonicalise._rules import removal_run
from trnx.fx_passes.nodes import aten, has_tensor
from trnx.fx_passes.passes import Pass

_CANDIDATES = frozenset(
    {
        aten.clone.default,
        aten.alias.default,
        aten.detach.default,
        aten.lift.default,
        aten.lift_fresh.default,
        aten.lift_fresh_copy.default,
        aten._to_copy.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.expand.default,
        aten.permute.default,
        aten.slice.Tensor,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.contiguous.default,
    }
)


def _source(node: fx.Node) -> fx.Node | None:
    source = node.args[0] if node.args else None
    if node.target not in _CANDIDATES or not has_tensor(node) or not has_tensor(source):
        return None
    assert isinstance(source, fx.Node)
    old, new = node.meta["val"], source.meta["val"]
    pinned = node.kwargs.get("pin_memory")
    if pinned or type(old) is not type(new) or old.layout != torch.strided:
        return None
    return source if same_layout(old, new) else None


REMOVE_NOOPS = Pass(
    "remove_noops",
    removal_run(_source),
    requires=("one_view_spelling", "no_view_of_a_view", "plain_casts"),
    ensures=("no_noops",),
    breaks=("no_view_of_a_view", "no_round_trips"),  # with a copy between them
)
