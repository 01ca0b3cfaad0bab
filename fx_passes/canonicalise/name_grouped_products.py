"""Products of groups of rows with a matrix each become `trnx::grouped_mm`, and the gradients of
their matrices `trnx::grouped_mm_weight_gradient`: those of `torch.nn.functional.grouped_mm`
(without a bias), and the operators that transformers writes for its mixtures of experts where that
one does not take the dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same, insert_call, replace
from trnx.fx_passes.nodes import aten, has_tensor, schema_of, val
from trnx.fx_passes.passes import Pass
from trnx.nki_kernels.grouped_ops import GROUPED_BACKWARD, GROUPED_PRODUCTS

_PRODUCT = torch.ops.trnx.grouped_mm.default
_WEIGHT_GRADIENT = torch.ops.trnx.grouped_mm_weight_gradient.default


def _named(node: fx.Node) -> fx.Node | None:
    """One product of rows [S, K] with matrices [E, K, N], or of [K, S] with [S, N] by group."""
    x, weight, offsets, *rest = call_arguments(node)
    if any(one is not None for one in rest) or not all(map(has_tensor, (x, weight, offsets))):
        return None
    dims = (val(x).ndim, val(weight).ndim, val(offsets).ndim)
    if dims == (2, 3, 1):
        return call_if_same(node, _PRODUCT, (x, weight, offsets))
    if dims == (2, 2, 1):
        rows = _swapped(x, node, 0, 1)
        return call_if_same(node, _WEIGHT_GRADIENT, (rows, weight, offsets))
    return None


def _swapped(x: fx.Node, before: fx.Node, first: int, second: int) -> fx.Node:
    return insert_call(before, aten.transpose.int, (x, first, second))


def _gradient(item: fx.Node, arguments: tuple[Any, ...]) -> fx.Node | None:
    """One of the two gradients of transformers' operator, in the layout of what it is of."""
    x, weight, offsets, grad = arguments
    if item.args[1] == 0:
        return call_if_same(item, _PRODUCT, (grad, _swapped(weight, item, 1, 2), offsets))
    found = call_if_same(item, _WEIGHT_GRADIENT, (x, grad, offsets))
    if found is not None:
        return found
    turned = insert_call(item, _WEIGHT_GRADIENT, (grad, x, offsets))
    return call_if_same(item, aten.transpose.int, (turned, 1, 2))


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        schema = schema_of(node) if node.op == "call_function" else None
        if schema is None:
            continue
        if schema.name in GROUPED_PRODUCTS:
            new = _named(node)
            if new is not None:
                replace(node, new)
        elif schema.name == GROUPED_BACKWARD:
            for item in list(node.users):
                new = _gradient(item, tuple(call_arguments(node)))
                if new is not None:
                    replace(item, new)
    return gm


NAME_GROUPED_PRODUCTS = Pass("name_grouped_products", _run, ensures=("one_grouped_product",))
