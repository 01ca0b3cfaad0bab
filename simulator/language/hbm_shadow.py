"""Which elements of a storage in HBM are marked (have been written), by element, while tracing.

Addresses are static, so this needs no values. The common cases cost a set look-up: a storage that
was written as a whole, or a region that was seen before. Other questions are answered by the bounds
of what is marked, and of its columns where it has rows of one length (the halves that the programs
of a launch take), then by the boxes of which it consists. Only what is left needs a map, which is
made then: of many storages nobody ever asks so much, arguments that are only read above all.

A cell of the map stands for as many bytes as every region that it was asked for begins, runs and
steps by: a storage that is used by whole rows has a cell for each row, not for each element.
"""

from __future__ import annotations

import functools
import math
from enum import Enum
from typing import NamedTuple

import torch

from trnx.simulator.language.boxes import RegionKey, is_filled
from trnx.simulator.language.tensor_view import TensorView
from trnx.simulator.memory.views import Shape

# Questions that boxes answer, each from all of them; a storage that is asked more gets its map.
_BY_BOXES = 8


class Covered(Enum):
    """How much of a region is marked."""

    NONE = 0
    SOME = 1
    ALL = 2


class _Runs(NamedTuple):
    """A region in bytes: runs without gaps, which `steps` (number, bytes) repeat."""

    first: int
    length: int
    steps: tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=4096)
def _runs(key: RegionKey) -> _Runs:
    offset, shape, strides, itemsize = key
    # A repeated location needs no second look.
    steps = sorted(
        (stride * itemsize, size)
        for size, stride in zip(shape, strides, strict=True)
        if size != 1 and stride
    )
    length, rest = itemsize, []
    for step, size in steps:
        if step == length:
            length *= size
        else:
            rest.append((size, step))
    return _Runs(offset * itemsize, length, tuple(rest))


@functools.lru_cache(maxsize=4096)
def _grain(key: RegionKey) -> int:
    """The most bytes that a cell may stand for, so that the region has it whole or not at all."""
    first, length, steps = _runs(key)
    return math.gcd(first, length, *(step for _, step in steps))


@functools.lru_cache(maxsize=4096)
def _cells_of(key: RegionKey, granule: int) -> tuple[Shape, Shape, int]:
    """Shape, strides and offset of a region in cells of `granule` bytes."""
    first, length, steps = _runs(key)
    shape = (*(number for number, _ in steps), length // granule)
    return shape, (*(step // granule for _, step in steps), 1), first // granule


@functools.lru_cache(maxsize=512)
def _row_bytes(shape: Shape, strides: Shape, itemsize: int) -> int:
    """Bytes from one row of a region to the next: its largest step, 0 where it has one row."""
    row = max((s for n, s in zip(shape, strides, strict=True) if n > 1), default=0)
    return row * itemsize if row > 1 else 0


@functools.lru_cache(maxsize=512)
def _columns(key: RegionKey, row: int) -> tuple[int, int] | None:
    """The bytes of a row that a region covers at most; None where it goes beyond rows' ends."""
    offset, shape, strides, itemsize = key
    inner = itemsize
    for size, step in zip(shape, strides, strict=True):
        if step * itemsize % row:
            inner += (size - 1) * step * itemsize
    left = offset * itemsize % row
    return (left, left + inner) if left + inner <= row else None


def _hull(bounds: tuple[int, int], low: int, high: int) -> tuple[int, int]:
    """The bounds of two ranges together."""
    first, last = bounds
    return (low if low < first else first, high if high > last else last)


class HbmShadow:
    """A set of marked elements of one storage."""

    __slots__ = (
        "_asked",
        "_granule",
        "_left",
        "_map",
        "_nbytes",
        "_new",
        "_range",
        "_regions",
        "_row",
        "full",
    )

    def __init__(self, nbytes: int) -> None:
        self.full = False
        self._nbytes = nbytes
        # Bytes that a cell of the map stands for.
        self._granule = nbytes or 1
        self._map: torch.Tensor | None = None
        self._asked = 0
        # Regions that are marked, and those of them that are not in the map yet.
        self._regions: set[RegionKey] = set()
        self._new: list[RegionKey] = []
        # Bytes between which everything marked lies; the same within rows of `_row` bytes, where
        # that is known (-1: the regions have no such rows).
        self._range = (nbytes, 0)
        self._row = 0
        self._left = (nbytes, 0)

    def covers(self, tensor: TensorView) -> bool:
        """True where every element of the view is marked."""
        if self.full or tensor.region_key() in self._regions:
            return True
        if self.is_empty:
            return False
        low, high, _, _ = tensor.span()
        if low < self._range[0] or high > self._range[1] or self._is_beside(tensor):
            return False
        answer = self._by_boxes(tensor)
        if answer is None:
            answer = bool(self._cells(tensor).amin())
        if answer:
            self._remember(tensor)
        return answer

    def _by_boxes(self, tensor: TensorView) -> bool | None:
        """Whether the view is covered, None where boxes cannot tell."""
        if self._map is not None or self._asked == _BY_BOXES:
            return None
        self._asked += 1
        return is_filled(tensor.region_key(), self._new, self._nbytes)

    def state(self, tensor: TensorView) -> Covered:
        """Whether none, some or all elements of the view are marked."""
        if self.covers(tensor):
            return Covered.ALL
        low, high, _, _ = tensor.span()
        if high <= self._range[0] or low >= self._range[1] or self._is_beside(tensor):
            return Covered.NONE
        return Covered.SOME if bool(self._cells(tensor).amax()) else Covered.NONE

    def mark(self, tensor: TensorView) -> None:
        """Mark every element of the view."""
        if self.full:
            return
        key = tensor.region_key()
        if key in self._regions:
            return
        if self._is_whole(tensor):
            self.mark_everything()
            return
        self._regions.add(key)
        self._new.append(key)
        low, high, _, _ = tensor.span()
        self._range = _hull(self._range, low, high)
        if self._row >= 0:
            self._note_columns(key)

    def _note_columns(self, key: RegionKey) -> None:
        if self._row == 0:
            self._row = _row_bytes(*key[1:]) or -1
        columns = _columns(key, self._row) if self._row > 0 else None
        if columns is None:
            self._row = -1
        else:
            self._left = _hull(self._left, *columns)

    def _is_beside(self, tensor: TensorView) -> bool:
        """True where the view has none of the columns of what is marked."""
        columns = _columns(tensor.region_key(), self._row) if self._row > 0 else None
        return columns is not None and (columns[1] <= self._left[0] or columns[0] >= self._left[1])

    def mark_everything(self) -> None:
        """Mark the whole storage: what is written depends on values."""
        self.full = True
        self._map = None
        self._regions.clear()
        self._new.clear()

    @property
    def is_empty(self) -> bool:
        """True where nothing was ever marked."""
        return not self.full and self._map is None and not self._regions

    def erase(self, tensor: TensorView) -> None:
        """Unmark every element of the view."""
        if not self.is_empty:
            self._materialise()
            self._cells(tensor).zero_()

    def unmark(self, tensor: TensorView, chosen: torch.Tensor) -> None:
        """Unmark those elements of the view where `chosen`, in the view's shape, is True."""
        self._materialise()
        view = self._elements(tensor)
        # Strides of 0 were cut to one element.
        for axis, (have, want) in enumerate(zip(view.shape, chosen.shape, strict=False)):
            if have != want:
                chosen = chosen.any(axis, keepdim=True)
        view[chosen] = 0

    def _materialise(self) -> None:
        """Hold the marks in the map alone, where they can be taken away."""
        if self.full:
            self._granule = self._nbytes or 1
            self._map = torch.ones(1, dtype=torch.uint8, device="cpu")
            self._range, self._row = (0, self._nbytes), -1
        self.full = False
        self._bring_up_to_date()
        self._regions.clear()

    def mask(self, tensor: TensorView) -> torch.Tensor:
        """A copy of the map over the view (1 where marked), in the view's shape."""
        if self.full:
            return torch.ones(tensor.shape, dtype=torch.uint8, device="cpu")
        view = self._elements(tensor)
        marks = view.amin(-1) if view.ndim > tensor.ndim else view
        return marks.expand(tensor.shape).clone()

    def _is_whole(self, tensor: TensorView) -> bool:
        form = tensor.form
        return form.is_gapless and form.size * tensor.dtype.itemsize == self._nbytes

    def _remember(self, tensor: TensorView) -> None:
        if self._is_whole(tensor):
            self.mark_everything()
        else:
            self._regions.add(tensor.region_key())

    def _cells(self, tensor: TensorView) -> torch.Tensor:
        """The cells of the map over the view; in what shape depends on its runs."""
        key = tensor.region_key()
        self._bring_up_to_date(_grain(key))
        return self._view(*_cells_of(key, self._granule))

    def _elements(self, tensor: TensorView) -> torch.Tensor:
        """The map over the view, in its shape: a dimension more where an element has cells."""
        offset, sizes, strides, itemsize = tensor.region_key()
        self._bring_up_to_date(itemsize)
        ratio = itemsize // self._granule
        shape = tuple(1 if s == 0 else n for n, s in zip(sizes, strides, strict=True))
        if ratio == 1:
            return self._view(shape, strides, offset)
        steps = tuple(stride * ratio for stride in strides)
        return self._view((*shape, ratio), (*steps, 1), offset * ratio)

    def _view(self, shape: Shape, strides: Shape, offset: int) -> torch.Tensor:
        assert self._map is not None
        return self._map.as_strided(shape, strides, offset)

    def _bring_up_to_date(self, grain: int = 0) -> None:
        """Mark the new regions in the map; its cells then divide `grain` bytes."""
        new, self._new = self._new, []
        self._refine(math.gcd(self._granule, grain, *map(_grain, new)))
        for key in new:
            self._view(*_cells_of(key, self._granule)).fill_(1)

    def _refine(self, granule: int) -> None:
        """Have cells of `granule` bytes, a divisor of what they have."""
        if self._map is None:
            self._map = torch.zeros(self._nbytes // granule, dtype=torch.uint8, device="cpu")
        elif granule < self._granule:
            self._map = self._map.repeat_interleave(self._granule // granule)
        self._granule = granule
