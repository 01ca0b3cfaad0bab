"""`CostModel`: the cost of a row, by the rule that its instruction declares or its engine has.

Costs depend on sizes, dtypes, buffers and access patterns, never on values or addresses within a
partition, so equal instructions share one Cost. That of a DMA depends on its partitions, too.
"""

from __future__ import annotations

import dataclasses
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from trnx.simulator.costs.constants import Timing, timing
from trnx.simulator.costs.cost import Cost, CostFunction, Workload, on_sync
from trnx.simulator.costs.dma import dma_cost
from trnx.simulator.costs.tensor import tensor_cost
from trnx.simulator.costs.vector import gpsimd_cost, scalar_cost, vector_cost
from trnx.simulator.hardware import Hardware
from trnx.simulator.language.enums import Engine
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.specification import InstructionSpec

_Words = npt.NDArray[np.uint64]

# What an instruction costs on an engine where its declaration says nothing else.
USUAL: dict[Engine, CostFunction] = {
    Engine.tensor: tensor_cost,
    Engine.vector: vector_cost,
    Engine.scalar: scalar_cost,
    Engine.gpsimd: gpsimd_cost,
    Engine.dma: dma_cost,
    Engine.sync: on_sync,
    # No engine was chosen: as SyncE.
    Engine.unknown: on_sync,
}


class CostModel:
    """Costs of the rows of a Program on one generation."""

    def __init__(
        self, hardware: Hardware, rows: InstructionTable, constants: Timing | None = None
    ) -> None:
        self.hardware = hardware
        self.timing: Timing = constants or timing(hardware)
        self._rows = rows

    def of(self, index: int) -> Cost:
        """The cost of row `index`."""
        row = self._rows[index]
        return self.cost(
            self._rows.spec(index), Workload(Engine[row.engine], row.attributes, row.operands)
        )

    def cost(self, spec: InstructionSpec, instruction: Workload) -> Cost:
        """The cost of an instruction, by its own rule or its engine's."""
        rule = spec.cost_on(instruction.engine)
        function = USUAL[instruction.engine] if rule is None else rule.function
        cost = function(self.hardware, self.timing, instruction)
        return dataclasses.replace(cost, meets=True) if spec.meets else cost

    def table(self) -> tuple[list[Cost], array[int]]:
        """The costs that occur, and of each row which one it has."""
        if not len(self._rows):
            return [], array("I")
        kinds = _classes(self._rows)
        _, samples, found = np.unique(kinds, return_index=True, return_inverse=True)
        # By their first instruction, so that numbers do not depend on hashes.
        order = np.argsort(samples)
        number = np.empty(len(order), np.uint32)
        number[order] = np.arange(len(order), dtype=np.uint32)
        costs = [self.of(int(sample)) for sample in samples[order]]
        return costs, array("I", number[found].tobytes())


def _classes(rows: InstructionTable) -> _Words:
    """Hashes of rows that are equal in everything that their cost depends on."""
    operand = np.zeros(len(rows.storage), np.uint64)
    for column in (
        rows.kind, rows.dtype, rows.partitions, rows.free_size, rows.pattern, rows.dynamic,
    ):  # fmt: skip
        operand = _mixed(operand, np.frombuffer(column, column.typecode))
    operand = _mixed(operand, _partitions_of_transfers(rows))
    first = np.frombuffer(rows.first_operand, np.uint32).astype(np.int64)
    counts = np.diff(first)
    found = counts.astype(np.uint64)
    for column in (rows.opcode, rows.engine, rows.attributes):
        found = _mixed(found, np.frombuffer(column, column.typecode))
    for n in range(int(counts.max(initial=0))):
        has = np.flatnonzero(counts > n)
        found[has] = _mixed(found[has], operand[first[has] + n])
    return found


def _partitions_of_transfers(rows: InstructionTable) -> npt.NDArray[np.int64]:
    """Of each operand of a DMA the first partition, which decides about engines; else 0."""
    names = np.array([name == Engine.dma.name for name in rows.engines()])
    is_transfer = names[np.frombuffer(rows.engine, np.uint8)]
    ends = np.frombuffer(rows.first_operand, np.uint32).astype(np.int64)
    counts = ends[1:] - ends[:-1]
    starts = np.frombuffer(rows.start_partition, np.uint16).astype(np.int64)
    found: npt.NDArray[np.int64] = np.where(np.repeat(is_transfer, counts), starts, 0)
    return found


def _mixed(hashes: _Words, column: npt.NDArray[Any]) -> _Words:
    """64-bit hashes that take a column in (multiply, xor, shift: splitmix64's finisher), the same
    on any machine. A million kinds of instructions collide with a probability of 3e-8.
    """
    with np.errstate(over="ignore"):
        mixed = (hashes + np.uint64(0x9E3779B97F4A7C15)) ^ column.astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
