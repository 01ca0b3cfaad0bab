"""How the rows of a wide accumulator, or of a tile that is reduced in halves, become one.

VectorE adds the second half of the rows to the first, again and again: it walks along what lies
side by side, but every step waits for the one before. Over few elements one reduction, which walks
in steps at half the rate, takes less than the steps that are left.
"""

from __future__ import annotations

import functools

# Cycles from one instruction to the next one that waits for it, besides its elements
# (`chain_order.py`).
_STEP = 176


@functools.cache
def rows_left(rows: int, width: int) -> tuple[int, ...]:
    """The numbers of rows of `width` elements after each halving; the last one, where it is not 1,
    is that of the reduction which ends it."""
    left = [rows]
    while left[-1] > 1 and not _ends(left[-1], width):
        left.append(left[-1] - left[-1] // 2)
    return tuple(left[1:])


def cycles(rows: int, width: int) -> int:
    """What all of it takes of VectorE."""
    taken, last = 0, rows
    for left in rows_left(rows, width):
        taken += (last - left) * width + _STEP
        last = left
    return taken if last == 1 else taken + _reduction(last, width)


def _reduction(rows: int, width: int) -> int:
    return 2 * rows * width + _STEP


def _ends(rows: int, width: int) -> bool:
    """Whether a reduction of so many rows takes less than halving them first."""
    half = rows // 2
    return rows > 2 and _reduction(rows, width) <= half * width + _STEP + cycles(rows - half, width)
