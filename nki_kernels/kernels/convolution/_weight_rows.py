"""NKI: the gradient of the weight where one tensor has few channels: image rows are contracted.

Rows of several images lie on the partitions as they are in memory, so that nothing is transposed:
for each column of the images there is one product of the columns of all channels of the *long*
tensor, and of the few of the *short* one at all kernel positions. The short tensor is loaded once
for each kernel row, shifted by it; kernel columns are access patterns. The long tensor is the
gradient, or the window where it has more channels; then the kernel is counted from its end.

Only rows that all kernel rows reach share the partitions. Any other row has a product of its own,
of all images, without the kernel rows that reach the padding, and columns leave out the kernel
columns that do: no zero of the padding meets a value, which need not be finite.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.convolution._weight_product import TILES, copy_out, sum_of_sides

# Moving columns that the shortest product takes the time of.
LEAST_COLUMNS = 64
# Where the rows of a border start, so that they are not all loaded by the same DMA engines.
_PLACES, _PLACE = 4, 32


class RowAxis(NamedTuple):
    """An axis: element `i` of the long tensor meets `i * stride + k * dilation - padding` of the
    short one for kernel position k.
    """

    long: int
    short: int
    kernel: int
    stride: int
    padding: int
    dilation: int


class Rows(NamedTuple):
    """Image rows that are contracted together: images `image ..`, rows `row ..`, and the kernel
    rows `first .. end` that reach them; `place` is their first partition.
    """

    image: int
    images: int
    row: int
    rows: int
    first: int
    end: int
    place: int


def reached(axis: RowAxis, index: int) -> tuple[int, int]:
    """The kernel positions `first .. end` that meet an element of the short tensor, no padding."""
    begin = index * axis.stride - axis.padding
    first = max(0, -(begin // axis.dilation))
    end = min(axis.kernel, (axis.short - 1 - begin) // axis.dilation + 1)
    return first, max(first, end)


def rows_of(images: int, axis: RowAxis) -> list[Rows]:
    """All rows of all images: first those that all kernel rows reach, as many together as there are
    partitions.
    """
    pmax = nl.tile_size.pmax
    inner: list[int] = []
    others: list[int] = []
    for row in range(axis.long):
        first, end = reached(axis, row)
        if end - first == axis.kernel:
            inner.append(row)
        elif end > first:
            others.append(row)
    found: list[Rows] = []
    pieces = (len(inner) + pmax - 1) // pmax
    if pieces > 0:
        each = (len(inner) + pieces - 1) // pieces
        together = max(1, pmax // each)
        turns = (images + together - 1) // together
        together = (images + turns - 1) // turns
        for image in range(0, images, together):
            some = min(together, images - image)
            for start in range(0, len(inner), each):
                count = min(each, len(inner) - start)
                found.append(Rows(image, some, inner[start], count, 0, axis.kernel, 0))
    # A border has few rows, which may start at four of the partitions.
    together = min(images, pmax)
    places = _PLACES if together <= _PLACE else 1
    borders: list[Rows] = []
    for number in range(len(others)):
        first, end = reached(axis, others[number])
        for image in range(0, images, together):
            some = min(together, images - image)
            place = number % places * _PLACE
            borders.append(Rows(image, some, others[number], 1, first, end, place))
    # Products of several take TensorE long, which else waits for the next rows. One comes last, as
    # the DMA engine that brings it, alone, would hold up the other rows.
    place = 1 if len(others) > 1 else len(found)
    return found[0:place] + borders + found[place:]


@nki.jit
def weight_rows_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    transposed: bool,
    shape: tuple[int, ...],
    is_turned: bool,
    numbers: tuple[tuple[int, ...], ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """grad and x `[N, C, rows, columns]` -> `shape`, that of the weight. `is_turned`: the window is
    the long tensor. `cores` share the channels of the long tensor.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    flat = out.reshape((shape[0], shape[1], shape[2] * shape[3]))
    axes = (row_axis_of(numbers[0]), row_axis_of(numbers[1]))
    long, short = (x, grad) if transposed else (grad, x)
    if is_turned:
        long, short = short, long
        flat = flat.permute((1, 0, 2))
    begin, end = share_of(long.shape[1], cores)
    if begin < end:
        _gradient(flat[begin:end], long[:, begin:end], short, axes, is_turned)
    return out


def row_axis_of(numbers: tuple[int, ...]) -> RowAxis:
    long, short, kernel, stride, padding, dilation = numbers
    return RowAxis(long, short, kernel, stride, padding, dilation)


def _gradient(
    out: nl.NkiTensor,
    long: nl.NkiTensor,
    short: nl.NkiTensor,
    axes: tuple[RowAxis, RowAxis],
    is_turned: bool,
) -> None:
    """`out[channels of long, of short, kernel]` in HBM."""
    pmax = nl.tile_size.pmax
    channels, few = long.shape[1], short.shape[1]
    kernel = (axes[0].kernel, axes[1].kernel)
    columns = columns_of(axes[1])
    tile = _tile_of(channels, few * kernel[0] * kernel[1], axes[1])
    banks: list[nl.NkiTensor] = []
    for first in range(0, channels, pmax):
        size = (min(pmax, channels - first) * (pmax // tile), kernel[0], few, kernel[1])
        banks.append(nl.ndarray(size, dtype=nl.float32, buffer=nl.psum))
    for rows in rows_of(long.shape[0], axes[0]):
        moving = _load_short(short, rows, axes[0])
        for index in range(len(banks)):
            count = min(pmax, channels - index * pmax)
            stationary = _load_long(long, rows, index * pmax, count)
            for number in range(len(columns)):
                side = number % (pmax // tile) * tile
                some = banks[index][nl.ds(side, count)]
                _multiply(some, stationary, moving, rows, columns[number], axes, (side, tile))
    for index in range(len(banks)):
        bank = banks[index]
        if tile < pmax:
            bank = sum_of_sides(bank, tile)
        result = nl.ndarray((bank.shape[0], few, kernel[0], kernel[1]), out.dtype, buffer=nl.sbuf)
        target = result.permute((0, 2, 1, 3))
        if is_turned:
            for tap in range(kernel[0] * kernel[1]):
                row, column = tap // kernel[1], tap % kernel[1]
                its = target[:, kernel[0] - 1 - row, :, kernel[1] - 1 - column]
                copy_out(its, bank[:, row, :, column], tap)
        else:
            copy_out(target, bank, index)
        data = result.reshape((bank.shape[0], few, kernel[0] * kernel[1]))
        nisa.dma_copy(dst=out[nl.ds(index * pmax, bank.shape[0])], src=data)


def _tile_of(channels: int, moving: int, axis: RowAxis) -> int:
    """Columns of the array that a product of so many channels and moving columns has: some where
    products then run side by side, which those of few columns do not.
    """
    pmax = nl.tile_size.pmax  # type: int
    is_long = moving > LEAST_COLUMNS and channels in TILES
    # The sums of a side begin with a product for all kernel columns.
    if nisa.get_nc_version() == nisa.nc_version.gen2 or not is_long:
        return pmax
    return channels if whole_columns(axis) >= pmax // channels else pmax


def whole_columns(axis: RowAxis) -> int:
    """How many all kernel columns reach."""
    count = 0
    for column in range(axis.long):
        first, end = reached(axis, column)
        if end - first == axis.kernel:
            count = count + 1
    return count


def columns_of(axis: RowAxis) -> list[int]:
    """Those that a kernel column reaches; first those that all do, which give sums their value."""
    whole: list[int] = []
    others: list[int] = []
    for column in range(axis.long):
        first, end = reached(axis, column)
        if end - first == axis.kernel:
            whole.append(column)
        elif end > first:
            others.append(column)
    return whole + others


def _load_long(long: nl.NkiTensor, rows: Rows, first: int, count: int) -> nl.NkiTensor:
    """`[rows, channels, columns]` of channels `first ..`."""
    number = rows.images * rows.rows
    shape = (rows.place + number, count, long.shape[3])
    tile = nl.ndarray(shape, dtype=long.dtype, buffer=nl.sbuf)[nl.ds(rows.place, number)]
    part = long[nl.ds(rows.image, rows.images), nl.ds(first, count), nl.ds(rows.row, rows.rows), :]
    nisa.dma_copy(dst=tile, src=part.permute((0, 2, 1, 3)))
    return tile


def _load_short(short: nl.NkiTensor, rows: Rows, axis: RowAxis) -> nl.NkiTensor:
    """`[rows, kernel rows, channels, columns]`, those of the kernel that reach these rows."""
    number = rows.images * rows.rows
    kernel = rows.end - rows.first
    channels, height, width = short.shape[1:4]
    shape = (rows.place + number, kernel, channels, width)
    tile = nl.ndarray(shape, dtype=short.dtype, buffer=nl.sbuf)[nl.ds(rows.place, number)]
    pattern = [
        [channels * height * width, rows.images],
        [axis.stride * width, rows.rows],
        [axis.dilation * width, kernel],
        [height * width, channels],
        [1, width],
    ]
    start = rows.row * axis.stride + rows.first * axis.dilation - axis.padding
    offset = rows.image * channels * height * width + start * width
    source = short.ap(pattern=pattern, offset=offset)
    # By the ring of stores, which has nothing to do yet: not behind the long tensor's rows.
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        nisa.dma_copy(dst=tile, src=source)
    else:
        nisa.dma_copy(dst=tile, src=source, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
    return tile


def _multiply(
    bank: nl.NkiTensor,
    stationary: nl.NkiTensor,
    moving: nl.NkiTensor,
    rows: Rows,
    column: int,
    axes: tuple[RowAxis, RowAxis],
    columns: tuple[int, int],
) -> None:
    """Add what one column of the long tensor gives at the kernel positions that it meets, by some
    columns of the array: the first one, and how many.
    """
    axis = axes[1]
    first, end = reached(axis, column)
    start = column * axis.stride + first * axis.dilation - axis.padding
    some = slice(start, start + (end - first - 1) * axis.dilation + 1, axis.dilation)
    where: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    if columns[1] < nl.tile_size.pmax:
        is_few = rows.images * rows.rows <= _PLACE
        where, size = (
            (rows.place, columns[0]),
            (_PLACE if is_few else nl.tile_size.pmax, columns[1]),
        )
    nisa.nc_matmul(
        dst=bank[:, rows.first : rows.end, :, first:end],
        stationary=stationary[:, :, column],
        moving=moving[:, :, :, some],
        tile_position=where,
        tile_size=size,
    )
