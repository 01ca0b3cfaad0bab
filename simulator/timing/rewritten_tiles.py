"""What the compiler does to a kernel that uses one tile again and again: `rewritten`.

A kernel may declare an accumulator or a tile outside of its loop and write it anew in every turn.
In program order each turn then waits for the readers of the turn before. Kernels of AWS written so
are measured as fast as with a tile for each turn, so what writes all of a tile, and keeps nothing
of it, begins another copy, as far as memory goes. A value that is never read before it is written
over, such as a memset in front of the first product of a sum, is not computed.

Tiles whose address the kernel chose stay where they are.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trnx.simulator.memory.dtypes import DTYPES
from trnx.simulator.memory.storage import HBM, MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable

_ON_CHIP = np.array([region not in HBM for region in MemoryRegion])
_SIZES = np.array([dtype.itemsize for dtype in DTYPES], np.int64)

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


class Rewritten(NamedTuple):
    """`fresh[operand]` is 1 where a copy of the tile begins; `order` are the rows that are left;
    `lines` the numbers of the source lines that write a tile anew.
    """

    fresh: array[int]
    order: array[int]
    lines: tuple[int, ...]


def as_written(rows: InstructionTable, order: array[int]) -> Rewritten:
    """Nothing is rewritten: program order as it stands."""
    return Rewritten(array("B", bytes(len(rows.storage))), order, ())


def rewritten(rows: InstructionTable, order: array[int]) -> Rewritten:
    """The copies of tiles in a run of `order`, and the order without values that nobody reads."""
    if not order or not rows.storage:
        return as_written(rows, order)
    table = _Operands(rows)
    fresh = table.fresh()
    executions = np.bincount(np.frombuffer(order, np.uint32), minlength=len(rows))
    times = np.zeros(table.storages, np.int64)
    np.add.at(times, table.storage[fresh], executions[table.row[fresh]])
    # A tile that is written once begins with it anyway.
    again = fresh & (times[table.storage] > 1)
    if not again.any():
        return as_written(rows, order)
    lines = np.unique(np.frombuffer(rows.line, np.uint32)[table.row[again]])
    return Rewritten(
        array("B", again.astype(np.uint8).tobytes()),
        _without_unread(rows, order, table, again),
        tuple(lines.tolist()),
    )


class _Operands:
    """The columns of the operands that say what covers what."""

    def __init__(self, rows: InstructionTable) -> None:
        first = np.frombuffer(rows.first_operand, np.uint32).astype(np.int64)
        kind = np.frombuffer(rows.kind, np.uint8)
        self.row: _Ints = np.repeat(np.arange(len(rows)), np.diff(first))
        self.storage = _column(rows.storage, np.uint32)
        self.storages = int(self.storage.max()) + 1
        self.is_write: _Bools = kind % 2 == 1
        self.is_on_chip: _Bools = _ON_CHIP[kind // 2]
        self._rows = rows

    def fresh(self) -> _Bools:
        """Operands that are written completely, by instructions that keep and read nothing."""
        rows = self._rows
        keeps = np.frombuffer(rows.keeps, np.uint8)[self.row] == 1
        moves = np.ones(self.storages, bool)
        moves[list(rows.placed)] = False
        found: _Bools = self.is_write & self.is_on_chip & ~keeps & self._covers()
        found &= moves[self.storage]
        # A storage that the same instruction reads, or writes twice, is none that begins with it.
        place = self.row * self.storages + self.storage
        _, inverse, counts = np.unique(place, return_inverse=True, return_counts=True)
        found &= counts[inverse] == 1
        return found

    def _covers(self) -> _Bools:
        rows = self._rows
        top = _column(rows.start_partition, np.uint16)
        bottom = top + _column(rows.partitions, np.uint32)
        left, right = _column(rows.low, np.uint64), _column(rows.high, np.uint64)
        size = _column(rows.free_size, np.uint64) * _SIZES[np.frombuffer(rows.dtype, np.uint8)]
        covers: _Bools = (size == right - left) & (np.frombuffer(rows.dynamic, np.uint8) == 0)
        # As far as any operand of the storage reaches; the least is the largest of the negatives.
        for column in (-top, bottom, -left, right):
            most = np.full(self.storages, np.iinfo(np.int64).min)
            np.maximum.at(most, self.storage, column)
            covers &= column == most[self.storage]
        return covers


def _column(column: array[int], kind: type) -> _Ints:
    return np.frombuffer(column, kind).astype(np.int64)


def _without_unread(
    rows: InstructionTable, order: array[int], table: _Operands, fresh: _Bools
) -> array[int]:
    """`order` without instructions that read nothing and whose tiles are written over unread.

    What reads something may have effects that operands do not show, such as accumulators.
    """
    reads = np.zeros(len(rows), bool)
    reads[table.row[~table.is_write | ~table.is_on_chip]] = True
    candidates = ~reads & (np.diff(np.frombuffer(rows.first_operand, np.uint32)) > 0)
    again = np.zeros(table.storages, bool)
    again[table.storage[fresh]] = True
    concerned = again.copy()
    concerned[:] = False
    concerned[table.storage[candidates[table.row] & again[table.storage]]] = True
    if not concerned.any():
        return order
    unread = _unread(rows, order, table, fresh, concerned)
    # Each tile that a candidate writes must be unread, those that are not concerned never are.
    first = rows.first_operand
    kept = array("I")
    for position, row in enumerate(order):
        count = first[row + 1] - first[row]
        if candidates[row] and unread.get(position, 0) == count:
            continue
        kept.append(row)
    return kept


def _unread(
    rows: InstructionTable,
    order: array[int],
    table: _Operands,
    fresh: _Bools,
    concerned: _Bools,
) -> dict[int, int]:
    """Of each position how many of its writes are written over before anything reads them."""
    is_concerned = concerned[table.storage].tolist()
    starts, is_write, storage = fresh.tolist(), table.is_write.tolist(), rows.storage
    # Of each storage the positions that wrote its present copy; None once something read it.
    written: dict[int, list[int] | None] = {}
    unread: dict[int, int] = {}
    first = rows.first_operand
    for position, row in enumerate(order):
        for i in range(first[row], first[row + 1]):
            if not is_concerned[i]:
                continue
            own = storage[i]
            if not is_write[i]:
                written[own] = None
            elif starts[i]:
                for before in written.get(own) or ():
                    unread[before] = unread.get(before, 0) + 1
                written[own] = [position]
            elif (writers := written.get(own, [])) is not None:
                # A sum, or a part: the copy goes on.
                written[own] = [*writers, position]
    return unread
