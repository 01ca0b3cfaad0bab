"""What one instruction costs by itself: `Cost`, and `Instruction`, a row as cost functions see it.

The formulas are those that AWS published per instruction up to SDK
2.26 (nki.isa, "estimated instruction cost"), with additive overheads; see `docs/timing.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trnx.simulator.rows import OperandRow
from trnx.simulator.storage import MemoryRegion

# Instruction queues of a core. The rings hold the DMA triggers: loads go through the DGE of SyncE,
# stores through that of ScalarE (inferred: a core has two), software descriptors through GpSimd.
QUEUES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma_load", "dma_store", "dma_gpsimd")
TENSOR, VECTOR, SCALAR, GPSIMD, SYNC, DMA_LOAD, DMA_STORE, DMA_GPSIMD = range(8)

# Ports that two engines of NeuronCore-v2 cannot use at the same time.
SBUF_PORT, PSUM_PORT = 1, 2


@dataclass(frozen=True, slots=True)
class Cost:
    """Times in ns. `interval` is how long the queue is taken, `latency` until results are visible.

    A DMA has `lanes`, the engines that it uses, and `transfer`, the time of the slowest of them;
    its latency counts from the end of the transfer.
    """

    queue: int
    interval: float
    latency: float
    lanes: int = 0
    transfer: float = 0.0
    hbm_bytes: int = 0
    weights: float = 0.0  # of a matmul: loading weights that could not be hidden
    table: str = ""  # activation function table that ScalarE needs
    ports: int = 0


class Instruction:
    """A row as the formulas see it."""

    __slots__ = ("detail", "engine", "opcode", "operands", "reads", "writes")

    def __init__(
        self, opcode: str, engine: str, detail: str, operands: Sequence[OperandRow]
    ) -> None:
        self.opcode = opcode
        self.engine = engine
        self.detail = detail
        self.operands = tuple(operands)
        self.reads = [operand for operand in operands if not operand.is_write]
        self.writes = [operand for operand in operands if operand.is_write]

    @property
    def size(self) -> int:
        """Elements per partition of the largest operand."""
        return max((operand.free_size for operand in self.operands), default=1)

    def tiles(self) -> list[OperandRow]:
        """Operands that are walked element by element; scalars per partition are free."""
        size = self.size
        return [operand for operand in self.operands if operand.free_size == size]

    def sources(self) -> list[OperandRow]:
        """Tiles that are read."""
        return [operand for operand in self.tiles() if not operand.is_write]

    def touches(self, region: MemoryRegion) -> bool:
        """True where an operand lies in `region`."""
        return any(operand.buffer is region for operand in self.operands)
