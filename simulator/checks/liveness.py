"""Liveness: from which instruction to which one a tensor on chip is used, for its capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trnx.simulator.context import Line
from trnx.simulator.rows import Rows
from trnx.simulator.storage import MemoryRegion


@dataclass(slots=True)
class Allocation:
    """What capacity checks keep of an on-chip tensor: partitions, bytes in each, and the first and
    the last instruction that use it (-1: none).
    """

    core: int
    buffer: MemoryRegion
    partitions: int
    bytes: int
    name: str
    address: tuple[int, int] | None
    line: Line | None
    first: int = -1
    last: int = -1


class Allocations:
    """Those of a trace, by the index of their storage; None for what is in HBM."""

    def __init__(self) -> None:
        self._of: list[Allocation | None] = []

    def add(self, allocation: Allocation | None) -> int:
        """A storage is made; its index."""
        self._of.append(allocation)
        return len(self._of) - 1

    def of_core(self, core: int, rows: Rows) -> Sequence[Allocation]:
        """The allocations of one program, in order, with their lives in `rows`."""
        first, last = _lives(rows, len(self._of))
        found = []
        for index, allocation in enumerate(self._of):
            if allocation is not None and allocation.core == core:
                allocation.first, allocation.last = int(first[index]), int(last[index])
                found.append(allocation)
        return found


def _lives(rows: Rows, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first and the last row that uses each of `count` storages; -1 where none does."""
    rows.seal()
    storage = np.frombuffer(rows.storage, np.uint32)
    first_operand: npt.NDArray[np.int64] = np.frombuffer(rows.first_operand, np.uint32).astype(int)
    operands = first_operand[1:] - first_operand[:-1]
    row = np.repeat(np.arange(len(rows)), operands)
    first, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    # Of values for one index the last one stays.
    last[storage] = row
    first[storage[::-1]] = row[::-1]
    return first, last
