"""What the cores of a logical one share of a convolution (host side): blocks of outputs, each core
with all weights, or output channels, each with all of the input.
"""

from __future__ import annotations

from trnx.nki_kernels.kernels.convolution._sharing import Sharing
from trnx.nki_kernels.kernels.convolution._windows import Problem
from trnx.simulator.hardware import Hardware

# Bytes that a DMA engine moves in the time of a descriptor.
_DESCRIPTOR_BYTES = 161
# Of the columns of a tile of weights that TensorE turns: it takes as long to leave PSUM.
_TURNED = 2
# Of the time of sharing channels, less some: what cutting one block for all cores may take.
_LESS, _LESS_SECONDS = 0.88, 0.3e-6


def shares_blocks(
    problem: Problem, sharing: Sharing, blocks: int, volumes: int, hw: Hardware
) -> bool:
    """Whether cores share the `blocks` of each of so many `volumes`, not output channels."""
    if hw.cores == 1 or blocks < hw.cores * sharing.blocks:
        return False
    turns = -(-blocks // sharing.blocks)
    channels = _seconds(problem, sharing, turns, volumes, hw, False)
    return _seconds(problem, sharing, turns, volumes, hw, True) <= channels


def cuts_one_block(problem: Problem, sharing: Sharing, hw: Hardware) -> bool:
    """Whether outputs that one block would have had better be one for each core, as is so where the
    input takes longer to load than the weights.
    """
    if hw.cores == 1 or sharing.blocks > 1 or sharing.fold > 1 or problem.outputs < hw.cores:
        return False
    channels = _seconds(problem, sharing, 1, 1, hw, False)
    blocks = _seconds(problem, sharing, hw.cores, 1, hw, True)
    return blocks < _LESS * channels - _LESS_SECONDS


def _seconds(
    problem: Problem, sharing: Sharing, turns: int, volumes: int, hw: Hardware, by_blocks: bool
) -> float:
    """Of a core: the first block's input comes, and then loads, or the products and transposes of
    weights, take longer. Blocks are computed in so many `turns`.
    """
    outs = -(-problem.out_channels // hw.partitions)
    parts = turns if by_blocks else outs
    share = -(-parts // hw.cores) / parts
    run = max(problem.rows.size * problem.columns.size * problem.itemsize, _DESCRIPTOR_BYTES)
    inputs = problem.channels * problem.planes.size * run * volumes
    weights = problem.weights * problem.itemsize * (1 if by_blocks else share)
    rate = hw.stream_bytes_per_second / hw.cores
    first = inputs / turns / rate
    loads = (inputs * (share if by_blocks else 1) + weights) / rate
    # Columns of TensorE: of outputs for each tile of weights, and of these where it turns them.
    tiles = problem.taps / sharing.fold * -(-problem.channels * sharing.fold // hw.partitions)
    columns = tiles * outs * share * problem.outputs * volumes / sharing.blocks
    if not problem.columns.transposed and (problem.taps > 1 or problem.itemsize == 4):
        columns += tiles * outs * (1 if by_blocks else share) * _TURNED * hw.partitions
    passes = 4 if problem.itemsize == 4 else 1
    return first + max(columns * passes / hw.pe_clock, loads - first)
