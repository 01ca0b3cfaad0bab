"""The rule of `cat`: along a padded dimension the result has parts, each with its own padding.

So a cache of keys that grows by a token stays padded: `[s, D]` and `[1, D]` give good elements at
0..s-1 and behind the padding of `s`. What reads them has to see the same places, or no order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from trnx.fx_passes.nodes import val
from trnx.fx_passes.padding.layouts import (
    Axis,
    Fill,
    Layout,
    Operands,
    RefusedError,
    Size,
    axis_of,
    same_sizes,
)


def cat(node: fx.Node, operands: Operands) -> Layout:
    """Operands that are equal in all dimensions but the one along which they are joined."""
    result = val(node)
    operand_nodes, dim, *_ = (*node.args, 0)
    dim = int(dim) % result.ndim  # type: ignore[arg-type]
    given = [operands.layout(arg) for arg in operand_nodes if not _is_left_out(arg, result.ndim)]  # type: ignore[union-attr]
    for layout in given:
        rest = zip(layout, given[0], strict=True)
        if any(not same_sizes(a, b) for d, (a, b) in enumerate(rest) if d != dim):
            raise RefusedError("operands have their padding at different places")
    axes = [replace(axis, fill=None) for axis in given[0]]
    axes[dim] = _joined([layout[dim] for layout in given], operands.padded.size(result.shape[dim]))
    return tuple(axes)


def _is_left_out(arg: Any, ndim: int) -> bool:
    """An empty tensor of one dimension is joined with anything."""
    return val(arg).ndim == 1 and ndim > 1


def _joined(axes: Sequence[Axis], size: int | Size) -> Axis:
    """One behind the other; `size` is that of all."""
    if not any(axis.is_padded for axis in axes):
        return axis_of((size,))
    parts: list[int | Size] = []
    for axis in axes:
        if len(axis.sizes) > 1:
            raise RefusedError("a product of sizes is joined with others")
        for one in axis.sizes or (1,):
            parts += (one.parts or (one,)) if isinstance(one, Size) else (one,)
    parts = [part for part in parts if part != 0]
    if len(parts) > 1:
        assert isinstance(size, Size)
        size = replace(size, parts=tuple(parts))
    return axis_of((size,), _fill([axis for axis in axes if axis.is_padded]))


def _fill(padded: Sequence[Axis]) -> Fill | None:
    """What all padding holds: the kernel copies, so that it is what the operands' holds."""
    fills = {axis.fill for axis in padded}
    return fills.pop() if len(fills) == 1 else None
