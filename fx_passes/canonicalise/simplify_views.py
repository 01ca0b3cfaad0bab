"""One spelling per view: `t` and swapping `permute`s as `transpose.int`, `_unsafe_view` and what
`reshape` leaves as `view`; a view of a view is one view; two transposes cancel.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from trnx.fx_passes.canonicalise._rules import Rule, rule_run
from trnx.fx_passes.metadata import call_if_same
from trnx.fx_passes.nodes import arguments, aten, has_tensor, val
from trnx.fx_passes.passes import Pass

_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})


def _transpose_of(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """The source and the two dimensions where `node` swaps two dimensions."""
    if node.op != "call_function" or not node.args or not has_tensor(node.args[0]):
        return None
    source, *rest = arguments(node)
    if node.target is aten.t.default:
        return (source, 0, 1) if val(source).ndim == 2 else None
    if node.target is aten.transpose.int:
        first, second = sorted(rest)
        return source, first, second
    if node.target is aten.permute.default:
        moved = [i for i, d in enumerate(rest[0]) if i != d]
        return (source, moved[0], moved[1]) if len(moved) == 2 else None
    return None


def _transpose(node: fx.Node) -> fx.Node | None:
    swap = _transpose_of(node)
    if swap is None:
        return None
    inner = _transpose_of(swap[0])
    if inner is not None and inner[1:] == swap[1:]:
        return call_if_same(node, aten.alias.default, (inner[0],))
    if node.target is aten.transpose.int and node.args == swap:
        return None
    return call_if_same(node, aten.transpose.int, swap)


def _view(node: fx.Node) -> fx.Node | None:
    source, sizes = node.args[0], node.args[1]
    assert isinstance(source, fx.Node)
    if all(isinstance(size, int) for size in val(node).shape):
        sizes = list(val(node).shape)  # a -1 among the sizes is known
    if source.target in _VIEWS:
        merged = call_if_same(node, aten.view.default, (source.args[0], sizes))
        if merged is not None:
            return merged
    if node.target is aten.view.default and node.args[1] == sizes:
        return None
    return call_if_same(node, aten.view.default, (source, sizes))


_RULES: dict[Any, Rule] = {
    aten.t.default: _transpose,
    aten.transpose.int: _transpose,
    aten.permute.default: _transpose,
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.reshape.default: _view,
}

SIMPLIFY_VIEWS = Pass(
    "simplify_views",
    rule_run(_RULES),
    requires=("dims_named",),
    ensures=("one_view_spelling", "no_view_of_a_view"),
    breaks=("no_noops",),  # two transposes that cancel leave an alias
)
