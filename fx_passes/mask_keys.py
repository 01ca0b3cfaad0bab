"""Attention over a symbolic number of keys is given a mask that is True for all of them.

It changes no value. Where the keys are padded to a bucket, its padding is False and hides theirs;
without one, nothing would. Causal attention over as many keys as queries hides them itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.metadata import insert_call
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import depends_on_data, is_symbolic
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    masks: dict[Any, fx.Node] = {}
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.trnx.sdpa.default):
        if not _is_open(node):
            continue
        length = _keys(node).shape[2].node.expr  # type: ignore[attr-defined]  # it is symbolic
        if length not in masks:
            masks[length] = _all_keys(node)
        node.update_arg(3, masks[length])
    return gm


def _keys(node: fx.Node) -> torch.Tensor:
    return val(node.args[1])  # type: ignore[arg-type]


def _is_open(node: fx.Node) -> bool:
    """Attention without a mask over a number of keys that a call determines."""
    mask, dropout, _, is_causal = node.args[3:7]
    if mask is not None or dropout is not None or is_causal:
        return False
    return is_symbolic(_keys(node).shape[2]) and not depends_on_data(_keys(node))


def _all_keys(node: fx.Node) -> fx.Node:
    """True [1, 1, 1, S], before `node`."""
    known = _keys(node)
    size = insert_call(node, aten.sym_size.int, (node.args[1], 2), value=known.shape[2])
    options = {"dtype": torch.bool, "device": known.device, "pin_memory": False}
    return insert_call(node, aten.full.default, ([1, 1, 1, size], True), options)


MASK_KEYS = Pass("mask_keys", _run, requires=("masks_named",))
