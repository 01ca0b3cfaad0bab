"""NKI helpers of `convolution_weight_gradient`: a product over all images and positions.

`gradient[a, b, k] = sum(grad[a, position] * window[b, position * stride + k * dilation - padding])`
contracts positions, so both tensors are transposed on TensorE, up to 128 positions at a time: the
gradient once, the window once for each column of the kernel, as an access pattern on a tile that
has the padding. The rows of a block that share the partitions lie as far apart as there are turns
over the block, so that the next kernel row takes what a later turn does, and is transposed once.
The sums of up to `BANKS` PSUM banks, all channels a of some (b, k), stay there while the positions
of all images stream by.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._loads import load

# Of the eight banks of PSUM: the others take transposes, or the sums of the pass before.
BANKS, OVERLAPPING_BANKS = 6, 3
# Products, at half rate: as long as DMA takes for the first operands, at least.
WARM_UP = 18
# Columns of the array, below all of them, that products have which run side by side.
TILES = (32, 64)
# Bytes of a row below which its descriptor takes much longer than its bytes.
_SHORT_ROW = 64


class WindowAxis(NamedTuple):
    """One axis: outputs, the window's elements, the kernel; outputs of which the input is loaded at
    once, and that share the partitions.
    """

    out: int
    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    block: int
    tile: int


class Columns(NamedTuple):
    """Columns of one bank: kernel positions `tap ..` of `chunks` times `lanes` channels `first ..`
    of the window.
    """

    first: int
    chunks: int
    lanes: int
    tap: int
    taps: int


def axis_of(numbers: tuple[int, ...]) -> WindowAxis:
    """The axis that the host has planned."""
    out, size, kernel, stride, padding, dilation, block, tile = numbers
    return WindowAxis(out, size, kernel, stride, padding, dilation, block, tile)


class Place(NamedTuple):
    """Positions of a block that share the partitions, rows outermost: where they start, how many,
    the rows between two of them, and which of the places with the same row this is.
    """

    starts: tuple[int, int, int]
    counts: tuple[int, int, int]
    apart: int
    order: int


def size_of(place: Place) -> int:
    """How many positions a place has."""
    return place.counts[0] * place.counts[1] * place.counts[2]


def columns_of_banks(channels: int, taps: int, most_chunks: int) -> list[Columns]:
    """What each bank of sums of 128 channels of the gradient holds: up to `most_chunks` of 128
    channels of the window.
    """
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    columns = []
    first = 0
    while first < channels:
        count = min(pmax, channels - first)
        # Several chunks of channels where the kernel does not fill a bank.
        chunks = max(1, min(most_chunks, (channels - first) // count, bank // (count * taps)))
        most = bank // (count * chunks)
        pieces = (taps + most - 1) // most
        some = (taps + pieces - 1) // pieces
        for tap in range(0, taps, some):
            columns.append(Columns(first, chunks, count, tap, min(some, taps - tap)))
        first = first + count * chunks
    return columns


def columns_beside(channels: int) -> list[Columns]:
    """The same for a 1x1 kernel whose channels lie beside each other, so that a bank is filled."""
    bank = nl.tile_size.psum_bank_fmax
    columns = []
    for first in range(0, channels, bank):
        columns.append(Columns(first, 1, min(bank, channels - first), 0, 1))
    return columns


def tiles_of_columns(columns: list[Columns]) -> list[list[Columns]]:
    """Columns of the same channels of the window together."""
    tiles: list[list[Columns]] = []
    for some in columns:
        if some.tap == 0:
            tiles.append([])
        tiles[-1].append(some)
    return tiles


def load_window(
    window: nl.NkiTensor,
    columns: Columns,
    axes: tuple[WindowAxis, ...],
    firsts: tuple[int, ...],
    is_beside: bool,
    is_static: bool,
) -> nl.NkiTensor:
    """The tile `[channels, chunks, planes, rows, columns]` of a block, padding included; by the
    ring of stores where it `is_beside` other loads; `is_static` as in `load`.
    """
    lows = []
    sizes = []
    begins = []
    ends = []
    is_padded = False
    for i in range(3):
        axis = axes[i]
        count = min(axis.block, axis.out - firsts[i])
        low = firsts[i] * axis.stride - axis.padding
        size = (count - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1
        if i == 2:
            # Whole rows, so that they are one run in memory.
            size = max(size, axis.size - low)
        lows.append(low)
        sizes.append(size)
        begins.append(max(0, low))
        ends.append(max(begins[i], min(axis.size, low + size)))
        is_padded = is_padded or ends[i] - begins[i] < size
    shape = (columns.lanes, columns.chunks, sizes[0], sizes[1], sizes[2])
    tile = nl.ndarray(shape, dtype=window.dtype, buffer=nl.sbuf)
    if ends[0] == begins[0] or ends[1] == begins[1] or ends[2] == begins[2]:
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
        return tile
    inner = tile[
        :,
        :,
        begins[0] - lows[0] : ends[0] - lows[0],
        begins[1] - lows[1] : ends[1] - lows[1],
        begins[2] - lows[2] : ends[2] - lows[2],
    ]
    data = inner
    width = 4 if window.dtype == nl.float32 else 2
    is_spread = is_padded and (ends[2] - begins[2]) * width < _SHORT_ROW
    if is_spread:
        # Short rows are slow to load, so they come without gaps and are spread on the chip.
        data = nl.ndarray(inner.shape, dtype=window.dtype, buffer=nl.sbuf)
    channels = window[nl.ds(columns.first, columns.chunks * columns.lanes)]
    part = channels[:, begins[0] : ends[0], begins[1] : ends[1], begins[2] : ends[2]]
    part = part.reshape_dim(0, (columns.chunks, columns.lanes)).permute((1, 0, 2, 3, 4))
    load(data, part, is_beside, is_static)
    # Between the load and the copy, which would else be merged into a load of short rows.
    for i in range(3):
        if begins[i] > lows[i]:
            _zero(tile, i, 0, begins[i] - lows[i])
        if ends[i] - lows[i] < sizes[i]:
            _zero(tile, i, ends[i] - lows[i], sizes[i])
    if is_spread:
        nisa.tensor_copy(dst=inner, src=data, engine=nisa.engine.gpsimd)
    return tile


def _zero(tile: nl.NkiTensor, axis: int, first: int, end: int) -> None:
    """Zeros in the planes, rows or columns `first .. end` of `tile[channels, chunks, ...]`."""
    if axis == 0:
        part = tile[:, :, first:end]
    elif axis == 1:
        part = tile[:, :, :, first:end]
    else:
        part = tile[:, :, :, :, first:end]
    nisa.memset(dst=part, value=0.0, engine=nisa.engine.gpsimd)


def is_inside(axes: tuple[WindowAxis, ...]) -> bool:
    """Whether no position takes padding."""
    inside = True
    for axis in axes:
        last = (axis.out - 1) * axis.stride + (axis.kernel - 1) * axis.dilation - axis.padding
        inside = inside and axis.padding == 0 and last < axis.size
    return inside


def flattened(tile: nl.NkiTensor, axes: tuple[WindowAxis, ...]) -> nl.NkiTensor:
    """A tile of a 1x1 kernel's window as `[channels, chunks, 1, 1, positions]`, those that the
    strides take.
    """
    some = tile[:, :, :: axes[0].stride, :: axes[1].stride, :: axes[2].stride]
    channels, chunks, planes, rows, columns = some.shape
    if some.size < tile.size:
        dense = nl.ndarray(some.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=dense, src=some, engine=nisa.engine.vector)
        some = dense
    return some.reshape((channels, chunks, 1, 1, planes * rows * columns))


def copy_out(dst: nl.NkiTensor, src: nl.NkiTensor, turn: int) -> None:
    """Mostly out of PSUM, on VectorE and ScalarE in turns."""
    if turn % 2 == 0:
        nisa.tensor_copy(dst=dst, src=src)
    else:
        nisa.activation(dst=dst, op=nl.copy, data=src)


def copy_halves(dst: nl.NkiTensor, src: nl.NkiTensor, turn: int) -> None:
    """`dst[a, chunks, lanes, taps]` <- `src` out of PSUM, a half by VectorE and a half by ScalarE.

    Sums of other kernel positions lie between those of these, so each engine keeps to its own
    lanes: then none waits for what the other one has written.
    """
    axis = 1 if dst.shape[1] > 1 else 2
    half = dst.shape[axis] // 2
    if half == 0:
        copy_out(dst, src, turn)
    elif axis == 1:
        copy_out(dst[:, 0:half], src[:, 0:half], turn)
        copy_out(dst[:, half:], src[:, half:], turn + 1)
    else:
        copy_out(dst[:, :, 0:half], src[:, :, 0:half], turn)
        copy_out(dst[:, :, half:], src[:, :, half:], turn + 1)


def sum_of_sides(bank: nl.NkiTensor, tile: int) -> nl.NkiTensor:
    """`[tile, ...]` in float32, in SBUF: `bank[sides of the array, ...]`, the sides added up."""
    shape = (tile,) + bank.shape[1:]
    total = bank[0:tile]
    for first in range(tile, bank.shape[0], tile):
        # On the partitions of the first one.
        other = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=other, op=nl.copy, data=bank[nl.ds(first, tile)])
        more = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=more, data1=total, data2=other, op=nl.add)
        total = more
    return total


def transposed_gradient(tile: nl.NkiTensor, place: Place, turn: int) -> nl.NkiTensor:
    """`[positions, channels]` of `tile[channels, chunks, planes, rows, columns]`."""
    channels, chunks = tile.shape[0], tile.shape[1]
    starts, counts = place.starts, place.counts
    rows = slice(starts[1], starts[1] + (counts[1] - 1) * place.apart + 1, place.apart)
    part = tile[:, :, nl.ds(starts[0], counts[0]), rows, nl.ds(starts[2], counts[2])]
    part = part.permute((0, 1, 3, 2, 4))
    result = nl.ndarray((size_of(place), chunks * channels), dtype=tile.dtype, buffer=nl.sbuf)
    together = nl.tile_size.psum_bank_fmax // nl.tile_size.pmax
    for first in range(0, chunks, together):
        some = min(together, chunks - first)
        bank = nl.ndarray((size_of(place), some * channels), dtype=tile.dtype, buffer=nl.psum)
        for index in range(some):
            nisa.nc_transpose(
                dst=bank[:, nl.ds(index * channels, channels)],
                data=part[:, first + index],
                engine=nisa.engine.tensor,
            )
        copy_out(result[:, nl.ds(first * channels, some * channels)], bank, turn + first)
    return result


def transposed_window(
    tile: nl.NkiTensor,
    axes: tuple[WindowAxis, ...],
    place: Place,
    kernel_plane: int,
    row: int,
    is_flat: bool,
    turn: int,
) -> nl.NkiTensor:
    """`[positions, chunks, channels, kernel columns]` of `tile[channels, chunks, planes, rows,
    columns]`: the planes and columns of a place, and from `row` of the tile on its rows, those that
    the tile has.
    """
    steps = (1, 1, 1) if is_flat else (axes[0].stride, axes[1].stride, axes[2].stride)
    apart = place.apart * steps[1]
    rows = min(axes[1].tile, (tile.shape[3] - 1 - row) // apart + 1)
    front = place.starts[0] * steps[0] + kernel_plane * axes[0].dilation
    planes = slice(front, front + (place.counts[0] - 1) * steps[0] + 1, steps[0])
    part = tile[:, :, planes, slice(row, row + (rows - 1) * apart + 1, apart), :]
    part = part.permute((0, 1, 3, 2, 4))
    positions = rows * place.counts[0] * place.counts[2]
    channels, chunks, taps = tile.shape[0], tile.shape[1], axes[2].kernel
    result = nl.ndarray((positions, chunks, channels, taps), dtype=tile.dtype, buffer=nl.sbuf)
    together = nl.tile_size.psum_bank_fmax // (chunks * channels)
    if tile.dtype != nl.float32:
        together = together * 2
    for first in range(0, taps, together):
        some = min(together, taps - first)
        bank = nl.ndarray((positions, chunks, channels, some), dtype=tile.dtype, buffer=nl.psum)
        for index in range(some):
            left = place.starts[2] * steps[2] + (first + index) * axes[2].dilation
            columns = slice(left, left + (place.counts[2] - 1) * steps[2] + 1, steps[2])
            for chunk in range(chunks):
                nisa.nc_transpose(
                    dst=bank[:, chunk, :, index],
                    data=part[:, chunk, :, :, columns],
                    engine=nisa.engine.tensor,
                )
        copy_out(result[:, :, :, nl.ds(first, some)], bank, turn + first)
    return result
