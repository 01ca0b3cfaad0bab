"""One matrix product: `mm`, `addmm` and `trnx::linear` become `aten.linear`, batched ones `bmm`.

    mm(a, t(w))                              linear(a, w)
    mm(a, b)                                 linear(a, transpose(b))
    addmm(bias, a, t(w))                     linear(a, w, bias)
    bmm(a, expand(w))                        linear(a, transpose(w)), of one matrix for all
    baddbmm(c, a, b)                         bmm(a, b) + c
    trnx::linear(a, b, bias, is_turned=True) linear(a, transpose(b), bias)

`addmm` and `baddbmm` with factors other than 1 (or 0 for what is added) stay as they are.
"""

from __future__ import annotations

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import rule_run
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same, insert_call
from trnx.fx_passes.nodes import arguments, aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import same_number, same_numbers
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers the trnx:: ops


def _weight(node: fx.Node, b: fx.Node) -> fx.Node:
    """[N, K] for the [K, N] operand `b`."""
    if b.target is aten.transpose.int and set(arguments(b)[1:]) == {0, 1}:
        source = b.args[0]
        assert isinstance(source, fx.Node)
        return source
    return insert_call(node, aten.transpose.int, (b, 0, 1))


def _mm(node: fx.Node) -> fx.Node | None:
    a, b = node.args
    assert isinstance(a, fx.Node)
    assert isinstance(b, fx.Node)
    if len({val(a).dtype, val(b).dtype, val(node).dtype}) != 1:
        return None
    return call_if_same(node, aten.linear.default, (a, _weight(node, b), None))


def _addmm(node: fx.Node) -> fx.Node | None:
    added, a, b, beta, alpha = call_arguments(node)
    if (beta, alpha) != (1, 1) or len({val(x).dtype for x in (added, a, b, node)}) != 1:
        return None
    weight = _weight(node, b)
    if val(added).ndim == 1 and same_number(val(added).shape[0], val(node).shape[1]):
        return call_if_same(node, aten.linear.default, (a, weight, added))
    product = insert_call(node, aten.linear.default, (a, weight, None))
    return call_if_same(node, aten.add.Tensor, (product, added))


def _bmm(node: fx.Node) -> fx.Node | None:
    a, b = node.args
    assert isinstance(a, fx.Node)
    assert isinstance(b, fx.Node)
    if b.target is not aten.expand.default or len({val(a).dtype, val(b).dtype}) != 1:
        return None
    matrix = b.args[0]
    assert isinstance(matrix, fx.Node)
    if not same_numbers(val(matrix).shape, val(b).shape[1:]):
        return None
    return call_if_same(node, aten.linear.default, (a, _weight(node, matrix), None))


def _baddbmm(node: fx.Node) -> fx.Node | None:
    added, a, b, beta, alpha = call_arguments(node)
    if alpha != 1 or beta not in (0, 1):
        return None
    if beta == 0:
        return call_if_same(node, aten.bmm.default, (a, b))
    product = insert_call(node, aten.bmm.default, (a, b))
    return call_if_same(node, aten.add.Tensor, (product, added))


def _linear(node: fx.Node) -> fx.Node:
    x, weight, bias, is_turned = node.args
    assert isinstance(weight, fx.Node)
    weight = _weight(node, weight) if is_turned else weight
    return insert_call(node, aten.linear.default, (x, weight, bias), value=val(node))


NAME_PRODUCTS = Pass(
    "name_products",
    rule_run(
        {
            aten.mm.default: _mm,
            aten.addmm.default: _addmm,
            aten.bmm.default: _bmm,
            aten.baddbmm.default: _baddbmm,
            torch.ops.trnx.linear.default: _linear,
        }
    ),
    requires=("dims_named", "one_view_spelling", "no_noops", "no_round_trips"),
    ensures=("one_product",),
)
