"""Products of groups of rows with a matrix each become `trnx::grouped_mm`: those of
`torch.nn.functional.grouped_mm` (without a bias), and the operator that transformers writes for its
mixtures of experts where that one does not take the dtype.
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import call_if_same
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import replace
from trnx.fx_passes.nodes import has_tensor, schema_of, val
from trnx.fx_passes.passes import Pass
from trnx.nki_kernels.grouped_ops import GROUPED_PRODUCTS


def _named(node: fx.Node) -> fx.Node | None:
    schema = schema_of(node)
    if schema is None or schema.name not in GROUPED_PRODUCTS:
        return None
    x, weight, offsets, *rest = call_arguments(node)
    if any(one is not None for one in rest) or not all(map(has_tensor, (x, weight, offsets))):
        return None
    if (val(x).ndim, val(weight).ndim, val(offsets).ndim) != (2, 3, 1):
        return None
    return call_if_same(node, torch.ops.trnx.grouped_mm.default, (x, weight, offsets))


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        new = _named(node) if node.op == "call_function" else None
        if new is not None:
            replace(node, new)
    return gm


NAME_GROUPED_PRODUCTS = Pass("name_grouped_products", _run, ensures=("one_grouped_product",))
