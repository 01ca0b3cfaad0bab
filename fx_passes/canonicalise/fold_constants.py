"""A tensor of one known value is a Python number in the argument list of a pointwise op.

Taken where the op gives the same dtype and layout with the number. What is folded: factories of one
value (`full`, `zeros`, `ones`, `scalar_tensor`), constants of one element that tracing stored,
casts of them, and views of them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.aliasing import same_layout
from trnx.fx_passes.metadata import fake_value, real_values
from trnx.fx_passes.nodes import aten, has_tensor, is_mutation, is_pointwise, is_view, schema_of
from trnx.fx_passes.numbers import number_tensor
from trnx.fx_passes.passes import Pass

Number = bool | int | float
_FILLED = {aten.zeros.default: 0, aten.ones.default: 1}
_COPIES = frozenset({aten._to_copy.default, aten.clone.default, aten.lift_fresh_copy.default})


def _value(node: Any) -> Number | None:
    """The value of every element of `node`, as its dtype stores it, or None where it is not
    known.
    """
    if not has_tensor(node):
        return None
    value: Any = None
    if node.op == "get_attr":
        value = _stored_number(node)
    elif node.op != "call_function":
        return None
    elif node.target in _FILLED:
        value = _FILLED[node.target]
    elif node.target is aten.full.default:
        value = node.args[1]
    elif node.target is aten.scalar_tensor.default:
        value = node.args[0]
    elif node.target in _COPIES or is_view(node):
        value = _value(node.args[0])
    if not isinstance(value, (bool, int, float)):
        return None
    with real_values():
        stored = number_tensor(value, node.meta["val"].dtype).item()
    return stored if isinstance(stored, (bool, int, float)) else None


def _stored_number(node: fx.Node) -> Number | None:
    """The element of a constant of one element that tracing stored in the graph module."""
    stored = operator.attrgetter(str(node.target))(node.graph.owning_module)
    if type(stored) is not torch.Tensor or stored.numel() != 1 or stored.device.type != "cpu":
        return None
    with real_values():
        number = stored.item()
    return number if isinstance(number, (bool, int, float)) else None


# `where` takes numbers in overloads of its own: by which of its two values is one.
_WHERE: dict[tuple[bool, bool], Any] = {
    (True, False): aten.where.ScalarSelf,
    (False, True): aten.where.ScalarOther,
    (True, True): aten.where.Scalar,
}


def _fold_where(node: fx.Node) -> None:
    condition, *values = node.args
    numbers = [_value(value) for value in values]
    target = _WHERE.get((numbers[0] is not None, numbers[1] is not None))
    if target is None:
        return
    pairs = zip(numbers, values, strict=True)
    args = (condition, *(v if n is None else n for n, v in pairs))
    value = fake_value(node, target, args, {})
    if value is not None and same_layout(value, node.meta["val"]):
        node.target, node.args = target, args


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
        if node.op == "call_function" and node.target is aten.where.self:
            _fold_where(node)
        elif is_pointwise(node) and has_tensor(node) and not is_mutation(node):
            _fold(node)
    return gm


FOLD_CONSTANTS = Pass(
    "fold_constants",
    _run,
    requires=("one_overload", "factories_read_nothing"),
    ensures=("constants_are_numbers",),
)
