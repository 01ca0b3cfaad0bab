"""A `cat` of more tensors than the kernel takes is a `cat` of some, each of neighbours.

Every byte is moved once more for each sixteenfold; dtypes that no kernel copies stay as they are.
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import rule_run
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same, insert_call
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass

MOST = 16  # nki_kernels/kernels/_copies.py
_COPIED = (
    *(torch.float32, torch.bfloat16, torch.float16),
    *(torch.int32, torch.int64, torch.bool, torch.uint8, torch.int8),
)


def _split(node: fx.Node) -> fx.Node | None:
    given, dim = call_arguments(node)
    if len(given) <= MOST or val(node).dtype not in _COPIED:
        return None
    tensors = list(given)
    while len(tensors) > MOST:
        count = -(-len(tensors) // MOST)
        each = -(-len(tensors) // count)
        parts = [tensors[i : i + each] for i in range(0, len(tensors), each)]
        tensors = [
            part[0] if len(part) == 1 else insert_call(node, aten.cat.default, (part, dim))
            for part in parts
        ]
    return call_if_same(node, aten.cat.default, (tensors, dim))


SPLIT_CATS = Pass("split_cats", rule_run({aten.cat.default: _split}), ensures=("cats_are_short",))
