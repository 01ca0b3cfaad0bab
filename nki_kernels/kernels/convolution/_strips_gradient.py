"""NKI: the gradient of the weight where both tensors have many channels, as products of strips.

`_strips.py` says how rows of images lie on the partitions. Each column of the gradient in a row of
its strips is a product: its left operand has up to 128 channels of the gradient, its right one some
channels of the window at all kernel positions, as an access pattern. Kernel columns that meet the
padding are left out. Where the gradient has rows of few bytes, which are slow to load, TensorE
transposes it. Few channels of the gradient have 32 or 64 columns of the array, and so several
products run side by side (*sides*); ones add up what these have.

Where a result is not finite, a run computes everything once more by `weight_gradient`.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._repairs import column_of_ones, finite_ones, repairs_of
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.convolution._loads import load, store
from trnx.nki_kernels.kernels.convolution._strips import (
    Heights,
    Loaded,
    Source,
    finish_strips,
    kept_of,
    load_strips,
    window_heights,
)
from trnx.nki_kernels.kernels.convolution._weight_gradient import weight_gradient
from trnx.nki_kernels.kernels.convolution._weight_product import (
    WARM_UP,
    copy_out,
    sum_of_sides,
)
from trnx.nki_kernels.kernels.convolution._weight_rows import (
    RowAxis,
    columns_of,
    reached,
    row_axis_of,
)

# Products, at half rate: as long as DMA takes for the first operands.
_WARM_UP = 22
# Channels at the ends of a tensor whose strips come in pieces.
_APART = 1


class Cut(NamedTuple):
    """How strips are multiplied: their number and rows, and those of the gradient that are loaded
    together; channels of the window in a product; columns of the array that it has; whether TensorE
    transposes the gradient; as in `load`.
    """

    number: int
    rows: int
    together: int
    lanes: int
    tile: int
    turns: bool
    is_static: bool


class Given(NamedTuple):
    """`dense` is multiplied with `window`, to `out[a, b, kernel rows, kernel columns]`."""

    out: nl.NkiTensor
    dense: Source
    window: Source
    axes: tuple[RowAxis, RowAxis]
    cut: Cut


class Left(NamedTuple):
    """`number` channels `first ..` of the gradient: as strips, or as `[channels, images, rows,
    columns]`, which TensorE transposes; and for each row of a strip, once it is there, `[strips of
    images, columns, channels]`.
    """

    first: int
    number: int
    strips: list[Loaded]
    raw: list[nl.NkiTensor]
    rows: list[nl.NkiTensor]


class Sums(NamedTuple):
    """`[sides of the array, channels of the window, kernel rows, kernel columns]` in PSUM, for the
    channels `row ..` and `column ..` of the result; a column of totals for its lanes.
    """

    bank: nl.NkiTensor
    row: int
    column: int
    total: nl.NkiTensor


@nki.jit
def strips_gradient_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    transposed: bool,
    shape: tuple[int, ...],
    axes: tuple[tuple[int, ...], tuple[int, ...]],
    how: tuple[int, ...],
    numbers: tuple[tuple[int, ...], ...],
    keeps: tuple[bool, bool],
    is_static: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """As `convolution_weight_gradient_kernel`, of 2 dimensions and one group. `how`: the fields of
    `Cut`. `cores` share channels of the window.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dense, window = (x, grad) if transposed else (grad, x)
    number, rows, together, lanes, tile, turns, few = how
    cut = Cut(number, rows, together, lanes, tile, turns == 1, few == 1)
    first, end = share_of(shape[1], cores, lanes)
    if first < end:
        both = (row_axis_of(axes[0]), row_axis_of(axes[1]))
        for _ in nl.dynamic_range(_gradient(out, dense, window, both, cut, (first, end))):
            some = nl.ds(first, end - first)
            weight_gradient(
                out[:, some], (dense, window[:, some]), (1, 1), numbers,
                (keeps, False, is_static, WARM_UP), 0, False,
            )  # fmt: skip
    return out


def _gradient(
    out: nl.NkiTensor,
    dense: nl.NkiTensor,
    window: nl.NkiTensor,
    axes: tuple[RowAxis, RowAxis],
    cut: Cut,
    channels: tuple[int, int],
) -> object:
    """Channels (first, end) of the window; a register: 0 where all results are finite, else 1."""
    warm_up(_WARM_UP)
    pmax = nl.tile_size.pmax
    kept = kept_of(cut.number, dense.shape[0], 1)
    sources = (
        Source(dense, cut.number, kept, cut.is_static),
        Source(window, cut.number, kept, cut.is_static),
    )
    given = Given(out, sources[0], sources[1], axes, cut)
    first, end = channels
    blocks = (dense.shape[1] + pmax - 1) // pmax
    pieces = (end - first + cut.lanes - 1) // cut.lanes
    totals = nl.ndarray((pmax, blocks * pieces), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=totals, value=0.0, engine=nisa.engine.gpsimd)
    heights = window_heights(axes[0], cut.rows)
    lefts: list[Left] = []
    rights: list[Loaded] = []
    for block in range(blocks):
        count = min(pmax, dense.shape[1] - block * pmax)
        if cut.turns:
            lefts.append(_load_left(given, block * pmax, count))
        if block == 0:
            # In front of the gradient, which no instruction has to turn, as zeros have to come.
            rights.append(_load_right(given, channels, 0, heights))
        if not cut.turns:
            lefts.append(_load_left(given, block * pmax, count))
    for piece in range(1, pieces):
        rights.append(_load_right(given, channels, piece, heights))
    waiting: list[Sums] = []
    finish_strips(rights[0], dense.shape[0])
    for piece in range(pieces):
        if piece + 1 < pieces:
            # In front of what ScalarE and VectorE do behind these products.
            finish_strips(rights[piece + 1], dense.shape[0])
        for block in range(blocks):
            left = lefts[block]
            if piece == 0:
                _finish_left(given, left)
            total = totals[0 : left.number, nl.ds(piece * blocks + block, 1)]
            bank = _multiply(given, left, rights[piece])
            waiting.append(Sums(bank, left.first, first + piece * cut.lanes, total))
            if len(waiting) > 1:
                # Behind these products, as VectorE has to be done with the sums before.
                _take_out(given, waiting.pop(0))
    _take_out(given, waiting.pop(0))
    return repairs_of(finite_ones(totals), column_of_ones())


def _load_right(given: Given, channels: tuple[int, int], piece: int, heights: Heights) -> Loaded:
    """Piece number `piece` of the channels (first, end) of the window."""
    begin = channels[0] + piece * given.cut.lanes
    end = min(channels[1], begin + given.cut.lanes)
    return load_strips(given.window, 0, (begin, end), end - begin, heights, _APART, True)


def _load_left(given: Given, first: int, count: int) -> Left:
    """Channels of the gradient, on their way to SBUF."""
    left = Left(first, count, [], [], [])
    cut, tensor = given.cut, given.dense.tensor
    if cut.turns:
        shape = (count, tensor.shape[0], tensor.shape[2], tensor.shape[3])
        raw = nl.ndarray(shape, dtype=tensor.dtype, buffer=nl.sbuf)
        part = tensor[:, nl.ds(first, count)].permute((1, 0, 2, 3))
        load(raw, part, False, cut.is_static)
        left.raw.append(raw)
    else:
        # The first rows by themselves, so that products start early.
        for row in range(0, cut.rows, cut.together):
            # No product takes rows below an image, so zeros need not come there.
            heights = Heights(min(cut.together, cut.rows - row), 0, row, cut.rows)
            left.strips.append(
                load_strips(given.dense, 0, (first, first + count), count, heights, _APART, True)
            )
    return left


def _finish_left(given: Given, left: Left) -> None:
    """The rows of its strips, when it is there."""
    images = given.dense.tensor.shape[0]
    rows = given.cut.rows
    for loaded in left.strips:
        finish_strips(loaded, images)
    for row in range(rows):
        strips = (given.axes[0].long - 1 - row) // rows + 1
        if given.cut.turns:
            some = slice(row, row + (strips - 1) * rows + 1, rows)
            left.rows.append(_turned(left.raw[0][:, :, some], row))
        else:
            loaded = left.strips[row // given.cut.together]
            part = loaded.tile[0 : strips * images, :, row % given.cut.together]
            left.rows.append(part.permute((0, 2, 1)))


def _turned(rows: nl.NkiTensor, turn: int) -> nl.NkiTensor:
    """`[rows of images, columns, channels]` of `rows[channels, images, rows, columns]`."""
    channels, columns = rows.shape[0], rows.shape[3]
    lanes = rows.shape[2] * rows.shape[1]
    result = nl.ndarray((lanes, columns, channels), dtype=rows.dtype, buffer=nl.sbuf)
    # Of two bytes.
    together = 2 * nl.tile_size.psum_bank_fmax // channels
    for first in range(0, columns, together):
        some = min(together, columns - first)
        bank = nl.ndarray((lanes, some, channels), dtype=rows.dtype, buffer=nl.psum)
        for index in range(some):
            data = rows[:, :, :, first + index].permute((0, 2, 1))
            nisa.nc_transpose(dst=bank[:, index], data=data, engine=nisa.engine.tensor)
        copy_out(result[:, nl.ds(first, some)], bank, turn + first // together)
    return result


def _spots(given: Given) -> list[tuple[int, int]]:
    """Rows of a strip and columns; first those that all kernel columns reach, which give the sums
    of each side their value.
    """
    whole: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    axis = given.axes[1]
    for row in range(given.cut.rows):
        for column in columns_of(axis):
            first, end = reached(axis, column)
            if end - first == axis.kernel:
                whole.append((row, column))
            else:
                others.append((row, column))
    return whole + others


def _multiply(given: Given, left: Left, right: Loaded) -> nl.NkiTensor:
    """The sums of each side, in PSUM."""
    cut, axis = given.cut, given.axes[0]
    pmax = nl.tile_size.pmax
    sides = pmax // cut.tile
    shape = (
        (sides - 1) * cut.tile + left.number,
        right.channels,
        axis.kernel,
        given.axes[1].kernel,
    )
    bank = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    spots = _spots(given)
    for index in range(len(spots)):
        row, column = spots[index]
        stationary = left.rows[row][:, column]
        first, end = reached(given.axes[1], column)
        top = row * axis.stride
        rows = slice(top, top + (axis.kernel - 1) * axis.dilation + 1, axis.dilation)
        begin = column * given.axes[1].stride - given.axes[1].padding
        begin = begin + first * given.axes[1].dilation
        last = begin + (end - first - 1) * given.axes[1].dilation
        columns = slice(begin, last + 1, given.axes[1].dilation)
        side = index % sides
        where: tuple[int, ...] = ()
        size: tuple[int, ...] = ()
        if sides > 1:
            where, size = (0, side * cut.tile), (pmax, cut.tile)
        nisa.nc_matmul(
            dst=bank[nl.ds(side * cut.tile, left.number), :, :, first:end],
            stationary=stationary,
            moving=right.tile[0 : stationary.shape[0], :, rows, columns],
            tile_position=where,
            tile_size=size,
        )
    return bank


def _take_out(given: Given, sums: Sums) -> None:
    """The result of some channels: its sums over the sides, rounded, and their total."""
    bank = sums.bank
    count = sums.total.shape[0]
    if bank.shape[0] > count:
        bank = sum_of_sides(bank, given.cut.tile)
    channels, taps = bank.shape[1], bank.shape[2] * bank.shape[3]
    result = nl.ndarray((count, channels, taps), dtype=given.out.dtype, buffer=nl.sbuf)
    nisa.activation(
        dst=result, op=nl.copy, data=bank.reshape((count, channels, taps)), reduce_op=nl.add,
        reduce_res=sums.total, reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip
    target = given.out[nl.ds(sums.row, count), nl.ds(sums.column, channels)]
    store(target.reshape((count, channels, taps)), result, False, given.cut.is_static)
