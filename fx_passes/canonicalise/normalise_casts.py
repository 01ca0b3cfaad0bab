"""A cast is `_to_copy` that names only a dtype; one to the dtype that is there is a `clone`.

What `copy_` leaves, `copy(into, source)`, is `source` in the sizes and dtype of `into`.
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import call_if_same, rule_run
from trnx.fx_passes.metadata import insert_call
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass


def _convert(node: fx.Node) -> fx.Node | None:
    """`prims.convert_element_type`, which Dynamo writes around numbers that may change."""
    source, dtype = node.args
    return call_if_same(node, aten._to_copy.default, (source,), {"dtype": dtype})


def _dtype_only(node: fx.Node) -> fx.Node | None:
    wanted = {"dtype": val(node).dtype}
    if dict(node.kwargs) == wanted:
        return None
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if val(source).dtype == val(node).dtype:
        layout = node.kwargs.get("memory_format")
        options = {} if layout is None else {"memory_format": layout}
        return call_if_same(node, aten.clone.default, (source,), options)
    return call_if_same(node, aten._to_copy.default, (source,), wanted)


# They read the values of their second argument, wherever those lie.
_SCATTERS = frozenset(
    {aten.slice_scatter.default, aten.select_scatter.default, aten.as_strided_scatter.default}
)


def _written(node: fx.Node) -> fx.Node | None:
    into, source = node.args[:2]
    assert isinstance(into, fx.Node)
    assert isinstance(source, fx.Node)
    if val(source).shape != val(into).shape:
        return None
    target, options = aten.clone.default, {}
    if val(source).dtype != val(into).dtype:
        target, options = aten._to_copy.default, {"dtype": val(into).dtype}
    if _is_scattered(node):
        return insert_call(node, target, (source,), options)
    return call_if_same(node, target, (source,), options)


def _is_scattered(node: fx.Node) -> bool:
    """True where only scatters read the node's values, so that its strides do not matter."""
    return all(user.target in _SCATTERS and user.args[0] is not node for user in node.users)


NORMALISE_CASTS = Pass(
    "normalise_casts",
    rule_run(
        {
            aten._to_copy.default: _dtype_only,
            aten.copy.default: _written,
            torch.ops.prims.convert_element_type.default: _convert,
        }
    ),
    ensures=("plain_casts",),
    breaks=("no_noops",),
)
