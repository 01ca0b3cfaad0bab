"""Casts: `_to_copy` names only a dtype, and a cast back to where the value came from is dropped.

Only exact round trips are dropped: from a dtype to one that holds all its values, and back.
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import call_if_same, removal_pass, rule_pass
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.symbolic import same_numbers

_HOLDS = {
    torch.bool: frozenset(
        {
            torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
            torch.float16, torch.bfloat16, torch.float32, torch.float64,
        }
    ),
    torch.float16: frozenset({torch.float32, torch.float64}),
    torch.bfloat16: frozenset({torch.float32, torch.float64}),
    torch.float32: frozenset({torch.float64}),
    torch.uint8: frozenset(
        {torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
    ),
    torch.int8: frozenset(
        {torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
    ),
    torch.int16: frozenset({torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int32: frozenset({torch.int64, torch.float64}),
}  # fmt: skip


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


def _origin(node: fx.Node) -> fx.Node | None:
    """The value that `node` casts back to its first dtype."""
    if node.target is not aten._to_copy.default:
        return None
    wide = node.args[0]
    assert isinstance(wide, fx.Node)
    if wide.target is not aten._to_copy.default:
        return None
    origin = wide.args[0]
    assert isinstance(origin, fx.Node)
    first, between, last = val(origin), val(wide), val(node)
    exact = between.dtype in _HOLDS.get(first.dtype, ())
    same = first.dtype == last.dtype and same_numbers(first.stride(), last.stride())
    return origin if exact and same and first.device == last.device else None


NORMALISE_CASTS = rule_pass(
    "normalise_casts",
    {
        aten._to_copy.default: _dtype_only,
        torch.ops.prims.convert_element_type.default: _convert,
    },
    "plain_casts",
)
FOLD_ROUND_TRIPS = removal_pass("fold_round_trips", _origin, "no_round_trips")
