"""Which convolutions `_pointwise.py` takes, and how (host side)."""

from __future__ import annotations

import math

from trnx.nki_kernels.kernels._blocking import DMA, float32_per_bank, operand_layout
from trnx.nki_kernels.kernels.convolution._windows import Window
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

# The kernel's arguments that are bindings, in its order.
POINTWISE_NAMES = (
    "x", "weight", "bias", "norm_weight", "norm_bias", "mean", "variance", "eps", "activation",
)  # fmt: skip
# Bytes that a DMA engine moves in the time of a descriptor.
_DESCRIPTOR_BYTES = 161
# Of a partition of SBUF, for everything.
_SHARE = 0.7
# Banks of PSUM for sums that wait for all inputs.
_BANKS = 6


def is_pointwise(b: Bindings, windows: list[Window], hw: Hardware) -> bool:
    """Of a 1x1 kernel and 2-byte elements, whose images share a bank, with channels in short runs
    and more of them than partitions.
    """
    if b.transposed or b.groups > 1 or b.residual is not None or b.x.ndim != 4:
        return False
    if any(w.kernel > 1 or w.stride > 1 or w.padding > 0 for w in windows):
        return False
    matrix = TensorSpec.dense(b.weight.shape[:2], b.weight.dtype)
    if b.x.dtype.itemsize != 2 or operand_layout(matrix, hw) != DMA:
        return False
    images, positions = b.x.shape[0], math.prod(b.x.shape[2:])
    if images * positions > float32_per_bank(hw) or 2 * positions >= _DESCRIPTOR_BYTES:
        return False
    outs, channels = b.weight.shape[:2]
    if min(outs, channels) < hw.partitions or outs % 2 or channels % 2 or not _fits(b, hw):
        return False
    # Cores share whole pairs of banks.
    return hw.cores == 1 or outs >= 2 * hw.partitions * hw.cores


def outs_together(outs: int, hw: Hardware) -> int:
    """Output channels whose sums are in PSUM at once: all of them, so that products keep up with
    the loads; or as few as have adjacent ones on a partition, so that stores start early.
    """
    pairs = -(-outs // (2 * hw.partitions))
    return 2 * hw.partitions * (pairs if 2 * pairs <= _BANKS else 1)


def _fits(b: Bindings, hw: Hardware) -> bool:
    """Whether the tensors fit SBUF."""
    outputs = b.x.shape[0] * math.prod(b.x.shape[2:])
    outs, channels = b.weight.shape[:2]
    deep, wide = -(-channels // hw.partitions), -(-outs // hw.partitions)
    return bool(2 * (deep * (outputs + outs) + wide * outputs) <= _SHARE * hw.sbuf_partition_bytes)
