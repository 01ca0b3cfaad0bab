"""NKI helpers of `_depthwise_product.py`: sides one after another, each with banks of its own.

Stream s of a side has the columns of tile `s + place` of the array, so that the outputs of all
streams lie on all partitions of one bank, which all DMA engines store; sides of other places use
other tiles. A side starts where the last one in its place ends, amid the products of the others:
few products are left behind the last load. Sides of the last channels come first, alone: they leave
tiles of the array idle, while the next inputs come.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels._repairs import sum_of_totals
from trnx.nki_kernels.kernels.convolution._depthwise_operands import (
    Given,
    filters_of,
    load_round,
    make_diagonals,
    make_rows,
)
from trnx.nki_kernels.kernels.convolution._depthwise_positions import (
    Side,
    Taken,
    outputs_of,
    taken_of,
)
from trnx.nki_kernels.kernels.convolution._depthwise_results import (
    FEW_SUMS,
    Piece,
    finish_plain,
    load_added_of_side,
    pieces_of,
    store_side,
)
from trnx.nki_kernels.kernels.convolution._depthwise_taken import multiply_taken
from trnx.nki_kernels.kernels.convolution._parts import parts_of_block, where_of

# Sides whose diagonals are made row by row, as TensorE waits for them.
_BY_ROWS = 2


class _Step(NamedTuple):
    """The part of a block whose bank has products, whether these are its last ones, and what each
    stream takes, if anything.
    """

    number: int
    is_last: bool
    taken: list[list[Taken | None]]


class Turn(NamedTuple):
    """A side, its place, and its products in order, from step `start` of all on."""

    side: Side
    place: int
    start: int
    steps: list[_Step]


class _Begun(NamedTuple):
    """A side that has products: its inputs, results and what is added to them, and its banks."""

    turn: Turn
    tile: nl.NkiTensor
    result: nl.NkiTensor
    added: nl.NkiTensor | None
    banks: list[nl.NkiTensor]


class _End(NamedTuple):
    """Whether all sides have begun, and whether one is the last of them."""

    has_all: bool
    is_last: bool


def turns_of(given: Given, rounds: list[list[Side]]) -> list[Turn]:
    """All sides, each in the place that is free first; at first they are as many steps apart as
    they will be."""
    count = nl.tile_size.pmax // given.tile
    turns: list[Turn] = []
    ends: list[int] = []
    alone = 0
    for sides in rounds:
        for side in sides:
            steps = _steps_of(given, side)
            if len(ends) == 0 and not side.is_whole and len(rounds) > 1 and rounds[1][0].is_whole:
                turns.append(Turn(side, 0, alone, steps))
                alone = alone + len(steps)
                continue
            if len(ends) == 0:
                for place in range(count):
                    ends.append(alone + place * len(steps) // count)
            place = 0
            for other in range(1, count):
                # Few streams have no partitions before theirs.
                if ends[other] < ends[place] and len(side.cells) == count:
                    place = other
            turns.append(Turn(side, place, ends[place], steps))
            ends[place] = ends[place] + len(steps)
    return turns


def _steps_of(given: Given, side: Side) -> list[_Step]:
    """The products of a side: those of each part of its block in turn."""
    steps: list[_Step] = []
    for number in range(len(parts_of_block(given.axes, side.cells[0].block))):
        streams: list[list[Taken | None]] = []
        most = 0
        for cell in side.cells:
            taken = taken_of(given.axes, parts_of_block(given.axes, cell.block)[number], 0)
            streams.append(taken)
            most = max(most, len(taken))
        for index in range(most):
            some: list[list[Taken | None]] = []
            for taken in streams:
                some.append(taken[index : index + 1])
            steps.append(_Step(number, index + 1 == most, some))
    return steps


def convolve_turns(
    given: Given, turns: list[Turn], ready: list[nl.NkiTensor], totals: nl.NkiTensor
) -> list[nl.NkiTensor]:
    """The outputs of all sides; `ready`: the inputs of the first ones. Returns what is checked:
    the totals of the last sides, and a sum of the others.
    """
    tiles: list[nl.NkiTensor] = []
    for tile in ready:
        tiles.append(tile)
    checked: list[nl.NkiTensor] = []
    under: list[_Begun] = []
    column, before = 0, 0  # of the totals; all of those before the last side
    begun, step = 0, 0
    while begun < len(turns) or len(under) > 0:
        while begun < len(turns) and turns[begun].start <= step:
            under.append(_begin(given, turns, begun, tiles))
            begun = begun + 1
            if begun == len(turns):
                before = column
        if before > 0 and len(under) == 1 and len(checked) == 0:
            # VectorE has the sums of the side before the last one by then.
            checked.append(sum_of_totals(totals[:, 0:before]))
        left: list[_Begun] = []
        for one in under:
            end = _End(begun == len(turns), one.turn.start == turns[-1].start)
            column = _take_step(given, one, step - one.turn.start, totals, column, end)
            if step + 1 < one.turn.start + len(one.turn.steps):
                left.append(one)
        under = left
        step = step + 1
    first = before if len(checked) > 0 else 0
    checked.append(totals[:, first:column])
    return checked


def _begin(given: Given, turns: list[Turn], number: int, tiles: list[nl.NkiTensor]) -> _Begun:
    """Starts a side; the inputs and diagonals of the next ones come during its products."""
    ahead = nl.tile_size.pmax // given.tile
    while len(tiles) < min(len(turns), number + 1 + ahead):
        tiles.append(load_round(given, [turns[len(tiles)].side], 1)[0])
    for near in range(number, min(len(turns), number + 2)):
        if near < _BY_ROWS:
            _make_rows(given, turns[near])
        else:
            make_diagonals(given, [turns[near].side])
    turn = turns[number]
    planes, rows, columns = outputs_of(given.axes, turn.side.cells[0].block)
    shape = (len(turn.side.cells) * given.tile, planes, rows, columns)
    result = nl.ndarray(shape, dtype=given.out.dtype, buffer=nl.sbuf)
    added = load_added_of_side(given, turn.side, turn.place, shape)
    return _Begun(turn, tiles[number], result, added, [])


def _make_rows(given: Given, turn: Turn) -> None:
    """The diagonals of a side, in the order in which kernel rows are taken; then the others."""
    slots = given.axes.rows.slots
    rows: list[int] = []
    for step in turn.steps:
        for taken in step.taken:
            if len(taken) > 0 and taken[0] is not None:
                taps = taken[0].position[0]
                row = taps[0][0] * slots + taps[1][0]
                if row not in rows:
                    rows.append(row)
    for row in range(given.weight.shape[1] // given.axes.columns.slots):
        if row not in rows:
            rows.append(row)
    for stream in range(len(turn.side.cells)):
        make_rows(given, filters_of(given, turn.side, stream), rows)


def _take_step(
    given: Given, one: _Begun, index: int, totals: nl.NkiTensor, column: int, end: _End
) -> int:
    """Products of a side, and its sums where these are the last ones of a part; `column`: the next
    one of the totals, which is returned.
    """
    turn = one.turn
    step = turn.steps[index]
    side = turn.side
    if len(one.banks) == step.number:
        part = parts_of_block(given.axes, side.cells[0].block)[step.number]
        shape = (len(side.cells) * given.tile, part[0][2], part[1][2], part[2][2])
        one.banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    count = nl.tile_size.pmax // given.tile
    for stream in range(len(side.cells)):
        tile = (stream + turn.place) % count
        bank = one.banks[step.number][nl.ds(tile * given.tile, given.tile)]
        for taken in step.taken[stream]:
            multiply_taken(given, bank, side, one.tile, taken, (stream, tile, step.number))
    if step.is_last:
        column = _finish_part(given, one, step.number, totals, column, end)
    if index + 1 == len(turn.steps) and not (end.has_all and given.is_static):
        every = slice(0, None)
        store_side(given, side, turn.place, one.result, (every, every, every))
    return column


def _finish_part(
    given: Given, one: _Begun, number: int, totals: nl.NkiTensor, column: int, end: _End
) -> int:
    """The sums of a part. The last ones are stored piece by piece, so that few bytes are left at
    the end; VectorE has some of them, when it has no more diagonals to make.
    """
    bank = one.banks[number]
    block = one.turn.side.cells[0].block
    where = where_of(given.axes, block, parts_of_block(given.axes, block)[number])
    is_early = end.has_all and given.is_static
    is_split = is_early and (end.is_last or bank.size > FEW_SUMS * bank.shape[0])
    pieces = pieces_of(bank, where) if is_split else [Piece(bank, where)]
    for index in range(len(pieces)):
        piece = pieces[index]
        total = totals[0 : bank.shape[0], nl.ds(column, 1)]
        on_vector = end.has_all and index + 1 == len(pieces)
        finish_plain(given, piece, (one.result, one.added), total, on_vector)
        column = column + 1
        if is_early:
            store_side(given, one.turn.side, one.turn.place, one.result, piece.where)
    return column
