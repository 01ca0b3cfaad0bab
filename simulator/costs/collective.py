"""Collectives between ranks, as rings: hops of a fixed latency, and the bytes of the slowest link.

Everything but the latency of a hop is inferred: that a rank is a physical core, that ranks number
the cores chip by chip, that the links of a chip are shared evenly by its cores. The ranks of a
group do the same work, so that none waits for another. Algorithms that trade hops for bytes are not
modelled.
"""

from __future__ import annotations

from trnx.simulator.costs.attributes import CollectiveAttributes
from trnx.simulator.costs.constants import Timing
from trnx.simulator.costs.cost import ANY_ENGINE, DMA_LOAD, Cost, EngineCost, Workload, picoseconds
from trnx.simulator.costs.operands import Operand
from trnx.simulator.hardware import Hardware
from trnx.simulator.language.enums import Engine
from trnx.simulator.memory.dtypes import resolve
from trnx.simulator.memory.storage import HBM

# A node of the documentation ("intra-node") is an instance of 16 chips.
_CHIPS_PER_INSTANCE = 16


def over_ring(rounds: int) -> EngineCost:
    """`rounds` times around a ring of n ranks: n - 1 hops, and (n - 1)/n of the bytes."""

    def cost(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
        size = len(instruction.attributes_of(CollectiveAttributes).group)
        hops = rounds * (size - 1)
        nbytes = rounds * _total(instruction) * (size - 1) / size
        return _collective_cost(hardware, constants, instruction, hops, nbytes)

    return EngineCost(Engine.dma, cost)


def _permuted(hardware: Hardware, constants: Timing, instruction: Workload) -> Cost:
    size = len(instruction.attributes_of(CollectiveAttributes).group)
    nbytes = float(_total(instruction) if size > 1 else 0)
    return _collective_cost(hardware, constants, instruction, min(1, size - 1), nbytes)


# Each rank sends to one other rank.
permuted = EngineCost(Engine.dma, _permuted)


def _total(instruction: Workload) -> int:
    sides = (instruction.reads, instruction.writes)
    return max(sum(_bytes(operand) for operand in operands) for operands in sides)


def _collective_cost(
    hardware: Hardware, constants: Timing, instruction: Workload, hops: int, nbytes: float
) -> Cost:
    """A trigger, then all DMA engines of the core until the bytes are through the link."""
    attributes = instruction.attributes_of(CollectiveAttributes)
    hop_ns, rate = _link(hardware, constants, attributes.group)
    return Cost(
        DMA_LOAD,
        picoseconds(constants.dma_issue_ns),
        picoseconds(constants.dma_done_ns + hops * hop_ns),
        hardware.dma_engines,
        ANY_ENGINE,
        round(nbytes * 1e12 / rate),
        sum(_bytes(operand) for operand in instruction.operands if operand.buffer in HBM),
        _total(instruction),
        priority=attributes.priority or 0,
    )


def _link(hardware: Hardware, constants: Timing, group: tuple[int, ...]) -> tuple[float, float]:
    """(ns of a hop, bytes/s of a rank) of the slowest link of a group."""
    chips = {rank // hardware.cores_per_chip for rank in group}
    rate = min(hardware.dma_bytes_per_second, hardware.hbm_bytes_per_second)
    if len(chips) == 1:
        return constants.hop_ns, rate
    rate = min(rate, hardware.neuronlink_bytes_per_second / hardware.cores_per_chip)
    instances = {chip // _CHIPS_PER_INSTANCE for chip in chips}
    return (constants.hop_ns if len(instances) == 1 else constants.far_hop_ns), rate


def _bytes(operand: Operand) -> int:
    return operand.partitions * operand.free_size * resolve(operand.dtype).itemsize
