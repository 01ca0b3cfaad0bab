"""`convolution_weight_gradient`: the gradient of the weight of a convolution.

`aten.convolution_backward` with this gradient alone, as the canonical graph has it; of 1, 2 or 3
dimensions, also of a transposed convolution, whose input and gradient change places; any groups.
float32, bfloat16, float16; sums are float32, rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._convolve import volumes_of
from trnx.nki_kernels.kernels.convolution._weight_host import (
    cost,
    groups_together,
    pattern,
    plan,
    reference,
    samples,
    supports,
)
from trnx.nki_kernels.kernels.convolution._weight_product import (
    BANKS,
    Columns,
    WindowAxis,
    axis_of,
    columns_of_banks,
    copy_out,
    flattened,
    is_inside,
    load_window,
    transposed_gradient,
    transposed_window,
)
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, KernelSpec, Launch, Pattern
from trnx.simulator.hardware import Hardware

# Positions whose transposes are made before the products of the first of them.
_AHEAD = 6
# Bytes of a partition for transposes of the gradient that several passes over it use.
_KEPT_BYTES = 32768

# Starts of some positions in a block, and how many they are, by axis.
Place = tuple[tuple[int, int, int], tuple[int, int, int]]


class Work(NamedTuple):
    """One pass over all positions: channels `first ..` of the gradient, and columns of the window.

    is_flat: a 1x1 kernel, so that all positions of a block are columns; kept: transposes of the
    gradient, in order, where a pass `keeps` them for the next ones.
    """

    axes: tuple[WindowAxis, ...]
    first: int
    channels: int
    columns: list[Columns]
    is_flat: bool
    keeps: bool
    kept: list[list[nl.NkiTensor]]


@nki.jit
def convolution_weight_gradient_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    transposed: bool,
    shape: tuple[int, ...],
    groups: int,
    together: int,
    numbers: tuple[tuple[int, ...], ...],
    keeps: bool,
) -> nl.NkiTensor:
    """grad and x `[N, C, ...]` -> `shape`, that of the weight. `together` groups are one product,
    of which the blocks on the diagonal are wanted.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    grads = volumes_of(x if transposed else grad, 1)
    windows = volumes_of(grad if transposed else x, 1)
    axes = (axis_of(numbers[0]), axis_of(numbers[1]), axis_of(numbers[2]))
    taps = axes[0].kernel * axes[1].kernel * axes[2].kernel
    flat = out.reshape((shape[0], shape[1], taps))
    rows = shape[0] // groups
    for group in range(0, groups, together):
        some = min(together, groups - group)
        its_grads = []
        its_windows = []
        for volume in range(len(grads)):
            its_grads.append(grads[volume][nl.ds(group * rows, some * rows)])
            its_windows.append(windows[volume][nl.ds(group * shape[1], some * shape[1])])
        part = flat[nl.ds(group * rows, some * rows)]
        _gradient(part, its_grads, its_windows, axes, keeps, some)
    return out


def _gradient(
    out: nl.NkiTensor,
    grads: list[nl.NkiTensor],
    windows: list[nl.NkiTensor],
    axes: tuple[WindowAxis, ...],
    keeps: bool,
    groups: int,
) -> None:
    """`out[a, b, kernel]` in HBM, of one group or of several in one product."""
    pmax = nl.tile_size.pmax
    taps = out.shape[2]
    is_flat = taps == 1 and is_inside(axes)
    columns = columns_of_banks(out.shape[1] * groups, taps)
    for first in range(0, out.shape[0], BANKS * pmax):
        # All these channels of the gradient meet the same transposes of the window.
        channels = min(BANKS * pmax, out.shape[0] - first)
        some = max(1, BANKS // ((channels + pmax - 1) // pmax))
        kept: list[list[nl.NkiTensor]] = []
        results: list[nl.NkiTensor] = []
        begin = 0
        while begin < len(columns):
            end = min(begin + some, len(columns))
            while columns[end - 1].first != columns[begin].first:
                end = end - 1
            work = Work(axes, first, channels, columns[begin:end], is_flat, keeps, kept)
            if columns[begin].tap == 0:
                results = _results(out, channels, columns[begin], taps)
            _sum_positions(results, grads, windows, work)
            if end == len(columns) or columns[end].tap == 0:
                if groups > 1:
                    _store_diagonal(out, results[0], groups)
                else:
                    _store(out, results, first, columns[begin].first)
            begin = end


def _results(out: nl.NkiTensor, channels: int, columns: Columns, taps: int) -> list[nl.NkiTensor]:
    """Tiles `[a, chunks, b, kernel]` for the channels of the window in these columns."""
    pmax = nl.tile_size.pmax
    results = []
    for row in range(0, channels, pmax):
        shape = (min(pmax, channels - row), columns.chunks, columns.lanes, taps)
        results.append(nl.ndarray(shape, dtype=out.dtype, buffer=nl.sbuf))
    return results


def _store(out: nl.NkiTensor, results: list[nl.NkiTensor], first: int, channel: int) -> None:
    """`out[first .., channel .., kernel]` <- the results, whose kernel positions are all there."""
    for tile in results:
        size = (tile.shape[0], tile.shape[1] * tile.shape[2], tile.shape[3])
        nisa.dma_copy(
            dst=out[nl.ds(first, size[0]), nl.ds(channel, size[1]), :], src=tile.reshape(size)
        )
        first = first + size[0]


def _store_diagonal(out: nl.NkiTensor, tile: nl.NkiTensor, groups: int) -> None:
    """`out[a, b, kernel]` <- `tile[a, 1, groups * b, kernel]`, for each row a the columns of its
    group. The others are replaced, not multiplied with zeros: they need not be finite.
    """
    rows, depth = out.shape[0] // groups, out.shape[1] * out.shape[2]
    wide = tile.reshape((out.shape[0], groups, depth))
    kept = nl.ndarray(wide.shape, dtype=tile.dtype, buffer=nl.sbuf)
    # The row in its group, counted from a group's first row, is 0 .. rows - 1 in its own group.
    nisa.affine_select(
        dst=kept, pattern=[[-rows, groups], [0, depth]], channel_multiplier=1, offset=0,
        on_true_tile=wide, on_false_value=0.0, cmp_op=nl.greater_equal,
    )  # fmt: skip
    nisa.affine_select(
        dst=kept, pattern=[[rows, groups], [0, depth]], channel_multiplier=-1, offset=rows - 1,
        on_true_tile=kept, on_false_value=0.0, cmp_op=nl.greater_equal,
    )  # fmt: skip
    result = nl.ndarray((out.shape[0], depth), dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=result, op=nl.add, data=kept.permute((0, 2, 1)), axis=2)
    nisa.dma_copy(dst=out.reshape((out.shape[0], depth)), src=result)


def _sum_positions(
    results: list[nl.NkiTensor], grads: list[nl.NkiTensor], windows: list[nl.NkiTensor], work: Work
) -> None:
    """`results[..][a, chunks, b, kernel]` for the columns of this pass."""
    pmax = nl.tile_size.pmax
    axes, columns = work.axes, work.columns
    banks = []
    for row in range(0, work.channels, pmax):
        for some in columns:
            size = (min(pmax, work.channels - row), some.taps, some.chunks, some.lanes)
            banks.append(nl.ndarray(size, dtype=nl.float32, buffer=nl.psum))
    is_flat = work.is_flat
    # Transposes run ahead of the products, which wait for them to leave PSUM.
    waiting = []
    number = 0
    for volume in range(len(grads)):
        grad = grads[volume][nl.ds(work.first, work.channels)]
        for plane in range(0, axes[0].out, axes[0].block):
            for row in range(0, axes[1].out, axes[1].block):
                firsts = (plane, row, 0)
                tile = load_window(windows[volume], columns[0], axes, firsts)
                if is_flat:
                    tile = flattened(tile, axes)
                tiles: list[nl.NkiTensor] = []
                places = _flat_places(tile.shape[4]) if is_flat else _places(axes, firsts)
                for place in places:
                    if number >= len(work.kept) and len(tiles) == 0:
                        tiles = _load_gradient(grad, axes, firsts, is_flat)
                    waiting.append(_transposed(tile, tiles, place, number, work))
                    number = number + 1
                    if len(waiting) > _AHEAD:
                        _multiply(banks, waiting.pop(0), len(columns))
    for pair in waiting:
        _multiply(banks, pair, len(columns))
    for row in range(len(results)):
        for index in range(len(columns)):
            some = columns[index]
            target = results[row][:, :, :, nl.ds(some.tap, some.taps)].permute((0, 3, 1, 2))
            copy_out(target, banks[row * len(columns) + index], row + index)


def _load_gradient(
    grad: nl.NkiTensor, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...], is_flat: bool
) -> list[nl.NkiTensor]:
    """The gradient of a block as tiles `[channels, chunks, planes, rows, columns]`: whole chunks of
    128 channels, and the rest. `is_flat`: all positions are columns.
    """
    pmax = nl.tile_size.pmax
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    source = grad[:, nl.ds(firsts[0], planes), nl.ds(firsts[1], rows), :]
    full = grad.shape[0] // pmax
    tiles = []
    if full > 0:
        shape = (pmax, full, planes, rows, grad.shape[3])
        tile = nl.ndarray(shape, dtype=grad.dtype, buffer=nl.sbuf)
        part = source[0 : full * pmax].reshape_dim(0, (full, pmax)).permute((1, 0, 2, 3, 4))
        nisa.dma_copy(dst=tile, src=part)
        tiles.append(tile)
    rest = grad.shape[0] - full * pmax
    if rest > 0:
        tile = nl.ndarray((rest, 1, planes, rows, grad.shape[3]), dtype=grad.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[:, 0], src=source[full * pmax :])
        tiles.append(tile)
    if is_flat:
        for index in range(len(tiles)):
            size = planes * rows * grad.shape[3]
            chunks = tiles[index].shape[0:2]
            tiles[index] = tiles[index].reshape((chunks[0], chunks[1], 1, 1, size))
    return tiles


def _flat_places(positions: int) -> list[Place]:
    """The places of a block whose positions are all columns."""
    places: list[Place] = []
    for first in range(0, positions, nl.tile_size.pmax):
        counts = (1, 1, min(nl.tile_size.pmax, positions - first))
        places.append(((0, 0, first), counts))
    return places


def _places(axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]) -> list[Place]:
    """The positions of a block that share the partitions: (starts in the block, counts)."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    places = []
    for p in range(0, planes, axes[0].tile):
        for r in range(0, rows, axes[1].tile):
            for q in range(0, axes[2].out, axes[2].tile):
                counts = (
                    min(axes[0].tile, planes - p),
                    min(axes[1].tile, rows - r),
                    min(axes[2].tile, axes[2].out - q),
                )
                places.append(((p, r, q), counts))
    return places


def _transposed(
    tile: nl.NkiTensor, tiles: list[nl.NkiTensor], place: Place, number: int, work: Work
) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The operands of the products of some positions, which are the `number`-th of all: chunks of
    128 channels of the gradient, and the columns of the window.
    """
    starts, counts = place
    is_flat = work.is_flat
    turn = number
    if number < len(work.kept):
        left = work.kept[number]
    else:
        left = []
        size = counts[0] * counts[1] * counts[2]
        where = (nl.ds(starts[0], counts[0]), nl.ds(starts[1], counts[1]))
        for part in tiles:
            view = part[:, :, where[0], where[1], nl.ds(starts[2], counts[2])]
            values = transposed_gradient(view, size, turn)
            for chunk in range(part.shape[1]):
                left.append(values[:, nl.ds(chunk * part.shape[0], part.shape[0])])
            turn = turn + 1
        if work.keeps:
            work.kept.append(left)
    right = []
    for columns in work.columns:
        right.append(transposed_window(tile, columns, work.axes, starts, counts, is_flat, turn))
        turn = turn + 1
    return left, right


def _multiply(
    banks: list[nl.NkiTensor], pair: tuple[list[nl.NkiTensor], list[nl.NkiTensor]], count: int
) -> None:
    """Add the products of some positions to the sums."""
    left, right = pair
    for row in range(len(left)):
        for index in range(count):
            nisa.nc_matmul(
                dst=banks[row * count + index], stationary=left[row], moving=right[index]
            )


def launch(b: Bindings, hw: Hardware) -> Launch:
    """The shape of the weight, and how groups and positions are blocked."""
    names = ("grad", "x", "transposed")
    numbers = plan(b, hw)
    tiles = math.prod(-(-axis[0] // axis[7]) for axis in numbers)
    if b.x.ndim == 5:
        tiles *= b.x.shape[0]
    together = groups_together(b, hw)
    channels = min(b.weight.shape[0] // b.groups * together, BANKS * hw.partitions)
    keeps = tiles * channels * b.x.dtype.itemsize <= _KEPT_BYTES
    kernel = convolution_weight_gradient_kernel
    more = (b.weight.shape, b.groups, together, numbers, keeps)
    return Launch.of(kernel, b, names, *more)


register(
    KernelSpec(
        name="convolution_weight_gradient",
        patterns=(Pattern(pattern),),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=convolution_weight_gradient_kernel,
        launch=launch,
    )
)
