"""`CostModel`: the cost of a row, by the cost function of its engine.

Costs depend on sizes, dtypes, buffers and access patterns, never on values or addresses, so equal
instructions share one Cost.
"""

from __future__ import annotations

from collections.abc import Callable

from trnx.simulator.hardware import Hardware
from trnx.simulator.rows import Rows
from trnx.simulator.timing.constants import Timing, timing
from trnx.simulator.timing.cost import SYNC, Cost, Instruction
from trnx.simulator.timing.cost_dma import dma_cost
from trnx.simulator.timing.cost_tensor import tensor_cost
from trnx.simulator.timing.cost_vector import gpsimd_cost, scalar_cost, vector_cost

CostFunction = Callable[[Hardware, Timing, Instruction], Cost]


def _sync_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    # A register move; EVENT_SEMAPHORE, the nearest that was measured, takes 9 ns (row B3-8).
    del hardware, constants, instruction
    return Cost(SYNC, 9.0, 9.0)


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
    """Costs for one generation; remembers them by everything that they depend on."""

    def __init__(self, hardware: Hardware, rows: Rows) -> None:
        self.hardware = hardware
        self.timing: Timing = timing(hardware)
        self._rows = rows
        self._known: dict[tuple[object, ...], Cost] = {}

    def of(self, index: int) -> Cost:
        """The cost of row `index`."""
        rows = self._rows
        first, last = rows.first_operand[index], rows.first_operand[index + 1]
        key = (
            rows.opcode[index],
            rows.engine[index],
            rows.detail[index],
            rows.kind[first:last].tobytes(),
            rows.dtype[first:last].tobytes(),
            rows.partitions[first:last].tobytes(),
            rows.free_size[first:last].tobytes(),
            rows.pattern[first:last].tobytes(),
        )
        cost = self._known.get(key)
        if cost is None:
            row = rows[index]
            instruction = Instruction(row.opcode, row.engine, row.detail, row.operands)
            cost = self._known[key] = self.cost(instruction)
        return cost

    def cost(self, instruction: Instruction) -> Cost:
        """The cost of an instruction."""
        return FAMILIES[instruction.engine](self.hardware, self.timing, instruction)
