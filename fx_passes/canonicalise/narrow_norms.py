"""A layer norm of what a cast has widened, whose result is cast back, is one of half precision.

The op computes in float32 and rounds once, whatever x is, so that its result is the same; kernels
of which it is a part take it without casts. Only where nobody reads its statistics, whose dtype
eager takes from x.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import Rule, rule_run
from trnx.fx_passes.metadata import call_if_same, erase_unused, insert_call
from trnx.fx_passes.nodes import arguments, aten, val
from trnx.fx_passes.passes import Pass

_HALVES = (torch.bfloat16, torch.float16)


def _is_cast(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten._to_copy.default


def _result(norm: fx.Node) -> fx.Node | None:
    """What casts the normalised rows, where these have no other user and the statistics none."""
    read = [item for item in norm.users if item.users]
    if len(read) != 1 or read[0].target is not operator.getitem or read[0].args[1] != 0:
        return None
    users = list(read[0].users)
    return users[0] if len(users) == 1 and _is_cast(users[0]) else None


def _narrow(norm: fx.Node) -> None:
    wide, shape, weight, bias, eps = arguments(norm)
    cast = _result(norm)
    if cast is None or not _is_cast(wide) or val(wide).dtype is not torch.float32:
        return
    x = wide.args[0]
    if not isinstance(x, fx.Node) or val(x).dtype not in _HALVES:
        return
    if any(v is not None and val(v).dtype is not torch.float32 for v in (weight, bias)):
        return
    made = insert_call(norm, norm.target, (x, shape, weight, bias, eps))
    new = call_if_same(cast, operator.getitem, (made, 0))
    if new is not None:
        cast.replace_all_uses_with(new)
        erase_unused(cast)
    else:
        erase_unused(made)


_RULES: dict[Any, Rule] = {aten.native_layer_norm.default: _narrow}

NARROW_NORMS = Pass(
    "narrow_norms",
    rule_run(_RULES),
    requires=("plain_casts", "no_round_trips"),
    ensures=("narrow_norms",),
)
