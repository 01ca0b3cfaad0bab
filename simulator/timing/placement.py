"""SBUF and PSUM of each core, filled in program order: a new tensor takes the memory that was freed
first, as a static allocator does, and waits for the last users of that memory.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.storage import HBM, MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.timing.schedule import Lifetime

_REGIONS = tuple(MemoryRegion)
_ON_CHIP = tuple(region not in HBM for region in _REGIONS)

Users = dict[int, int]  # the last position of each queue
# Copies of a tile that is written anew: enough for a load, its latency, work and a store side by
# side (inferred: nothing is published about what the compiler allocates).
MOST_COPIES = 8
_PSUM = _REGIONS.index(MemoryRegion.psum)
# A core and a region: core * len(_REGIONS) + index of the region.
_Place = int


class Placement:
    """Where tensors live; `use` must be called for every position in order."""

    def __init__(
        self,
        rows: InstructionTable,
        order: array[int],
        hardware: Hardware,
        fresh: Sequence[int],
    ) -> None:
        self._rows = rows
        self._fresh = fresh
        self._bank_bytes = hardware.psum_bank_bytes
        self._banks = hardware.psum_banks
        self._limits = [
            hardware.psum_partition_bytes if code == _PSUM else hardware.sbuf_partition_bytes
            for code in range(len(_REGIONS))
        ]
        storage = np.frombuffer(rows.storage, np.uint32)
        count = int(storage.max(initial=0)) + 1
        size = np.zeros(count, np.int64)
        np.maximum.at(size, storage, np.frombuffer(rows.high, np.uint64).astype(np.int64))
        self._bytes: list[int] = size.tolist()
        self._last = _last_uses(rows, order, count)
        self._users: dict[int, Users] = {}
        self._first: dict[int, int] = {}
        self._used: dict[_Place, int] = {}
        self._cursor: dict[_Place, int] = {}
        self._bank: dict[int, int] = {}
        self._copies: dict[int, deque[Users]] = {}
        self._freed: dict[_Place, deque[tuple[int, Users]]] = {}
        self.lifetimes: list[Lifetime] = []

    def use(self, position: int, row: int, queue: int) -> Users:
        """Give memory to what the row uses first; the last users of that memory."""
        rows = self._rows
        found: Users = {}
        kinds, storages, everyone = rows.kind, rows.storage, self._users
        for i in range(rows.first_operand[row], rows.first_operand[row + 1]):
            code = kinds[i] // 2
            if not _ON_CHIP[code]:
                continue
            storage = storages[i]
            if self._fresh[i] and storage in everyone:
                self._rotate(storage, found)
                self._free(rows.core[row] * len(_REGIONS) + code, storage)
            users = everyone.get(storage)
            if users is None:
                users = everyone[storage] = {}
                self._first[storage] = position
                self._take(rows.core[row] * len(_REGIONS) + code, storage, found)
            users[queue] = position
            if self._last[storage] == position:
                self._free(rows.core[row] * len(_REGIONS) + code, storage)
        return found

    def bank(self, row: int) -> int:
        """The PSUM bank that a row's first operand there lies in."""
        rows = self._rows
        for i in range(rows.first_operand[row], rows.first_operand[row + 1]):
            if _REGIONS[rows.kind[i] // 2] is MemoryRegion.psum:
                start = self._bank.get(rows.storage[i], 0) + rows.low[i]
                return start // self._bank_bytes % self._banks
        return 0

    def _rotate(self, storage: int, found: Users) -> None:
        """Another copy of a tile begins; it waits for the one that lies so many copies back."""
        copies = self._copies.setdefault(storage, deque())
        copies.append(self._users[storage])
        if len(copies) == MOST_COPIES:
            _add(copies.popleft(), found)

    def _free(self, place: _Place, storage: int) -> None:
        users, size = self._users.pop(storage), self._bytes[storage]
        self._freed[place].append((size, users))
        core, code = divmod(place, len(_REGIONS))
        last = tuple(users.values())
        self.lifetimes.append(Lifetime(core, _REGIONS[code], size, self._first.pop(storage), last))

    def _take(self, place: _Place, storage: int, found: Users) -> None:
        """`used` counts live and freed bytes that nobody took over yet."""
        size = self._bytes[storage]
        code = place % len(_REGIONS)
        if code == _PSUM:
            # Sums get a bank of their own, as kernels lay them out (inferred).
            cursor = self._cursor.get(place, 0)
            taken = -(-size // self._bank_bytes) * self._bank_bytes
            self._bank[storage], self._cursor[place] = cursor, cursor + taken
        freed = self._freed.setdefault(place, deque())
        used = self._used.get(place, 0) + size
        while used > self._limits[code] and freed:
            released, users = freed.popleft()
            used -= released
            _add(users, found)
        self._used[place] = used


def _add(users: Users, found: Users) -> None:
    """Wait for these users of memory, too."""
    for queue, position in users.items():
        found[queue] = max(position, found.get(queue, -1))


def _last_uses(rows: InstructionTable, order: array[int], count: int) -> list[int]:
    """Of each storage the last position that uses it."""
    first = np.frombuffer(rows.first_operand, np.uint32).astype(np.int64)
    executed = np.frombuffer(order, np.uint32)
    last_of_row = np.full(len(rows), -1, np.int64)
    last_of_row[executed] = np.arange(len(executed))  # of equal rows the last one stays
    row_of_operand = np.repeat(np.arange(len(rows)), np.diff(first))
    last = np.full(count, -1, np.int64)
    np.maximum.at(
        last, np.frombuffer(rows.storage, np.uint32).astype(np.int64), last_of_row[row_of_operand]
    )
    found: list[int] = last.tolist()
    return found
