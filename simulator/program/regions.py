"""Which bytes a step's view covers: `Region`, overlap, and composition of views through a copy."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch

from trnx.simulator.memory.views import Shape

# Rows and bytes within a row: (first row, row behind the last, first byte, byte behind the last).
Box = tuple[int, int, int, int]


class Region:
    """A strided view of the memory with the number `memory`; strides (not negative) and offset
    count elements of `dtype`.
    """

    __slots__ = (
        "box",
        "dtype",
        "high",
        "low",
        "memory",
        "numel",
        "offset",
        "pitch",
        "shape",
        "strides",
    )

    def __init__(
        self, memory: int, dtype: torch.dtype, shape: Shape, strides: Shape, offset: int
    ) -> None:
        self.memory = memory
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset
        size = dtype.itemsize
        extent = _extent(shape, strides, size)
        self.numel = extent.numel
        self.low = low = offset * size
        self.high = low + extent.nbytes
        # The largest distance between neighbours, in bytes: that of partitions for a tile.
        self.pitch = extent.pitch
        self.box = _box_at(low, extent.pitch, extent.rows, extent.width)

    def is_same(self, other: Region) -> bool:
        """True where both have the same elements in the same order."""
        return (
            self.memory == other.memory
            and self.offset == other.offset
            and self.shape == other.shape
            and self.strides == other.strides
            and self.dtype is other.dtype
        )

    def lies_like(self, other: Region) -> bool:
        """True where the elements have the same distances, in any memory."""
        if self.shape != other.shape or self.dtype is not other.dtype:
            return False
        places = zip(self.shape, self.strides, other.strides, strict=True)
        return all(size == 1 or step == own for size, step, own in places)

    def overlaps(self, other: Region) -> bool:
        """False where no byte is in both; True where that cannot be said."""
        if self.memory != other.memory or self.high <= other.low or other.high <= self.low:
            return False
        for pitch in {self.pitch, other.pitch}:
            mine = self.box if pitch == self.pitch else self._box(pitch)
            theirs = other.box if pitch == other.pitch else other._box(pitch)
            if mine is not None and theirs is not None:
                rows = mine[0] < theirs[1] and theirs[0] < mine[1]
                return rows and mine[2] < theirs[3] and theirs[2] < mine[3]
        return True

    def covers(self, other: Region) -> bool:
        """True where every byte of `other` is in this region; False where that cannot be said."""
        if self.memory != other.memory or self.low > other.low or self.high < other.high:
            return False
        size = self.dtype.itemsize
        if self.numel * size == self.high - self.low and is_gapless(self):
            return True
        mine, theirs = self.box, other._box(self.pitch)
        if mine is None or theirs is None or not is_gapless(self):
            return False
        is_dense = self.numel * size == (mine[1] - mine[0]) * (mine[3] - mine[2])
        rows = mine[0] <= theirs[0] and theirs[1] <= mine[1]
        return is_dense and rows and mine[2] <= theirs[2] and theirs[3] <= mine[3]

    def _box(self, pitch: int) -> Box | None:
        """The smallest box around it in memory of rows of `pitch` bytes; None across their ends."""
        rows, width = _rows(self.shape, self.strides, self.dtype.itemsize, pitch)
        return _box_at(self.low, pitch, rows, width)

    def through(self, target: Region, source: Region) -> Region | None:
        """Where the elements of this part of `target` came from, when `source`, a view of the same
        shape, was copied to it; None where that is no view, or where this is no part.
        """
        if not self.dtype is target.dtype is source.dtype or self.memory != target.memory:
            return None
        if not self.numel or self.low < target.low or self.high > target.high:
            return None
        axes = _nested_axes(target.shape, target.strides, source.strides)
        if axes is None:
            return None
        way = _way(self.shape, self.strides, axes)
        first = _split(self.offset - target.offset, axes)
        if way is None or first is None:
            return None
        offset = source.offset
        for at, reach, (n, _, step) in zip(first, way.reach, axes, strict=True):
            if at + reach >= n:
                return None
            offset += at * step
        return Region(source.memory, source.dtype, self.shape, way.strides, offset)


class _Extent(NamedTuple):
    """What does not depend on where a region lies; rows and width, in bytes, are those of its box
    in memory of rows of `pitch` bytes.
    """

    numel: int
    nbytes: int
    pitch: int
    rows: int
    width: int


@functools.lru_cache(maxsize=4096)
def _extent(shape: Shape, strides: Shape, size: int) -> _Extent:
    numel = math.prod(shape)
    reach = sum([(n - 1) * step for n, step in zip(shape, strides, strict=True)])
    pitch = max([step * size for n, step in zip(shape, strides, strict=True) if n > 1], default=0)
    return _Extent(numel, (reach + 1) * size if numel else 0, pitch,
                   *_rows(shape, strides, size, pitch))  # fmt: skip


def _rows(shape: Shape, strides: Shape, size: int, pitch: int) -> tuple[int, int]:
    """Rows of `pitch` bytes that a view reaches over, and bytes in a row."""
    rows, width = 1, size
    for n, step in zip(shape, strides, strict=True) if pitch else ():
        count, rest = divmod(step * size, pitch)
        if rest:
            width += (n - 1) * step * size
        else:
            rows += (n - 1) * count
    return rows, width


def _box_at(low: int, pitch: int, rows: int, width: int) -> Box | None:
    """Of what starts at the byte `low`; None where it lies across the ends of rows."""
    if not pitch:
        return None
    row, column = divmod(low, pitch)
    return None if column + width > pitch else (row, row + rows, column, column + width)


# An axis of a copy: elements, distance of neighbours in the target and in the source.
_Axis = tuple[int, int, int]


@functools.lru_cache(maxsize=512)
def _nested_axes(shape: Shape, strides: Shape, sources: Shape) -> tuple[_Axis, ...] | None:
    """The axes of a target, outermost first, neighbouring ones as one; None where two elements may
    share a place.
    """
    axes = sorted(
        [one for one in zip(shape, strides, sources, strict=True) if one[0] > 1],
        key=lambda axis: -axis[1],
    )
    reach = 0
    for n, step, _ in reversed(axes):
        if step <= reach:
            return None
        reach += (n - 1) * step
    joined: list[_Axis] = []
    for axis in axes:
        n, step, source = axis
        if joined and joined[-1][1:] == (n * step, n * source):
            joined[-1] = (joined[-1][0] * n, step, source)
        else:
            joined.append(axis)
    return tuple(joined)


def _split(distance: int, axes: tuple[_Axis, ...]) -> list[int] | None:
    """A distance in the target as steps along its axes; None where it leads between elements."""
    steps = []
    for _, step, _ in axes:
        count, distance = divmod(distance, step)
        steps.append(count)
    return None if distance else steps


class _Way(NamedTuple):
    """How a part of a copy's target lies in the source: its strides there, and how many steps it
    reaches along each axis.
    """

    strides: Shape
    reach: Shape


@functools.lru_cache(maxsize=4096)
def _way(shape: Shape, strides: Shape, axes: tuple[_Axis, ...]) -> _Way | None:
    """None where a stride leads between the elements of the target."""
    reach = [0] * len(axes)
    found = []
    for n, step in zip(shape, strides, strict=True):
        steps = _split(step, axes)
        if steps is None:
            if n > 1:
                return None
            steps = [0] * len(axes)
        found.append(sum([k * axis[2] for k, axis in zip(steps, axes, strict=True)]))
        reach = [at + (n - 1) * k for at, k in zip(reach, steps, strict=True)]
    return _Way(tuple(found), tuple(reach))


def is_gapless(region: Region) -> bool:
    """True where no two of its elements share a place."""
    return _nested_axes(region.shape, region.strides, region.strides) is not None
