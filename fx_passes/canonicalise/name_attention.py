"""Fused attention that AOTAutograd met becomes `trnx::sdpa`: calls that `rewrite.py` did not see.

Only where layouts agree, and without dropout, whose mask these operators do not show.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.aliasing import same_layout
from trnx.fx_passes.canonicalise._rules import rule_run
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import insert_call
from trnx.fx_passes.nodes import aten, getitems, val
from trnx.fx_passes.passes import Pass
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops

_FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _scale(q: fx.Node, given: Any) -> float | None:
    if given is not None:
        return given if isinstance(given, float) else None
    width = val(q).shape[-1]
    return float(width) ** -0.5 if isinstance(width, int) and width else None


def _replace_results(node: fx.Node, new: fx.Node) -> fx.Node | None:
    """`new`, where the results that are used have the layouts that they had."""
    for item in getitems(node):
        place = item.args[1]
        assert isinstance(place, int)
        if not same_layout(new.meta["val"][place], val(item)):
            new.graph.erase_node(new)
            return None
    return new


def _forward(node: fx.Node) -> fx.Node | None:
    q, k, v, dropout, causal, mask, scale = call_arguments(node)
    number = _scale(q, scale)
    if dropout != 0.0 or number is None or val(q).dtype not in _DTYPES:
        return None
    args = (q, k, v, mask, None, 0.0, causal, number)
    return _replace_results(node, insert_call(node, torch.ops.trnx.sdpa.default, args))


def _backward(node: fx.Node) -> fx.Node | None:
    grad, q, k, v, out, lse, dropout, causal, mask, scale = call_arguments(node)
    number = _scale(q, scale)
    if dropout != 0.0 or number is None or val(q).dtype not in _DTYPES:
        return None
    args = (grad, q, k, v, out, lse, mask, None, 0.0, causal, number, False)
    return _replace_results(node, insert_call(node, torch.ops.trnx.sdpa_backward.default, args))


NAME_ATTENTION = Pass(
    "name_attention",
    rule_run({_FORWARD: _forward, _BACKWARD: _backward}),
    ensures=("attention_named",),
)
