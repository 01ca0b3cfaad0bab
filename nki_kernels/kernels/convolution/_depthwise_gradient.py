"""NKI: the gradient of the weight where every channel is a group, as products of TensorE.

Strips of adjacent image rows lie on the partitions as they are in memory, of all images and of one
channel after the other, so that nothing is transposed: for each place in a strip there is a product
that contracts strips. Its left operand has the gradient of some `lanes` channels at `shift` columns
beside each other; its right one has the window of these channels at all kernel rows, and at all
columns that those meet. Only the sums of a channel with itself, and of kernel columns that lie as
the columns of the gradient do, are wanted; the others take less time than transposes would. Tiles
of 32 or 64 columns of the array have other channels, which are a *round*, or other places, whose
sums are added up at the end; tiles of other rows (*parts* of the partitions) have other channels.

An infinity or NaN may meet a zero of the padding, or be among sums that are not wanted. So results
are added up: where a total is not finite, a run computes everything once more by `weight_gradient`.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._repairs import column_of_ones, finite_ones, repairs_of
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.convolution._depthwise_gradient_strips import (
    Chunk,
    Given,
    Strips,
    Sums,
    channels_of,
    groups_of,
    place_of,
    rounds_of,
    tile_of,
)
from trnx.nki_kernels.kernels.convolution._depthwise_operands import diagonal_of
from trnx.nki_kernels.kernels.convolution._loads import store
from trnx.nki_kernels.kernels.convolution._product import zero_by
from trnx.nki_kernels.kernels.convolution._strips import (
    Heights,
    Source,
    finish_strips,
    kept_of,
    load_strips,
    reach_of,
    window_heights,
)
from trnx.nki_kernels.kernels.convolution._weight_gradient import weight_gradient
from trnx.nki_kernels.kernels.convolution._weight_product import WARM_UP
from trnx.nki_kernels.kernels.convolution._weight_rows import RowAxis, row_axis_of

# Products, at half rate: as long as DMA takes for the first operands.
_WARM_UP = 22
# Chunks of channels that are loaded before they are multiplied.
_AHEAD = 2


class Spot(NamedTuple):
    """A row of a strip, and columns of the gradient from the first one on; the columns of the
    window that they meet, counted from `left`.
    """

    row: int
    column: int
    number: int
    left: int
    first: int
    end: int


@nki.jit
def depthwise_gradient_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    transposed: bool,
    shape: tuple[int, ...],
    axes: tuple[tuple[int, ...], tuple[int, ...]],
    how: tuple[int, ...],
    together: int,
    numbers: tuple[tuple[int, ...], ...],
    keeps: tuple[bool, bool],
    is_static: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """As `convolution_weight_gradient_kernel`, of 2 dimensions and one channel a group. `how`: the
    fields of `Strips`. `cores` share channels.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dense, window = (x, grad) if transposed else (grad, x)
    number, rows, parts, lanes, shift, tiles, channels, few = how
    strips = Strips(number, rows, parts, lanes, shift, tiles, channels, few == 1)
    first, end = share_of(shape[0], cores, lanes)
    if first < end:
        both = (row_axis_of(axes[0]), row_axis_of(axes[1]))
        for _ in nl.dynamic_range(_gradient(out, dense, window, both, strips, (first, end))):
            some = nl.ds(first, end - first)
            weight_gradient(
                out[some], (dense[:, some], window[:, some]), (end - first, together), numbers,
                (keeps, False, is_static, WARM_UP), 0, False,
            )  # fmt: skip
    return out


def _gradient(
    out: nl.NkiTensor,
    dense: nl.NkiTensor,
    window: nl.NkiTensor,
    axes: tuple[RowAxis, RowAxis],
    strips: Strips,
    channels: tuple[int, int],
) -> object:
    """Channels (first, end) by products; a register: 0 where all results are finite, else 1."""
    warm_up(_WARM_UP)
    pmax = nl.tile_size.pmax
    mask = diagonal_of(nl.float32, strips.lanes)
    together = groups_of(strips, pmax)
    ones = diagonal_of(nl.float32, together * tile_of(strips))
    reach = reach_of(axes[1], strips.shift)
    zeros = nl.ndarray(
        (pmax, pmax + axes[0].kernel * reach * strips.lanes), dtype=dense.dtype, buffer=nl.sbuf
    )
    nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.gpsimd)
    taps = axes[0].kernel * axes[1].kernel
    flat = out.reshape((out.shape[0], taps))
    kept = kept_of(strips.number, dense.shape[0], strips.parts)
    left = Source(dense, strips.number, kept, strips.is_static)
    right = Source(window, strips.number, kept, strips.is_static)
    given = Given(flat, left, right, axes, strips, mask, ones, zeros)
    each = strips.parts * strips.channels
    first, end = channels
    rounds = rounds_of(strips, strips.channels)
    pieces = (rounds + _rounds_of_bank(taps) - 1) // _rounds_of_bank(taps)
    columns = (end - first + each - 1) // each * strips.parts * pieces
    totals = nl.ndarray((pmax, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=totals, value=0.0, engine=nisa.engine.gpsimd)
    spots = _spots(given)
    order: list[int] = []
    for begin in range(first, end, each):
        order.append(begin)
    if len(order) > 1:
        # Not first: the first and last channels of all take several transfers and copies. Nor last,
        # where VectorE, which makes zeros for them, has much else to do.
        order.insert(1, order.pop(0))
        order.insert(2, order.pop())
    chunks: list[Chunk] = []
    waiting: list[Sums] = []
    column = 0
    for index in range(len(order)):
        while len(chunks) < min(len(order), index + 1 + _AHEAD):
            # The next operands come during these products.
            start = order[len(chunks)]
            chunks.append(_load_chunk(given, start, min(end, start + each)))
        if index == 0:
            _finish_chunk(chunks[0], dense.shape[0])
        if index + 1 < len(order):
            _finish_chunk(chunks[index + 1], dense.shape[0])
        waiting.append(Sums(chunks[index], _sums_of(given, chunks[index], spots)))
        if len(waiting) > 1:
            # Behind these products, as VectorE has to be done with the sums before.
            column = _add_up(given, waiting.pop(0), totals, column)
    column = _add_up(given, waiting.pop(0), totals, column)
    return repairs_of(finite_ones(totals), column_of_ones())


def _rounds_of_bank(taps: int) -> int:
    """Rounds whose results are in PSUM at once."""
    fmax = nl.tile_size.psum_bank_fmax  # type: int
    return max(1, fmax // taps)


def _finish_chunk(chunk: Chunk, images: int) -> None:
    """What is to be done when its strips are there."""
    for loaded in chunk.loads:
        finish_strips(loaded, images)


def _load_chunk(given: Given, first: int, end: int) -> Chunk:
    """Strips of channels `first .. end`, on their way to SBUF."""
    strips, axis = given.strips, given.axes[0]
    # The rows of the gradient below an image are contracted too, and so are zeros.
    rows = Heights(strips.rows, strips.rows, 0, strips.rows)
    chunk = Chunk(first, end, [], [], [])
    for part in range(strips.parts):
        count = channels_of(given, chunk, part)
        if count > 0:
            place, channel = place_of(part, given), first + part * strips.channels
            some = (channel, channel + count)
            room = (count + strips.lanes - 1) // strips.lanes * strips.lanes
            chunk.loads.append(
                load_strips(given.dense, place, some, room, rows, strips.channels, False)
            )
            chunk.dense.append(chunk.loads[-1].tile)
            heights = window_heights(axis, strips.rows)
            chunk.loads.append(
                load_strips(given.window, place, some, room, heights, strips.channels, False)
            )
            chunk.window.append(chunk.loads[-1].tile)
    return chunk


def _spots(given: Given) -> list[Spot]:
    """All of a strip, first those that meet no padding to the left or right."""
    axis, strips = given.axes[1], given.strips
    whole: list[Spot] = []
    others: list[Spot] = []
    for row in range(strips.rows):
        for column in range(0, axis.long, strips.shift):
            count = min(strips.shift, axis.long - column)
            left = column * axis.stride - axis.padding
            size = reach_of(axis, count)
            spot = Spot(
                row, column, count, left, max(0, -left), max(0, min(size, axis.short - left))
            )
            if spot.end - spot.first == reach_of(axis, strips.shift):
                whole.append(spot)
            elif spot.end > spot.first:
                others.append(spot)
    return whole + others


def _sums_of(given: Given, chunk: Chunk, spots: list[Spot]) -> list[nl.NkiTensor]:
    """For each part `[128, rounds, kernel rows, columns]`: of each channel with itself."""
    pmax, lanes = nl.tile_size.pmax, given.strips.lanes
    kernel, reach = given.axes[0].kernel, reach_of(given.axes[1], given.strips.shift)
    sums: list[nl.NkiTensor] = []
    for operand in chunk.dense:
        shape = (pmax, rounds_of(given.strips, operand.shape[1]), kernel, reach)
        sums.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
    for number in range(sums[0].shape[1]):
        banks: list[nl.NkiTensor] = []
        for some in sums:
            if number < some.shape[1]:
                shape = (pmax, kernel, reach, lanes)
                banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
        _multiply_spots(given, chunk, number, spots, banks)
        for part in range(len(banks)):
            flat = (pmax, kernel * reach, lanes)
            wide = nl.ndarray(flat, dtype=nl.float32, buffer=nl.sbuf)
            own = given.mask.expand_dim(1).broadcast(1, kernel * reach)
            bank = banks[part].reshape(flat)
            nisa.tensor_tensor(dst=wide, data1=bank, data2=own, op=nl.multiply)
            total = sums[part][:, number].reshape((pmax, kernel * reach))
            nisa.tensor_reduce(dst=total, op=nl.add, data=wide, axis=2)
    return sums


def _multiply_spots(
    given: Given, chunk: Chunk, number: int, spots: list[Spot], banks: list[nl.NkiTensor]
) -> None:
    """The sums of a round of each part. Neighbours use different tiles of the array."""
    strips = given.strips
    together = groups_of(strips, nl.tile_size.pmax)
    left: list[int] = []
    for part in range(len(banks)):
        groups = chunk.dense[part].shape[1] // strips.lanes - number * together
        left.append(min(together, groups))
        if left[part] < together or not _are_whole(given, spots):
            # Sums that the first products do not write are 0.
            place = place_of(part, given)
            size = (nl.tile_size.pmax // strips.parts, nl.tile_size.pmax)
            zero_by(given.zeros[nl.ds(place, 1)], banks[part], (place, 0), size)
    for index in range(len(spots)):
        for group in range(together):
            for part in range(len(banks)):
                if group < left[part]:
                    side = index % strips.tiles * together + group
                    _multiply(
                        given, banks[part], chunk, part, number * together + group, spots[index],
                        side,
                    )  # fmt: skip


def _are_whole(given: Given, spots: list[Spot]) -> bool:
    """Whether the first product of each tile writes all of its sums."""
    strips = given.strips
    reach = reach_of(given.axes[1], strips.shift)
    if len(spots) < strips.tiles:
        return False
    for spot in spots[0 : strips.tiles]:
        if spot.end - spot.first < reach or spot.number < strips.shift:
            return False
    return True


def _multiply(
    given: Given,
    bank: nl.NkiTensor,
    chunk: Chunk,
    part: int,
    group: int,
    spot: Spot,
    side: int,
) -> None:
    """Add what the strips of a part have at a spot."""
    strips, axis, tile = given.strips, given.axes[0], tile_of(given.strips)
    channels = nl.ds(group * strips.lanes, strips.lanes)
    left = chunk.dense[part][:, channels, spot.row, nl.ds(spot.column, spot.number)]
    top = spot.row * axis.stride
    rows = slice(top, top + (axis.kernel - 1) * axis.dilation + 1, axis.dilation)
    columns = slice(spot.left + spot.first, spot.left + spot.end)
    target = bank[nl.ds(side * tile, spot.number * strips.lanes), :, spot.first : spot.end]
    nisa.nc_matmul(
        dst=target.permute((0, 3, 1, 2)),
        stationary=left.permute((0, 2, 1)),
        moving=chunk.window[part][:, channels, rows, columns],
        tile_position=(place_of(part, given), side * tile),
        tile_size=(nl.tile_size.pmax // strips.parts, tile),
    )


def _add_up(given: Given, of: Sums, totals: nl.NkiTensor, column: int) -> int:
    """The results of a chunk: its sums over the columns of the gradient, and over tiles of the
    array. `column`: the next one of the totals, which is returned.
    """
    strips, axis = given.strips, given.axes[1]
    rows, taps = given.axes[0].kernel, given.axes[0].kernel * axis.kernel
    together = groups_of(strips, nl.tile_size.pmax)
    ones = given.ones.reshape_dim(1, (together, strips.shift, strips.lanes))
    lanes = together * strips.lanes
    for part in range(len(of.parts)):
        sums = of.parts[part]
        channel = of.chunk.first + part * strips.channels
        count = channels_of(given, of.chunk, part)
        for begin in range(0, sums.shape[1], _rounds_of_bank(taps)):
            some = min(_rounds_of_bank(taps), sums.shape[1] - begin)
            bank = nl.ndarray((lanes, some, rows, axis.kernel), nl.float32, buffer=nl.psum)
            for step in range(strips.shift):
                first = step * axis.stride
                columns = slice(first, first + (axis.kernel - 1) * axis.dilation + 1, axis.dilation)
                nisa.nc_matmul(
                    dst=bank,
                    stationary=ones[:, :, step],
                    moving=sums[:, nl.ds(begin, some), :, columns],
                    is_stationary_onezero=True,
                )
            result = nl.ndarray((lanes, some, taps), given.out.dtype, buffer=nl.sbuf)
            nisa.activation(
                dst=result, op=nl.copy, data=bank.reshape((lanes, some, taps)),
                reduce_op=nl.add, reduce_res=totals[0:lanes, nl.ds(column, 1)],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )  # fmt: skip
            column = column + 1
            left = min(count - begin * lanes, some * lanes)
            _store(given, result, channel + begin * lanes, left)
    return column


def _store(given: Given, result: nl.NkiTensor, channel: int, count: int) -> None:
    """`result[lanes, rounds, taps]` -> `count` channels of the result."""
    lanes = result.shape[0]
    full = count // lanes
    if full > 0:
        target = given.out[nl.ds(channel, full * lanes)].reshape_dim(0, (full, lanes))
        store(target.permute((1, 0, 2)), result[:, 0:full], False, given.strips.is_static)
    if full * lanes < count:
        rest = count - full * lanes
        target = given.out[nl.ds(channel + full * lanes, rest)]
        store(target, result[0:rest, full], False, given.strips.is_static)
