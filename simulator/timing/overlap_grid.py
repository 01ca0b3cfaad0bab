"""Storages cut into cells along the edges of all their operands, so that overlaps of rectangles are
exact and found in constant time.

Operands may walk a partition or HBM in strides (each second element, a part of each head or image):
there the bytes that the same operands touch are one column of cells, where these are not too many.

Where operands of a storage cut it into very many cells, neighbouring edges are merged, and strides
are taken for all that lies between their ends: overlaps are then never missed, but may be seen
where there are none.
"""

from __future__ import annotations

import functools
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trnx.simulator.memory.storage import HBM, MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable

_REGIONS = tuple(MemoryRegion)
_IS_HBM = np.array([region in HBM for region in _REGIONS])
# OverlapGrid of an operand, on average over the operands of a storage that differ.
_MOST_CELLS = 64
# Bytes times ways to walk them that are compared.
_MOST_COMPARED = 1 << 22

_Box = tuple[int, int, int, int]  # first and end row, first and end column
_Bytes = tuple[int, int, int, int]  # low, high, pitch and span of a `_Walk`
_Ints = npt.NDArray[np.int64]


class OverlapGrid:
    """`of[operand]` is a tuple of cells, empty for storages that nothing writes."""

    def __init__(self, rows: InstructionTable) -> None:
        self.count = 0
        known: dict[tuple[int, ...], int] = {}
        storage = np.frombuffer(rows.storage, np.uint32).astype(np.int64)
        is_write = np.frombuffer(rows.kind, np.uint8) % 2 == 1
        is_written = np.zeros(int(storage.max(initial=-1)) + 1, bool)
        is_written[storage[is_write]] = True
        columns = [storage, *_boxes(rows, storage), *_walks(rows)]
        keys = zip(*(column.tolist() for column in columns), strict=True)
        boxes = array("I", (known.setdefault(key, len(known)) for key in keys))
        cells = self._number(known, is_written)
        self.of = [cells[box] for box in boxes]

    def _number(
        self, known: dict[tuple[int, ...], int], is_written: npt.NDArray[np.bool_]
    ) -> list[tuple[int, ...]]:
        by_storage: dict[int, list[tuple[_Box, _Walk, int]]] = {}
        for (storage, top, bottom, left, right, *walk), number in known.items():
            if is_written[storage]:
                places = by_storage.setdefault(storage, [])
                places.append(((top, bottom, left, right), _Walk(*walk), number))
        cells: list[tuple[int, ...]] = [()] * len(known)
        for places in by_storage.values():
            boxes, walks, numbers = zip(*places, strict=True)
            found, count = _cells(boxes, walks, self.count)
            self.count += count
            for number, own in zip(numbers, found, strict=True):
                cells[number] = own
        return cells


class _Walk(NamedTuple):
    """Which bytes an operand touches, of the partitions `top .. bottom` or, where these are 0 and
    1, in HBM: `span` of each `pitch` from `low` to `high`, all of them where the pitch is 0.
    """

    top: int
    bottom: int
    low: int
    high: int
    pitch: int
    span: int


def _cells(
    boxes: Sequence[_Box], walks: tuple[_Walk, ...], first: int
) -> tuple[list[tuple[int, ...]], int]:
    """The cells that each operand of a storage touches, numbered from `first`, and their number."""
    if len(boxes) == 1:
        return [(first,)], 1
    if any(walk.pitch for walk in walks):
        found = _strided_cells(walks, first)
        if found is not None:
            return found
    grid = _Grid(boxes, first)
    return [grid.within(box) for box in boxes], grid.count


def _strided_cells(
    walks: tuple[_Walk, ...], first: int
) -> tuple[list[tuple[int, ...]], int] | None:
    """`_cells` with a column for the bytes that the same walks touch; None if they are many."""
    columns = _columns(tuple(walk[2:] for walk in walks))
    if columns is None:
        return None
    edges = sorted({edge for walk in walks for edge in walk[:2]})
    spans = [
        range(bisect_right(edges, walk.top) - 1, bisect_left(edges, walk.bottom)) for walk in walks
    ]
    total = sum(len(rows) * len(own) for rows, own in zip(spans, columns, strict=True))
    if total > _MOST_CELLS * len(walks):
        return None
    width = 1 + max(column for own in columns for column in own)
    cells = [
        tuple(first + row * width + column for row in rows for column in own)
        for rows, own in zip(spans, columns, strict=True)
    ]
    return cells, width * (len(edges) - 1)


@functools.lru_cache(maxsize=256)
def _columns(bytes_of: tuple[_Bytes, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Of each walk the columns that it touches; None if it is long work to tell."""
    start, end = min(low for low, *_ in bytes_of), max(high for _, high, *_ in bytes_of)
    different = list(dict.fromkeys(bytes_of))
    lengths = (n for low, high, *step in different for n in (low - start, high - start, *step))
    unit = math.gcd(*lengths)
    if len(different) * (end - start) > _MOST_COMPARED * unit:
        return None
    at = np.arange(start, end, unit)
    is_touched = np.array([_touches(one, at) for one in different])
    _, column = np.unique(np.packbits(is_touched, axis=0), axis=1, return_inverse=True)
    column = column.reshape(-1)
    of = {
        one: tuple(np.unique(column[own]).tolist())
        for one, own in zip(different, is_touched, strict=True)
    }
    return tuple(of[one] for one in bytes_of)


def _touches(one: _Bytes, at: _Ints) -> npt.NDArray[np.bool_]:
    low, high, pitch, span = one
    is_within = (low <= at) & (at < high)
    if pitch:
        is_within &= (at - low) % pitch < span
    return is_within


class _Grid:
    """The cells of one storage whose operands are rectangles."""

    def __init__(self, boxes: Sequence[_Box], first: int) -> None:
        self._rows = sorted({edge for box in boxes for edge in box[:2]})
        self._columns = sorted({edge for box in boxes for edge in box[2:]})
        self._first = first
        while self._average(boxes) > _MOST_CELLS:
            self._rows, self._columns = _merged(self._rows), _merged(self._columns)

    @property
    def count(self) -> int:
        return (len(self._rows) - 1) * (len(self._columns) - 1)

    def _average(self, boxes: Sequence[_Box]) -> float:
        spans = (self._span(box) for box in boxes)
        return sum((b - t) * (r - left) for t, b, left, r in spans) / len(boxes)

    def _span(self, box: _Box) -> _Box:
        rows, columns = self._rows, self._columns
        return (
            bisect_right(rows, box[0]) - 1,
            bisect_left(rows, box[1]),
            bisect_right(columns, box[2]) - 1,
            bisect_left(columns, box[3]),
        )

    def within(self, box: _Box) -> tuple[int, ...]:
        """The cells that a box touches."""
        top, bottom, left, right = self._span(box)
        width = len(self._columns) - 1
        return tuple(
            self._first + row * width + column
            for row in range(top, bottom)
            for column in range(left, right)
        )


def _merged(edges: list[int]) -> list[int]:
    """Every other edge, with the first and the last."""
    if len(edges) <= 2:
        return edges
    return [*edges[:-1:2], edges[-1]]


def _boxes(rows: InstructionTable, storage: _Ints) -> tuple[_Ints, _Ints, _Ints, _Ints]:
    """Of each operand partitions and bytes on chip; in HBM rows and columns where all operands of
    the storage share a pitch, else bytes.
    """
    low = np.frombuffer(rows.low, np.uint64).astype(np.int64)
    high = np.frombuffer(rows.high, np.uint64).astype(np.int64)
    top = np.frombuffer(rows.start_partition, np.uint16).astype(np.int64)
    bottom = top + np.frombuffer(rows.partitions, np.uint32)
    in_hbm = _IS_HBM[np.frombuffer(rows.kind, np.uint8) // 2]
    pattern = np.frombuffer(rows.pattern, np.uint32)
    pitch, span = _pitches(rows, storage, in_hbm, pattern)
    has_pitch = in_hbm & (pitch > 0)
    pitch = np.where(has_pitch, pitch, 1)
    span = np.where(span > 0, span, high - low)
    column = low % pitch
    is_inside = column + span <= pitch
    left = np.where(has_pitch, np.where(is_inside, column, 0), low)
    right = np.where(has_pitch, np.where(is_inside, column + span, pitch), high)
    first, end = (
        np.where(has_pitch, low // pitch, 0),
        np.where(has_pitch, (high - 1) // pitch + 1, 1),
    )
    return np.where(in_hbm, first, top), np.where(in_hbm, end, bottom), left, right


def _walks(rows: InstructionTable) -> tuple[_Ints, ...]:
    """What a `_Walk` has, of each operand."""
    in_hbm = _IS_HBM[np.frombuffer(rows.kind, np.uint8) // 2]
    top = np.frombuffer(rows.start_partition, np.uint16).astype(np.int64)
    bottom = top + np.frombuffer(rows.partitions, np.uint32)
    pattern = np.frombuffer(rows.pattern, np.uint32)
    patterns = rows.patterns()
    pitch = np.array([found.pitch for found in patterns] or [0], np.int64)[pattern]
    span = np.array([found.span for found in patterns] or [0], np.int64)[pattern]
    low = np.frombuffer(rows.low, np.uint64).astype(np.int64)
    high = np.frombuffer(rows.high, np.uint64).astype(np.int64)
    return np.where(in_hbm, 0, top), np.where(in_hbm, 1, bottom), low, high, pitch, span


def _pitches(
    rows: InstructionTable,
    storage: _Ints,
    in_hbm: npt.NDArray[np.bool_],
    pattern: npt.NDArray[np.uint32],
) -> tuple[_Ints, _Ints]:
    """Of each operand: the pitch of its storage's rows (0 if there is none), and its span."""
    patterns = rows.patterns()
    of_pattern = np.array([found.pitch for found in patterns] or [0], np.int64)
    spans = np.array([found.span for found in patterns] or [0], np.int64)
    count = int(storage.max(initial=-1)) + 1
    own = of_pattern[pattern]
    has_pitch = in_hbm & (own > 0)
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, storage[has_pitch], own[has_pitch])
    fits = least < np.iinfo(np.int64).max
    odd = has_pitch & (own % least[storage] != 0)
    fits[storage[odd]] = False
    return np.where(fits, least, 0)[storage], spans[pattern]
