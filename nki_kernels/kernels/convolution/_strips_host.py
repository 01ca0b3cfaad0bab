"""When the gradient of a weight of many channels contracts strips of rows, and how these are cut
(host side); see `_strips_gradient.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.kernels._blocking import float32_per_bank
from trnx.nki_kernels.kernels.convolution._sharing import PARTITIONS_PER_ENGINE
from trnx.nki_kernels.kernels.convolution._strips import reach_of
from trnx.nki_kernels.kernels.convolution._strips_gradient import Cut
from trnx.nki_kernels.kernels.convolution._weight_host import tensor_seconds
from trnx.nki_kernels.kernels.convolution._weight_product import TILES
from trnx.nki_kernels.kernels.convolution._weight_rows import RowAxis, whole_columns
from trnx.nki_kernels.kernels.convolution._windows import Window
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.hardware import Hardware

# Bytes that a DMA engine moves in the time of a descriptor.
DESCRIPTOR_BYTES = 161
# Pieces of the window, so that products start early, and about the columns of a product at least.
_PIECES, _LEAST_COLUMNS = 4, 128
# Bytes of a row of a strip that is loaded by itself, at least.
_LEAST_RUN = 192
# Bytes of a partition for both tensors.
_MOST_BYTES = 131072
# For a transfer's start and end, and for what is done after the last product.
_ENDS_SECONDS = 5e-6
# Of the other way: its predicted time over that of its products and transposes.
_OTHER = 1.1


def strips_of(rows: RowAxis, most: int) -> Iterator[tuple[int, int]]:
    """Up to so many strips of an image, and the rows of one, that may be loaded."""
    for each in sorted({-(-rows.long // number) for number in range(1, min(most, rows.long) + 1)}):
        number = -(-rows.long // each)
        # The first strip alone has rows above the image, and the last one below it.
        last = (number - 2) * each * rows.stride - rows.padding + reach_of(rows, each)
        if number > 1 and (rows.padding > each * rows.stride or last > rows.short):
            continue
        if max(rows.padding, last + each * rows.stride - rows.short) > rows.short:
            continue  # neighbours, which are loaded in place of zeros, have fewer rows
        yield number, each


def cut_plan(
    b: Bindings, windows: list[Window], hw: Hardware
) -> tuple[tuple[RowAxis, RowAxis], Cut] | None:
    """The axes, rows first, and how strips are cut; None where other ways are faster, or the only
    ones.
    """
    if len(windows) != 2 or hw.generation < 3 or b.x.dtype.itemsize != 2 or b.groups > 1:
        return None
    rows, columns = (RowAxis(w.out, w.size, *w[2:6]) for w in windows)
    taps = rows.kernel * columns.kernel
    if taps == 1 or taps > float32_per_bank(hw) or b.x.shape[0] > hw.partitions:
        return None
    found = list(_cuts(b, rows, columns, hw))
    if not found:
        return None
    cut = min(found, key=lambda cut: _seconds(b, rows, columns, cut, hw))
    # Cores that share it wait for each other, or load one of the tensors twice.
    other = _OTHER * tensor_seconds(b, hw) / hw.cores + hw.cores * _ENDS_SECONDS
    return ((rows, columns), cut) if _seconds(b, rows, columns, cut, hw) < other else None


def _width(b: Bindings, hw: Hardware) -> int:
    """Channels of the window that a core has."""
    return int(-(-b.weight.shape[1] // hw.cores))


def _cuts(b: Bindings, rows: RowAxis, columns: RowAxis, hw: Hardware) -> Iterator[Cut]:
    """What fits the partitions, a bank and SBUF."""
    images = int(b.x.shape[0])
    channels, width = b.weight.shape[0], _width(b, hw)
    taps = rows.kernel * columns.kernel
    tile = channels if channels in TILES else hw.partitions
    whole = whole_columns(columns)
    pieces = min(_PIECES, max(1, round(width * taps / _LEAST_COLUMNS)))
    pieces = max(pieces, -(-width // (float32_per_bank(hw) // taps)))
    lanes = -(-width // pieces)
    for number, each in strips_of(rows, hw.partitions // images):
        if whole * each < hw.partitions // tile:
            continue  # the sums of a side begin with a product for all kernel columns
        for turns in (False, True):
            descriptors = images * number * b.weight.shape[1]
            descriptors += images * channels * (1 if turns else number)
            together = min(each, -(-_LEAST_RUN // (columns.long * b.x.dtype.itemsize)))
            cut = Cut(number, each, together, lanes, tile, turns, descriptors <= MOST_DESCRIPTORS)
            if _bytes(b, rows, columns, cut, hw) <= _MOST_BYTES:
                yield cut


def _bytes(b: Bindings, rows: RowAxis, columns: RowAxis, cut: Cut, hw: Hardware) -> int:
    """Of a partition."""
    channels, width = b.weight.shape[0], _width(b, hw)
    elements = width * reach_of(rows, cut.rows) * columns.short
    elements += channels * cut.rows * columns.long
    if cut.turns:
        elements += -(-channels // hw.partitions) * b.x.shape[0] * rows.long * columns.long
    return int(elements * b.x.dtype.itemsize)


def _seconds(b: Bindings, rows: RowAxis, columns: RowAxis, cut: Cut, hw: Hardware) -> float:
    """The time of the engine that is busiest, behind the first operands."""
    channels, width = b.weight.shape[0], _width(b, hw)
    images, size = int(b.x.shape[0]), int(b.x.dtype.itemsize)
    lanes = images * cut.number
    rate = -(-lanes // PARTITIONS_PER_ENGINE) * hw.dma_engine_rate
    run = reach_of(rows, cut.rows) * columns.short * size
    window = lanes * width * max(DESCRIPTOR_BYTES, run) / rate
    dense = lanes * channels * max(DESCRIPTOR_BYTES, cut.rows * columns.long * size) / rate
    blocks = -(-channels // hw.partitions)
    spots = cut.rows * columns.long
    products = spots * blocks * width * rows.kernel * columns.kernel
    products /= hw.partitions // cut.tile
    if cut.turns:
        dense = images * channels * rows.long * columns.long * size / hw.dma_bytes_per_second
        products += spots * blocks * hw.partitions
    # Products of 64 rows of the array or fewer run at half rate (docs/timing.md).
    slow = 2 if lanes <= hw.partitions // 2 else 1
    tensor = slow * products / hw.pe_clock
    first = dense / blocks + window * cut.lanes / width
    if not cut.turns:
        first -= dense / blocks * (1 - cut.together / cut.rows)
    return float(max(tensor + first, dense + window + tensor * cut.lanes / width) + _ENDS_SECONDS)
