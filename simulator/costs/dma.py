"""DMA: 16 engines, each taking the rows of 8 partitions; a row is at least one descriptor.

From NeuronCore-v3 on the engine of a partition is fixed: "each DMA engine corresponds to 8
partition lanes" (nki-dma-overview.rst, measured there on 4 and on 128 partitions). Two transfers of
the same 64 partitions take turns at 8 engines, and a row of one partition never has more than one.
On NeuronCore-v2 "Neuron Compiler is responsible for [...] assigning these transfers to different
DMA engines" (trainium_inferentia2_arch.rst): the rows of a transfer are dealt to all of them, the
first row to the first. A published kernel of 2242 loads and as many stores of one row of 2560 bytes
each takes 659 us on trn1 (C-II resize_nearest), 147 ns a transfer: what one engine needs.
"""

from __future__ import annotations

from trnx.simulator.costs.attributes import DmaAttributes, DmaIssuer, ExchangeAttributes
from trnx.simulator.costs.constants import Timing
from trnx.simulator.costs.cost import (
    ANY_ENGINE,
    DMA_GPSIMD,
    DMA_LOAD,
    DMA_STORE,
    GPSIMD,
    Cost,
    EngineCost,
    Workload,
    cycles_ps,
    picoseconds,
)
from trnx.simulator.costs.operands import Operand
from trnx.simulator.hardware import Hardware
from trnx.simulator.language.enums import Engine
from trnx.simulator.memory.dtypes import resolve
from trnx.simulator.memory.storage import HBM

_LOWEST_PRIORITY = 3
_PARTITIONS_PER_ENGINE = 8  # 128 partitions over 16 engines, trainium_inferentia2_arch.rst


def dma_cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    """The trigger's time on its ring, and the transfer's on the engines that it uses."""
    return _transfer(hardware, constants, instruction, 1.0)


def _accumulating(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    return _transfer(hardware, constants, instruction, constants.dma_compute_factor)


def _transposing(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    """By the DMA engines' own hardware, so that no descriptor an element counts."""
    in_hbm = any(operand.buffer in HBM for operand in instruction.operands)
    factor = constants.dma_transpose_factor if in_hbm else constants.dma_chip_transpose_factor
    return _transfer(hardware, constants, instruction, factor, has_descriptors=False)


def _exchanging(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    if instruction.attributes_of(ExchangeAttributes).uses_gpsimd:
        return _swap_cost(hardware, constants, instruction)
    return _transfer(hardware, constants, instruction, 1.0, done_ns=constants.meeting_ns)


accumulating = EngineCost(Engine.dma, _accumulating)
transposing = EngineCost(Engine.dma, _transposing)
# With the other core.
exchanging = EngineCost(Engine.dma, _exchanging)


def _transfer(
    hardware: Hardware,
    constants: Timing,
    instruction: Workload,
    factor: float,
    has_descriptors: bool = True,
    done_ns: float = 0.0,
) -> Cost:
    """A transfer at `factor` of the engines' rate; `done_ns` more until its result is visible."""
    if not instruction.operands:
        issue, done = picoseconds(constants.dma_issue_ns), picoseconds(constants.dma_done_ns)
        return Cost(DMA_LOAD, issue, done)
    target = instruction.writes[-1] if instruction.writes else instruction.operands[-1]
    queue, trigger, priority = _ring(constants, instruction, target)
    if hardware.generation < 4:
        priority = 0  # one class
    moved = _moved(instruction)
    nbytes = max(_bytes(operand) for operand in moved)
    lanes, first, share, row = _split(hardware, moved, nbytes)
    run = max(1, min([row, *(_run(operand) for operand in moved)]))
    rows = share / row
    descriptors = share / run if has_descriptors else 0.0
    transfer = rows * row / (hardware.dma_engine_rate / 1e9) / factor
    transfer = max(
        transfer + descriptors * constants.dma_descriptor_extra_ns,
        descriptors * constants.dma_descriptor_ns,
        rows * _small_row_time(constants, row) / factor,
    )
    return Cost(
        queue,
        picoseconds(trigger),
        picoseconds(constants.dma_done_ns + done_ns),
        lanes,
        first,
        picoseconds(transfer),
        sum(_bytes(operand) for operand in moved if operand.buffer in HBM),
        nbytes,
        priority=priority,
    )


def _swap_cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    """An exchange by GpSimd's own DMA."""
    nbytes = max(_bytes(operand) for operand in instruction.operands)
    taken = cycles_ps(constants.gpsimd_start_cycles, hardware.gpsimd_clock)
    taken += round(nbytes * 1e12 / (constants.gpsimd_dma_rate * 1e9))
    return Cost(GPSIMD, taken, taken + picoseconds(constants.meeting_ns))


def _ring(constants: Timing, instruction: Workload, target: Operand) -> tuple[int, float, int]:
    """(ring, ns that a trigger takes of it, priority class)."""
    own = DMA_STORE if target.buffer in HBM else DMA_LOAD
    attributes = instruction.attributes_of(DmaAttributes)
    # Without a priority a transfer goes last (inferred: the default is not published).
    level = _LOWEST_PRIORITY if attributes.priority is None else attributes.priority
    match attributes.issuer:
        case DmaIssuer.gpsimd:
            return DMA_GPSIMD, constants.dma_software_issue_ns, level
        case DmaIssuer.static:
            return own, constants.dma_static_issue_ns, level
        case DmaIssuer.sync:
            return DMA_LOAD, constants.dma_issue_ns, level
        case DmaIssuer.scalar:
            return DMA_STORE, constants.dma_issue_ns, level
        case DmaIssuer.unknown:
            return own, constants.dma_issue_ns, level


def _bytes(operand: Operand) -> int:
    return operand.partitions * operand.free_size * resolve(operand.dtype).itemsize


def _run(operand: Operand) -> int:
    # A pattern that repeats one element has no run; it is read once per element.
    return operand.pattern.run or resolve(operand.dtype).itemsize


def _moved(instruction: Workload) -> list[Operand]:
    """The operands that hold the data: not the indices of a gather, which GpSimd reads."""
    sizes = [operand.partitions * operand.free_size for operand in instruction.operands]
    most = max(sizes)
    return [o for o, size in zip(instruction.operands, sizes, strict=True) if size == most]


def _split(hardware: Hardware, moved: list[Operand], nbytes: int) -> tuple[int, int, float, int]:
    """(engines, the first of them, bytes of the busiest, bytes of a row)."""
    on_chip = [operand for operand in moved if operand.buffer not in HBM]
    if on_chip:
        # Within SBUF where it writes (inferred: nothing is said about two sides on chip).
        widest = max(on_chip, key=lambda operand: (operand.partitions, operand.is_write))
        row = max(1, nbytes // widest.partitions)
        first, lanes, rows = _engines(hardware, widest.start_partition, widest.partitions)
        return lanes, first, float(rows * row), row
    # HBM to HBM: default packets (4 KiB, compute-comm-overlap.rst) over all engines.
    packets = -(-nbytes // 4096)
    lanes = min(hardware.dma_engines, packets)
    return lanes, ANY_ENGINE, nbytes / lanes, nbytes


def _engines(hardware: Hardware, start: int, partitions: int) -> tuple[int, int, int]:
    """(first engine, engines, rows of the busiest) of adjacent partitions."""
    each = _PARTITIONS_PER_ENGINE
    if hardware.generation == 2:
        lanes = min(hardware.dma_engines, partitions)
        return 0, lanes, -(-partitions // lanes)
    first, before = divmod(start, each)
    last, after = divmod(start + partitions - 1, each)
    if first == last:
        return first, 1, partitions
    lanes = last - first + 1
    return first, lanes, each if lanes > 2 else max(each - before, after + 1)


def _small_row_time(constants: Timing, row: int) -> float:
    """ns that one engine needs at least for one row, where there are slow rows."""
    if row > constants.dma_small_row_bytes:
        return 0.0
    return row / constants.dma_small_row_rate
