"""Running sums of long rows of float32 with one rounding: two scans, in fixed point and in float32.

A row is cut into chunks. Each gets a unit, a power of two, from a bound of its sums: what is
multiples of the unit is added without a rounding, since 24 bits hold it, and what is left, half a
unit an element at the most, is added in float32 (S. M. Rump, T. Ogita, S. Oishi, "Accurate
floating-point summation", SISC 31, 2008, splits so). Where a later chunk has a coarser unit, what
its grid does not hold of the sum so far goes to the other sum.

The bound is the sum of magnitudes of the row's last `EPOCH` to `2 * EPOCH` elements and the sum
before these. An infinity or NaN leaves none: the unit is then by that of the chunk before, or by
the first elements of the row. Whatever the unit is, no sum is wrong, since an element that the
first scan does not hold is left to the second one; with one that does not suit the row, or where
the row's sums are below 2^-104 and need one below 2^-126, its sums have an error like those of
float32.

Both scans take two elements a step, `(element + sum) + next element`, and give the sums behind
every second one: half of the steps. Those between are `sum + (rest + element)`, which rounds twice,
by at most half a unit in the last place of the element and of the sum. Both kinds are one
instruction: the sums in units are read twice each, beside what is left behind every second element
and, between two of these, what is added behind the others.

VectorE scans and adds, ScalarE bounds and rounds, GpSimd subtracts and adds; what is left of some
elements VectorE finds, so that all three have as much to do. `_fixed_point_plan.py` says in which
order, `_fixed_point_units.py` has the small instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._fixed_point_plan import (
    ADD,
    BOUND,
    FINISH,
    LEFT,
    LEFT_ON_VECTOR,
    LOAD,
    NOTHING,
    PROBE,
    ROUND,
    SCALE,
    START,
    SUM,
    SUM_LEFT,
    UNIT,
    Chunk,
    Piece,
    Plan,
)
from trnx.nki_kernels.kernels._fixed_point_units import (
    Constants,
    Sums,
    bound,
    constants,
    probe,
    scales_of,
    start_step,
    start_with_nothing,
    unit_step,
)
from trnx.nki_kernels.kernels._scans import lanes, places, tiles_of

SHORTEST = 513  # rows of which a partition has no two


class _Work(NamedTuple):
    """A core's part; lists by chunk or piece."""

    x: nl.NkiTensor
    out: nl.NkiTensor
    length: int
    tiles: list[Any]
    chunks: list[Chunk]
    pieces: list[Piece]
    given: Constants
    scales: list[Any]
    sums: list[Any]
    data: list[Any]
    words: list[Any]
    left: list[Any]


@nki.jit
def fixed_point_sums_kernel(
    x: nl.NkiTensor,
    shape: tuple[int, ...],
    length: int,
    plans: tuple[Plan, ...],
    groups: tuple[Any, ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """The sums of float32 `x` along its last dimension, of `length`; `groups` are those of `cut`,
    one row a partition; `cores` share their tiles, and have a plan for as many as each has."""
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = tiles_of(groups, cores)
    for count, chunks, pieces, order in plans:
        if count == len(tiles):
            _follow(x, out, length, tiles, chunks, pieces, order)
    return out


def _follow(
    x: nl.NkiTensor,
    out: nl.NkiTensor,
    length: int,
    tiles: list[Any],
    chunks: tuple[Any, ...],
    pieces: tuple[Any, ...],
    order: tuple[tuple[int, int], ...],
) -> None:
    """All instructions of a plan."""
    work = _Work(x, out, length, tiles, [], [], constants(), [], [], [], [], [])
    for numbers in chunks:
        tile, start, size, number, first_piece, last_piece, begins, before, long_before = numbers
        chunk = Chunk(
            tile, start, size, number, first_piece, last_piece, begins, before, long_before
        )
        work.chunks.append(chunk)
        p, half = lanes(tiles[chunk.tile][0]), (chunk.size + 1) // 2
        work.scales.append(scales_of(p))
        units = nl.ndarray((p, half + 1), dtype=nl.float32, buffer=nl.sbuf)
        left = nl.ndarray((p, 2 * half + 1), dtype=nl.float32, buffer=nl.sbuf)
        work.sums.append(Sums(units, left))
    for numbers in pieces:
        c, start, size, on_vector = numbers
        piece = Piece(c, start, size, on_vector)
        work.pieces.append(piece)
        p = lanes(tiles[work.chunks[piece.chunk].tile][0])
        form = (p, piece.size + piece.size % 2)
        work.data.append(nl.ndarray(form, dtype=nl.float32, buffer=nl.sbuf))
        work.words.append(nl.ndarray(form, dtype=nl.int32, buffer=nl.sbuf))
        work.left.append(nl.ndarray(form, dtype=nl.float32, buffer=nl.sbuf))
    for kind, i in order:
        if kind >= PROBE:
            _on_chunk(work, kind, i)
        else:
            _on_piece(work, kind, i)


def _on_chunk(work: _Work, kind: int, c: int) -> None:
    """An instruction of chunk `c`."""
    chunk = work.chunks[c]
    if kind == PROBE:
        probe(work.scales[c], work.data[chunk.first_piece], work.given)
    elif kind == NOTHING:
        start_with_nothing(work.sums[c], work.given)
    elif kind >= START:
        start_step(kind - START, chunk, work.scales, work.sums, c, work.given)
    else:
        unit_step(kind - UNIT, chunk, work.scales, work.sums, c, work.given)


def _on_piece(work: _Work, kind: int, i: int) -> None:
    """An instruction of piece `i`."""
    piece = work.pieces[i]
    data, words, left = work.data[i], work.words[i], work.left[i]
    chunk, scales, sums = (
        work.chunks[piece.chunk], work.scales[piece.chunk], work.sums[piece.chunk],
    )  # fmt: skip
    first, end = piece.first // 2, (piece.first + data.shape[1]) // 2
    on_vector, count = piece.on_vector, data.shape[1]
    unit = scales.unit.view(nl.float32)
    if kind == LOAD:
        _load(work, i)
    elif kind == BOUND:
        is_first = chunk.begins_epoch == 1 and i == chunk.first_piece
        bound(scales, data, work.given, is_first, i == chunk.last_piece)
    elif kind == ROUND:
        nisa.activation(dst=words, op=nl.copy, data=data, scale=scales.inverse.view(nl.float32))
    elif kind == SCALE:
        some = left[:, on_vector:count]
        nisa.activation(dst=some, op=nl.copy, data=words[:, on_vector:count], scale=unit)
    elif kind == LEFT:
        # Of an infinity itself, since no multiple of the unit is one (integers saturate).
        some = left[:, on_vector:count]
        nisa.tensor_tensor(
            dst=some, data1=data[:, on_vector:count], data2=some, op=nl.subtract,
            engine=nisa.engine.gpsimd,
        )  # fmt: skip
    elif kind == LEFT_ON_VECTOR:
        nisa.scalar_tensor_tensor(
            dst=left[:, 0:on_vector], data=words[:, 0:on_vector], op0=nl.multiply, operand0=unit,
            op1=nl.subtract, operand1=data[:, 0:on_vector], reverse1=True,
        )  # fmt: skip
    elif kind == SUM:
        some = sums.units[:, first : end + 1]
        _scan_pairs(some[:, 1 : end - first + 1], words, some[:, 0:1])
    elif kind == SUM_LEFT:
        some = sums.left[:, 2 * first : 2 * end + 1]
        _scan_pairs(some[:, 2 : 2 * (end - first) + 1 : 2], left, some[:, 0:1])
    elif kind == ADD:
        some = sums.left[:, 2 * first : 2 * end]
        nisa.tensor_tensor(
            dst=some[:, 1:count:2], data1=some[:, 0:count:2], data2=data[:, 0:count:2], op=nl.add,
            engine=nisa.engine.gpsimd,
        )  # fmt: skip
    elif kind == FINISH:
        _finish(work, i, first, unit)


def _place(work: _Work, i: int) -> tuple[list[list[int]], int]:
    """The pattern and the offset of a piece in HBM."""
    piece = work.pieces[i]
    chunk = work.chunks[piece.chunk]
    group, tile = work.tiles[chunk.tile]
    return places(group, tile, chunk.first + piece.first, piece.size, (work.length, 1), 1)


def _load(work: _Work, i: int) -> None:
    """A piece, with a zero behind an odd number of elements."""
    pattern, offset = _place(work, i)
    data, count = work.data[i], work.pieces[i].size
    if count % 2 == 1:
        nisa.memset(dst=data[:, count : count + 1], value=0.0)
    nisa.dma_copy(dst=data[:, 0:count], src=work.x.ap(pattern=pattern, offset=offset))


def _scan_pairs(sums: nl.NkiTensor, data: nl.NkiTensor, before: nl.NkiTensor) -> None:
    """The sums behind every second element, which go on from the column `before`."""
    count = data.shape[1]
    nisa.tensor_tensor_scan(
        dst=sums, data0=data[:, 0:count:2], data1=data[:, 1:count:2], initial=before, op0=nl.add,
        op1=nl.add,
    )  # fmt: skip


def _finish(work: _Work, i: int, first: int, unit: nl.NkiTensor) -> None:
    """All results of a piece, in the place of its elements, and their store."""
    data = work.data[i]
    p, count = data.shape
    units, left = work.sums[work.pieces[i].chunk]
    pairs = count // 2
    twice = units.ap(pattern=[[units.shape[1], p], [1, pairs], [1, 2]], offset=first)
    beside = left.ap(pattern=[[left.shape[1], p], [2, pairs], [1, 2]], offset=2 * first + 1)
    nisa.scalar_tensor_tensor(
        dst=data.reshape((p, pairs, 2)), data=twice, op0=nl.multiply, operand0=unit, op1=nl.add,
        operand1=beside,
    )  # fmt: skip
    pattern, offset = _place(work, i)
    nisa.dma_copy(
        dst=work.out.ap(pattern=pattern, offset=offset), src=data[:, 0 : work.pieces[i].size]
    )
