"""When the gradient of a weight of one channel a group contracts strips of rows, and how these are
blocked (host side); see `_depthwise_gradient.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._depthwise_gradient_strips import Strips, groups_of
from trnx.nki_kernels.kernels.convolution._sharing import PARTITIONS_PER_ENGINE
from trnx.nki_kernels.kernels.convolution._strips import reach_of
from trnx.nki_kernels.kernels.convolution._strips_host import (
    DESCRIPTOR_BYTES,
    strips_of,
)
from trnx.nki_kernels.kernels.convolution._weight_rows import RowAxis
from trnx.nki_kernels.kernels.convolution._windows import Window
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Columns of tiles of the array, and cycles between two products of different ones.
_TILES, _LEAST_CYCLES = (32, 64), 64
# Cycles of a column of a product of float32.
_FLOAT32 = 4
# Elements that the start of an instruction of VectorE takes the time of.
_START = 73
# Bytes of a partition that are loaded at once, at least, and at most by all parts.
_LEAST_BYTES, _MOST_BYTES = 4096, 40960
# For a transfer's start and end, and for what is done after the last product.
_ENDS_SECONDS = 5e-6
# That a transfer's trigger takes where DGE makes its descriptors (nki-dge.rst).
_TRIGGER_SECONDS = 6e-7
# Of the other way: its predicted time over that of its products, and of the choice of the diagonal
# (fitted to layers of ConvNeXt and MobileNetV2).
_PRODUCTS, _CHOICE = 1.3, 1.2


def strips_plan(
    b: Bindings, windows: list[Window], hw: Hardware
) -> tuple[tuple[RowAxis, RowAxis], Strips] | None:
    """The axes, rows first, and how strips are multiplied; None where other ways are the only ones:
    NeuronCore-v2 has tiles of 64, and products of float32 take four times as long.
    """
    if len(windows) != 2 or hw.generation < 3 or b.x.dtype.itemsize != 2:
        return None
    if b.groups < _TILES[0] or b.weight.shape[:2] != (b.groups, 1) or b.x.shape[0] > hw.partitions:
        return None
    rows, columns = (RowAxis(w.out, w.size, *w[2:6]) for w in windows)
    one = replace(hw, cores=1)
    strips = _best(b, rows, columns, one)
    if strips is None:
        return None
    # The other way has ends, too.
    other = _transposed_seconds(b, rows, columns, hw) + _ENDS_SECONDS
    if _seconds(b, rows, columns, strips, one) > other:
        return None
    if hw.cores > 1:
        strips = _best(b, rows, columns, hw) or strips
    return (rows, columns), strips


def _best(b: Bindings, rows: RowAxis, columns: RowAxis, hw: Hardware) -> Strips | None:
    """What a core is done with first, if anything is possible."""
    found = _candidates(b, rows, columns, hw)
    return min(found, key=lambda strips: _seconds(b, rows, columns, strips, hw), default=None)


def _candidates(b: Bindings, rows: RowAxis, columns: RowAxis, hw: Hardware) -> Iterator[Strips]:
    """What fits the partitions, a bank and SBUF."""
    images = int(b.x.shape[0])
    for parts in (1, 2, 4):
        for number, each in strips_of(rows, hw.partitions // parts // images):
            for tile, shift, tiles in itertools.product(_TILES, (1, 2, 4, 8), (1, 2, 4)):
                sizes = (number, each, parts, tile // shift, shift, tiles)
                if found := _strips(b, (rows, columns), sizes, hw):
                    yield found


def _strips(
    b: Bindings, axes: tuple[RowAxis, RowAxis], sizes: tuple[int, ...], hw: Hardware
) -> Strips | None:
    """Strips of `sizes`: their number, rows, parts, and as in `Strips`; None
    where a bank, SBUF or the array has no place for them.
    """
    rows, columns = axes
    number, each, parts, lanes, shift, tiles = sizes
    together = hw.partitions // (lanes * shift * tiles)
    if together == 0 or tiles > each * -(-columns.long // shift):
        return None
    if lanes * rows.kernel * reach_of(columns, shift) > float32_per_bank(hw):
        return None
    channel = each * columns.long + reach_of(rows, each) * columns.short
    nbytes = lanes * channel * int(b.x.dtype.itemsize)
    if parts * nbytes > _MOST_BYTES:
        return None
    # Few channels at once, so that products start early.
    every = -(-b.groups // (parts * lanes * hw.cores))
    groups = min(-(-_LEAST_BYTES // nbytes), _MOST_BYTES // (parts * nbytes), every)
    # Whole rounds where there is a place for them.
    groups = max(groups, min(together, _MOST_BYTES // (parts * nbytes), every))
    if groups > together:
        groups -= groups % together
    descriptors = 2 * b.groups * b.x.shape[0] * (number + 1)
    return Strips(
        number, each, parts, lanes, shift, tiles, groups * lanes, descriptors <= MOST_DESCRIPTORS
    )


def _seconds(b: Bindings, rows: RowAxis, columns: RowAxis, strips: Strips, hw: Hardware) -> float:
    """The time of the engine that is busiest, behind the first chunk's transfers and products."""
    dma, tensor, vector = _engines(b, rows, columns, strips, hw)
    first = strips.parts * strips.channels / _channels(b, strips.lanes, hw)
    triggers = 0.0
    if not strips.is_static:
        # Each part's strips of both tensors.
        triggers = 2 * -(-_channels(b, strips.lanes, hw) // strips.channels) * _TRIGGER_SECONDS
    busiest = max(dma, tensor, vector, triggers)
    return float(busiest + first * (dma + tensor) + _ENDS_SECONDS)


def _channels(b: Bindings, lanes: int, hw: Hardware) -> int:
    """Of the core that has most of them: cores share groups of lanes."""
    each: int = -(-b.groups // (lanes * hw.cores)) * lanes
    return min(int(b.groups), each)


def _engines(
    b: Bindings, rows: RowAxis, columns: RowAxis, strips: Strips, hw: Hardware
) -> tuple[float, float, float]:
    """Seconds of DMA, TensorE and VectorE of a core."""
    images = int(b.x.shape[0])
    channels = _channels(b, strips.lanes, hw)
    runs = (strips.rows * columns.long, reach_of(rows, strips.rows) * columns.short)
    nbytes = sum(max(DESCRIPTOR_BYTES, run * b.x.dtype.itemsize) for run in runs)
    engines = strips.parts * -(-strips.number * images // PARTITIONS_PER_ENGINE)
    dma = channels * strips.number * images / engines * nbytes / hw.dma_engine_rate
    # Each part has a group of lanes at a time, and several tiles of the array side by side.
    groups = -(-channels // (strips.lanes * strips.parts))
    together = groups_of(strips, hw.partitions)
    rounds = -(-groups // min(together, strips.channels // strips.lanes))
    size = strips.lanes * rows.kernel * reach_of(columns, strips.shift)
    spots = strips.rows * -(-columns.long // strips.shift)
    tiles = min(together, groups, strips.channels // strips.lanes) * strips.tiles * strips.parts
    products = strips.parts * groups * spots * max(_LEAST_CYCLES, size / tiles)
    # Sums of float32 over columns and tiles.
    taps = rows.kernel * columns.kernel
    sums = strips.parts * rounds * strips.shift * max(_LEAST_CYCLES, _FLOAT32 * taps)
    tensor = (products + sums) / hw.pe_clock
    vector = strips.parts * rounds * 2 * (size + _START) / hw.vector_clock
    return float(dma), float(tensor), float(vector)


def _transposed_seconds(b: Bindings, rows: RowAxis, columns: RowAxis, hw: Hardware) -> float:
    """About what the other way takes: products of 128 channels with each other, and the choice of
    their diagonal by GpSimd and VectorE, at half rate.
    """
    width = rows.kernel * columns.kernel * hw.partitions
    tiles = -(-b.groups // hw.partitions)
    places = -(-b.x.shape[0] * rows.long * columns.long // hw.partitions)
    products = tiles * places * width / hw.pe_clock
    choice = 2 * tiles * width * (1 / hw.gpsimd_clock + 1 / hw.vector_clock)
    return float(_PRODUCTS * products + _CHOICE * choice)
