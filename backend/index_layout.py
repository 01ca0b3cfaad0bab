"""The layout of what is read at indices: eager's result has its dimensions in the order of the
memory of what it reads, where torch's rule for shapes says that it is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false

aten = torch.ops.aten

_MASKS = (torch.bool, torch.uint8)


def index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """`x[indices]` of operands whose memory has the order of their dimensions, permuted to eager's
    strides; NotImplemented where eager's result is contiguous, and where data decide sizes."""
    given = [one for one in indices if one is not None]
    is_mask = any(one.dtype in _MASKS for one in given)
    if not given or is_mask or any(map(free_unbacked_symbols, (x, *given))) or x.numel() == 0:
        return NotImplemented
    places = [dim for dim, one in enumerate(indices) if one is not None]
    rest = [dim for dim in range(x.ndim) if dim not in places]
    expanded = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
    shape = expanded[0].shape
    # Dimensions of indices that are not adjacent come first.
    at = places[0] if places[-1] - places[0] == len(places) - 1 else 0
    order = _memory_order(x, rest, expanded, at)
    if order == sorted(order):
        return NotImplemented
    of_indices = [dim - at for dim in order[at : at + len(shape)]]
    others = [
        rest[dim if dim < at else dim - len(shape)] for dim in order[:at] + order[at + len(shape) :]
    ]
    read = iter(others)
    turned = x.permute([dim if dim in places else next(read) for dim in range(x.ndim)])
    chosen = [one.permute(of_indices).contiguous() for one in expanded]
    rest = [dim for dim in range(x.ndim) if dim not in places]
    again = _memory_order(turned, rest, chosen, at)
    if again != sorted(again):
        return NotImplemented  # nothing tells the order of some
    turns = iter(chosen)
    found = aten.index.Tensor(turned, [None if one is None else next(turns) for one in indices])
    return found.permute([order.index(dim) for dim in range(len(order))])


def _memory_order(
    x: torch.Tensor, rest: Sequence[int], indices: Sequence[torch.Tensor], at: int
) -> list[int]:
    """The dimensions of the result, outermost first: those `rest` of x, the ones of the indices,
    which have one shape, from `at` on. As eager sorts them, where sizes of one, which have no place
    in memory, stay with their kind."""
    shape = list(indices[0].shape)
    sizes = [x.shape[dim] for dim in rest]
    strides = [x.stride(dim) for dim in rest]
    before, after = [1] * at, [1] * (len(rest) - at)
    operands = [[*strides[:at], *([0] * len(shape)), *strides[at:]]]
    sizes = [*sizes[:at], *shape, *sizes[at:]]
    for one in indices:
        view = one.reshape([*before, *shape, *after])
        moves = zip(view.stride(), view.shape, sizes, strict=True)
        operands.append([0 if own == 1 and size != 1 else step for step, own, size in moves])
    order = _sorted(sizes, operands)
    ends = at + len(shape)
    others = [dim for dim in order if not at <= dim < ends]
    return [*others[:at], *(dim for dim in order if at <= dim < ends), *others[at:]]


def _sorted(sizes: Sequence[Any], operands: Sequence[Sequence[Any]]) -> list[int]:
    """The dimensions of an element-wise result, outermost first, as eager sorts them (at
    `TensorIteratorBase::reorder_dimensions`): by the strides of the first operand that tells."""

    def is_before(a: int, b: int) -> bool | None:
        """Whether a lies within b; None where nothing tells."""
        for strides in operands:
            if guard_or_false(strides[a] == 0) or guard_or_false(strides[b] == 0):
                continue
            if guard_or_false(strides[a] < strides[b]):
                return True
            if guard_or_false(strides[a] > strides[b]):
                return False
            if guard_or_false(sizes[a] > sizes[b]):
                return False
        return None

    order = list(reversed(range(len(sizes))))
    for last in range(1, len(order)):
        here = last
        for other in reversed(range(last)):
            before = is_before(order[other], order[here])
            if before is False:
                order[other], order[here] = order[here], order[other]
                here = other
            elif before:
                break
    return order[::-1]
