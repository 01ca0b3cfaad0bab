"""Steps of a Program on other slots, so that several callers may each keep their tensors bound."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from trnx.simulator.memory.storage import Slot, Step
from trnx.simulator.program.step_effects import PLAIN

# Views of slots that are made again: beyond, the time that binding takes counts for little.
_MOST_VIEWS = 2048


class _NotReplicableError(Exception):
    """A step may hold a view of a slot that cannot be found in it."""


def on_other_slots(
    steps: Sequence[Step], slots: Sequence[Slot]
) -> tuple[list[Step], list[Slot]] | None:
    """The steps on new, unbound slots in the place of these; steps that touch no slot are shared.
    None where that is not known of all, or where there are too many views.
    """
    if sum(slot.view_count for slot in slots) > _MOST_VIEWS:
        return None
    made = [Slot.unbound(slot.nbytes, slot.is_written) for slot in slots]
    views = {
        id(view): other.view(*place)
        for slot, other in zip(slots, made, strict=True)
        for place, view in slot.views()
    }
    again: dict[int, Step] = {}
    try:
        for step in steps:
            if id(step) not in again:
                again[id(step)] = _replaced(step, views)
    except _NotReplicableError:
        return None
    return [again[id(step)] for step in steps], made


def _replaced(value: Any, views: Mapping[int, torch.Tensor]) -> Any:
    """`value` with other views in the place of those of slots; itself where it holds none."""
    found = views.get(id(value))
    if found is not None:
        return found
    kind = type(value)
    if kind is functools.partial:
        parts = (value.func, *value.args, *value.keywords.values())
        made = [_replaced(one, views) for one in parts]
        if all(map(operator.is_, made, parts)):
            return value
        args, named = made[1 : 1 + len(value.args)], made[1 + len(value.args) :]
        return functools.partial(made[0], *args, **dict(zip(value.keywords, named, strict=True)))
    if kind is BuiltinFunctionType and isinstance(value.__self__, torch.Tensor):
        owner = views.get(id(value.__self__))
        return value if owner is None else getattr(owner, value.__name__)
    if kind in (tuple, list):
        items = [_replaced(one, views) for one in value]
        return value if all(map(operator.is_, items, value)) else kind(items)
    is_closed = kind is FunctionType and not value.__closure__
    if is_closed or isinstance(value, (torch.Tensor, np.ndarray, BuiltinFunctionType, *PLAIN)):
        return value
    raise _NotReplicableError
