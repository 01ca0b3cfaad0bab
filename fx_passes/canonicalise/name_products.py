"""One matrix product: `mm`, `addmm` and views around them become `aten.linear`; batched ones
`aten.bmm`.

    mm(a, t(w))                              linear(a, w)
    mm(a, b)                                 linear(a, transpose(b))
    addmm(bias, a, t(w))                     linear(a, w, bias)
    view(linear(view(x, [-1, K]), w))        linear(x, w)
    baddbmm(c, a, b)                         bmm(a, b) + c

`addmm` and `baddbmm` with factors other than 1 (or 0 for what is added) stay as they are.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from trnx.fx_passes.canonicalise._rules import call_if_same, rule_pass
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.metadata import insert_call, replace
from trnx.fx_passes.nodes import arguments, aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic, same_number, same_numbers


def _weight(node: fx.Node, b: fx.Node) -> fx.Node:
    """[N, K] for the [K, N] operand `b`."""
    own = arguments(b)
    swaps = b.target is aten.transpose.int and {d % 2 for d in own[1:3]} == {0, 1}
    if swaps or b.target is aten.t.default:
        source = own[0]
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


def _baddbmm(node: fx.Node) -> fx.Node | None:
    added, a, b, beta, alpha = call_arguments(node)
    if alpha != 1 or beta not in (0, 1):
        return None
    if beta == 0:
        return call_if_same(node, aten.bmm.default, (a, b))
    product = insert_call(node, aten.bmm.default, (a, b))
    return call_if_same(node, aten.add.Tensor, (product, added))


NAME_PRODUCTS = rule_pass(
    "name_products",
    {aten.mm.default: _mm, aten.addmm.default: _addmm, aten.baddbmm.default: _baddbmm},
    "one_product",
)


def _widen(node: fx.Node) -> None:
    """Let a product read the tensor that was flattened for it, and keep its leading dimensions."""
    flat, *rest = node.args
    if not isinstance(flat, fx.Node) or flat.target is not aten.view.default:
        return
    x = flat.args[0]
    assert isinstance(x, fx.Node)
    width = val(flat).shape[-1]
    if val(flat).ndim != 2 or val(x).ndim < 2 or not same_number(val(x).shape[-1], width):
        return
    shape = (*val(x).shape[:-1], val(node).shape[-1])
    views = [user for user in node.users if _is_view_to(user, shape)]
    if not views:
        return
    wide = insert_call(node, aten.linear.default, (x, *rest), value=views[0].meta["val"])
    for view in views:
        replace(view, wide)
    if node.users:
        sizes = _sizes(node, flat)
        replace(node, insert_call(node, aten.view.default, (wide, sizes), value=node.meta["val"]))
    else:
        node.graph.erase_node(node)


def _is_view_to(user: fx.Node, shape: Any) -> bool:
    return user.target is aten.view.default and same_numbers(val(user).shape, shape)


def _sizes(node: fx.Node, flat: fx.Node) -> list[Any]:
    """The sizes of the flat product, as arguments of a view: those of `flat` with another width."""
    rows = arguments(flat)[1][0]
    return [rows, _number_argument(node)]


def _number_argument(node: fx.Node) -> Any:
    weight = node.args[1]
    assert isinstance(weight, fx.Node)
    columns = val(weight).shape[0]
    if not is_symbolic(columns):
        return columns
    return insert_call(node, aten.sym_size.int, (weight, 0), value=columns)


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is aten.linear.default:
            _widen(node)
    return gm


WIDEN_PRODUCTS = Pass("widen_products", _run, frozenset({"one_product"}), frozenset({"wide"}))
