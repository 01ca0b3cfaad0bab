"""A product keeps the leading dimensions of the tensor that was flattened for it.

view(linear(view(x, [-1, K]), w))              linear(x, w)
view(linear(view(x, [R, K]), w), [B, S, N])    linear(view(x, [B, S, K]), w)

The second where the view of x merges the dimensions of K too, as those of attention's heads.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from trnx.fx_passes.metadata import insert_call, replace
from trnx.fx_passes.nodes import arguments, aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic, same_number, same_numbers


def _widen(node: fx.Node) -> None:
    """Let a product read the tensor that was flattened for it, and keep its leading dimensions."""
    flat, *rest = node.args
    if not isinstance(flat, fx.Node) or flat.target is not aten.view.default:
        return
    x = flat.args[0]
    assert isinstance(x, fx.Node)
    width = val(flat).shape[-1]
    if val(flat).ndim != 2 or val(x).ndim < 2:
        return
    if not same_number(val(x).shape[-1], width):
        split = _split(node, x, width)
        if split is None:
            return
        x = split
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


def _split(node: fx.Node, x: fx.Node, width: Any) -> fx.Node | None:
    """`x[..., K]` with the leading dimensions of a view of the product, if there is one."""
    columns = val(node).shape[-1]
    if is_symbolic(width):
        return None
    for user in node.users:
        shape = val(user).shape if user.target is aten.view.default else ()
        if len(shape) > 2 and same_number(shape[-1], columns) and not any(map(is_symbolic, shape)):
            return insert_call(node, aten.view.default, (x, [*shape[:-1], width]))
    return None


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


WIDEN_PRODUCTS = Pass(
    "widen_products",
    _run,
    requires=("one_product", "no_view_of_a_view"),
    ensures=("products_keep_dimensions",),
    breaks=("no_view_of_a_view",),  # where another user reads the flat product
)
