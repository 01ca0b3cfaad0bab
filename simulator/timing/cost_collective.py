"""Collectives between ranks, as rings: hops of a fixed latency, and the bytes of the slowest link.

Everything but the latency of a hop is inferred: that a rank is a physical core, that ranks number
the cores chip by chip, that the links of a chip are shared evenly by its cores. The ranks of a
group do the same work, so that none waits for another. Algorithms that trade hops for bytes are not
modelled.
"""

from __future__ import annotations

from trnx.simulator.attributes import CollectiveAttributes
from trnx.simulator.dtypes import resolve
from trnx.simulator.hardware import Hardware
from trnx.simulator.rows import OperandRow
from trnx.simulator.storage import HBM
from trnx.simulator.timing.constants import Timing
from trnx.simulator.timing.cost import DMA_LOAD, Cost, Instruction, picoseconds

# Name -> (hops and bytes of a ring of n ranks, in units of n - 1 hops and (n - 1)/n of the bytes).
_RINGS = {
    "all_reduce": 2,
    "all_gather": 1,
    "all_gather_v": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "all_to_all_v": 1,
}
# Each rank sends to one other rank.
_PERMUTATIONS = (
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_reduce",
)
COLLECTIVES = (*_RINGS, *_PERMUTATIONS)
# A node of the documentation ("intra-node") is an instance of 16 chips.
_CHIPS_PER_INSTANCE = 16


def collective_cost(hardware: Hardware, constants: Timing, instruction: Instruction) -> Cost:
    """A trigger, then all DMA engines of the core until the bytes are through the link."""
    attributes = instruction.attributes_of(CollectiveAttributes)
    size = len(attributes.group)
    read, written = (
        sum(_bytes(operand) for operand in operands)
        for operands in (instruction.reads, instruction.writes)
    )
    total = max(read, written)
    rounds = _RINGS.get(instruction.opcode)
    if rounds is None:
        hops, nbytes = min(1, size - 1), float(total if size > 1 else 0)
    else:
        hops, nbytes = rounds * (size - 1), rounds * total * (size - 1) / size
    hop_ns, rate = _link(hardware, constants, attributes.group)
    return Cost(
        DMA_LOAD,
        picoseconds(constants.dma_issue_ns),
        picoseconds(constants.dma_done_ns + hops * hop_ns),
        hardware.dma_engines,
        round(nbytes * 1e12 / rate),
        sum(_bytes(operand) for operand in instruction.operands if operand.buffer in HBM),
        total,
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


def _bytes(operand: OperandRow) -> int:
    return operand.partitions * operand.free_size * resolve(operand.dtype).itemsize
