"""Layer norm of long rows in half precision by products: TensorE multiplies with the weight.

A tile is `[partitions, run, columns]`, a block 128 columns of one row of each partition. TensorE
turns the blocks; a turned one times a diagonal matrix of weights is `x * weight` as before, exact
in float32. A product of a few terms adds `-mean * weight` and `bias / rstd`, and ScalarE multiplies
the sum with rstd: `(x - mean) * weight * rstd + bias`, rounded once. -mean and 1 / rstd are three
terms of half precision each, that is all of their bits.

VectorE takes the statistics of the first columns with `bn_stats`; of the last ones ScalarE adds up
squares of distances from a mean of the others, TensorE the elements.

A weight or a bias that is not finite spoils its whole block, and so may numbers whose product
float32 does not hold: where there are such, all is done again as in `_half_rows.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._half_rows import (
    HalfRows,
    Sums,
    new_sums,
    pieces_of,
    sum_up_row,
    take_statistics,
)
from trnx.nki_kernels.kernels._identity import identity_of
from trnx.nki_kernels.kernels._long_rows import store_statistics
from trnx.nki_kernels.kernels._rows import load_aside, load_rows, rows_of

_TOGETHER = 8  # turned blocks that leave PSUM together: a bank of 2-byte elements
_RESULTS = 1024  # columns of results in PSUM at once
_STAGES = 5  # from the load of a tile to its result
_FILLED = 2  # the step before which the diagonals are filled
_TERMS = 3  # of a float32 number in bfloat16
_APART = 32  # partitions from the terms of one row to those of the next
_MOST = 2.0**60  # what float32 holds of products of such numbers


class Parameters(NamedTuple):
    """`both[128, 2, blocks]`, weights and biases; `diagonals[128, blocks, 128]` with the weights on
    the diagonals of the blocks; `lines[128, run, columns]`, for each row of a partition the weight
    and the bias `_TERMS` times where its terms are, else 0; `ones[128, 2]`, the second column 0
    before the first of ScalarE's columns in its block."""

    both: nl.NkiTensor
    diagonals: nl.NkiTensor
    lines: nl.NkiTensor
    ones: nl.NkiTensor


class Chunk(NamedTuple):
    """Rows from `row` on: as they are, turned `[128, run * blocks, partitions]`, and what their
    statistics come from; `totals[partitions, run]` in PSUM, of ScalarE's columns."""

    row: int
    data: nl.NkiTensor
    turned: nl.NkiTensor
    sums: Sums
    totals: nl.NkiTensor


class Scales(NamedTuple):
    """Of the rows of a chunk: mean and variance, `[partitions, run, 2]`, rstd `[partitions, run]`,
    and -mean and 1 / rstd, `[partitions, run, 2]`."""

    both: nl.NkiTensor
    rstds: nl.NkiTensor
    ends: nl.NkiTensor


class Work(NamedTuple):
    """What is kept for all chunks: `moments[128, rows, 2]` of their rows in order, those of the
    first chunk first, and 0 where a partition has no row; `terms`, tiles in which the terms of a
    product are made, in turn. What there is of the chunks so far: `lines[128, partitions]` are such
    terms on the partitions."""

    moments: nl.NkiTensor
    terms: list[nl.NkiTensor]
    chunks: list[Chunk]
    distances: list[nl.NkiTensor]
    scales: list[Scales]
    lines: list[nl.NkiTensor]


def normalise_turned_rows(
    h: HalfRows, weight: nl.NkiTensor, bias: nl.NkiTensor, starts: list[tuple[int, int, int]]
) -> nl.NkiTensor:
    """The tiles of `starts`: first rows, partitions and rows a partition; gives `good[128, n]` in
    bfloat16, 1 where nothing spoils the result.

    A tile goes through stages, one in each step, so that no engine waits for what another one does
    now: it is loaded, its statistics are taken and its blocks turned; ScalarE's statistics are
    completed; all of them are put together; the terms of the product are turned; it is computed.
    """
    pmax = nl.tile_size.pmax
    columns = h.x.shape[1]
    rows, most = 0, 0
    for start in starts:
        rows, most = rows + start[2], max(most, start[2])
    size = 2 * (columns // pmax)
    good = nl.ndarray((pmax, size + 2 * rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    moments = nl.ndarray((pmax, rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=moments, value=0.0, engine=nisa.engine.gpsimd)
    work = Work(moments, _empty_terms(), [], [], [], [])
    parameters = []  # type: list[Parameters]
    for step in range(len(starts) + _STAGES if len(starts) > 0 else 0):
        if step < len(starts):
            work.chunks.append(_begin(h, starts[step]))
        if step == 0:
            parameters.append(_load_parameters(h, weight, bias, most))
        if step == _FILLED:
            _fill_diagonals(parameters[0])
        _step(h, parameters[0], work, starts, step)
    _flag(good[:, 0:size], parameters[0].both.reshape((pmax, size)))
    _flag(good[:, size : size + 2 * rows], moments.reshape((pmax, 2 * rows)))
    return good


def _step(
    h: HalfRows, p: Parameters, work: Work, starts: list[tuple[int, int, int]], step: int
) -> None:
    """All stages, row by row of each partition where engines take turns."""
    count = len(starts)
    begins, ends = step < count, step >= _STAGES
    news, olds = 0, 0
    if begins:
        new = work.chunks[step]
        news = new.data.shape[1]
    if ends:
        i = step - _STAGES
        old = work.chunks[i]
        olds = old.data.shape[1]
        result = nl.ndarray(old.data.shape, dtype=h.out.dtype, buffer=nl.sbuf)
    columns = h.x.shape[1]
    groups = (columns // nl.tile_size.pmax - 1) // _TOGETHER + 2
    most = max(groups, pieces_of(columns - h.on_scalar))
    turns = most * max(news, olds, 1)
    for turn in range(turns):
        r, part = turn // most, turn % most
        if begins and r < news:
            _take_and_turn(new, r, part, not ends)
        if turn == 0:
            _advance(h, p, work, starts, step)
        if ends and r < olds and part * _RESULTS < columns:
            place = (r, part, not begins)
            _multiply(result[:, r], old, work.scales[i], work.lines[i], p, place)
        if begins and r < news and part == most - 1:
            sum_up_row(new.data, new.sums, r, True)
    if step >= 2 and step - 2 < count:
        _aggregate(_place(work, starts, step - 2), work.chunks[step - 2].sums.parts)
    if ends:
        nisa.dma_copy(dst=rows_of(h.out, old.row, result.shape[0], olds), src=result)


def _advance(
    h: HalfRows, p: Parameters, work: Work, starts: list[tuple[int, int, int]], step: int
) -> None:
    """What the stages in between do, each with what those before it had in an earlier step."""
    count = len(starts)
    i, w, k, t = step - 1, step - 2, step - 3, step - 4
    if w >= 0 and w < count:
        _centre_squares(work.chunks[w], work.distances[w])
    if k >= 0 and k < count:
        work.scales.append(_scales_of(_place(work, starts, k), h.epsilon))
        _split(work.scales[k], work.terms[k % 2], h.epsilon)
    if i >= 0 and i < count:
        _add_up(h, work.chunks[i], p)
        work.distances.append(_centre_totals(work.chunks[i]))
    if t >= 0 and t < count:
        work.lines.append(_turn_terms(work.terms[t % 2], starts[t][1]))
        store_statistics(h.mean, work.scales[t].both[:, :, 0], h.x.shape[0], starts[t][0], True)
        store_statistics(h.rstd, work.scales[t].rstds, h.x.shape[0], starts[t][0], True)


def _place(work: Work, starts: list[tuple[int, int, int]], number: int) -> nl.NkiTensor:
    """Of the moments of the rows of a chunk."""
    first = 0
    for start in starts[0:number]:
        first += start[2]
    return work.moments[0 : starts[number][1], first : first + starts[number][2]]


def _aggregate(both: nl.NkiTensor, parts: nl.NkiTensor) -> None:
    """Mean and variance of each row."""
    for r in range(both.shape[1]):
        nisa.bn_aggr(dst=both[:, r], data=parts[:, r])


def _empty_terms() -> list[nl.NkiTensor]:
    pmax = nl.tile_size.pmax
    terms = []  # type: list[nl.NkiTensor]
    for _ in range(2):
        tile = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.gpsimd)
        terms.append(tile)
    return terms


def _load_parameters(
    h: HalfRows, weight: nl.NkiTensor, bias: nl.NkiTensor, most: int
) -> Parameters:
    """For at `most` so many rows a partition."""
    pmax = nl.tile_size.pmax
    dtype = h.x.dtype
    columns = h.x.shape[1]
    blocks = columns // pmax
    ones = nl.ndarray((pmax, 2), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    nisa.affine_select(
        dst=ones[:, 1:2], pattern=[[0, 1]], offset=-((columns - h.on_scalar) % pmax),
        channel_multiplier=1, on_true_tile=ones[:, 0:1], on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )  # fmt: skip
    both = nl.ndarray((pmax, 2, blocks), dtype=dtype, buffer=nl.sbuf)
    lines = nl.ndarray((pmax, most, columns), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=lines, value=0.0, engine=nisa.engine.vector)
    for i, vector in ((0, weight), (1, bias)):
        load_aside(both[:, i], vector.reshape((blocks, pmax)).permute((1, 0)))
    diagonals = nl.ndarray((pmax, blocks, pmax), dtype=dtype, buffer=nl.sbuf)
    for i, vector in ((0, weight), (1, bias)):
        for r in range(most):
            first = r * _APART + i * _TERMS
            row = vector.reshape((1, columns)).broadcast(0, _TERMS)
            load_aside(lines[first : first + _TERMS, r], row)
    return Parameters(both, diagonals, lines, ones)


def _fill_diagonals(p: Parameters) -> None:
    """By ScalarE, which has little to do before there are results; GpSimd would keep VectorE from
    its copies."""
    pmax, blocks, _ = p.diagonals.shape
    weights = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=weights, op=nl.copy, data=p.both[:, 0])
    identity = identity_of(p.diagonals.dtype)
    for block in range(blocks):
        nisa.activation(
            dst=p.diagonals[:, block], op=nl.copy, data=identity,
            scale=weights[:, block : block + 1],
        )  # fmt: skip


def _flag(good: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """1 where a number is small enough; what is no number is not."""
    nisa.tensor_scalar(
        dst=good, data=data, op0=nl.abs, operand0=0.0, op1=nl.less_equal, operand1=_MOST
    )


def _begin(h: HalfRows, start: tuple[int, int, int]) -> Chunk:
    pmax = nl.tile_size.pmax
    row, partitions, run = start
    data = load_rows(h.x, row, partitions, run)
    shape = (pmax, run * (h.x.shape[1] // pmax), partitions)
    turned = nl.ndarray(shape, dtype=h.x.dtype, buffer=nl.sbuf)
    totals = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.psum)
    return Chunk(row, data, turned, new_sums(h, start), totals)


def _take_and_turn(chunk: Chunk, r: int, part: int, shares: bool) -> None:
    """A part of VectorE's statistics of row `r`, and of the blocks that leave PSUM together of
    which the last is one of this row: in turn, as GpSimd waits while VectorE copies. ScalarE
    `shares` the copies."""
    run, columns = chunk.data.shape[1], chunk.data.shape[2]
    blocks = columns // nl.tile_size.pmax
    pieces = pieces_of(columns - chunk.sums.last)
    if part < pieces:
        take_statistics(chunk.data, chunk.sums, r * pieces + part, run * pieces)
    number = r * blocks // _TOGETHER + part
    start, end = number * _TOGETHER, min(run * blocks, (number + 1) * _TOGETHER)
    if start < end and end <= (r + 1) * blocks:
        _turn(chunk, start, end, shares and number % 2 == 1)


def _turn(chunk: Chunk, start: int, end: int, on_scalar: bool) -> None:
    """Blocks `start .. end` of a chunk."""
    pmax = nl.tile_size.pmax
    partitions, _, columns = chunk.data.shape
    blocks = columns // pmax
    bank = nl.ndarray((pmax, end - start, partitions), dtype=chunk.data.dtype, buffer=nl.psum)
    for number in range(start, end):
        first = number % blocks * pmax
        part = chunk.data[:, number // blocks, first : first + pmax]
        nisa.nc_transpose(dst=bank[:, number - start], data=part, engine=nisa.engine.tensor)
    nisa.tensor_copy(
        dst=chunk.turned[:, start:end],
        src=bank,
        engine=nisa.engine.scalar if on_scalar else nisa.engine.vector,
    )


def _add_up(h: HalfRows, chunk: Chunk, p: Parameters) -> None:
    """The totals of ScalarE's columns."""
    pmax = nl.tile_size.pmax
    columns = chunk.data.shape[2]
    blocks = columns // pmax
    begin = columns - h.on_scalar
    for r in range(chunk.data.shape[1]):
        for block in range(begin // pmax, blocks):
            i = 1 if block * pmax < begin else 0
            nisa.nc_matmul(
                dst=chunk.totals[:, r : r + 1], stationary=chunk.turned[:, r * blocks + block],
                moving=p.ones[:, i : i + 1],
            )  # fmt: skip


def _centre_totals(chunk: Chunk) -> nl.NkiTensor:
    """The means of ScalarE's columns to their place, and their distances from the means that its
    squares are distances from, `[partitions, run]`."""
    s = chunk.sums
    size = s.parts.shape[2]
    means = s.parts[:, :, size - 2]
    nisa.activation(dst=means, op=nl.copy, data=chunk.totals, scale=1.0 / s.last)
    distances = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=distances, data1=means, data2=s.parts[:, :, 1], op=nl.subtract,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip
    return distances


def _centre_squares(chunk: Chunk, distances: nl.NkiTensor) -> None:
    """The sums of squares of distances from the means of ScalarE's columns to their place."""
    s = chunk.sums
    nisa.activation(dst=distances, op=nl.square, data=distances, scale=math.sqrt(s.last))
    nisa.tensor_tensor(
        dst=s.parts[:, :, s.parts.shape[2] - 1], data1=s.sums[:, 1], data2=distances,
        op=nl.subtract, engine=nisa.engine.gpsimd,
    )  # fmt: skip


def _scales_of(both: nl.NkiTensor, epsilon: nl.NkiTensor) -> Scales:
    """Without 1 / rstd."""
    partitions, run, _ = both.shape
    rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=rstds, op=nl.rsqrt, data=both[:, :, 1], bias=epsilon[0:partitions])
    ends = nl.ndarray((partitions, run, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=ends[:, :, 0], op=nl.copy, data=both[:, :, 0], scale=-1.0)
    return Scales(both, rstds, ends)


def _split(s: Scales, terms: nl.NkiTensor, epsilon: nl.NkiTensor) -> None:
    """-mean and 1 / rstd as `_TERMS` terms each, `_APART` columns from row to row."""
    partitions, run, _ = s.both.shape
    gpsimd = nisa.engine.gpsimd
    deviations = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=deviations, data1=s.both[:, :, 1], data2=epsilon[0:partitions].broadcast(1, run),
        op=nl.add, engine=gpsimd,
    )  # fmt: skip
    nisa.tensor_tensor(
        dst=s.ends[:, :, 1], data1=deviations, data2=s.rstds, op=nl.multiply, engine=gpsimd
    )
    own = terms[0:partitions].reshape_dim(1, (nl.tile_size.pmax // _APART, _APART))
    own = own[:, 0:run, 0 : 2 * _TERMS].reshape_dim(2, (2, _TERMS))
    nisa.tensor_copy(dst=own[:, :, :, 0], src=s.ends, engine=gpsimd)
    rest = nl.ndarray(s.ends.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=rest, data1=s.ends, data2=own[:, :, :, 0], op=nl.subtract, engine=gpsimd)
    nisa.tensor_copy(dst=own[:, :, :, 1], src=rest, engine=gpsimd)
    nisa.tensor_tensor(
        dst=own[:, :, :, 2], data1=rest, data2=own[:, :, :, 1], op=nl.subtract, engine=gpsimd
    )


def _turn_terms(terms: nl.NkiTensor, partitions: int) -> nl.NkiTensor:
    """The terms of all rows, on the partitions."""
    pmax = nl.tile_size.pmax
    bank = nl.ndarray((pmax, partitions), dtype=terms.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=terms[0:partitions], engine=nisa.engine.tensor)
    turned = nl.ndarray((pmax, partitions), dtype=terms.dtype, buffer=nl.sbuf)
    nisa.activation(dst=turned, op=nl.copy, data=bank)
    return turned


def _multiply(
    dst: nl.NkiTensor,
    chunk: Chunk,
    s: Scales,
    lines: nl.NkiTensor,
    p: Parameters,
    place: tuple[int, int, bool],
) -> None:
    """Of the results of a row of each partition, `[partitions, columns]`: `place` is the row, the
    part, and whether VectorE shares them."""
    r, part, shares = place
    pmax = nl.tile_size.pmax
    partitions, columns = dst.shape
    blocks = columns // pmax
    limit = nl.tile_size.psum_bank_fmax
    start, end = part * _RESULTS, min(columns, (part + 1) * _RESULTS)
    total = nl.ndarray((partitions, end - start), dtype=nl.float32, buffer=nl.psum)
    for begin in range(start, end, limit):
        stop = min(end, begin + limit)
        for column in range(begin, stop, pmax):
            block = column // pmax
            nisa.nc_matmul(
                dst=total[:, column - start : column - start + pmax],
                stationary=chunk.turned[:, r * blocks + block], moving=p.diagonals[:, block],
            )  # fmt: skip
        nisa.nc_matmul(
            dst=total[:, begin - start : stop - start], stationary=lines,
            moving=p.lines[:, r, begin:stop],
        )  # fmt: skip
    rstds = s.rstds[:, r : r + 1]
    if shares and (part + r) % 2 == 1:
        nisa.tensor_scalar(dst=dst[:, start:end], data=total, op0=nl.multiply, operand0=rstds)
    else:
        nisa.activation(dst=dst[:, start:end], op=nl.copy, data=total, scale=rstds)
