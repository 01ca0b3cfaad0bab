"""Pointwise ops of one tensor stand before views: gelu(view(x)) becomes view(gelu(x)).

So an epilogue stands next to the product that it follows. Only views that show every element once.
"""

from __future__ import annotations

from torch import fx

from trnx.fx_passes.aliasing import same_layout
from trnx.fx_passes.metadata import fake_value, insert_call, replace
from trnx.fx_passes.nodes import arguments, aten, has_tensor, is_mutation, is_pointwise, is_random
from trnx.fx_passes.passes import Pass

_WHOLE_VIEWS = frozenset(
    {
        aten.view.default,
        aten.transpose.int,
        aten.permute.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.unsqueeze.default,
    }
)


def _is_unary(node: fx.Node) -> bool:
    """True for a pointwise op with one tensor, whose other arguments are numbers."""
    if not (is_pointwise(node) or node.target is aten._to_copy.default):
        return False
    if is_random(node) or is_mutation(node):
        return False
    return len(node.all_input_nodes) == 1 and len(node.args) > 0 and has_tensor(node)


def _hoist(node: fx.Node) -> fx.Node | None:
    """The view that takes the place of `node`, where one stood before it."""
    own = arguments(node)
    places = [i for i, a in enumerate(own) if isinstance(a, fx.Node)]
    if len(places) != 1 or not _is_unary(node):
        return None
    view = own[places[0]]
    if view.op != "call_function" or view.target not in _WHOLE_VIEWS:
        return None
    source, *shape = arguments(view)
    if source.op == "placeholder":  # a parameter: nothing to fuse with
        return None
    args = (*own[: places[0]], source, *own[places[0] + 1 :])
    value = fake_value(node, node.target, args, node.kwargs)
    if value is None:
        return None
    early = insert_call(node, node.target, args, node.kwargs, value=value)
    late = fake_value(node, view.target, (early, *shape), view.kwargs)
    if late is None or not same_layout(late, node.meta["val"]):
        node.graph.erase_node(early)
        return None
    new = insert_call(node, view.target, (early, *shape), view.kwargs, value=late)
    replace(node, new)
    return early


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in list(gm.graph.nodes):
        moved: fx.Node | None = node
        while moved is not None and moved.op == "call_function":
            moved = _hoist(moved)
    return gm


HOIST_POINTWISE = Pass(
    "hoist_pointwise",
    _run,
    requires=("one_view_spelling", "constants_are_numbers"),
    ensures=("pointwise_before_views",),
    breaks=("no_view_of_a_view", "no_round_trips"),  # with the op, or the view, between them
)
