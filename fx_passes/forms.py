"""Forms of groups of nodes: equal ones compute the same of tensors of the same metadata, as the
layers of a model do."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.symbolic import argument_key, number_key


def form_of(nodes: Sequence[fx.Node], results: Sequence[fx.Node]) -> Hashable:
    """Equal for groups with equal operators, arguments and `meta["val"]`, that are wired alike and
    hand the same results on."""
    places: dict[fx.Node, int] = {}
    inside = set(nodes)
    parts: list[Hashable] = []

    def key(item: Any) -> Hashable:
        if isinstance(item, fx.Node):
            if item not in places:
                places[item] = len(places)
                parts.append((item in inside, _value_key(item.meta.get("val"))))
            return ("node", places[item])
        if isinstance(item, (list, tuple)):
            return tuple(key(one) for one in item)
        if isinstance(item, dict):
            return tuple((name, key(one)) for name, one in item.items())
        if isinstance(item, slice):
            return ("slice", key(item.start), key(item.stop), key(item.step))
        return argument_key(item)

    for node in nodes:
        parts.append((node.op, node.target, key(node.args), key(node.kwargs), key(node)))
    return tuple(parts), key(tuple(results))


def _value_key(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        sizes = tuple(map(number_key, value.shape))
        strides = tuple(map(number_key, value.stride()))
        place = (number_key(value.storage_offset()), value.device)
        return value.dtype, sizes, strides, place, value.is_neg(), value.is_conj()
    if isinstance(value, (list, tuple)):
        return tuple(map(_value_key, value))
    return argument_key(value)
