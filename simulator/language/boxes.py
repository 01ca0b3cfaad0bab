"""Whether regions fill a region, by the edges of boxes of rows and columns: no map of elements.

A kernel writes its result tile by tile, and when it ends the question is whether every element was
written. For a result of some hundred megabytes a map by element takes longer than the trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from trnx.simulator.memory.views import Shape

# What `TensorView.region_key` gives: offset, shape, strides, bytes of an element.
RegionKey = tuple[int, Shape, Shape, int]

# Pieces between edges; beyond, a map by element is no dearer.
_MOST_PIECES = 1 << 20


class _Lines(NamedTuple):
    """`number` runs of bytes, `step` apart; a step of 0 is one run."""

    start: int
    run: int
    step: int
    number: int


class _Box(NamedTuple):
    top: int
    bottom: int
    left: int
    right: int


def is_filled(wanted: RegionKey, regions: Sequence[RegionKey], nbytes: int) -> bool | None:
    """Whether regions of a storage of `nbytes` have every byte of `wanted`; None where they are no
    boxes of rows of one length.
    """
    if 0 in wanted[1]:
        return True
    lines = [_lines(key) for key in (wanted, *regions) if 0 not in key[1]]
    steps = {found.step for found in lines if found is not None and found.step}
    if len(steps) > 1:
        return None
    row = steps.pop() if steps else nbytes
    boxes = [box for found in lines if found is not None and (box := _box(found, row))]
    if len(boxes) < len(lines):
        return None
    asked, *given = boxes
    inside = [box for each in given if (box := _cut(each, asked))]
    rows = sorted({asked.top, asked.bottom, *(edge for box in inside for edge in box[:2])})
    columns = sorted({asked.left, asked.right, *(edge for box in inside for edge in box[2:])})
    if len(rows) * len(columns) > _MOST_PIECES:
        return None
    row_of, column_of = ({edge: i for i, edge in enumerate(edges)} for edges in (rows, columns))
    pieces = torch.zeros(len(rows) - 1, len(columns) - 1, dtype=torch.bool, device="cpu")
    for top, bottom, left, right in inside:
        pieces[row_of[top] : row_of[bottom], column_of[left] : column_of[right]] = True
    return bool(pieces.all())


def _lines(key: RegionKey) -> _Lines | None:
    """The region as runs; None where it has more than two levels of steps."""
    offset, shape, strides, itemsize = key
    # A step of 0 repeats a location.
    dims = sorted(
        (step * itemsize, size)
        for size, step in zip(shape, strides, strict=True)
        if size > 1 and step
    )
    run, step, number = itemsize, 0, 1
    for distance, size in dims:
        if not step and distance == run:
            run *= size
        elif not step and distance > run:
            step, number = distance, size
        elif step and distance == step * number:
            number *= size
        else:
            return None
    return _Lines(offset * itemsize, run, step, number)


def _box(lines: _Lines, row: int) -> _Box | None:
    """The runs as rows and columns of them; None where one goes beyond the end of a row."""
    top, left = divmod(lines.start, row)
    if left + lines.run <= row:
        return _Box(top, top + lines.number, left, left + lines.run)
    if left == 0 and lines.run % row == 0 and lines.number == 1:
        return _Box(top, top + lines.run // row, 0, row)
    return None


def _cut(box: _Box, asked: _Box) -> _Box | None:
    """What a box has of another one."""
    top, bottom = max(box.top, asked.top), min(box.bottom, asked.bottom)
    left, right = max(box.left, asked.left), min(box.right, asked.right)
    return _Box(top, bottom, left, right) if top < bottom and left < right else None
