"""Which convolutions `_pointwise.py` takes, and how (host side)."""

from __future__ import annotations

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
# More time that DMA takes to transpose, of that to load.
_TURNED = 0.1
# Of a partition of SBUF, for everything.
_SHARE = 0.7
# Banks of PSUM for sums that wait for all inputs.
_BANKS = 6


def is_pointwise(b: Bindings, windows: list[Window], hw: Hardware) -> bool:
    """Of 2-byte elements, whose images share a bank, with even numbers of channels, more of them
    than partitions: a 1x1 kernel where channels are short runs, or one of two columns.
    """
    if b.transposed or b.groups > 1 or b.residual is not None or b.x.ndim != 4:
        return False
    if any(w.stride != w.kernel or w.padding > 0 or w.dilation > 1 for w in windows):
        return False
    matrix = TensorSpec.dense(b.weight.shape[:2], b.weight.dtype)
    if b.x.dtype.itemsize != 2 or operand_layout(matrix, hw) != DMA:
        return False
    outs, channels = b.weight.shape[:2]
    rows, columns = windows
    if b.x.shape[0] * rows.out * columns.out > float32_per_bank(hw) or not _fits(b, windows, hw):
        return False
    if min(outs, channels) < hw.partitions or outs % 2 or channels % 2:
        return False
    if hw.cores > 1 and outs < 2 * hw.partitions * hw.cores:
        return False  # cores share whole pairs of banks
    if columns.kernel == rows.kernel == 1:
        return rows.size * columns.size * 2 < _DESCRIPTOR_BYTES
    return columns.kernel == 2 and hw.partitions % rows.kernel == 0 and _pays(b, windows, hw)


def _pays(b: Bindings, windows: list[Window], hw: Hardware) -> bool:
    """Whether loads of the input for each kernel row take less time than transposes of weights on
    TensorE. Cores that share output channels would each load all of it.
    """
    if hw.cores > 1:
        return False
    rows, columns = windows
    outs, channels = b.weight.shape[:2]
    tiles = -(-channels // hw.partitions) * rows.kernel * columns.kernel
    outputs = b.x.shape[0] * rows.out * columns.out
    products = tiles * -(-outs // hw.partitions) * outputs / hw.pe_clock
    turns = tiles * outs / hw.pe_clock
    results = outputs * outs * b.x.dtype.itemsize
    once = (b.x.nbytes + b.weight.nbytes + results) / hw.dma_bytes_per_second
    more = ((rows.kernel - 1) * b.x.nbytes + _TURNED * b.weight.nbytes) / hw.dma_bytes_per_second
    return bool(max(products, once + more) < max(products + turns, once))


def outs_together(outs: int, hw: Hardware) -> int:
    """Output channels whose sums are in PSUM at once: all of them, so that products keep up with
    the loads; or as few as have adjacent ones on a partition, so that stores start early.
    """
    pairs = -(-outs // (2 * hw.partitions))
    return 2 * hw.partitions * (pairs if 2 * pairs <= _BANKS else 1)


def _fits(b: Bindings, windows: list[Window], hw: Hardware) -> bool:
    """Whether the tensors fit SBUF."""
    rows, columns = windows
    outs, channels = b.weight.shape[:2]
    deep, wide = -(-channels * rows.kernel // hw.partitions), -(-outs // hw.partitions)
    inputs, outputs = rows.size * columns.size, rows.out * columns.out
    elements = deep * (b.x.shape[0] * inputs + columns.kernel * outs)
    elements += wide * b.x.shape[0] * outputs
    return bool(b.x.dtype.itemsize * elements <= _SHARE * hw.sbuf_partition_bytes)
