"""One overload per pointwise op: a number operand stands in the argument list, and there is no
alpha.

`add.Scalar`, `rsub` and their like become `.Tensor` overloads; `masked_fill` becomes `where`;
`alpha` becomes a product of its own. Overloads for numbers stay where they are the only spelling of
it: `pow.Tensor_Scalar`, `pow.Scalar`, `where.ScalarSelf`, `where.ScalarOther`, `where.Scalar`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.canonicalise._overloads import ARITHMETIC, COMPARISONS
from trnx.fx_passes.canonicalise._rules import Rule, rule_run
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import call_if_same, insert_call
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass

_NARROW = (torch.bfloat16, torch.float16)
_PLAIN: dict[Any, Any] = {
    **COMPARISONS,
    **ARITHMETIC,
    aten.true_divide.Tensor: aten.div.Tensor,
    aten.true_divide.Scalar: aten.div.Tensor,
}


def _to_tensor_overload(node: fx.Node) -> fx.Node | None:
    return call_if_same(node, _PLAIN[node.target], node.args, node.kwargs)


def _sum(node: fx.Node) -> fx.Node | None:
    """`add` and `sub` of any overload, without alpha."""
    first, second, alpha = call_arguments(node)
    subtracts = node.target in (aten.sub.Tensor, aten.sub.Scalar)
    target = aten.sub.Tensor if subtracts else aten.add.Tensor
    return _without_alpha(node, target, first, second, alpha)


def _reversed_difference(node: fx.Node) -> fx.Node | None:
    """`rsub(x, y, alpha)` is y - alpha * x."""
    first, second, alpha = call_arguments(node)
    return _without_alpha(node, aten.sub.Tensor, second, first, alpha)


def _without_alpha(node: fx.Node, target: Any, a: Any, b: Any, alpha: Any) -> fx.Node | None:
    if isinstance(alpha, fx.Node):
        narrow = val(node).dtype in _NARROW
        return None if narrow else call_if_same(node, target, (a, _product(node, b, alpha)))
    if alpha == 1:
        already = node.target is target and len(node.args) == 2 and not node.kwargs
        return None if already else call_if_same(node, target, (a, b))
    if alpha == -1 and target is aten.sub.Tensor:
        return call_if_same(node, aten.add.Tensor, (a, b))
    if alpha == -1:
        return call_if_same(node, aten.sub.Tensor, (a, b))
    if not isinstance(b, fx.Node):
        return call_if_same(node, target, (a, b * alpha))
    if val(node).dtype in _NARROW:
        alpha = torch.tensor(alpha, dtype=val(node).dtype).item()  # as torch reads it
        return _in_float32(node, target, a, b, alpha)
    return call_if_same(node, target, (a, _product(node, b, alpha)))


def _product(node: fx.Node, x: Any, factor: Any) -> fx.Node:
    return insert_call(node, aten.mul.Tensor, (x, factor))


def _in_float32(node: fx.Node, target: Any, a: Any, b: fx.Node, alpha: Any) -> fx.Node | None:
    """Torch rounds a + alpha * b once, so the product must not be rounded to the narrow dtype."""
    wide = [
        insert_call(node, aten._to_copy.default, (x,), {"dtype": torch.float32})
        if isinstance(x, fx.Node)
        else x
        for x in (a, b)
    ]
    product = insert_call(node, aten.mul.Tensor, (wide[1], alpha))
    total = insert_call(node, target, (wide[0], product))
    return call_if_same(node, aten._to_copy.default, (total,), {"dtype": val(node).dtype})


def _masked_fill(node: fx.Node) -> fx.Node | None:
    x, mask, value = node.args
    target = aten.where.self if isinstance(value, fx.Node) else aten.where.ScalarSelf
    return call_if_same(node, target, (mask, value, x))


_RULES: dict[Any, Rule] = {
    **dict.fromkeys(_PLAIN, _to_tensor_overload),
    aten.add.Scalar: _sum,
    aten.add.Tensor: _sum,
    aten.sub.Scalar: _sum,
    aten.sub.Tensor: _sum,
    aten.rsub.Scalar: _reversed_difference,
    aten.rsub.Tensor: _reversed_difference,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
}

NORMALISE_OVERLOADS = Pass("normalise_overloads", rule_run(_RULES), ensures=("one_overload",))
