"""NKI: convolutions in which every input channel is a group, as products of TensorE.

The array is used as tiles of 32 or 64 columns, each of which multiplies the inputs of as many
channels with a diagonal of weights, a product a kernel position; sums stay in PSUM. A tile has as
many rows, or twice as many: then the second half of its partitions holds the input of the first,
shifted by a kernel row (`shift` input rows), so that a product takes two kernel rows. Tiles of
other rows (*streams*) have other channels or blocks of outputs, those of other columns (*sides*)
other blocks. Sides of a round share banks, or each has its own (`_depthwise_turns.py`).

The zeros beside a diagonal make NaN of other channels next to an infinity or NaN. So the sums of
each bank are added up: where a total is not finite, a run computes everything once more by
`convolve_channels`, in which channels do not meet.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._repairs import repairs_of_totals, sum_of_totals
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.convolution._depthwise import (
    Depthwise,
    DepthwiseAxis,
    axis_of,
    convolve_channels,
)
from trnx.nki_kernels.kernels.convolution._depthwise_operands import (
    Given,
    copy_round,
    fill_diagonal,
    filters_of,
    given_of,
    is_pair,
    load_filters,
    load_round,
    make_diagonals,
    rows_of_tile,
)
from trnx.nki_kernels.kernels.convolution._depthwise_positions import (
    Side,
    Taken,
    outputs_of,
    rounds_of,
    sides_with,
    taken_of,
)
from trnx.nki_kernels.kernels.convolution._depthwise_results import (
    FEW_SUMS,
    Piece,
    are_dense,
    finish_plain,
    load_added,
    pieces_of,
    store_stream,
)
from trnx.nki_kernels.kernels.convolution._depthwise_taken import multiply_taken
from trnx.nki_kernels.kernels.convolution._depthwise_turns import (
    convolve_turns,
    turns_of,
)
from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, Norm, finish
from trnx.nki_kernels.kernels.convolution._parts import (
    parts_of_block,
    where_of,
)
from trnx.nki_kernels.kernels.convolution._plan import Axes, axes_of

# Products, at half rate: as long as DMA takes for the first weights and inputs.
_WARM_UP = 22


@nki.jit
def depthwise_product_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    residual: nl.NkiTensor | None,
    norm_weight: nl.NkiTensor | None,
    norm_bias: nl.NkiTensor | None,
    mean: nl.NkiTensor | None,
    variance: nl.NkiTensor | None,
    eps: float,
    activation: str,
    transposed: bool,
    groups: int,
    shape: tuple[int, ...],
    numbers: tuple[Any, ...],
    tile: int,
    shift: int,
    skew: int,
    doubles: bool,
    ahead: int,
    exact: tuple[tuple[int, ...], ...],
    has_images: bool,
    is_static: bool,
    by_channels: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """As `depthwise_kernel`, of 1 or 2 dimensions, one output a channel. `numbers`: the axes of the
    products, planes being images; `tile`: columns of a tile of the array; `shift`: input rows
    between two kernel rows of a product, or 0; `skew`: kernel positions that a side is ahead of the
    next one; `doubles`: half of the inputs are loaded twice; `ahead`: products
    before the first inputs where sides have banks of their own (`_depthwise_turns.py`), or 0;
    `exact`: the axes of `convolve_channels`. `cores` share images, or channels of 2 dimensions.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    axes = axes_of(numbers)
    norm = None
    if mean is not None:
        norm = Norm(norm_weight, norm_bias, mean, variance, eps)
    given = Depthwise(out, x, weight, bias, norm, residual, activation, transposed, groups)
    first, end = 0, shape[0]
    if by_channels:
        lanes = share_of(groups, cores, tile)
        if lanes[0] == lanes[1]:
            return out
        given = _channels_of(given, lanes[0], lanes[1] - lanes[0])
    else:
        first, end = share_of(shape[0], cores, axes.planes.block)
    if first < end:
        for _ in nl.dynamic_range(
            _convolve(given, axes, (tile, shift, skew, doubles, ahead), (first, end), is_static)
        ):
            _repair(given, exact, has_images, is_static, first, end)
    return out


def _channels_of(given: Depthwise, first: int, count: int) -> Depthwise:
    """Channels `first ..` of what has 2 dimensions, and one output a channel."""
    some = nl.ds(first, count)
    norm = given.norm
    if norm is not None:
        weight = None if norm.weight is None else norm.weight[some]
        shift = None if norm.bias is None else norm.bias[some]
        norm = Norm(weight, shift, norm.mean[some], norm.variance[some], norm.eps)
    bias = None if given.bias is None else given.bias[some]
    residual = None if given.residual is None else given.residual[:, some]
    return Depthwise(
        given.out[:, some], given.x[:, some], given.weight[some], bias, norm, residual,
        given.activation, given.transposed, count,
    )  # fmt: skip


def _repair(
    given: Depthwise,
    exact: tuple[tuple[int, ...], ...],
    has_images: bool,
    is_static: bool,
    first: int,
    end: int,
) -> None:
    """Images `first .. end` once more."""
    some = nl.ds(first, end - first)
    residual = None if given.residual is None else given.residual[some]
    part = Depthwise(
        given.out[some], given.x[some], given.weight, given.bias, given.norm, residual,
        given.activation, given.transposed, given.groups,
    )  # fmt: skip
    planes = axis_of(exact[0])
    if has_images:
        block = min(planes.block, end - first)
        planes = DepthwiseAxis(end - first, end - first, 1, 1, 0, 1, block)
    axes = (planes, axis_of(exact[1]), axis_of(exact[2]))
    convolve_channels(part, axes, has_images, is_static, None)


def _convolve(
    tensors: Depthwise,
    axes: Axes,
    how: tuple[int, int, int, bool, int],
    images: tuple[int, int],
    is_static: bool,
) -> object:
    """`images` (first, end) by products; a register: 0 where all sums are finite, else 1. `how`:
    columns of a tile, `shift`, `skew`, `doubles` and `ahead`.
    """
    warm_up(how[4] if how[4] > 0 else _WARM_UP)
    given = given_of(tensors, axes, how, is_static)
    pmax = nl.tile_size.pmax
    streams, sides_of_round = pmax // rows_of_tile(given), pmax // given.tile
    rounds = rounds_of(
        axes,
        tensors.groups,
        images,
        given.tile,
        streams,
        sides_of_round,
        given.doubles,
        given.ahead > 0,
    )
    columns = 0  # two for each bank, which may leave in two pieces
    for sides in rounds:
        banks = len(sides[0].cells)
        columns = columns + 2 * banks * len(parts_of_block(axes, sides[0].cells[0].block))
    # What the first products take comes first.
    load_filters(given, rounds[0])
    ready = load_round(given, rounds[0], 0)
    for sides in rounds[1:]:
        load_filters(given, sides)
    fill_diagonal(given.diagonal)
    totals = nl.ndarray((pmax, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=totals, value=0.0, engine=nisa.engine.gpsimd)
    if given.ahead > 0:
        checked = convolve_turns(given, turns_of(given, rounds), ready, totals)
        return repairs_of_totals(checked)
    column = 0
    before = 0  # totals of all rounds but the last two
    checked = []
    # Phases have a bank each, and no copies of kernel rows.
    is_by_both = not are_dense(axes)
    for number in range(len(rounds)):
        tiles = ready
        is_last = number + 1 == len(rounds)
        if not is_last:
            # The next inputs come during these products.
            ready = load_round(given, rounds[number + 1], number + 1)
        if number == 0 or not is_by_both:
            make_diagonals(given, rounds[number])
        copy_round(given, rounds[number], tiles, number)
        if is_by_both and not is_last:
            # Before VectorE has sums of this round to copy.
            make_diagonals(given, rounds[number + 1])
        if is_last and before > 0:
            # Before VectorE has sums of this round to copy; the round before may not be done.
            checked.append(sum_of_totals(totals[:, 0:before]))
        if not is_last:
            before = column
        column = _convolve_round(given, rounds[number], tiles, totals, column, is_last)
    checked.append(totals[:, before:column])
    return repairs_of_totals(checked)


def _convolve_round(
    given: Given,
    sides: list[Side],
    tiles: list[nl.NkiTensor],
    totals: nl.NkiTensor,
    column: int,
    is_last: bool,
) -> int:
    """The outputs of some sides; `column`: the next one of the totals, which is returned."""
    axes = given.axes
    results: list[nl.NkiTensor] = []
    added: list[nl.NkiTensor | None] = []
    streams = len(sides[0].cells)
    for stream in range(streams):
        count = sides_with(sides, stream)
        planes, rows, columns = outputs_of(axes, sides[0].cells[0].block)
        shape = (count * given.tile, planes, rows, columns)
        results.append(nl.ndarray(shape, dtype=given.out.dtype, buffer=nl.sbuf))
        added.append(load_added(given, sides, stream, shape))
    # The last sums are stored piece by piece, so that few bytes are left at the end.
    is_early = is_last and given.is_static and are_dense(axes)
    for number in range(len(parts_of_block(axes, sides[0].cells[0].block))):
        banks = _multiply(given, sides, tiles, number, is_last)
        where = _where_of_part(given, sides, number)
        pieces: list[list[Piece]] = []
        for bank in banks:
            is_split = is_early and bank.size > FEW_SUMS * bank.shape[0]
            pieces.append(pieces_of(bank, where) if is_split else [Piece(bank, where)])
        for index in range(len(pieces[0])):
            for stream in range(streams):
                piece = pieces[stream][index]
                total = totals[0 : piece.bank.shape[0], nl.ds(column, 1)]
                # VectorE has nothing else to do any more, or less than ScalarE.
                is_by_both = is_last or not are_dense(axes)
                on_vector = is_by_both and (stream + number) % 2 == 1
                its = (results[stream], added[stream])
                _finish(given, sides, stream, piece, its, total, on_vector)
                column = column + 1
                if is_early:
                    store_stream(given, sides, stream, results[stream], piece.where)
    if not is_early:
        every = slice(0, None)
        for stream in range(streams):
            store_stream(given, sides, stream, results[stream], (every, every, every))
    return column


def _multiply(
    given: Given, sides: list[Side], tiles: list[nl.NkiTensor], number: int, is_last: bool
) -> list[nl.NkiTensor]:
    """The sums of part `number` of each cell: a bank for each stream, with all sides. Where it
    `is_last`, and banks are small then, the first stream is done before the others.
    """
    axes = given.axes
    part = parts_of_block(axes, sides[0].cells[0].block)[number]
    banks: list[nl.NkiTensor] = []
    for stream in range(len(sides[0].cells)):
        shape = (sides_with(sides, stream) * given.tile, part[0][2], part[1][2], part[2][2])
        banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    most = 0
    order: list[tuple[int, int, list[Taken | None]]] = []
    for side in range(len(sides)):
        for stream in range(len(sides[side].cells)):
            cell = sides[side].cells[stream]
            its = parts_of_block(axes, cell.block)[number]
            taken = taken_of(axes, its, given.shift if is_pair(given, cell) else 0)
            order.append((side, stream, taken))
            most = max(most, len(taken))
    if is_last and given.doubles:
        by_stream: list[tuple[int, int, list[Taken | None]]] = []
        for stream in range(len(sides[0].cells)):
            for one in order:
                if one[1] == stream:
                    by_stream.append(one)
        order = by_stream
    # Neighbours use different tiles of the array, so that none waits for the one before it; the
    # first sides do not wait for the inputs of the last ones.
    for step in range(most + given.skew * (len(sides) - 1)):
        for side, stream, taken in order:
            turn = step - given.skew * side
            if turn >= 0 and turn < len(taken):
                bank = banks[stream][nl.ds(side * given.tile, given.tile)]
                where = (stream, side, number)
                multiply_taken(given, bank, sides[side], tiles[side], taken[turn], where)
    return banks


def _finish(
    given: Given,
    sides: list[Side],
    stream: int,
    piece: Piece,
    tiles: tuple[nl.NkiTensor, nl.NkiTensor | None],
    total: nl.NkiTensor,
    on_vector: bool,
) -> None:
    """The epilogue of a piece of a stream: of all sides at once where they have the same channels;
    and its total. By VectorE if that may do it with one instruction. `tiles`: the results, and what
    is added to them.
    """
    tensors = given.tensors
    bank, where = piece
    result, added = tiles
    p, r, q = where
    if tensors.bias is None and tensors.norm is None:
        finish_plain(given, piece, tiles, total, on_vector)
        return
    nisa.tensor_reduce(dst=total, op=nl.add, data=bank, axis=(1, 2, 3))
    count = sides_with(sides, stream)
    first = 0
    while first < count:
        cell = sides[first].cells[stream]
        end = first + 1
        while end < count and sides[end].cells[stream].first == cell.first:
            end = end + 1
        lanes = nl.ds(first * given.tile, (end - first) * given.tile)
        filters = filters_of(given, sides[first], stream)
        then = filters.thens[stream if sides[first].is_whole else 0]
        scale = None if then.scale is None else then.scale[lanes]
        shift = None if then.shift is None else then.shift[lanes]
        more = None if added is None else added[lanes, p, r, q]
        # By ScalarE, as VectorE has the totals.
        its = Epilogue(scale, shift, then.activation)
        finish(result[lanes, p, r, q], bank[lanes], more, its, 0)
        first = end


def _where_of_part(given: Given, sides: list[Side], number: int) -> tuple[slice, slice, slice]:
    """Where a part lies in the result of each block, which are alike."""
    block = sides[0].cells[0].block
    return where_of(given.axes, block, parts_of_block(given.axes, block)[number])
