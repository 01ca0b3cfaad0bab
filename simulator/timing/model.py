"""`CostModel`: the cost of a row, by the cost function of its engine.

Costs depend on sizes, dtypes, buffers and access patterns, never on values or addresses, so equal
instructions share one Cost.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from trnx.simulator.hardware import Hardware
from trnx.simulator.rows import Rows
from trnx.simulator.timing.constants import Timing, timing
from trnx.simulator.timing.cost import QUEUES, SYNC, Cost, Instruction, picoseconds
from trnx.simulator.timing.cost_dma import dma_cost
from trnx.simulator.timing.cost_tensor import tensor_cost
from trnx.simulator.timing.cost_vector import gpsimd_cost, scalar_cost, vector_cost

CostFunction = Callable[[Hardware, Timing, Instruction], Cost]


def _sync_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    # A register move; EVENT_SEMAPHORE, the nearest that was measured, takes 9 ns (row B3-8).
    del hardware, instruction
    ps = picoseconds(constants.semaphore_ns)
    return Cost(SYNC, ps, ps)


FAMILIES: dict[str, CostFunction] = {
    "tensor": tensor_cost,
    "vector": vector_cost,
    "scalar": scalar_cost,
    "gpsimd": gpsimd_cost,
    "dma": dma_cost,
    "sync": _sync_cost,
    # No engine was chosen: as SyncE.
    "unknown": _sync_cost,
}


class CostModel:
    """Costs of the rows of a Program on one generation."""

    def __init__(self, hardware: Hardware, rows: Rows, constants: Timing | None = None) -> None:
        self.hardware = hardware
        self.timing: Timing = constants or timing(hardware)
        self._rows = rows

    def of(self, index: int) -> Cost:
        """The cost of row `index`."""
        row = self._rows[index]
        return self.cost(Instruction(row.opcode, row.engine, row.detail, row.operands))

    def cost(self, instruction: Instruction) -> Cost:
        """The cost of an instruction."""
        if instruction.opcode == "core_barrier":
            ps = picoseconds(self.timing.meeting_ns)
            return Cost(QUEUES.index(instruction.engine), ps, ps, meets=True)
        return FAMILIES[instruction.engine](self.hardware, self.timing, instruction)

    def table(self) -> tuple[list[Cost], array[int]]:
        """The costs that occur, and of each row which one it has."""
        if not len(self._rows):
            return [], array("I")
        kinds = _classes(self._rows)
        _, samples, found = np.unique(kinds, return_index=True, return_inverse=True)
        costs = [self.of(int(sample)) for sample in samples]
        return costs, array("I", found.astype(np.uint32).tobytes())


def _classes(rows: Rows) -> npt.NDArray[np.int64]:
    """Numbers of rows that are equal in everything that their cost depends on."""
    operand = _joined(
        np.frombuffer(column, column.typecode).astype(np.int64)
        for column in (
            rows.kind, rows.dtype, rows.partitions, rows.free_size, rows.pattern, rows.dynamic,
        )
    )  # fmt: skip
    first = np.frombuffer(rows.first_operand, np.uint32).astype(np.int64)
    counts = np.diff(first)
    columns = [
        np.frombuffer(column, column.typecode).astype(np.int64)
        for column in (rows.opcode, rows.engine, rows.detail)
    ]
    for n in range(int(counts.max(initial=0))):
        has = counts > n
        column = np.zeros(len(rows), np.int64)
        column[has] = operand[first[:-1][has] + n] + 1
        columns.append(column)
    return _joined(iter(columns))


def _joined(columns: Iterator[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """One number per row for the combination of its columns, dense from 0."""
    joined = next(columns)
    for column in columns:
        _, joined = np.unique(joined, return_inverse=True)
        _, column = np.unique(column, return_inverse=True)
        joined = joined * (int(column.max(initial=0)) + 1) + column
    _, joined = np.unique(joined, return_inverse=True)
    return joined.astype(np.int64)
