"""What one instruction costs: `Cost`; and an instruction as cost rules see it: `Workload`.

The formulas are those that AWS published per instruction up to SDK 2.26 (nki.isa, "estimated
instruction cost"), with additive overheads; see `docs/timing.md`. Times are integer picoseconds, so
that sums are exact and the same on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from trnx.simulator.costs.attributes import Attributes
from trnx.simulator.costs.constants import Timing
from trnx.simulator.costs.operands import Operand
from trnx.simulator.hardware import Hardware
from trnx.simulator.language.enums import Engine
from trnx.simulator.memory.storage import MemoryRegion

_Kind = TypeVar("_Kind", bound=Attributes)

# Instruction queues of a core. The rings hold the DMA triggers: loads go through the DGE of SyncE,
# stores through that of ScalarE (inferred: a core has two), software descriptors through GpSimd.
QUEUES = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma_load", "dma_store", "dma_gpsimd")
TENSOR, VECTOR, SCALAR, GPSIMD, SYNC, DMA_LOAD, DMA_STORE, DMA_GPSIMD = range(8)
# Compute engines run in order: what they overwrite or read before needs no waiting.
COMPUTE_QUEUES = SYNC + 1

# What two engines cannot use at the same time: ports of NeuronCore-v2; from NeuronCore-v3 on the
# bus of VectorE's fast modes and GpSimd, and a bank of PSUM.
SBUF_PORT, PSUM_PORT, PSUM_BANK = 1, 2, 4

# A transfer that no partition binds to some of the DMA engines.
ANY_ENGINE = -1

# Queues of a core, queue numbers are core * COUNT + queue.
COUNT = len(QUEUES)


def picoseconds(ns: float) -> int:
    """Nanoseconds as whole picoseconds."""
    return round(ns * 1000)


def cycles_ps(cycles: float, clock: float) -> int:
    """Cycles of a clock in Hz as whole picoseconds."""
    return round(cycles * 1e12 / clock)


@dataclass(frozen=True, slots=True)
class Cost:
    """Times in ps. `interval` is how long the queue is taken, `latency` until results are visible.

    A DMA has `dma_engines`, how many it uses, and `transfer`, the time of the slowest of them; its
    latency counts from the end of the transfer. `first_engine` is the first of them, which its
    partitions decide; `ANY_ENGINE` where it takes those that are free first.
    """

    queue: int
    interval: int
    latency: int
    dma_engines: int = 0
    first_engine: int = ANY_ENGINE
    transfer: int = 0
    hbm_bytes: int = 0
    dma_bytes: int = 0
    weights: int = 0  # of a matmul: loading weights that could not be hidden
    table: str = ""  # activation function table that ScalarE needs
    ports: int = 0
    priority: int = 0  # of a DMA: 0 goes before 3
    meets: bool = False  # starts together with its counterpart on the other core (`CostModel`)
    # Of a product on a part of TensorE's array: the 32 x 32 squares that it uses, as bits, and for
    # how long; its interval is then how long it keeps others from starting. 0: the whole array.
    pe_tiles: int = 0
    pe_tiles_ps: int = 0
    rows: int = 128  # of TensorE's array that a product keeps active


class Workload:
    """A row as the rules see it."""

    __slots__ = ("attributes", "engine", "operands", "reads", "writes")

    def __init__(self, engine: Engine, attributes: Attributes, operands: Sequence[Operand]) -> None:
        self.engine = engine
        self.attributes = attributes
        self.operands = tuple(operands)
        self.reads = [operand for operand in operands if not operand.is_write]
        self.writes = [operand for operand in operands if operand.is_write]

    def attributes_of(self, kind: type[_Kind]) -> _Kind:
        """Its attributes of a kind; the defaults where it has none."""
        return self.attributes if isinstance(self.attributes, kind) else kind()

    @property
    def size(self) -> int:
        """Elements per partition of the largest operand."""
        return max((operand.free_size for operand in self.operands), default=1)

    @property
    def is_dynamic(self) -> bool:
        """True where an address depends on a value."""
        return any(operand.is_dynamic for operand in self.operands)

    def tiles(self) -> list[Operand]:
        """Operands that are walked element by element; scalars per partition are free."""
        size = self.size
        return [operand for operand in self.operands if operand.free_size == size]

    def sources(self) -> list[Operand]:
        """Tiles that are read."""
        return [operand for operand in self.tiles() if not operand.is_write]

    def touches(self, region: MemoryRegion) -> bool:
        """True where an operand lies in `region`."""
        return any(operand.buffer is region for operand in self.operands)


CostFunction = Callable[[Hardware, Timing, Workload], Cost]


class EngineCost(NamedTuple):
    """The rule for an instruction on one engine (None: on any that may run it)."""

    engine: Engine | None
    function: CostFunction


def _barrier(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    del hardware
    ps = picoseconds(constants.meeting_ns)
    return Cost(QUEUES.index(instruction.engine.name), ps, ps)


# Nothing but waiting for the other core.
barrier = EngineCost(None, _barrier)


def on_sync(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    """A register move; EVENT_SEMAPHORE, the nearest that was measured, takes 9 ns (row B3-8)."""
    del hardware, instruction
    ps = picoseconds(constants.semaphore_ns)
    return Cost(SYNC, ps, ps)
