"""NKI helpers of `convolution_weight_gradient`: a product over all images and positions.

`gradient[a, b, k] = sum(grad[a, position] * window[b, position * stride + k * dilation - padding])`
contracts positions, so both tensors are transposed on TensorE, 128 positions at a time: the
gradient once, the window once for each kernel position k, as an access pattern on a tile that has
the padding. The sums of up to `BANKS` PSUM banks, all channels a of some (b, k), stay there while
the positions of all images stream by.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

# Of the eight banks of PSUM: the others take transposes.
BANKS = 5


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
    """Columns of one bank: channels `first ..` of the window, kernel positions `tap ..`."""

    first: int
    count: int
    tap: int
    taps: int


def axis_of(numbers: tuple) -> WindowAxis:
    """The axis that the host has planned."""
    out, size, kernel, stride, padding, dilation, block, tile = numbers
    return WindowAxis(out, size, kernel, stride, padding, dilation, block, tile)


def columns_of_banks(channels: int, taps: int) -> list[Columns]:
    """What each bank of sums of 128 channels of the gradient holds."""
    pmax = nl.tile_size.pmax
    columns = []
    for first in range(0, channels, pmax):
        count = min(pmax, channels - first)
        most = nl.tile_size.psum_bank_fmax // count
        pieces = (taps + most - 1) // most
        some = (taps + pieces - 1) // pieces
        for tap in range(0, taps, some):
            columns.append(Columns(first, count, tap, min(some, taps - tap)))
    return columns


def load_window(window: nl.NkiTensor, columns: Columns, axes: tuple, firsts: tuple) -> nl.NkiTensor:
    """The tile `[channels, planes, rows, columns]` of a block, padding included."""
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
        lows.append(low)
        sizes.append(size)
        begins.append(max(0, low))
        ends.append(max(begins[i], min(axis.size, low + size)))
        is_padded = is_padded or ends[i] - begins[i] < size
    shape = (columns.count, sizes[0], sizes[1], sizes[2])
    tile = nl.ndarray(shape, dtype=window.dtype, buffer=nl.sbuf)
    if is_padded:
        nisa.memset(dst=tile, value=0.0)
    if ends[0] > begins[0] and ends[1] > begins[1] and ends[2] > begins[2]:
        nisa.dma_copy(
            dst=tile[
                :,
                begins[0] - lows[0] : ends[0] - lows[0],
                begins[1] - lows[1] : ends[1] - lows[1],
                begins[2] - lows[2] : ends[2] - lows[2],
            ],
            src=window[
                nl.ds(columns.first, columns.count),
                begins[0] : ends[0],
                begins[1] : ends[1],
                begins[2] : ends[2],
            ],
        )
    return tile


def _copy(dst: nl.NkiTensor, src: nl.NkiTensor, turn: int) -> None:
    """Out of PSUM, on VectorE and ScalarE in turns."""
    if turn % 2 == 0:
        nisa.tensor_copy(dst=dst, src=src)
    else:
        nisa.activation(dst=dst, op=nl.copy, data=src)


def transposed_gradient(tile: nl.NkiTensor, where: tuple, turn: int) -> nl.NkiTensor:
    """`[positions, channels]` of chunks `tile[128, chunks, planes, rows, columns]` at `where`."""
    pmax = nl.tile_size.pmax
    positions = where[3]
    chunks = tile.shape[1]
    result = nl.ndarray((positions, chunks * tile.shape[0]), dtype=tile.dtype, buffer=nl.sbuf)
    together = nl.tile_size.psum_bank_fmax // pmax
    for first in range(0, chunks, together):
        some = min(together, chunks - first)
        shape = (positions, some * tile.shape[0])
        bank = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.psum)
        for index in range(some):
            nisa.nc_transpose(
                dst=bank[:, nl.ds(index * tile.shape[0], tile.shape[0])],
                data=tile[:, first + index, where[0], where[1], where[2]],
                engine=nisa.engine.tensor,
            )
        _copy(result[:, nl.ds(first * tile.shape[0], some * tile.shape[0])], bank, turn + first)
    return result


def transposed_window(
    tile: nl.NkiTensor, columns: Columns, axes: tuple, starts: tuple, counts: tuple, turn: int
) -> nl.NkiTensor:
    """`[positions, kernel positions, channels]` of a tile: positions `starts ..` of the block."""
    positions = counts[0] * counts[1] * counts[2]
    shape = (positions, columns.taps, columns.count)
    bank = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.psum)
    for index in range(columns.taps):
        tap = columns.tap + index
        taps = (
            tap // (axes[2].kernel * axes[1].kernel),
            tap // axes[2].kernel % axes[1].kernel,
            tap % axes[2].kernel,
        )
        slices = []
        for i in range(3):
            start = starts[i] * axes[i].stride + taps[i] * axes[i].dilation
            end = start + (counts[i] - 1) * axes[i].stride + 1
            slices.append(slice(start, end, axes[i].stride))
        nisa.nc_transpose(
            dst=bank[:, index, :],
            data=tile[:, slices[0], slices[1], slices[2]],
            engine=nisa.engine.tensor,
        )
    result = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.sbuf)
    _copy(result, bank, turn)
    return result
