"""Which bytes a step's view covers: `Region`, overlap, and composition of views through a copy."""

from __future__ import annotations

import functools
import math

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
        self.numel = math.prod(shape)
        size = dtype.itemsize
        reach = sum([(n - 1) * step for n, step in zip(shape, strides, strict=True)])
        self.low = offset * size
        self.high = (offset + reach + 1) * size if self.numel else self.low
        # The largest distance between neighbours, in bytes: that of partitions for a tile.
        self.pitch = max(
            [step * size for n, step in zip(shape, strides, strict=True) if n > 1], default=0
        )
        self.box = self._box(self.pitch)

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
        if not pitch:
            return None
        rows, width, size = 0, self.dtype.itemsize, self.dtype.itemsize
        for n, step in zip(self.shape, self.strides, strict=True):
            count, rest = divmod(step * size, pitch)
            if rest:
                width += (n - 1) * step * size
            else:
                rows += (n - 1) * count
        row, column = divmod(self.low, pitch)
        if column + width > pitch:
            return None
        return row, row + rows + 1, column, column + width

    def through(self, target: Region, source: Region) -> Region | None:
        """Where the elements of this part of `target` came from, when `source`, a view of the same
        shape, was copied to it; None where that is no view, or where this is no part.
        """
        if not self.dtype == target.dtype == source.dtype or self.memory != target.memory:
            return None
        axes = _nested_axes(target.shape, target.strides, source.strides)
        if axes is None or self.low < target.low or not self.numel:
            return None
        first = _split(self.offset - target.offset, axes)
        if first is None:
            return None
        reached = list(first)
        strides = []
        for n, step in zip(self.shape, self.strides, strict=True):
            steps = _split(step, axes)
            if steps is None:
                if n > 1:
                    return None
                steps = [0] * len(axes)
            strides.append(sum([k * axis[2] for k, axis in zip(steps, axes, strict=True)]))
            reached = [at + (n - 1) * k for at, k in zip(reached, steps, strict=True)]
        if any(at >= axis[0] for at, axis in zip(reached, axes, strict=True)):
            return None
        offset = source.offset + sum([k * axis[2] for k, axis in zip(first, axes, strict=True)])
        return Region(source.memory, source.dtype, self.shape, tuple(strides), offset)


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


def is_gapless(region: Region) -> bool:
    """True where no two of its elements share a place."""
    return _nested_axes(region.shape, region.strides, region.strides) is not None
