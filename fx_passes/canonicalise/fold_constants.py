"""A tensor of one known value is a Python number in the argument list of a pointwise op.

Taken where the op gives the same dtype and layout with the number. What is folded: factories of one
value (`full`, `zeros`, `ones`, `scalar_tensor`), casts of them, and views of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from trnx.fx_passes.aliasing import same_layout
from trnx.fx_passes.canonicalise._rules import fake_value
from trnx.fx_passes.nodes import aten, has_tensor, is_pointwise, is_view, schema_of
from trnx.fx_passes.passes import Pass

Number = bool | int | float
_FILLED = {aten.zeros.default: 0, aten.ones.default: 1}
_COPIES = frozenset({aten._to_copy.default, aten.clone.default, aten.lift_fresh_copy.default})


def _value(node: Any) -> Number | None:
    """The value of every element of `node`, as its dtype stores it, or None where it is not
    known.
    """
    if not has_tensor(node) or node.op != "call_function":
        return None
    value: Any = None
    if node.target in _FILLED:
        value = _FILLED[node.target]
    elif node.target is aten.full.default:
        value = node.args[1]
    elif node.target is aten.scalar_tensor.default:
        value = node.args[0]
    elif node.target in _COPIES or is_view(node):
        value = _value(node.args[0])
    if not isinstance(value, (bool, int, float)):
        return None
    stored = torch.tensor(value).to(node.meta["val"].dtype).item()
    return stored if isinstance(stored, (bool, int, float)) else None


def _fold(node: fx.Node) -> None:
    schema = schema_of(node)
    for place, argument in enumerate(node.args):
        number = _value(argument)
        if number is None or str(schema.arguments[place].type) != "Tensor":
            continue
        args = (*node.args[:place], number, *node.args[place + 1 :])
        if not any(has_tensor(a) for a in args):
            continue
        value = fake_value(node, node.target, args, node.kwargs)
        if value is not None and same_layout(value, node.meta["val"]):
            node.args = args


def _run(gm: fx.GraphModule) -> fx.GraphModule:
    for node in gm.graph.nodes:
        if is_pointwise(node) and has_tensor(node):
            _fold(node)
    gm.recompile()
    return gm


FOLD_CONSTANTS = Pass("fold_constants", _run, ensures=frozenset({"constants_are_numbers"}))
