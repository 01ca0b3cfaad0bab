"""NKI helpers of `_depthwise_product.py`: inputs, weights and epilogues in SBUF."""

from __future__ import annotations

from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._depthwise import Depthwise
from trnx.nki_kernels.kernels.convolution._depthwise_positions import Cell, Side
from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, Rows, columns_of
from trnx.nki_kernels.kernels.convolution._loads import load
from trnx.nki_kernels.kernels.convolution._plan import Axes
from trnx.nki_kernels.kernels.convolution._views import volumes_of, with_planes


class Filters(NamedTuple):
    """Of the channels `first ..` of a side, or of a tile in each stream: weights `[128,
    positions]`; the epilogues of the streams; and once they are needed the diagonals, `[128,
    positions, tile]`.
    """

    first: int
    raw: nl.NkiTensor
    thens: list[Epilogue]
    tiles: list[nl.NkiTensor]


class Given(NamedTuple):
    """The tensors as `[channels, planes, rows, columns]` in HBM, `weight[channels, positions]`;
    `diagonal[128, tile]` has a one in each row; `zeros[128, planes, shift, columns]`; `tile`:
    columns of a tile; `shift`, `skew`: as above, or 0; `doubles`: half of the inputs are loaded
    twice; `ahead`: products before the first inputs, or 0; `whole`, `apart`: filters of whole
    sides, and of others.
    """

    tensors: Depthwise
    out: nl.NkiTensor
    x: nl.NkiTensor
    residual: nl.NkiTensor | None
    weight: nl.NkiTensor
    axes: Axes
    diagonal: nl.NkiTensor
    zeros: nl.NkiTensor
    tile: int
    shift: int
    skew: int
    doubles: bool
    ahead: int
    is_static: bool
    whole: list[Filters]
    apart: list[Filters]


def given_of(
    tensors: Depthwise, axes: Axes, how: tuple[int, int, int, bool, int], is_static: bool
) -> Given:
    """What all rounds are given; `how`: columns of a tile, `shift`, `skew`, `doubles` and
    `ahead`. The diagonal is not there yet.
    """
    tile, shift, skew, doubles, ahead = how
    residual = None
    if tensors.residual is not None:
        residual = volumes_of(tensors.residual, 1)[0]
    wide = with_planes(tensors.weight, 1)
    weight = wide.reshape((wide.shape[0], wide.shape[2] * wide.shape[3] * wide.shape[4]))
    x = volumes_of(tensors.x, 1)[0]
    pmax = nl.tile_size.pmax
    shape = (pmax, axes.planes.block, max(1, shift), x.shape[3])
    zeros = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0, engine=nisa.engine.vector)
    diagonal = nl.ndarray((pmax, tile), dtype=weight.dtype, buffer=nl.sbuf)
    return Given(
        tensors, volumes_of(tensors.out, 1)[0], x, residual, weight, axes, diagonal, zeros, tile,
        shift, skew, doubles, ahead, is_static, [], [],
    )  # fmt: skip


def rows_of_tile(given: Given) -> int:
    """Of the array."""
    return 2 * given.tile if given.shift > 0 else given.tile


def diagonal_of(dtype: Any, tile: int) -> nl.NkiTensor:
    """`[128, tile]`: 1 where the partition is the column, counted from its part of so many."""
    diagonal = nl.ndarray((nl.tile_size.pmax, tile), dtype=dtype, buffer=nl.sbuf)
    fill_diagonal(diagonal)
    return diagonal


def fill_diagonal(diagonal: nl.NkiTensor) -> None:
    """The same in `diagonal[128, tile]`."""
    pmax, tile = diagonal.shape
    count = pmax // tile
    ones = nl.ndarray((pmax, count, tile), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    parts = nl.ndarray((pmax, count, tile), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=parts, pattern=[[-tile, count], [-1, tile]], offset=0, channel_multiplier=1,
        on_true_tile=ones, on_false_value=0.0, cmp_op=nl.equal,
    )  # fmt: skip
    nisa.tensor_reduce(dst=diagonal, op=nl.add, data=parts.permute((0, 2, 1)), axis=2)


def load_round(given: Given, sides: list[Side], turn: int) -> list[nl.NkiTensor]:
    """The inputs of sides, `[lanes, planes, rows, columns]`, `shift` rows further down. Where two
    quadrants have the same input, those of odd sides have it loaded on the second one, so that all
    DMA engines, which serve some partitions each, have work. Some of the cells have it loaded on
    both, as copies take VectorE nearly as long as products take TensorE: half of them in the first
    round (`turn` 0), whose products wait for the copies, or in all (`doubles`); a quarter in
    others.
    """
    shift = given.shift
    tiles: list[nl.NkiTensor] = []
    for number in range(len(sides)):
        side = sides[number]
        planes, rows = 1, 1
        for cell in side.cells:
            planes = max(planes, cell.block.planes_in[1] - cell.block.planes_in[0])
            rows = max(rows, cell.block.rows_in[1] - cell.block.rows_in[0])
        shape = (nl.tile_size.pmax, planes, rows + shift, given.x.shape[3])
        tile = nl.ndarray(shape, dtype=given.x.dtype, buffer=nl.sbuf)
        tiles.append(tile)
        if shift == 0 and side.is_whole:
            _load_part(given, tile, side.cells[0], nl.tile_size.pmax)
            continue
        for index in range(len(side.cells)):
            cell = side.cells[index]
            place = index * rows_of_tile(given)
            if number % 2 == 1 and is_pair(given, cell):
                _load_part(given, tile[nl.ds(place + given.tile, given.tile)], cell, given.tile)
            else:
                target = tile[nl.ds(place, cell.number), :, shift:]
                _load_part(given, target, cell, cell.number)
            if _is_loaded_twice(given, cell, (index, number, turn)):
                other = nl.ds(place + (1 - number % 2) * given.tile, given.tile)
                target = tile[other, :, shift:] if number % 2 == 1 else tile[other]
                _load_part(given, target, cell, given.tile)
            if is_pair(given, cell):
                by_dma = given.is_static and turn > 0
                _zero_padding(given, tile[nl.ds(place, 2 * given.tile)], cell, place, by_dma)
    return tiles


def _zero_padding(given: Given, tile: nl.NkiTensor, cell: Cell, place: int, by_dma: bool) -> None:
    """Zeros above the input on the first of two quadrants, and below it on the second."""
    shift = given.shift
    planes = cell.block.planes_in[1] - cell.block.planes_in[0]
    first, end = cell.block.rows_in
    zeros = given.zeros[:, 0:planes]
    if first < shift:
        target = tile[0 : given.tile, 0:planes, 0:shift]
        _zero(target, zeros[nl.ds(place, given.tile)], by_dma)
    if end + shift > given.x.shape[2]:
        target = tile[given.tile : 2 * given.tile, 0:planes, end - first : end - first + shift]
        _zero(target, zeros[nl.ds(place + given.tile, given.tile)], by_dma)


def _zero(target: nl.NkiTensor, zeros: nl.NkiTensor, by_dma: bool) -> None:
    """Zeros by DMA where triggers take no time and the first inputs do not wait for them, else by
    ScalarE: VectorE has the copies, with which GpSimdE shares a bus.
    """
    if by_dma:
        load(target, zeros, False, True)
    else:
        nisa.activation(dst=target, op=nl.copy, data=zeros)


def is_pair(given: Given, cell: Cell) -> bool:
    """Whether two kernel rows are one product."""
    return given.shift > 0 and cell.number == given.tile


def _is_loaded_twice(given: Given, cell: Cell, where: tuple[int, int, int]) -> bool:
    """Whether both quadrants of a cell are loaded; `where`: its stream, side and round. In turns
    those of different quadrants, each of which has DMA engines of its own.
    """
    stream, side, turn = where
    if not is_pair(given, cell):
        return False
    if given.doubles:
        return (stream + side // 2 + turn) % 2 == 0
    if turn == 0:
        return stream % 2 == 1
    half = side // 2 % 2
    return stream == half and (side % 2 == half) == (turn % 2 == 0)


def _load_part(given: Given, tile: nl.NkiTensor, cell: Cell, channels: int) -> None:
    """The input of channels from the first one of a cell on."""
    planes, rows = cell.block.planes_in, cell.block.rows_in
    part = given.x[nl.ds(cell.first, channels), planes[0] : planes[1], rows[0] : rows[1], :]
    target = tile[:, 0 : planes[1] - planes[0], 0 : rows[1] - rows[0], :]
    load(target, part, False, given.is_static)


def copy_round(given: Given, sides: list[Side], tiles: list[nl.NkiTensor], turn: int) -> None:
    """What was loaded on one quadrant of two to the other, `shift` rows further up or down;
    `turn` as in `load_round`.
    """
    shift = given.shift
    for number in range(len(sides)):
        for index in range(len(sides[number].cells)):
            cell = sides[number].cells[index]
            if not is_pair(given, cell) or _is_loaded_twice(given, cell, (index, number, turn)):
                continue
            planes = cell.block.planes_in[1] - cell.block.planes_in[0]
            rows = cell.block.rows_in[1] - cell.block.rows_in[0]
            place = index * 2 * given.tile
            upper = tiles[number][nl.ds(place, given.tile), 0:planes]
            lower = tiles[number][nl.ds(place + given.tile, given.tile), 0:planes]
            above, below = upper[:, :, shift : shift + rows], lower[:, :, 0:rows]
            if number % 2 == 1:
                nisa.tensor_copy(dst=above, src=below, engine=nisa.engine.vector)
            else:
                nisa.tensor_copy(dst=below, src=above, engine=nisa.engine.vector)


def filters_of(given: Given, side: Side, stream: int) -> Filters:
    """The filters of a cell."""
    first = side.cells[0].first if side.is_whole else side.cells[stream].first
    known = given.whole if side.is_whole else given.apart
    for filters in known:
        if filters.first == first:
            return filters
    return known[-1]


def load_filters(given: Given, sides: list[Side]) -> None:
    """Those of the cells of some sides, if they are new."""
    for side in sides:
        known = given.whole if side.is_whole else given.apart
        for stream in range(len(side.cells)):
            first = side.cells[0].first if side.is_whole else side.cells[stream].first
            if len(known) == 0 or filters_of(given, side, stream).first != first:
                known.append(_make_filters(given, side, first, side.cells[stream].number))


def make_diagonals(given: Given, sides: list[Side]) -> None:
    """Those that the products of a round take."""
    for side in sides:
        for stream in range(len(side.cells)):
            diagonals_of(given, filters_of(given, side, stream))


def diagonals_of(given: Given, filters: Filters) -> nl.NkiTensor:
    """The diagonals, made when the first product needs them."""
    if len(filters.tiles) == 0:
        _multiply_diagonals(given, filters, 0, filters.raw.shape[1])
    return filters.tiles[0]


def make_rows(given: Given, filters: Filters, rows: list[int]) -> None:
    """All diagonals of kernel rows in this order, so that products start before the last ones are
    there.
    """
    if len(filters.tiles) > 0:
        return
    width = given.axes.columns.slots
    for row in rows:
        _multiply_diagonals(given, filters, row * width, width)


def _multiply_diagonals(given: Given, filters: Filters, first: int, count: int) -> None:
    """Those of `count` positions."""
    raw = filters.raw
    if len(filters.tiles) == 0:
        shape = (raw.shape[0], raw.shape[1], given.tile)
        filters.tiles.append(nl.ndarray(shape, dtype=raw.dtype, buffer=nl.sbuf))
    some = nl.ds(first, count)
    nisa.tensor_tensor(
        dst=filters.tiles[0][:, some],
        data1=raw[:, some].expand_dim(2).broadcast(2, given.tile),
        data2=given.diagonal.expand_dim(1).broadcast(1, count),
        op=nl.multiply,
    )


def _make_filters(given: Given, side: Side, first: int, number: int) -> Filters:
    """Those of the channels of a side, or of `number` channels in each stream."""
    pmax = nl.tile_size.pmax
    taps = given.weight.shape[1]
    raw = nl.ndarray((pmax, taps), dtype=given.weight.dtype, buffer=nl.sbuf)
    if number < given.tile:
        # By VectorE, which has nothing to do yet: the first inputs come behind these.
        nisa.memset(dst=raw, value=0.0, engine=nisa.engine.vector)
    each = rows_of_tile(given)
    count = pmax // each
    if given.shift == 0 and side.is_whole:
        load(raw, given.weight[nl.ds(first, pmax)], False, given.is_static)
    else:
        for stream in range(count):
            begin = first + stream * given.tile if side.is_whole else first
            some = given.weight[nl.ds(begin, number)]
            load(raw[nl.ds(stream * each, number)], some, False, given.is_static)
            if given.shift > 0:
                # The next kernel row by the input that it takes, in the same place.
                below = raw[nl.ds(stream * each + given.tile, number)]
                width = given.axes.columns.slots
                rest = taps - width
                if given.tensors.transposed:
                    above, below, some = below[:, 0:width], below[:, width:], some[:, 0:rest]
                else:
                    above, below, some = below[:, rest:], below[:, 0:rest], some[:, width:]
                load(below, some, False, given.is_static)
                if number == given.tile:
                    # What no kernel row is below; no load waits for it.
                    nisa.memset(dst=above, value=0.0, engine=nisa.engine.vector)
    thens: list[Epilogue] = []
    for stream in range(count if side.is_whole else 1):
        thens.append(_epilogue_of(given, first + stream * given.tile, number))
    return Filters(first, raw, thens, [])


def _epilogue_of(given: Given, first: int, number: int) -> Epilogue:
    """Of `number` channels, on the partitions of each side."""
    tensors = given.tensors
    rows = Rows(first, number, tensors.groups, 1, 0)
    scale, shift = columns_of(tensors.bias, tensors.norm, rows)
    return Epilogue(
        _on_all_sides(scale, given.tile), _on_all_sides(shift, given.tile), tensors.activation
    )


def _on_all_sides(column: nl.NkiTensor | None, tile: int) -> nl.NkiTensor | None:
    """A column of the channels of a tile, on the partitions of each side."""
    if column is None:
        return None
    pmax = nl.tile_size.pmax
    wide = nl.ndarray((pmax, 1), dtype=column.dtype, buffer=nl.sbuf)
    if column.shape[0] < tile:
        nisa.memset(dst=wide, value=0.0)
    for place in range(0, pmax, tile):
        nisa.tensor_copy(dst=wide[nl.ds(place, column.shape[0])], src=column)
    return wide
