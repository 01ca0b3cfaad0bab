"""Strided views as pure functions on (shape, strides): what NkiTensor's methods compute with.

Strides count elements and are never negative.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

Shape = tuple[int, ...]


def merge_dims(shape: Shape, strides: Shape) -> list[tuple[int, int]]:
    """The same walk with neighbouring dimensions merged where possible, without sizes of 1."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


@functools.lru_cache(maxsize=512)
def reshape_strides(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """Strides that make `new_shape` walk the same elements in the same order; None if there are
    none.
    """
    if shape == new_shape:
        return strides
    runs = merge_dims(shape, strides)
    result: list[int] = []
    # Inner dimensions first; each new dimension takes its share of the innermost run that is left.
    available, step = runs.pop() if runs else (1, 1)
    for size in reversed(new_shape):
        if size == 1:
            result.append(step)
            continue
        if available == 1 and runs:
            available, step = runs.pop()
        if available % size:
            return None
        result.append(step)
        step *= size
        available //= size
    return tuple(reversed(result))


def split_sizes(size: int, shape: Shape) -> Shape | None:
    """`shape` with its one -1 inferred, if the product is `size`; else None."""
    known = math.prod(extent for extent in shape if extent != -1)
    if shape.count(-1) > 1 or known <= 0:
        return None
    if -1 in shape:
        if size % known:
            return None
        return tuple(size // known if extent == -1 else extent for extent in shape)
    return shape if known == size else None


def last_element(shape: Shape, strides: Shape) -> int:
    """Distance in elements from the first to the farthest element."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


@dataclass(frozen=True, slots=True)
class Form:
    """What follows from a view's shape and strides; the views of a kernel repeat few of them.

    `free_size` and `free_reach` leave the first dimension out. `reach`: the distance in elements
    from the first to the farthest element. `is_gapless`: the elements are distinct and fill as many
    locations as there are.
    """

    size: int
    free_size: int
    reach: int
    free_reach: int
    is_broadcast: bool
    is_gapless: bool


@functools.lru_cache(maxsize=512)
def form(shape: Shape, strides: Shape) -> Form:
    """The form of a view, one object for all alike."""
    return Form(
        math.prod(shape),
        math.prod(shape[1:]),
        last_element(shape, strides),
        last_element(shape[1:], strides[1:]),
        any(s == 0 and n > 1 for n, s in zip(shape, strides, strict=True)),
        _is_gapless(shape, strides),
    )


def _is_gapless(shape: Shape, strides: Shape) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_row_major(shape: Shape, strides: Shape) -> bool:
    """True where the walk covers consecutive elements; sizes of 1 do not count."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
