"""The instructions of a run: register loops unrolled, two cores side by side."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from trnx.simulator.program.instruction_table import InstructionTable

_Loop = tuple[int, int, int | None, int]


class Order(NamedTuple):
    """Instructions as a run executes them; `assumptions` names loops that only a run can count."""

    rows: array[int]
    assumptions: tuple[str, ...]


def unroll(rows: InstructionTable, unknown_trips: int = 1) -> Order:
    """Instructions in the order of a run; a loop that only a run can count has `unknown_trips`."""
    if not rows.loops:
        return Order(array("I", range(len(rows))), ())
    if _overlap(rows.loops):
        order = _side_by_side(rows, unknown_trips)
    else:
        order = _unrolled(rows.loops, 0, len(rows), unknown_trips)
    locations = rows.locations()
    unknown = sorted({loop[0] for loop in rows.loops if loop[2] is None and loop[1] > loop[0]})
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
        begin, end, trips, _ = inside.pop(0)
        order.extend(range(at, begin))
        own = [loop for loop in inside if loop[1] <= end]
        inside = [loop for loop in inside if loop[1] > end]
        body = _unrolled(own, begin, end, unknown_trips)
        order.extend(body * (unknown_trips if trips is None else trips))
        at = end
    order.extend(range(at, last))
    return order


def _overlap(loops: Sequence[_Loop]) -> bool:
    """True where cores meet in loops, which were recorded turn about."""
    return any(
        one[3] != other[3] and one[0] < other[1] and other[0] < one[1]
        for one, other in itertools.combinations(loops, 2)
    )


def _side_by_side(rows: InstructionTable, unknown_trips: int) -> array[int]:
    """Each core's instructions unrolled, and both together from meeting to meeting."""
    meetings = {code for code, spec in enumerate(rows.specs()) if spec.meets}
    streams = [_stream(rows, core, unknown_trips) for core in sorted(set(rows.core))]
    order, at = array("I"), [0] * len(streams)
    while any(begin < len(stream) for begin, stream in zip(at, streams, strict=True)):
        for i, stream in enumerate(streams):
            end = _until_meeting(stream, at[i], rows.opcode, meetings)
            order.extend(stream[at[i] : end])
            at[i] = end
        for i, stream in enumerate(streams):
            order.extend(stream[at[i] : at[i] + 1])
            at[i] += 1
    return order


def _stream(rows: InstructionTable, core: int, unknown_trips: int) -> array[int]:
    """The instructions of one core, unrolled."""
    own = array("I", (row for row in range(len(rows)) if rows.core[row] == core))
    loops = [
        (bisect.bisect_left(own, first), bisect.bisect_left(own, last), trips, core)
        for first, last, trips, other in rows.loops
        if other == core
    ]
    return array("I", (own[at] for at in _unrolled(loops, 0, len(own), unknown_trips)))


def _until_meeting(
    stream: array[int], at: int, opcode: array[int], meetings: Collection[int]
) -> int:
    while at < len(stream) and opcode[stream[at]] not in meetings:
        at += 1
    return at


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
