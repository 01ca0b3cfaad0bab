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


def columns_of_banks(channels: int, taps: int) -> list[Columns]:
    """What each bank of sums of 128 channels of the gradient holds."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    columns = []
    first = 0
    while first < channels:
        count = min(pmax, channels - first)
        # Several chunks of channels where the kernel does not fill a bank.
        chunks = max(1, min((channels - first) // count, bank // (count * taps)))
        most = bank // (count * chunks)
        pieces = (taps + most - 1) // most
        some = (taps + pieces - 1) // pieces
        for tap in range(0, taps, some):
            columns.append(Columns(first, chunks, count, tap, min(some, taps - tap)))
        first = first + count * chunks
    return columns


def load_window(
    window: nl.NkiTensor, columns: Columns, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]
) -> nl.NkiTensor:
    """The tile `[channels, chunks, planes, rows, columns]` of a block, padding included."""
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
    if is_padded:
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.gpsimd)
    if ends[0] == begins[0] or ends[1] == begins[1] or ends[2] == begins[2]:
        return tile
    inner = tile[
        :,
        :,
        begins[0] - lows[0] : ends[0] - lows[0],
        begins[1] - lows[1] : ends[1] - lows[1],
        begins[2] - lows[2] : ends[2] - lows[2],
    ]
    data = inner
    if is_padded:
        # Short rows are slow to load, so they come without gaps and are spread on the chip.
        data = nl.ndarray(inner.shape, dtype=window.dtype, buffer=nl.sbuf)
    channels = window[nl.ds(columns.first, columns.chunks * columns.lanes)]
    part = channels[:, begins[0] : ends[0], begins[1] : ends[1], begins[2] : ends[2]]
    part = part.reshape_dim(0, (columns.chunks, columns.lanes)).permute((1, 0, 2, 3, 4))
    nisa.dma_copy(dst=data, src=part)
    if is_padded:
        nisa.tensor_copy(dst=inner, src=data, engine=nisa.engine.gpsimd)
    return tile


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
    """Out of PSUM, on VectorE and ScalarE in turns."""
    if turn % 2 == 0:
        nisa.tensor_copy(dst=dst, src=src)
    else:
        nisa.activation(dst=dst, op=nl.copy, data=src)


def transposed_gradient(tile: nl.NkiTensor, positions: int, turn: int) -> nl.NkiTensor:
    """`[positions, channels]` of `tile[channels, chunks, planes, rows, columns]`."""
    channels, chunks = tile.shape[0], tile.shape[1]
    result = nl.ndarray((positions, chunks * channels), dtype=tile.dtype, buffer=nl.sbuf)
    together = nl.tile_size.psum_bank_fmax // nl.tile_size.pmax
    for first in range(0, chunks, together):
        some = min(together, chunks - first)
        bank = nl.ndarray((positions, some * channels), dtype=tile.dtype, buffer=nl.psum)
        for index in range(some):
            nisa.nc_transpose(
                dst=bank[:, nl.ds(index * channels, channels)],
                data=tile[:, first + index],
                engine=nisa.engine.tensor,
            )
        copy_out(result[:, nl.ds(first * channels, some * channels)], bank, turn + first)
    return result


def transposed_window(
    tile: nl.NkiTensor,
    columns: Columns,
    axes: tuple[WindowAxis, ...],
    starts: tuple[int, ...],
    counts: tuple[int, ...],
    is_flat: bool,
    turn: int,
) -> nl.NkiTensor:
    """`[positions, kernel positions, chunks, channels]` of a tile, positions `starts ..` of the
    block.
    """
    positions = counts[0] * counts[1] * counts[2]
    shape = (positions, columns.taps, columns.chunks, columns.lanes)
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
            step = 1 if is_flat else axes[i].stride
            start = starts[i] * step + taps[i] * axes[i].dilation
            slices.append(slice(start, start + (counts[i] - 1) * step + 1, step))
        for chunk in range(columns.chunks):
            nisa.nc_transpose(
                dst=bank[:, index, chunk, :],
                data=tile[:, chunk, slices[0], slices[1], slices[2]],
                engine=nisa.engine.tensor,
            )
    result = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.sbuf)
    copy_out(result, bank, turn)
    return result
