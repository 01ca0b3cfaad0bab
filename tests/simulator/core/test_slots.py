"""Slots: views of memory that changes from run to run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from trnx.simulator.memory.storage import Slot

MODES: list[Callable[[], AbstractContextManager[None]]] = [
    torch.enable_grad,
    torch.inference_mode,
    torch.no_grad,
]


def _views(slot: Slot, count: int) -> list[torch.Tensor]:
    return [slot.view(torch.float32, (2, 3), (3, 1), 6 * i) for i in range(count)]


def _is_written_by(views: list[torch.Tensor], given: torch.Tensor, value: int) -> bool:
    for i, view in enumerate(views):
        torch.add(torch.full((2, 3), value), i, out=view)
    expected = value + torch.arange(len(views)).repeat_interleave(6)
    return torch.equal(given, expected.float())


@pytest.mark.parametrize("count", [1, 4, 5])
def test_views_are_where_the_slot_was_bound_last(count: int) -> None:
    """More addresses than it keeps views for, in turns, in every mode."""
    slot = Slot.unbound(24 * count, is_written=True)
    views = _views(slot, count)
    memories = [torch.empty(6 * count) for _ in range(6)]
    order = [0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 5, 1, 5, 1]
    for value, at in enumerate(order * len(MODES)):
        with MODES[value // len(order)]():
            slot.bind(memories[at])
            assert _is_written_by(views, memories[at], value)


def test_views_made_or_forgotten_later_are_bound_too() -> None:
    slot = Slot.unbound(72, is_written=True)
    memories = [torch.empty(18), torch.empty(18)]
    views = _views(slot, 1)
    for _ in range(3):
        for given in memories:
            slot.bind(given)
    views = _views(slot, 3)
    slot.release()
    for value in range(6):
        slot.bind(memories[value % 2])
        assert _is_written_by(views, memories[value % 2], value)
    slot.keep_views({id(view) for view in views[1:]})
    slot.release()
    for value in range(6):
        slot.bind(memories[value % 2])
        assert _is_written_by(views[1:], memories[value % 2][6:], value)


def test_released_views_have_no_memory() -> None:
    slot, given = Slot.unbound(24, is_written=True), torch.empty(6)
    (view,) = _views(slot, 1)
    for one in (given, torch.empty(6), given):
        slot.bind(one)
    slot.release()
    assert not view.numel()
    slot.bind(given)
    assert view.data_ptr() == given.data_ptr()
    assert view.shape == (2, 3)
