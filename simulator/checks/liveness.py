"""Liveness: from which instruction to which one a tensor on chip is used, for its capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trnx.simulator.kernel_lines import Line
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable

# The fields of an `Allocation` up to `line`: plain, as one is made for every tensor of a trace.
Made = tuple[int, MemoryRegion, int, int, str, tuple[int, int] | None, Line | None]


class Allocation(NamedTuple):
    """What checks know of an on-chip tensor: partitions, bytes in each, the first and the last
    instruction that use it (-1: none), and its number among the storages of the trace.
    """

    core: int
    buffer: MemoryRegion
    partitions: int
    bytes: int
    name: str
    address: tuple[int, int] | None
    line: Line | None
    first: int
    last: int
    number: int


class Allocations:
    """Those of a trace, by the index of their storage; None for what is in HBM."""

    def __init__(self) -> None:
        self._made: list[Made | None] = []

    def __len__(self) -> int:
        return len(self._made)

    def add(self, made: Made | None) -> int:
        """A storage is made; its index."""
        self._made.append(made)
        return len(self._made) - 1

    def of_core(self, core: int, rows: InstructionTable) -> Sequence[Allocation]:
        """The allocations of one program, in order, with their lives in `rows`."""
        first, last = (ends.tolist() for ends in _lives(rows, len(self._made)))
        return [
            Allocation._make((*made, since, until, index))
            for index, (made, since, until) in enumerate(zip(self._made, first, last, strict=True))
            if made is not None and made[0] == core
        ]


def _lives(
    rows: InstructionTable, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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
