"""How few channels share the array of TensorE (host side)."""

from __future__ import annotations

import math
from typing import NamedTuple

from trnx.nki_kernels.kernels.convolution._windows import Problem, Window
from trnx.simulator.hardware import Hardware

# That a DMA engine serves, trainium_inferentia2_arch.rst.
PARTITIONS_PER_ENGINE = 8

# Of a DMA that waits for nothing else, nki-dma-bandwidth-guide.rst:40-43.
_TRANSFER_SECONDS = 1.3e-6
# That zeros between folded rows delay loads and products, by schedule.
_ZEROS_SECONDS = 5e-6


class Sharing(NamedTuple):
    """How few channels share the array of TensorE: kernel rows in one product, blocks of outputs
    side by side, and rows of the array for each of these; so many times as many blocks for few
    output channels, and columns for each.
    """

    fold: int
    streams: int
    array_rows: int
    sides: int
    array_columns: int

    @property
    def blocks(self) -> int:
        """Blocks of outputs that are computed side by side."""
        return self.streams * self.sides


def sharing_of(problem: Problem, hw: Hardware) -> Sharing:
    """How rows and columns of the array are shared."""
    way = _rows_of_array(problem, hw)
    least = _least_part(hw)
    columns = max(least, 1 << (problem.out_channels - 1).bit_length())
    # An added tensor has no values for columns that are there to fill a part.
    if problem.has_residual and columns != problem.out_channels:
        return way
    banks = -(-4 * problem.outputs // hw.psum_bank_bytes)
    while columns < hw.partitions and 2 * way.streams * (hw.partitions // columns) > banks:
        columns *= 2
    if columns >= hw.partitions:
        return way
    return way._replace(sides=hw.partitions // columns, array_columns=columns)


def _least_part(hw: Hardware) -> int:
    """Least rows or columns of a part of the array: 32 from NeuronCore-v3 on, 64 before
    (nki.isa.nc_matmul).
    """
    return 32 if hw.generation >= 3 else 64


def _rows_of_array(problem: Problem, hw: Hardware) -> Sharing:
    """The way that needs the fewest passes of the array; with the least folding, which loads the
    input several times.
    """
    if problem.channels > hw.partitions // 2:
        return Sharing(1, 1, hw.partitions, 1, hw.partitions)
    kernel = max(1, *(len(taps) for _, _, taps in problem.rows.phases()))
    most = max(1, min(kernel, hw.partitions // problem.channels))
    least = _least_part(hw)
    ways = []
    for fold in range(1, most + 1):
        rows = max(least, 1 << (fold * problem.channels - 1).bit_length())
        way = Sharing(fold, hw.partitions // rows, rows, 1, hw.partitions)
        if fold == 1 or not problem.rows.transposed or _pays(problem, way, hw):
            ways.append(way)

    def passes(way: Sharing) -> tuple[float, bool, int]:
        return (
            -(-kernel // way.fold) / way.streams,
            not is_compact(problem.rows, way.fold),
            way.fold,
        )

    return min(ways, key=passes)


def pitch_of(problem: Problem, sharing: Sharing, is_static: bool, hw: Hardware) -> int:
    """Partitions from one folded kernel row to the next: each DMA engine serves some partitions, so
    that few channels leave most of the engines idle. Only where triggers take no time, as each of
    the kernel rows has transfers of its own then, and where a core saves more than zeros take.
    """
    channels = problem.channels
    if sharing.fold == 1 or problem.rows.transposed or not is_static:
        return channels

    def busiest(pitch: int) -> int:
        """Partitions that one engine serves, at most."""
        counts = [0] * (sharing.array_rows // PARTITIONS_PER_ENGINE + 1)
        for part in range(sharing.fold):
            for place in range(part * pitch, part * pitch + channels):
                counts[place // PARTITIONS_PER_ENGINE] += 1
        return max(counts)

    best = min(range(channels, sharing.array_rows // sharing.fold + 1), key=busiest)
    rows = problem.rows.out if is_compact(problem.rows, sharing.fold) else problem.rows.size
    nbytes = problem.planes.size * rows * problem.columns.size * problem.itemsize / sharing.streams
    saved = (busiest(channels) - busiest(best)) * nbytes / hw.cores / hw.dma_engine_rate
    return best if saved > _ZEROS_SECONDS else channels


def is_paired(problem: Problem, sharing: Sharing, hw: Hardware) -> bool:
    """Whether the last chunk of channels has a half of the array, and two banks at once, instead of
    chunks that are even. Its input is loaded for both halves, so only where TensorE takes longer
    than DMA.
    """
    rest = problem.channels % hw.partitions
    if problem.taps == 1 or sharing.streams > 1 or sharing.fold > 1:
        return False
    if problem.channels < hw.partitions or not 0 < rest <= hw.partitions // 2:
        return False
    axes = (problem.planes, problem.rows, problem.columns)
    outs = math.prod(axis.out for axis in axes)
    inputs = math.prod(axis.size for axis in axes) * (problem.channels + rest)
    dma = (inputs + outs * problem.out_channels) * problem.itemsize / hw.dma_bytes_per_second
    taps = problem.taps / math.prod(axis.step for axis in axes)
    passes = problem.channels // hw.partitions + 0.5
    columns = outs * taps * passes * -(-problem.out_channels // hw.partitions) / sharing.sides
    return columns * (4 if problem.itemsize == 4 else 1) / hw.pe_clock > dma


def depth_of(problem: Problem, sharing: Sharing, hw: Hardware) -> int:
    """Channels of a chunk: chunks are even, as products of few rows run at half rate
    (docs/timing.md); those of one kernel position, which DMA bounds, fill the partitions, and so do
    those of which the last has a half of the array.
    """
    is_full = problem.taps == 1 or is_paired(problem, sharing, hw)
    if problem.channels <= hw.partitions or is_full:
        return hw.partitions
    return -(-problem.channels // -(-problem.channels // hw.partitions))


def rest_rows(problem: Problem, sharing: Sharing, hw: Hardware) -> int:
    """Rows of the array for the last chunk. A DMA engine serves 8 partitions, so that chunks of few
    channels on the same partitions would take turns at the same engines.
    """
    if is_paired(problem, sharing, hw):
        return hw.partitions // 2
    rest = problem.channels % hw.partitions
    if sharing.streams > 1 or problem.taps > 1 or problem.channels < hw.partitions or rest == 0:
        return hw.partitions
    return max(_least_part(hw), 1 << (rest - 1).bit_length())


def rest_columns(problem: Problem, sharing: Sharing, hw: Hardware) -> int:
    """Columns of the array for a last chunk of output channels, where those are half of it or
    fewer and several blocks are computed side by side; 0 where it is like the others. Channels that
    fill a part have no values in an added tensor, and no weights where blocks have all rows of the
    array.
    """
    rest = problem.out_channels % hw.partitions
    is_alone = problem.out_channels < hw.partitions or sharing.sides > 1
    if is_alone or rest == 0 or problem.has_residual or sharing.fold > 1:
        return 0
    columns = max(_least_part(hw), 1 << (rest - 1).bit_length())
    if sharing.streams == 1 and columns > rest:
        return 0
    return columns if columns < hw.partitions else 0


def _pays(problem: Problem, way: Sharing, hw: Hardware) -> bool:
    """Whether a fold saves more of TensorE's time than the transfers at the borders take."""
    columns = 4 if problem.itemsize == 4 else 1  # of the array, for each output and position
    for window in (problem.planes, problem.rows, problem.columns):
        columns *= window.out * -(-window.kernel // window.step)
    saved = columns / way.streams / hw.pe_clock * (1 - 1 / way.fold)
    return saved > border_transfers(problem.rows, way.fold) * _TRANSFER_SECONDS


def is_compact(window: Window, fold: int) -> bool:
    """All kernel positions are folded: only the inputs are loaded that an output begins at."""
    return fold > 1 and fold >= window.kernel and not window.transposed


def border_transfers(window: Window, fold: int) -> int:
    """Loads of single rows at the borders, where parts of the partitions differ."""
    return 2 * (fold - 1) if window.padding > 0 or window.transposed else 0
