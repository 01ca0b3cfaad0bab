"""`reordered`: instructions in the order in which a list scheduler starts them.

"The compiler scheduler is free to reorder independent operations" but in `nl.no_reorder` (SDK
nki/api/nki/language/__init__.py), and kernels of Jerry2423/kda-for-trainium whose next tile is
prepared behind the results of the present one in program order are measured as busy on TensorE as
if it were prepared before. What the compiler's scheduler prefers is not published. This one starts,
on each engine, the oldest instruction that nothing keeps waiting; tiles are taken as memory allows.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from trnx.simulator.costs.constants import Timing
from trnx.simulator.costs.cost import COUNT, Cost, picoseconds
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.storage import HBM, MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.timing.overlap_grid import OverlapGrid
from trnx.simulator.timing.resources import DmaEngines

_REGIONS = tuple(MemoryRegion)
_PSUM = _REGIONS.index(MemoryRegion.psum)


class Reordered(NamedTuple):
    """Instructions with a storage for each copy of a tile, and the positions of `order` in their
    new order.
    """

    rows: InstructionTable
    positions: array[int]


def reordered(
    rows: InstructionTable,
    order: array[int],
    fresh: Sequence[int],
    queue: Sequence[int],
    cost_of: Sequence[Cost],
    hardware: Hardware,
    constants: Timing,
) -> Reordered | None:
    """A run of `order`, each of whose rows has a cost and a queue; None where it stays as it is:
    with register loops, addresses that a run computes, and cores that wait for each other.
    """
    if rows.loops or any(rows.dynamic) or any(cost.meets for cost in set(cost_of)):
        return None
    apart = _copies_apart(rows, order, fresh)
    work = _Work(apart, order)
    work.keep_order(rows.ordered)
    return Reordered(apart, _Scheduler(work, queue, cost_of, hardware, constants).run())


def _copies_apart(
    rows: InstructionTable, order: array[int], fresh: Sequence[int]
) -> InstructionTable:
    """The same instructions, where each copy of a tile is a storage of its own."""
    storage, present = array("I", rows.storage), {}
    count = max(rows.storage, default=0) + 1
    first = rows.first_operand
    for row in order:
        for i in range(first[row], first[row + 1]):
            own = rows.storage[i]
            if fresh[i] and own in present:
                present[own], count = count, count + 1
            storage[i] = present.setdefault(own, own)
    result = copy.copy(rows)
    result.storage = storage
    return result


class _Work:
    """Of each position: those that come before it, and the tiles that it uses."""

    def __init__(self, rows: InstructionTable, order: array[int]) -> None:
        self.rows, self.order = rows, order
        cells = OverlapGrid(rows)
        self.before: list[set[int]] = []
        self.tiles: list[set[int]] = []
        self.uses: dict[int, int] = {}
        writer: list[int] = [-1] * cells.count
        readers: list[list[int]] = [[] for _ in range(cells.count)]
        first, kind, storage = rows.first_operand, rows.kind, rows.storage
        for position, row in enumerate(order):
            found: set[int] = set()
            own: set[int] = set()
            operands = range(first[row], first[row + 1])
            for i in operands:
                if _REGIONS[kind[i] // 2] not in HBM:
                    own.add(storage[i])
                for cell in cells.of[i]:
                    found.add(writer[cell])
                    if kind[i] % 2:
                        found.update(readers[cell])
            for i in operands:
                for cell in cells.of[i]:
                    if kind[i] % 2:
                        writer[cell], readers[cell] = position, []
                    else:
                        readers[cell].append(position)
            found -= {-1, position}
            self.before.append(found)
            self.tiles.append(own)
            for tile in own:
                self.uses[tile] = self.uses.get(tile, 0) + 1

    def keep_order(self, blocks: Sequence[tuple[int, int]]) -> None:
        """Rows in a block run one after another."""
        rows, order = self.rows, self.order
        for begin, end in blocks:
            last: dict[int, int] = {}
            for position, row in enumerate(order):
                if begin <= row < end:
                    core = rows.core[row]
                    if core in last:
                        self.before[position].add(last[core])
                    last[core] = position


class _Memory:
    """Bytes of a partition that are taken, by core and memory."""

    def __init__(self, work: _Work, hardware: Hardware) -> None:
        rows = work.rows
        self._work, self._left = work, dict(work.uses)
        self._bank = hardware.psum_bank_bytes
        self._limit = [
            hardware.psum_partition_bytes if code == _PSUM else hardware.sbuf_partition_bytes
            for code in range(len(_REGIONS))
        ]
        size = np.zeros(max(rows.storage, default=0) + 1, np.int64)
        np.maximum.at(
            size, np.frombuffer(rows.storage, np.uint32), np.frombuffer(rows.high, np.uint64)
        )
        self._size: list[int] = size.tolist()
        self._place: dict[int, tuple[int, int]] = {}
        for row in work.order:
            for i in range(rows.first_operand[row], rows.first_operand[row + 1]):
                self._place[rows.storage[i]] = rows.core[row], rows.kind[i] // 2
        self._used: dict[tuple[int, int], int] = {}
        self._is_there: set[int] = set()

    def fits(self, position: int) -> bool:
        """Whether the tiles that begin here have room."""
        return all(
            self._used.get(self._place[tile], 0) + self._bytes(tile)
            <= self._limit[self._place[tile][1]]
            for tile in self._work.tiles[position] - self._is_there
        )

    def use(self, position: int) -> bool:
        """Take up the tiles of a position; True where some were used for the last time."""
        is_freed = False
        for tile in self._work.tiles[position]:
            place = self._place[tile]
            if tile not in self._is_there:
                self._is_there.add(tile)
                self._used[place] = self._used.get(place, 0) + self._bytes(tile)
            self._left[tile] -= 1
            if not self._left[tile]:
                self._used[place] -= self._bytes(tile)
                is_freed = True
        return is_freed

    def _bytes(self, tile: int) -> int:
        size = self._size[tile]
        if self._place[tile][1] == _PSUM:
            return -(-size // self._bank) * self._bank
        return size


class _Queue:
    """Instructions of a queue whose predecessors have started."""

    def __init__(self) -> None:
        self.free = 0
        self.later: list[tuple[int, int]] = []  # (ps, position)
        self.ready: list[int] = []
        self.held: list[int] = []

    def choose(self, memory: _Memory, oldest: int) -> tuple[int, int] | None:
        """(start, position) of the oldest that is ready, else of the first one that will be."""
        while self.later and self.later[0][0] <= self.free:
            heappush(self.ready, heappop(self.later)[1])
        while self.ready:
            position = self.ready[0]
            if position == oldest or memory.fits(position):
                return self.free, position
            self.held.append(heappop(self.ready))
        while self.later:
            ps, position = self.later[0]
            if position == oldest or memory.fits(position):
                return ps, position
            self.held.append(heappop(self.later)[1])
        return None

    def take(self, position: int) -> None:
        """Remove what was chosen."""
        if self.ready and self.ready[0] == position:
            heappop(self.ready)
        else:
            heappop(self.later)

    def retry(self) -> None:
        """Memory was freed."""
        for position in self.held:
            heappush(self.ready, position)
        self.held.clear()


class _Scheduler:
    """Starts one instruction after another."""

    def __init__(
        self,
        work: _Work,
        queue: Sequence[int],
        costs: Sequence[Cost],
        hardware: Hardware,
        constants: Timing,
    ) -> None:
        self._work, self._queue, self._costs = work, queue, costs
        self._handoff = picoseconds(constants.handoff_ns)
        self._start = picoseconds(constants.dma_start_ns)
        self._memory = _Memory(work, hardware)
        count = len(work.order)
        self._after: list[list[int]] = [[] for _ in range(count)]
        self._missing = array("I", map(len, work.before))
        for position, found in enumerate(work.before):
            for before in found:
                self._after[before].append(position)
        self._ready_at = array("q", bytes(8 * count))
        self._queues = {q: _Queue() for q in sorted(set(queue))}
        stagger = picoseconds(constants.dma_stagger_ns)
        cores = {q // COUNT for q in self._queues}
        self._dma = {core: DmaEngines(hardware.dma_engines, 1, stagger) for core in cores}
        self._is_done = bytearray(count)

    def run(self) -> array[int]:
        """Positions in the order of their starts."""
        result, oldest, count = array("I"), 0, len(self._work.order)
        for position in range(count):
            if not self._missing[position]:
                heappush(self._queues[self._queue[position]].later, (0, position))
        while len(result) < count:
            start, position = self._next(oldest)
            result.append(position)
            self._begin(position, start)
            while oldest < count and self._is_done[oldest]:
                oldest += 1
            if oldest < count:
                # It may take memory that there is none of: those after it would never free any.
                self._queues[self._queue[oldest]].retry()
        return result

    def _next(self, oldest: int) -> tuple[int, int]:
        found = [
            choice
            for one in self._queues.values()
            if (choice := one.choose(self._memory, oldest)) is not None
        ]
        return min(found)

    def _begin(self, position: int, start: int) -> None:
        q = self._queue[position]
        cost, own = self._costs[position], self._queues[q]
        own.take(position)
        own.free = start + cost.interval
        seen = start + cost.latency
        if cost.dma_engines:
            seen = self._dma[q // COUNT].take(cost, start + self._start)[1] + cost.latency
        self._is_done[position] = 1
        if self._memory.use(position):
            for one in self._queues.values():
                one.retry()
        for after in self._after[position]:
            self._ready_at[after] = max(self._ready_at[after], seen + self._handoff)
            self._missing[after] -= 1
            if not self._missing[after]:
                other = self._queues[self._queue[after]]
                heappush(other.later, (self._ready_at[after], after))
