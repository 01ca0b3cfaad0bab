"""Which quotients of a region need not be rounded as IEEE 754 demands.

Optimizers divide by the root of a mean of squares, scaled and shifted by numbers, and add what
they get to the parameter: Adam, RMSprop, Adagrad. The sum rounds the quotient again, and nothing
there depends on its last bit as `round(x / scale)` does. A product with the reciprocal is within
two roundings of such a quotient, where the correct one (`division.py`) takes thirty instructions
more. A root lies in [2^-75, 2^64] or is zero or infinite, so its reciprocal neither overflows nor
loses bits.

A softmax written out divides exponentials, whose last bit no engine rounds correctly, by a sum that
is at least 1, as the largest exponential is. `aten._softmax` multiplies by the reciprocal, too.

A norm written out divides by the root of a mean or a sum, which no engine adds up in eager's order:
the last bit of the root is not eager's, nor is that of a quotient by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import fx

from trnx.simulator.memory.tensor_spec import TensorSpec

aten = torch.ops.aten
_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_SCALES = (aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.neg.default)
_TOTALS = (aten.mean.dim, aten.mean.default, aten.sum.dim_IntList, aten.sum.default)


def loose_quotients(nodes: Sequence[fx.Node], specs: Mapping[fx.Node, Any]) -> frozenset[fx.Node]:
    """The nodes of `nodes` whose divisions may be products with a reciprocal."""
    inside = frozenset(nodes)
    found: set[fx.Node] = set()
    for node in nodes:
        divisor = _divisor(node)
        if divisor is None:
            continue
        if _is_softmax(node, inside):
            found.add(node)
            continue
        scaled = _down_to_the_root(divisor, inside, specs)
        if scaled is None or specs[node].dtype is not torch.float32:
            continue
        root = scaled[-1].all_input_nodes[0] if scaled else divisor
        total = _up_to_the_total(root, inside, specs)
        is_added = node.target is aten.addcdiv.default or _is_only_added(node, inside, specs)
        if is_added or total:
            # What else reads the divisor may want all of its bits.
            found.update(n for n in (*scaled, *total) if _is_alone(n))
            found.add(node)
    return frozenset(found)


def _is_alone(node: fx.Node) -> bool:
    """Whether a step to a divisor is a quotient that one node reads."""
    is_quotient = node.target in (aten.div.Tensor, aten.mean.dim, aten.mean.default)
    return is_quotient and len(node.users) == 1


def _up_to_the_total(
    root: fx.Node, inside: frozenset[fx.Node], specs: Mapping[fx.Node, Any]
) -> list[fx.Node]:
    """The steps from a square root to the float total that it is made of by numbers, and that;
    none where it is not."""
    steps = []
    node = root.all_input_nodes[0]
    while node in inside and node.target in _SCALES and _is_number_but_first(node, specs):
        steps.append(node)
        node = node.all_input_nodes[0]
    is_total = node in inside and node.target in _TOTALS and len(root.users) == 1
    return [*steps, node] if is_total and specs[node].dtype is torch.float32 else []


def _is_softmax(node: fx.Node, inside: frozenset[fx.Node]) -> bool:
    """Whether a quotient is `e / e.sum(dims)` with `e = (x - x.amax(dims)).exp()`."""
    weights, total = node.args[:2]
    if not _calls(total, aten.sum.dim_IntList, inside) or total.args[0] is not weights:
        return False
    if not _calls(weights, aten.exp.default, inside):
        return False
    shifted = weights.args[0]
    if not _calls(shifted, aten.sub.Tensor, inside):
        return False
    x, most = shifted.args[:2]
    dims = total.args[1]
    return _calls(most, aten.amax.default, inside) and most.args[:2] == (x, dims)


def _calls(x: Any, target: Any, inside: frozenset[fx.Node]) -> TypeGuard[fx.Node]:
    return isinstance(x, fx.Node) and x in inside and x.target is target


def _divisor(node: fx.Node) -> fx.Node | None:
    index = {aten.div.Tensor: 1, aten.addcdiv.default: 2}
    divisor = node.args[index[node.target]] if node.target in index else None
    return divisor if isinstance(divisor, fx.Node) else None


def _down_to_the_root(
    node: fx.Node, inside: frozenset[fx.Node], specs: Mapping[fx.Node, Any]
) -> list[fx.Node] | None:
    """The steps from a divisor to the square root that it is made of by numbers, None if it is
    not."""
    steps = []
    while node in inside and node.target is not aten.sqrt.default:
        if node.target not in _SCALES or not _is_number_but_first(node, specs):
            return None
        steps.append(node)
        node = node.all_input_nodes[0]
    return steps if node in inside and specs[node].ndim else None


def _is_number_but_first(node: fx.Node, specs: Mapping[fx.Node, Any]) -> bool:
    first, *rest = node.args
    return isinstance(first, fx.Node) and all(_is_number(x, specs) for x in rest)


def _is_number(x: Any, specs: Mapping[fx.Node, Any]) -> bool:
    spec = specs[x] if isinstance(x, fx.Node) else x
    return not isinstance(spec, TensorSpec) or not spec.shape


def _is_only_added(node: fx.Node, inside: frozenset[fx.Node], specs: Mapping[fx.Node, Any]) -> bool:
    """Whether all that reads the quotient, maybe times a number, adds it to another tensor."""
    if not node.users or not inside.issuperset(node.users):
        return False
    return all(
        (user.target is aten.mul.Tensor and _is_number_but_first(user, specs)
         and _is_only_added(user, inside, specs))
        or (user.target in _SUMS and not _is_number_but_first(user, specs))
        for user in node.users
    )  # fmt: skip
