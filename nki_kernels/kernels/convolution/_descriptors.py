"""Whether a convolution's transfers have few descriptors (host side): pieces of memory in one run.

Few are made before the run (`nki_kernels/descriptors.py`).
"""

from __future__ import annotations

import math

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._sharing import is_compact
from trnx.nki_kernels.kernels.convolution._turned import splits_images
from trnx.nki_kernels.kernels.convolution._weight_product import BANKS
from trnx.nki_kernels.kernels.convolution._windows import Problem
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Bytes of a matrix of weights that DMA transposes, beyond which products wait for it: its triggers
# take 600 ns, so that it had better come by one ring while inputs come by the other. More where
# there are no fewer output channels than channels: then the triggers of stores take longer.
_MOST_TURNED, _MOST_TURNED_WIDE = 2**15, 2**19


def is_static(
    problem: Problem, block: tuple[int, int], fold: int, times: int, turns_weights: bool
) -> bool:
    """Of a convolution, `times` as large as `problem`, in blocks of planes and rows of outputs.
    `turns_weights`: DMA transposes them.
    """
    is_wide = problem.out_channels >= problem.channels
    most = _MOST_TURNED_WIDE if is_wide else _MOST_TURNED
    if turns_weights and problem.weights * problem.itemsize > most:
        return False
    rows = problem.rows
    blocks = math.ceil(math.ceil(rows.out / rows.step) / block[1])
    # Folded rows come one by one where they are not neighbours.
    pieces = rows.out if is_compact(rows, fold) and rows.stride > 1 else blocks
    inputs = problem.channels * fold * problem.planes.size * pieces
    outputs = problem.out_channels * problem.planes.out * blocks
    if problem.has_residual:
        outputs *= 2
    # A row of weights comes in pieces, chunks of channels.
    weights = problem.channels + problem.out_channels * math.ceil(problem.channels / 128)
    return times * (inputs + outputs + weights) <= MOST_DESCRIPTORS


def is_gradient_static(
    b: Bindings, axes: tuple[tuple[int, ...], ...], keeps: bool, is_turned: bool, hw: Hardware
) -> bool:
    """Of the gradient of a weight; `axes` are the fields of the kernel's, `keeps`: transposes are
    kept, `is_turned`: DMA makes them, by its own hardware.
    """
    rows, width = b.weight.shape[:2]
    taps = math.prod(b.weight.shape[2:])
    banks = -(-rows // hw.partitions) * -(-width * taps // float32_per_bank(hw))
    passes = 1 if keeps or is_turned else -(-banks // BANKS)
    pieces = b.x.shape[0] * -(-axes[1][0] // axes[1][6])
    loads = pieces * (b.x.shape[1] + b.grad.shape[1])
    positions, channels = axes[1][0] * axes[2][0], max(rows, width)
    if is_turned and not splits_images(b.x.shape[0], positions, channels, hw.partitions):
        loads = 0
    return bool(passes * loads + rows * -(-width // hw.partitions) <= MOST_DESCRIPTORS)


def is_depthwise_static(b: Bindings, axes: tuple[tuple[int, ...], ...], has_images: bool) -> bool:
    """Of a convolution of one channel a group; `axes` are the fields of the kernel's, the first of
    which may be images."""
    blocks = math.prod(-(-axis[0] // axis[6]) for axis in axes[has_images:])
    if axes[2][6] < axes[2][0]:
        blocks *= axes[1][6]  # columns are cut, so that each row is a run
    outputs = b.weight.numel // math.prod(b.weight.shape[2:])
    return bool(b.x.shape[0] * (b.x.shape[1] + 2 * outputs) * blocks <= MOST_DESCRIPTORS)


def is_products_static(b: Bindings, axes: tuple[tuple[object, ...], ...]) -> bool:
    """The same by products; what is done again where sums are not finite has others."""
    planes, rows = axes[0], axes[1]
    blocks = -(-int(str(rows[3])) // (int(str(rows[4])) * int(str(rows[5]))))
    tensors = 3 if b.residual is not None else 2
    return bool(tensors * int(str(planes[3])) * b.x.shape[1] * blocks <= MOST_DESCRIPTORS)
