"""Who waits for whom: the order of instructions of a Program, and for each its predecessors.

Loops of registers are unrolled. Every storage is cut into cells along the edges of all its
operands, so that overlaps are exact for rectangles and found in constant time. A predecessor is the
last writer of a cell that is read, the last reader or writer of one that is written, or the last
user of memory that a new tensor takes over: on-chip tensors are placed in program order into the
partition that the target has, into the memory that was freed first, as a static allocator does.
Queues run in order, so of each queue only the latest predecessor counts.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from trnx.simulator.hardware import Hardware
from trnx.simulator.rows import Rows
from trnx.simulator.storage import HBM, MemoryRegion
from trnx.simulator.timing.cost import QUEUES

_REGIONS = tuple(MemoryRegion)
# Compute engines run in order: what they overwrite or read before needs no waiting.
_COMPUTE_QUEUES = QUEUES.index("sync") + 1

_Edges = dict[int, int]
_Box = tuple[int, int, int, int]


def unroll(rows: Rows) -> tuple[array[int], bool]:
    """Rows in the order of a run, loop bodies repeated; False where a loop's count is unknown."""
    order, is_exact = _unrolled(rows.loops, 0, len(rows))
    return order, is_exact


def _unrolled(
    loops: Sequence[tuple[int, int, int | None]], first: int, last: int
) -> tuple[array[int], bool]:
    order, exact, at = array("I"), True, first
    inside = sorted(
        (loop for loop in loops if first <= loop[0] and loop[1] <= last),
        key=lambda loop: (loop[0], -loop[1]),
    )
    while inside:
        begin, end, trips = inside.pop(0)
        order.extend(range(at, begin))
        own = [loop for loop in inside if loop[1] <= end]
        inside = [loop for loop in inside if loop[1] > end]
        body, known = _unrolled(own, begin, end)
        exact = exact and known and trips is not None
        order.extend(body * (1 if trips is None else trips))
        at = end
    order.extend(range(at, last))
    return order, exact


class _Cells:
    """The cells of one storage: the last writer of each and its readers since."""

    __slots__ = ("_columns", "_rows", "_width", "readers", "writer")

    def __init__(self, boxes: set[_Box]) -> None:
        rows = sorted({edge for box in boxes for edge in box[:2]})
        columns = sorted({edge for box in boxes for edge in box[2:]})
        self._rows = {edge: i for i, edge in enumerate(rows)}
        self._columns = {edge: i for i, edge in enumerate(columns)}
        self._width = len(columns)
        count = len(rows) * len(columns)
        self.writer = [-1] * count
        self.readers: list[_Edges | None] = [None] * count

    def within(self, box: _Box) -> list[int]:
        """The cells that a box covers."""
        width = self._width
        first, last = self._columns[box[2]], self._columns[box[3]]
        top, bottom = self._rows[box[0]], self._rows[box[1]]
        if bottom - top == 1:
            return list(range(top * width + first, top * width + last))
        return [
            cell
            for row in range(top, bottom)
            for cell in range(row * width + first, row * width + last)
        ]


class Dependencies:
    """Predecessors of each instruction of the unrolled order.

    `edges(position)` are the positions that must be visible before it starts. `queues` holds the
    queue of each position.
    """

    def __init__(
        self, rows: Rows, order: array[int], queues: Sequence[int], hardware: Hardware
    ) -> None:
        self._rows = rows
        self._queues = queues
        self._pitches = _pitches(rows)
        self._storages = self._cells()
        self._memory = _Memory(rows, order, hardware)
        self.first = array("Q", [0])
        self.edges = array("I")
        for position, row in enumerate(order):
            found: _Edges = {}
            self._memory.place(position, row, queues[position], found)
            self._operands(position, row, found)
            self.edges.extend(found.values())
            self.first.append(len(self.edges))

    def _cells(self) -> dict[int, _Cells]:
        """Cells of the storages that are written."""
        rows = self._rows
        written = {rows.storage[i] for i in range(len(rows.storage)) if rows.kind[i] % 2}
        boxes: dict[int, set[_Box]] = {storage: set() for storage in written}
        for i, storage in enumerate(rows.storage):
            if storage in boxes:
                boxes[storage].add(self._box(i))
        return {storage: _Cells(found) for storage, found in boxes.items()}

    def _box(self, i: int) -> _Box:
        """Partitions and bytes on chip; in HBM rows and columns where all operands share a pitch,
        else bytes.
        """
        rows = self._rows
        low, high = rows.low[i], rows.high[i]
        if _REGIONS[rows.kind[i] // 2] not in HBM:
            start = rows.start_partition[i]
            return start, start + rows.partitions[i], low, high
        pitch, spans = self._pitches[rows.storage[i]]
        if not pitch:
            return 0, 1, low, high
        column = low % pitch
        span = spans.get(rows.pattern[i], 0) or high - low
        if column + span > pitch:
            return low // pitch, (high - 1) // pitch + 1, 0, pitch
        return low // pitch, (high - 1) // pitch + 1, column, column + span

    def _operands(self, position: int, row: int, found: _Edges) -> None:
        rows, queues = self._rows, self._queues
        queue = queues[position]
        touched = []
        for i in range(rows.first_operand[row], rows.first_operand[row + 1]):
            cells = self._storages.get(rows.storage[i])
            if cells is None:
                continue
            within = cells.within(self._box(i))
            is_write = rows.kind[i] % 2
            touched.append((cells, within, is_write))
            for cell in within:
                self._wait(cells, cell, is_write, queue, found)
        for cells, within, is_write in touched:
            for cell in within:
                if is_write:
                    cells.writer[cell] = position
                    cells.readers[cell] = None
                else:
                    readers = cells.readers[cell]
                    if readers is None:
                        cells.readers[cell] = {queue: position}
                    else:
                        readers[queue] = position

    def _wait(self, cells: _Cells, cell: int, is_write: int, queue: int, found: _Edges) -> None:
        queues = self._queues
        writer = cells.writer[cell]
        in_order = is_write and queue % len(QUEUES) < _COMPUTE_QUEUES
        if writer >= 0:
            other = queues[writer]
            if not (in_order and other == queue) and writer > found.get(other, -1):
                found[other] = writer
        if is_write and cells.readers[cell]:
            for other, reader in cells.readers[cell].items():  # type: ignore[union-attr]
                if not (in_order and other == queue) and reader > found.get(other, -1):
                    found[other] = reader


def _pitches(rows: Rows) -> dict[int, tuple[int, dict[int, int]]]:
    """Of each HBM storage: the pitch of its rows (0 if there is none), and span by pattern."""
    patterns = rows.patterns()
    spans = {code: pattern.span for code, pattern in enumerate(patterns)}
    found: dict[int, set[int]] = {}
    for i, storage in enumerate(rows.storage):
        if _REGIONS[rows.kind[i] // 2] in HBM:
            found.setdefault(storage, set()).add(patterns[rows.pattern[i]].pitch)
    pitches = {}
    for storage, several in found.items():
        several.discard(0)
        least = min(several, default=0)
        fits = all(pitch % least == 0 for pitch in several)
        pitches[storage] = (least if fits else 0, spans)
    return pitches


class _Memory:
    """SBUF and PSUM of each core, filled in program order."""

    def __init__(self, rows: Rows, order: array[int], hardware: Hardware) -> None:
        self._rows = rows
        self._limits = {
            MemoryRegion.sbuf: hardware.sbuf_partition_bytes,
            MemoryRegion.psum: hardware.psum_partition_bytes,
        }
        self._bytes: dict[int, int] = {}
        for i, storage in enumerate(rows.storage):
            self._bytes[storage] = max(self._bytes.get(storage, 0), rows.high[i])
        self._last: dict[int, int] = {}
        for position, row in enumerate(order):
            for i in range(rows.first_operand[row], rows.first_operand[row + 1]):
                self._last[rows.storage[i]] = position
        self._users: dict[int, _Edges] = {}
        self._used: dict[tuple[int, MemoryRegion], int] = {}
        self._freed: dict[tuple[int, MemoryRegion], deque[tuple[int, _Edges]]] = {}

    def place(self, position: int, row: int, queue: int, found: _Edges) -> None:
        """Give memory to what the row uses first; `found` gets the last users of that memory."""
        rows = self._rows
        for i in range(rows.first_operand[row], rows.first_operand[row + 1]):
            region = _REGIONS[rows.kind[i] // 2]
            if region in HBM:
                continue
            storage = rows.storage[i]
            users = self._users.get(storage)
            if users is None:
                users = self._users[storage] = {}
                self._take((rows.core[row], region), self._bytes[storage], found)
            users[queue] = position
            if self._last[storage] == position:
                self._freed[rows.core[row], region].append(
                    (self._bytes[storage], self._users.pop(storage))
                )

    def _take(self, place: tuple[int, MemoryRegion], size: int, found: _Edges) -> None:
        """`used` counts live and freed bytes that nobody took over yet."""
        freed = self._freed.setdefault(place, deque())
        used = self._used.get(place, 0) + size
        while used > self._limits[place[1]] and freed:
            released, users = freed.popleft()
            used -= released
            for queue, position in users.items():
                found[queue] = max(position, found.get(queue, -1))
        self._used[place] = used
