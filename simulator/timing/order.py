"""The instructions of a run: register loops unrolled, two cores side by side."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trnx.simulator.rows import Rows

_Loop = tuple[int, int, int | None]


class Order(NamedTuple):
    """Rows as a run executes them; `assumptions` names loops whose count only a run knows."""

    rows: array[int]
    assumptions: tuple[str, ...]


def unroll(rows: Rows, unknown_trips: int = 1) -> Order:
    """Rows in the order of a run; a loop whose count only a run knows has `unknown_trips`."""
    if not rows.loops:
        return Order(array("I", range(len(rows))), ())
    order = _unrolled(rows.loops, 0, len(rows), unknown_trips)
    locations = rows.locations()
    unknown = sorted({first for first, last, trips in rows.loops if trips is None and last > first})
    return Order(
        order,
        tuple(
            f"the loop at {locations[rows.line[first]]} runs {unknown_trips} times; "
            "only a run knows its count"
            for first in unknown
        ),
    )


def _unrolled(loops: Sequence[_Loop], first: int, last: int, unknown_trips: int) -> array[int]:
    order, at = array("I"), first
    inside = sorted(
        (loop for loop in loops if first <= loop[0] and loop[1] <= last),
        key=lambda loop: (loop[0], -loop[1]),
    )
    while inside:
        begin, end, trips = inside.pop(0)
        order.extend(range(at, begin))
        own = [loop for loop in inside if loop[1] <= end]
        inside = [loop for loop in inside if loop[1] > end]
        body = _unrolled(own, begin, end, unknown_trips)
        order.extend(body * (unknown_trips if trips is None else trips))
        at = end
    order.extend(range(at, last))
    return order


def interleaved(cores: array[int]) -> array[int] | None:
    """Positions with the streams of several cores side by side, so that what repeats on all cores
    repeats in the order, too; None where there is one core.
    """
    core = np.frombuffer(cores, np.uint8)
    found = np.unique(core)
    if len(found) < 2:
        return None
    local = np.empty(len(core), np.int64)
    for one in found:
        at = core == one
        local[at] = np.arange(int(at.sum()))
    return array("I", np.lexsort((core, local)).astype(np.uint32).tobytes())
