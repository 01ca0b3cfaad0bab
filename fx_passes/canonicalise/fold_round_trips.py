"""A cast back to where the value came from is dropped.

Only exact round trips: from a dtype to one that holds all its values, and back.
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import removal_run
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass
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


def _origin(node: fx.Node) -> fx.Node | None:
    """The value that `node` casts back to its first dtype."""
    if node.target is not aten._to_copy.default:
        return None
    wide = node.args[0]
    if not isinstance(wide, fx.Node) or wide.target is not aten._to_copy.default:
        return None
    origin = wide.args[0]
    if not isinstance(origin, fx.Node):  # a number, which batching casts
        return None
    first, between, last = val(origin), val(wide), val(node)
    exact = between.dtype in _HOLDS.get(first.dtype, ())
    same = first.dtype == last.dtype and same_numbers(first.stride(), last.stride())
    return origin if exact and same and first.device == last.device else None


FOLD_ROUND_TRIPS = Pass(
    "fold_round_trips",
    removal_run(_origin),
    requires=("plain_casts", "no_noops"),
    ensures=("no_round_trips",),
    breaks=("no_view_of_a_view",),  # with the casts between them
)
