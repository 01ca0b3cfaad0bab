"""DMA: 16 engines, each taking the rows of 8 partitions; a row is at least one descriptor."""

from __future__ import annotations

from trnx.simulator.dtypes import resolve
from trnx.simulator.hardware import Hardware
from trnx.simulator.rows import OperandRow
from trnx.simulator.storage import HBM
from trnx.simulator.timing.constants import Timing
from trnx.simulator.timing.cost import DMA_GPSIMD, DMA_LOAD, DMA_STORE, Cost, Instruction

_PARTITIONS_PER_ENGINE = 8  # 128 partitions over 16 engines, trainium_inferentia2_arch.rst


def dma_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    """The trigger's time on its ring, and the transfer's on the engines that it uses."""
    if not instruction.operands:
        return Cost(DMA_LOAD, constants.dma_issue_ns, constants.dma_done_ns)
    target = instruction.writes[-1] if instruction.writes else instruction.operands[-1]
    queue, issue = _ring(constants, instruction, target)
    nbytes = max(_bytes(operand) for operand in instruction.operands)
    lanes, share, row = _split(hardware, instruction, nbytes)
    run = max(1, min([row, *(_run(operand) for operand in instruction.operands)]))
    transfer = share / row * _row_time(hardware, constants, row) / _factor(constants, instruction)
    if instruction.opcode != "dma_transpose":
        transfer = max(transfer, share / run * constants.dma_descriptor_ns)
    latency = constants.dma_done_ns
    if instruction.opcode == "sendrecv":
        latency += constants.meeting_ns
    hbm = sum(_bytes(operand) for operand in instruction.operands if operand.buffer in HBM)
    return Cost(queue, issue, latency, lanes, transfer, hbm)


def _ring(constants: Timing, instruction: Instruction, target: OperandRow) -> tuple[int, float]:
    own = DMA_STORE if target.buffer in HBM else DMA_LOAD
    if instruction.detail == "gpsimd":
        return DMA_GPSIMD, constants.dma_software_issue_ns
    if instruction.detail == "static":
        return own, constants.dma_static_issue_ns
    named = {"sync": DMA_LOAD, "scalar": DMA_STORE}
    return named.get(instruction.detail, own), constants.dma_issue_ns


def _bytes(operand: OperandRow) -> int:
    return operand.partitions * operand.free_size * resolve(operand.dtype).itemsize


def _run(operand: OperandRow) -> int:
    # A pattern that repeats one element has no run; it is read once per element.
    return operand.pattern.run or resolve(operand.dtype).itemsize


def _split(hardware: Hardware, instruction: Instruction, nbytes: int) -> tuple[int, float, int]:
    """(engines, bytes of each, bytes of a row)."""
    on_chip = [operand for operand in instruction.operands if operand.buffer not in HBM]
    if on_chip:
        partitions = max(operand.partitions for operand in on_chip)
        lanes = min(hardware.dma_engines, -(-partitions // _PARTITIONS_PER_ENGINE))
        row = max(1, nbytes // partitions)
        return lanes, float(min(partitions, _PARTITIONS_PER_ENGINE) * row), row
    # HBM to HBM: default packets (4 KiB, compute-comm-overlap.rst) over all engines.
    packets = -(-nbytes // 4096)
    lanes = min(hardware.dma_engines, packets)
    return lanes, nbytes / lanes, nbytes


def _row_time(hardware: Hardware, constants: Timing, row: int) -> float:
    """ns that one engine needs for one row; a larger row never takes less."""
    full = row / (hardware.dma_engine_rate / 1e9)
    if not constants.dma_small_row_bytes:
        return full
    return max(full, min(row, constants.dma_small_row_bytes) / constants.dma_small_row_rate)


def _factor(constants: Timing, instruction: Instruction) -> float:
    if instruction.opcode == "dma_compute":
        return constants.dma_compute_factor
    if instruction.opcode != "dma_transpose":
        return 1.0
    if any(operand.buffer in HBM for operand in instruction.operands):
        return constants.dma_transpose_factor
    return constants.dma_chip_transpose_factor
