"""Which bytes of a tensor on chip are marked: a mask of a partition's bytes for each band of
partitions that are alike.

Tiles are written as a few bands of partitions, so a tensor is a handful of integers, and marking,
asking and erasing cost some operations on integers of as many bits as a partition has bytes,
whatever the number of partitions. Bits count bytes, so views of any dtype meet here.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left

import numpy as np
import torch

from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.tensor_view import TensorView
from trnx.simulator.memory.views import Shape

# Bands beyond this number are merged where neighbours are alike.
_TIDY = 8


@functools.lru_cache(maxsize=512)
def _pattern(shape: Shape, strides: Shape, column: int, itemsize: int) -> int:
    """The bytes that free dimensions walk from element `column`, as bits."""
    bits = (1 << itemsize) - 1
    for count, stride in zip(shape, strides, strict=True):
        step, done = stride * itemsize, 1
        if step == 0:
            continue
        while done * 2 <= count:
            bits |= bits << step * done
            done *= 2
        bits |= bits << step * (count - done)
    return bits << column * itemsize


def byte_mask(tensor: TensorView) -> int:
    """The bytes of its storage's partition that a view covers, as bits."""
    itemsize = tensor.dtype.itemsize
    column = tensor.span()[0] // itemsize
    return _pattern(tensor.shape[1:], tensor.strides[1:], column, itemsize)


class SbufShadow:
    """A set of marked bytes of one storage on chip; the interface of `HbmShadow`."""

    __slots__ = ("_ends", "_marks", "_regions", "_width", "full")

    def __init__(self, partitions: int, width: int) -> None:
        """`width` counts the bytes of a partition."""
        # Where it is set, masks and regions say nothing.
        self.full = False
        self._width = width
        # Band i ends before partition `_ends[i]`, and starts where the one before it ends.
        self._ends = [partitions]
        self._marks = [0]
        # Regions known to be marked.
        self._regions: set[tuple[object, ...]] = set()

    def covers(self, tensor: TensorView) -> bool:
        """True where every element of the view is marked."""
        if self.full or tensor.region_key() in self._regions:
            return True
        wanted = byte_mask(tensor)
        if any(mark & wanted != wanted for mark in self._marks_of(tensor)):
            return False
        self._regions.add(tensor.region_key())
        return True

    def state(self, tensor: TensorView) -> Covered:
        """Whether none, some or all elements of the view are marked."""
        if self.is_empty:
            return Covered.NONE
        if self.covers(tensor):
            return Covered.ALL
        wanted = byte_mask(tensor)
        is_touched = any(mark & wanted for mark in self._marks_of(tensor))
        return Covered.SOME if is_touched else Covered.NONE

    def mark(self, tensor: TensorView) -> None:
        """Mark every element of the view."""
        if self.full:
            return
        form = tensor.form
        if form.is_gapless and form.size * tensor.dtype.itemsize == self._width * self._ends[-1]:
            self.full = True
            return
        if tensor.region_key() in self._regions:
            return
        wanted = byte_mask(tensor)
        for first, last in _spans(tensor):
            for band in self._cut(first, last):
                self._marks[band] |= wanted
        self._regions.add(tensor.region_key())
        self._tidy()

    def mark_everything(self) -> None:
        """Mark the whole storage: what is written depends on values."""
        self.full = True

    @property
    def is_empty(self) -> bool:
        """True where nothing is marked."""
        return not self.full and not any(self._marks)

    def erase(self, tensor: TensorView) -> None:
        """Unmark every element of the view."""
        if not self.is_empty:
            gone = byte_mask(tensor)
            for first, last in _spans(tensor):
                self.erase_bytes(first, last, gone)

    def erase_bytes(self, first: int, last: int, gone: int) -> bool:
        """Unmark the bytes `gone` (as bits) of the partitions `first` to `last` (exclusive); True
        where any was marked.
        """
        self._materialise()
        is_touched = False
        for band in self._cut(first, last):
            lost = self._marks[band] & gone
            if lost:
                self._marks[band] ^= lost
                is_touched = True
        self._tidy()
        return is_touched

    def unmark(self, tensor: TensorView, chosen: torch.Tensor) -> None:
        """Unmark those elements of the view where `chosen`, in the view's shape, is True."""
        low, high, first, _ = tensor.span()
        size, step = tensor.dtype.itemsize, _partition_step(tensor)
        rows = np.zeros(((tensor.shape[0] - 1) * step + 1, high - low), np.uint8)
        places = np.lib.stride_tricks.as_strided(
            rows,
            (*tensor.shape, size),
            (step * (high - low), *(stride * size for stride in tensor.strides[1:]), 1),
        )
        places[chosen.numpy()] = 1
        packed = np.packbits(rows, axis=1, bitorder="little")
        changes = np.flatnonzero(np.any(packed[1:] != packed[:-1], axis=1)) + 1
        edges = [0, *changes.tolist(), len(packed)]
        for start, end in itertools.pairwise(edges):
            gone = int.from_bytes(packed[start].tobytes(), "little") << low
            if gone:
                self.erase_bytes(first + start, first + end, gone)

    def mask(self, tensor: TensorView) -> torch.Tensor:
        """1 where the view's elements are marked, in the view's shape."""
        if self.full:
            return torch.ones(tensor.shape, dtype=torch.uint8, device="cpu")
        low, high, first, _ = tensor.span()
        size, step = tensor.dtype.itemsize, _partition_step(tensor)
        window = (1 << high - low) - 1
        found = np.empty(tensor.shape, np.uint8)
        known: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]] = {}
        for row in range(tensor.shape[0]):
            mark = self._marks[self._band(first + row * step)] >> low & window
            if mark not in known:
                raw = np.frombuffer(mark.to_bytes(-(-(high - low) // 8), "little"), np.uint8)
                flags = np.unpackbits(raw, count=high - low, bitorder="little")
                strides = (*(stride * size for stride in tensor.strides[1:]), 1)
                shape = (*tensor.shape[1:], size)
                known[mark] = np.lib.stride_tricks.as_strided(flags, shape, strides).min(-1)
            found[row] = known[mark]
        return torch.from_numpy(found)

    def _materialise(self) -> None:
        """Hold the marks in the masks alone, where they can be taken away."""
        if self.full:
            self._ends, self._marks = [self._ends[-1]], [(1 << self._width) - 1]
            self.full = False
        self._regions.clear()

    def _band(self, partition: int) -> int:
        """The band of a partition."""
        return bisect_left(self._ends, partition + 1)

    def _marks_of(self, tensor: TensorView) -> list[int]:
        """The masks of the bands that a view has partitions in."""
        if len(self._marks) == 1:
            return self._marks
        bands = (
            band
            for first, last in _spans(tensor)
            for band in range(self._band(first), self._band(last - 1) + 1)
        )
        return [self._marks[band] for band in bands]

    def _cut(self, first: int, last: int) -> range:
        """Bands that are the partitions `first` to `last` (exclusive) and no others."""
        ends, marks = self._ends, self._marks
        begin = 0
        if first:
            begin = bisect_left(ends, first)
            if ends[begin] != first:
                ends.insert(begin, first)
                marks.insert(begin, marks[begin])
            begin += 1
        end = bisect_left(ends, last, begin)
        if ends[end] != last:
            ends.insert(end, last)
            marks.insert(end, marks[end])
        return range(begin, end + 1)

    def _tidy(self) -> None:
        """Merge neighbours that are alike, where there are many bands."""
        if len(self._marks) <= _TIDY:
            return
        kept = [
            band
            for band, mark in enumerate(self._marks)
            if band + 1 == len(self._marks) or mark != self._marks[band + 1]
        ]
        self._ends = [self._ends[band] for band in kept]
        self._marks = [self._marks[band] for band in kept]


def _partition_step(tensor: TensorView) -> int:
    """Partitions from one element of the first dimension to the next."""
    return tensor.strides[0] // tensor.pitch if tensor.shape[0] > 1 else 1


def _spans(tensor: TensorView) -> list[tuple[int, int]]:
    """The partitions of a view as ranges (first, end)."""
    _, _, first, count = tensor.span()
    step = _partition_step(tensor)
    if step == 1:
        return [(first, first + count)]
    return [(first + i * step, first + i * step + 1) for i in range(count if step else 1)]
