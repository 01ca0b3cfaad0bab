"""A cast is `_to_copy` that names only a dtype; one to the dtype that is there is a `clone`.

What `copy_` leaves, `copy(into, source)`, is `source` in the sizes, dtype and layout of `into`. A
running sum with a dtype is one of the cast; an int32 one is cast behind it, since int64 sums have
its bits in their low word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.canonicalise._rules import rule_run
from trnx.fx_passes.metadata import call_if_same, insert_call
from trnx.fx_passes.nodes import aten, val
from trnx.fx_passes.passes import Pass
from trnx.fx_passes.symbolic import is_symbolic
from trnx.nki_kernels.hints import hint_int


def _convert(node: fx.Node) -> fx.Node | None:
    """`prims.convert_element_type`, which Dynamo writes around numbers that may change."""
    source, dtype = node.args
    return call_if_same(node, aten._to_copy.default, (source,), {"dtype": dtype})


def _dtype_only(node: fx.Node) -> fx.Node | None:
    wanted = {"dtype": val(node).dtype}
    if dict(node.kwargs) == wanted:
        return None
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if val(source).dtype == val(node).dtype:
        layout = node.kwargs.get("memory_format")
        options = {} if layout is None else {"memory_format": layout}
        return call_if_same(node, aten.clone.default, (source,), options)
    return call_if_same(node, aten._to_copy.default, (source,), wanted)


# They read the values of their second argument, wherever those lie.
_SCATTERS = frozenset(
    {aten.slice_scatter.default, aten.select_scatter.default, aten.as_strided_scatter.default}
)


def _written(node: fx.Node) -> fx.Node | None:
    into, source = node.args[:2]
    assert isinstance(into, fx.Node)
    assert isinstance(source, fx.Node)
    if val(source).shape != val(into).shape:
        sizes = [_size(node, into, i) for i in range(val(into).ndim)]
        source = insert_call(node, aten.expand.default, (source, sizes))
    target, options = aten.clone.default, {}
    if val(source).dtype != val(into).dtype:
        target, options = aten._to_copy.default, {"dtype": val(into).dtype}
    if _is_scattered(node):
        return insert_call(node, target, (source,), options)
    same = call_if_same(node, target, (source,), options)
    return _in_layout(node, target, source, options) if same is None else same


def _size(node: fx.Node, tensor: fx.Node, dim: int) -> Any:
    size = val(tensor).shape[dim]
    if not is_symbolic(size):
        return size
    return insert_call(node, aten.sym_size.int, (tensor, dim))


def _in_layout(node: fx.Node, target: Any, source: fx.Node, options: Any) -> fx.Node | None:
    """The copy made row-major in the order in which the result's dimensions lie in memory."""
    known = val(node)
    strides = known.stride()
    order = sorted(range(known.ndim), key=lambda i: -hint_int(strides[i]))
    turned = insert_call(node, aten.permute.default, (source, order))
    if target is aten._to_copy.default:
        turned = insert_call(node, target, (turned,), options)
    layout = {"memory_format": torch.contiguous_format}
    copied = insert_call(node, aten.clone.default, (turned,), layout)
    inverse = [order.index(i) for i in range(known.ndim)]
    return call_if_same(node, aten.permute.default, (copied, inverse))


_SUMMED = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def _summed(node: fx.Node) -> fx.Node | None:
    dtype = node.kwargs.get("dtype")
    x, dim = node.args[:2]
    assert isinstance(x, fx.Node)
    if dtype is torch.int32:
        if val(x).is_floating_point():
            x = insert_call(node, aten._to_copy.default, (x,), {"dtype": dtype})
        total = insert_call(node, aten.cumsum.default, (x, dim))
        return call_if_same(node, aten._to_copy.default, (total,), {"dtype": dtype})
    if dtype not in _SUMMED:
        return None
    same = call_if_same(node, aten.cumsum.default, (x, dim))
    if same is not None and (val(x).dtype is dtype or not val(x).is_floating_point()):
        return same
    cast = insert_call(node, aten._to_copy.default, (x,), {"dtype": dtype})
    return call_if_same(node, aten.cumsum.default, (cast, dim))


def _is_scattered(node: fx.Node) -> bool:
    """True where only scatters read the node's values, so that its strides do not matter."""
    return all(user.target in _SCATTERS and user.args[0] is not node for user in node.users)


NORMALISE_CASTS = Pass(
    "normalise_casts",
    rule_run(
        {
            aten._to_copy.default: _dtype_only,
            aten.copy.default: _written,
            aten.cumsum.default: _summed,
            torch.ops.prims.convert_element_type.default: _convert,
        }
    ),
    ensures=("plain_casts",),
    breaks=("no_noops",),
)
