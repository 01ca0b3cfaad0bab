"""Skipping what repeats: where a Program repeats itself and the machine is in the state in which it
was a whole number of repetitions before, what follows is what followed then, only later.

States are integers relative to the present, so "the same state" is exact and so is the result.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.simulator.timing.dependencies import NO_BANK, Dependencies
from trnx.simulator.timing.machine import Machine
from trnx.simulator.timing.repeats import Run, find_runs
from trnx.simulator.timing.schedule import Schedule

# A state is looked at once in this many positions at most.
_SPACING = 12


def signatures(graph: Dependencies, result: Schedule) -> array[int]:
    """Numbers that are equal where instructions cost the same and wait for the same, relative to
    where they stand.
    """
    known: dict[tuple[int | None, ...], int] = {}
    edges, first = graph.edges, graph.first
    partner, bank = graph.partner, graph.bank
    found = array("I")
    for position, (cost, queue) in enumerate(zip(result.cost_of, result.queue, strict=True)):
        base = 2 * position
        waits = [base - edge for edge in edges[first[position] : first[position + 1]]]
        key: tuple[int | None, ...] = (cost, queue, *waits)
        if bank[position] != NO_BANK or position in partner:
            key = (*key, None, bank[position], partner.get(position, position) - position)
        found.append(known.setdefault(key, len(known)))
    return found


@dataclass
class _Seen:
    """A state of the machine, after `position` at `now`. `heads` and `free`, in `places`, tell most
    states apart; the whole `key` is made when they are equal.
    """

    places: tuple[Any, ...]
    key: tuple[Any, ...] | None
    position: int
    now: int
    heads: dict[int, int]
    throttled: int


class _Level:
    """The runs of one period, and the state that later ones are compared with (Brent's way: it is
    replaced after 1, 2, 4, ... comparisons, so that any cycle of states is found).
    """

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self._ends = [run.end for run in runs]
        self.seen: _Seen | None = None
        self.run: Run | None = None
        self._left = self._power = 1

    def at(self, position: int) -> Run | None:
        """The run that a position is in."""
        index = bisect_right(self._ends, position)
        if index == len(self.runs) or position < self.runs[index].first:
            return None
        run = self.runs[index]
        if run is not self.run:
            self.run, self.seen = run, None
            self._left = self._power = 1
        return run

    def is_due(self) -> bool:
        """Whether later states are to be compared with this one."""
        self._left -= 1
        if self.seen is not None and self._left:
            return False
        self._power *= 2
        self._left = self._power
        return True


class SteadyState:
    """Finds repeated states and moves the machine ahead."""

    def __init__(self, machine: Machine, numbers: array[int]) -> None:
        self._levels = [_Level(r) for r in find_runs(np.frombuffer(numbers, np.uint32))]
        main = max(machine.queues, key=lambda q: (len(machine.waiting[q]), -q))
        for bit, level in enumerate(self._levels):
            for run in level.runs:
                self._mark(machine, main, run, 1 << bit)

    @staticmethod
    def _mark(machine: Machine, main: int, run: Run, bit: int) -> None:
        """Watch one position of the busiest queue per repetition."""
        waiting = machine.waiting[main]
        index = bisect_left(waiting, run.first)
        if index == len(waiting) or waiting[index] >= run.first + run.period:
            return
        step = run.period * -(-_SPACING // run.period)
        for position in range(waiting[index], run.end, step):
            machine.watch[position] |= bit

    def __call__(self, machine: Machine, position: int, now: int) -> bool:
        """Look at the state after `position`; True where the machine moved ahead."""
        mask = machine.watch[position]
        for bit, level in enumerate(self._levels):
            if not mask >> bit & 1:
                continue
            run = level.at(position)
            if run is None:
                continue
            places = _places(machine, run, position, now)
            if places is not None and self._compare(machine, level, run, places, position, now):
                level.seen = None
                return True
        return False

    @staticmethod
    def _compare(
        machine: Machine, level: _Level, run: Run, places: tuple[Any, ...], position: int, now: int
    ) -> bool:
        before = level.seen
        is_due = level.is_due()
        is_equal = before is not None and before.places == places
        if not is_due and not is_equal:
            return False
        key = _state(machine, position, now)
        heads = dict(machine.head)
        seen = _Seen(places, key, position, now, heads, machine.result.throttled_ps)
        if (
            is_equal
            and before is not None
            and before.key == key
            and _jump(machine, run, before, seen)
        ):
            return True
        if is_due:
            level.seen = seen
        return False


def _places(machine: Machine, run: Run, position: int, now: int) -> tuple[Any, ...] | None:
    """Of each queue where its head stands and when it is free, relative to `position` and `now`;
    None where the future is not that of the run.
    """
    parts = []
    for q in machine.queues:
        waiting, head = machine.waiting[q], machine.head[q]
        free = machine.free[q] - now
        if head == len(waiting):
            place = -1
        elif waiting[head] >= run.end:
            if q not in machine.blocker:
                return None  # it starts soon, and only once
            place = -2
        elif waiting[head] < run.first:
            return None
        else:
            place = waiting[head] - position
        parts.append((place, free if free > 0 else 0))
    return tuple(parts)


def _state(machine: Machine, position: int, now: int) -> tuple[Any, ...]:
    """What else decides about the future."""
    parts: list[Any] = []
    visible, handoff = machine.result.visible, machine.handoff
    for q in machine.queues:
        waiting, at = machine.waiting[q], machine.head[q] - 1
        flying = []
        while at >= 0 and visible[waiting[at]] + handoff > now:
            flying.append((waiting[at] - position, visible[waiting[at]] - now))
            at -= 1
        parts.append(tuple(flying))
    for core, lanes in machine.dma_engines.items():
        parts.append((lanes.state(now), machine.throttle[core].state(now)))
        parts.append(machine.pe_tiles[core].state(now))
    parts.append(machine.hbm.state(now))
    parts.append(tuple(sorted(machine.tables.items())))
    ports = sorted(machine.ports.items())
    parts.append(tuple((key, free - now, q) for key, (free, q) in ports if free > now))
    parts.append(tuple(sorted((at - position, ps - now) for at, ps in machine.arrived.items())))
    return tuple(parts)


def _jump(machine: Machine, run: Run, before: _Seen, seen: _Seen) -> bool:
    """Repeat what happened between two equal states as often as the run allows."""
    length = seen.position - before.position
    counts = {q: seen.heads[q] - before.heads[q] for q in machine.queues}
    times = _repetitions(machine, run, counts, length)
    if times < 1:
        return False
    delay = seen.now - before.now
    for q, count in counts.items():
        if count:
            _fill(machine, q, count, times, delay, length)
            machine.head[q] += count * times
            machine.free[q] += delay * times
            machine.visible[q] += delay * times
    for core, lanes in machine.dma_engines.items():
        lanes.shift(delay * times)
        machine.throttle[core].shift(delay * times)
        machine.pe_tiles[core].shift(delay * times)
    machine.hbm.shift(delay * times)
    machine.ports = {key: (free + delay * times, q) for key, (free, q) in machine.ports.items()}
    machine.result.throttled_ps += (seen.throttled - before.throttled) * times
    machine.result.skipped += sum(counts.values()) * times
    return True


def _repetitions(machine: Machine, run: Run, counts: dict[int, int], length: int) -> int:
    """How often the run goes on like this, and no instruction after it becomes ready."""
    times = run.end
    for q, count in counts.items():
        waiting, head = machine.waiting[q], machine.head[q]
        if count:
            if head == len(waiting) or waiting[head] - length < run.first:
                return 0
            times = min(times, (run.end - waiting[head]) // length)
        elif head < len(waiting):
            if waiting[head] < run.end:
                return 0
            blocker = machine.blocker[q]
            owner = machine.result.queue[blocker]
            if counts[owner]:
                ahead = bisect_left(machine.waiting[owner], blocker) - machine.head[owner]
                times = min(times, ahead // counts[owner])
    return times


def _fill(machine: Machine, q: int, count: int, times: int, delay: int, length: int) -> None:
    """Write down the repetitions of the last `count` positions of a queue."""
    waiting, head, result = machine.waiting[q], machine.head[q], machine.result
    source = np.array(waiting[head - count : head])
    repeats = np.arange(1, times + 1)[:, None]
    target = (source + length * repeats).ravel()
    for column in (result.start, result.free, result.visible):
        values = np.frombuffer(column, np.int64)
        values[target] = (values[source] + delay * repeats).ravel()
    for column in (result.begin, result.last):
        values = np.frombuffer(column, np.int64)
        taken = values[source]
        values[target] = np.where(taken < 0, taken, taken + delay * repeats).ravel()
    cause = np.frombuffer(result.cause, np.int32)
    taken = cause[source].astype(np.int64)
    cause[target] = np.where(taken < 0, taken, taken + length * repeats).ravel()
    reason = np.frombuffer(result.reason, np.uint8)
    reason[target] = np.tile(reason[source], times)
