"""Who waits for whom: for each position the positions that must be visible before it starts.

A predecessor is the last writer of a cell that is read, the last reader or writer of one that is
written, or the last user of memory that a new tensor takes over. Queues run in order and their
results become visible in order, so of each queue only the latest predecessor counts, and none that
an earlier instruction of the same queue waited for already.

A barrier waits for everything that its core did before (what it is given to share is in HBM, so
this is inferred), and meets its counterpart on the other core, as an exchange does.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from trnx.simulator.costs.cost import COMPUTE_QUEUES, COUNT, PSUM_BANK, Cost
from trnx.simulator.hardware import Hardware
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.timing.overlap_grid import OverlapGrid
from trnx.simulator.timing.placement import Placement, Users
from trnx.simulator.timing.schedule import Lifetime

NO_BANK = 255


class Dependencies:
    """`edges[first[p]:first[p + 1]]` are the predecessors of position p, as position * 2, plus 1
    where it waits for their memory. `partner[p]` starts together with p (absent: none); `bank[p]`
    is the PSUM bank that p needs for itself.
    """

    def __init__(
        self,
        rows: InstructionTable,
        order: array[int],
        queues: Sequence[int],
        costs: Sequence[Cost],
        cost_of: Sequence[int],
        hardware: Hardware,
        fresh: Sequence[int],
    ) -> None:
        self._placement = Placement(rows, order, hardware, fresh)
        self.first = array("Q", [0])
        self.edges = array("Q")
        self.bank = array("B", [NO_BANK]) * len(order)
        self.partner: dict[int, int] = {}
        waited: dict[int, Users] = {q: {} for q in set(queues)}
        cells = _Accesses(rows, fresh)
        meetings: dict[int, list[int]] = {}
        latest: dict[int, int] = {}
        for position, row in enumerate(order):
            queue = queues[position]
            cost = costs[cost_of[position]]
            found = cells.touch(position, row, queue)
            freed = self._placement.use(position, row, queue)
            if cost.meets:
                meetings.setdefault(rows.core[row], []).append(position)
                if not cost.dma_engines:
                    _fence(found, latest, queue)
            self._keep(found, freed, queue, waited[queue])
            latest[queue] = position
            if cost.ports & PSUM_BANK:
                self.bank[position] = self._placement.bank(row)
        self._pair(list(meetings.values()))
        self.lifetimes: list[Lifetime] = self._placement.lifetimes

    def renumber(self, permutation: array[int]) -> None:
        """Give position `permutation[p]` the number p."""
        new = np.empty(len(permutation), np.int64)
        new[np.frombuffer(permutation, np.uint32)] = np.arange(len(permutation))
        number: list[int] = new.tolist()
        first, edges = array("Q", [0]), array("Q")
        for old in permutation:
            for edge in self.edges[self.first[old] : self.first[old + 1]]:
                edges.append(number[edge >> 1] * 2 + (edge & 1))
            first.append(len(edges))
        self.first, self.edges = first, edges
        self.bank = array("B", (self.bank[old] for old in permutation))
        self.partner = {number[one]: number[other] for one, other in self.partner.items()}
        self.lifetimes = [
            life._replace(first=number[life.first], last=tuple(number[p] for p in life.last))
            for life in self.lifetimes
        ]

    def _keep(self, found: Users, freed: Users, queue: int, waited: Users) -> None:
        """Write down what was not waited for before."""
        edges = self.edges
        for other, before in found.items():
            if before > waited.get(other, -1):
                waited[other] = before
                edges.append(before * 2)
        for other, before in freed.items():
            if before > waited.get(other, -1) and not (
                other == queue and queue % COUNT < COMPUTE_QUEUES
            ):
                waited[other] = before
                edges.append(before * 2 + 1)
        self.first.append(len(edges))

    def _pair(self, meetings: list[list[int]]) -> None:
        """The n-th meeting of one core is the n-th of the other: a core waits in one at a time."""
        if len(meetings) != 2:
            return
        for one, other in zip(*meetings, strict=False):
            self.partner[one], self.partner[other] = other, one


def _fence(found: Users, latest: Users, queue: int) -> None:
    core = queue // COUNT
    for other, position in latest.items():
        if other // COUNT == core:
            found[other] = position


class _Accesses:
    """The last writer of each cell, and its readers since."""

    def __init__(self, rows: InstructionTable, fresh: Sequence[int]) -> None:
        self._fresh = fresh
        cells = OverlapGrid(rows)
        self._cells = cells.of
        self._first = rows.first_operand
        self._kind = rows.kind
        self._writer = [-1] * cells.count
        self._writer_queue = [-1] * cells.count
        self._readers: list[Users | None] = [None] * cells.count

    def touch(self, position: int, row: int, queue: int) -> Users:
        """The predecessors of a position by queue."""
        found: Users = {}
        first, last = self._first[row], self._first[row + 1]
        kinds, cells = self._kind, self._cells
        runs_in_order = queue % COUNT < COMPUTE_QUEUES
        for i in range(first, last):
            within = cells[i]
            if not within:
                continue
            if self._fresh[i]:
                self._forget(within)
            elif kinds[i] % 2:
                self._find_for_write(within, queue, runs_in_order, found)
            else:
                self._find_for_read(within, found)
        for i in range(first, last):
            within = cells[i]
            if within:
                self._note(within, kinds[i] % 2, position, queue)
        return found

    def _find_for_read(self, within: tuple[int, ...], found: Users) -> None:
        writers, queues = self._writer, self._writer_queue
        for cell in within:
            writer = writers[cell]
            if writer >= 0:
                other = queues[cell]
                if writer > found.get(other, -1):
                    found[other] = writer

    def _find_for_write(
        self, within: tuple[int, ...], queue: int, runs_in_order: bool, found: Users
    ) -> None:
        writers, queues, everyone = self._writer, self._writer_queue, self._readers
        for cell in within:
            writer, other = writers[cell], queues[cell]
            if writer > found.get(other, -1) and not (runs_in_order and other == queue):
                found[other] = writer
            readers = everyone[cell]
            if readers:
                for other, reader in readers.items():
                    if reader > found.get(other, -1) and not (runs_in_order and other == queue):
                        found[other] = reader

    def _forget(self, within: tuple[int, ...]) -> None:
        """Another copy of the tile begins: nobody has used it."""
        for cell in within:
            self._writer[cell], self._readers[cell] = -1, None

    def _note(self, within: tuple[int, ...], is_write: int, position: int, queue: int) -> None:
        if is_write:
            for cell in within:
                self._writer[cell], self._writer_queue[cell] = position, queue
                self._readers[cell] = None
            return
        for cell in within:
            readers = self._readers[cell]
            if readers is None:
                self._readers[cell] = {queue: position}
            else:
                readers[queue] = position
