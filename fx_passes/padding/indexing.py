"""The rule of `index`, as models look up a mask of `[B, s]` at all its places.

Eager refuses an index behind the end, and counts a negative one from there, but the end of a padded
dimension is another one. The places 0, 1, ... of the exact size are right as they are; any others,
as where a sliding window looks its part of a mask up, are compared with that size in every call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from trnx.fx_passes.nodes import aten, has_tensor, val
from trnx.fx_passes.padding.layouts import (
    Axis,
    Layout,
    Operands,
    RefusedError,
    Size,
    broadcast,
)

# They give the elements of their first argument, in its order.
_SAME_ORDER = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.alias.default,
        aten.detach.default,
        aten.clone.default,
    }
)


def count_of_places(node: Any) -> Any:
    """`n` where the elements of an integer tensor are 0, 1, ... n - 1 in their order, else None."""
    while isinstance(node, fx.Node) and has_tensor(node):
        if node.target in _SAME_ORDER or _adds_nothing(node):
            node = node.args[0]
        elif val(node).is_floating_point():
            return None
        elif node.target is aten.arange.default:
            return val(node).shape[0]
        elif node.target in (aten.arange.start, aten.arange.start_step):
            start, _, step = (*node.args, 1)[:3]
            return val(node).shape[0] if _is_number(start, 0) and _is_number(step, 1) else None
        else:
            return None
    return None


def _adds_nothing(node: fx.Node) -> bool:
    return node.target is aten.add.Tensor and _is_number(node.args[1], 0)


def _is_number(value: Any, number: int) -> bool:
    return type(value) is int and value == number


def index(node: fx.Node, operands: Operands) -> Layout:
    """Elements by their places along some dimensions, for each element of the broadcast indices."""
    data, indices = node.args
    layout = operands.layout(data)
    taken: dict[int, fx.Node] = {d: one for d, one in enumerate(indices) if one is not None}  # type: ignore[arg-type]
    for dim, one in taken.items():
        if val(one).dtype in (torch.bool, torch.uint8):
            raise RefusedError("how many places a mask takes depends on data")
        if layout[dim].is_padded and not _takes_all(one, layout[dim], operands):
            _need_places(dim, list(taken.values()), one, layout[dim], operands)
        elif any(axis.is_padded for axis in operands.layout(one)):
            operands.need_valid(one)
    ndim = max(val(one).ndim for one in taken.values())
    chosen = broadcast([operands.layout(one) for one in taken.values()], ndim)
    rest = [replace(axis, fill=None) for dim, axis in enumerate(layout) if dim not in taken]
    first, last = min(taken), max(taken)
    # Dimensions that stand apart are put in front.
    at = first if last - first + 1 == len(taken) else 0
    return (*rest[:at], *chosen, *rest[at:])


def _need_places(
    dim: int, indices: list[fx.Node], one: fx.Node, axis: Axis, operands: Operands
) -> None:
    """Good elements are the first ones, so that places of the exact size are theirs."""
    (size,) = axis.sizes if axis.is_one_size else (None,)
    if not isinstance(size, Size):
        raise RefusedError("a padded dimension of several sizes is taken at any places")
    if indices.count(one) > 1:
        raise RefusedError("one index takes places of several dimensions")
    operands.need_places(one, size, dim)


def _takes_all(one: fx.Node, axis: Axis, operands: Operands) -> bool:
    """Whether the places are those of the exact size."""
    count = count_of_places(one)
    if count is None or not axis.is_one_size:
        return False
    (size,) = axis.sizes
    return isinstance(size, Size) and bool(operands.padded.form(count) == size.form)
