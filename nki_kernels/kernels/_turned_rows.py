"""Layer norm of long rows in half precision by products: TensorE multiplies with the weight.

A tile is `[partitions, run, columns]`, a block 128 columns of one row of each partition. DMA turns
the blocks; a turned one times a diagonal matrix of weights is `x * weight` as before, exact in
float32. A product of a few terms adds `-mean * weight` and `bias / rstd`, and ScalarE multiplies
the sum with rstd: `(x - mean) * weight * rstd + bias`, rounded once. -mean and 1 / rstd are three
terms of half precision each, that is all of their bits. As a product of terms uses few rows of
TensorE's array, four of them, for columns that follow each other, run side by side.

The statistics are those of `_turned_statistics.py`. A weight or a bias that is not finite spoils
its whole block, and so may numbers whose product float32 does not hold; a sum of squares says too
little about the deviation where the mean is many times that. Where there are such, all is done
again as in `_half_rows.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._half_rows import HalfRows
from trnx.nki_kernels.kernels._identity import fill_diagonals, identity_of
from trnx.nki_kernels.kernels._long_rows import store_statistics
from trnx.nki_kernels.kernels._rows import rows_of
from trnx.nki_kernels.kernels._transfers import load_aside
from trnx.nki_kernels.kernels._turned_statistics import (
    Chunk,
    add_squares,
    begin_chunk,
    centre_squares,
    place_of_rows,
    rows_of_block,
    take_squares,
)

_RESULTS = 1024  # columns of results in PSUM at once
_STAGES = 3  # from the first products of a tile to its result
_AHEAD = 2  # tiles whose loads have begun then
_TERMS = 3  # of a float32 number in bfloat16
_APART = 32  # rows of the array of one of the products side by side
_PIECE = 256  # columns of such a product
_MOST = 2.0**60  # what float32 holds of products of such numbers
# Means in deviations from which on sums of squares say too little: float32 adds squares up to 2^-19
# of their sum, so a variance is right to 2^-13.
_FAR = 8.0


class Parameters(NamedTuple):
    """Weights and biases as loaded, `rows[2, columns]`; `both[128, blocks, 2]`, with those of a
    block on the partitions; `diagonals[128, blocks, 128]` with the weights on the diagonals of the
    blocks; `lines[128, columns]`: from each `_APART` th partition on, the weights and the biases
    `_TERMS` times. `places` are those of `place_of_rows`; `identity` and `choice` are matrices that
    fill the others."""

    rows: nl.NkiTensor
    both: nl.NkiTensor
    diagonals: nl.NkiTensor
    lines: nl.NkiTensor
    places: nl.NkiTensor
    identity: nl.NkiTensor
    choice: nl.NkiTensor


class Scales(NamedTuple):
    """Of the rows of a chunk: mean and variance, `[partitions, run, 2]`, rstd `[partitions, run]`,
    and -mean and 1 / rstd, `[partitions, run, 2]`."""

    both: nl.NkiTensor
    rstds: nl.NkiTensor
    ends: nl.NkiTensor


class Work(NamedTuple):
    """What is kept for all chunks: `moments[128, rows, 2]` of their rows in order, those of the
    first chunk first, and 0 where a partition has no row; `far[128, rows]`, means in
    deviations; `terms`, tiles in which the terms of a product are made, in turn. What
    there is of the chunks so far: `lines[128, run, partitions]` are such terms on the partitions.
    """

    moments: nl.NkiTensor
    far: nl.NkiTensor
    terms: list[nl.NkiTensor]
    chunks: list[Chunk]
    scales: list[Scales]
    lines: list[nl.NkiTensor]


def normalise_turned_rows(
    h: HalfRows, weight: nl.NkiTensor, bias: nl.NkiTensor, starts: list[tuple[int, int, int]]
) -> nl.NkiTensor:
    """The tiles of `starts`: first rows, partitions and rows a partition; gives `good[128, n]` in
    bfloat16, 1 where nothing spoils the result.

    A tile goes through stages, one in each step, so that no engine waits for what another one does
    now: it is loaded; squares are summed up; statistics are made of the sums; the terms of the
    product are turned; it is computed.
    """
    pmax = nl.tile_size.pmax
    columns = h.x.shape[1]
    rows, most = 0, 0
    for start in starts:
        rows, most = rows + start[2], max(most, start[2])
    size = 2 * (columns // pmax)
    good = nl.ndarray((pmax, size + 3 * rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    moments = nl.ndarray((pmax, rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    far = nl.ndarray((pmax, rows), dtype=nl.float32, buffer=nl.sbuf)
    chunks = []  # type: list[Chunk]
    for start in starts[0:_AHEAD]:
        chunks.append(begin_chunk(h.x, start))
    for tile in (moments, far):
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
    # ScalarE loads the table of its function now, when nothing waits for it.
    nisa.activation(dst=far[0:1, 0:1], op=nl.rsqrt, data=h.epsilon[0:1])
    work = Work(moments, far, _empty_terms(most), chunks, [], [])
    parameters = _load_parameters(h, weight, bias)
    _fill_parameters(parameters)
    for step in range(len(starts) + _STAGES):
        _step(h, parameters, work, starts, step)
        if len(chunks) < len(starts):
            chunks.append(begin_chunk(h.x, starts[len(chunks)]))
    _flag(good[:, 0:size], parameters.both.reshape((pmax, size)), _MOST)
    _flag(good[:, size : size + 2 * rows], moments.reshape((pmax, 2 * rows)), _MOST)
    _flag(good[:, size + 2 * rows : size + 3 * rows], far, _FAR)
    return good


def _step(
    h: HalfRows, p: Parameters, work: Work, starts: list[tuple[int, int, int]], step: int
) -> None:
    """All stages; TensorE takes turns between two of them."""
    count = len(starts)
    columns = h.x.shape[1]
    olds = 1
    if step >= _STAGES:
        i = step - _STAGES
        _, partitions, olds = starts[i]
        result = nl.ndarray((partitions, olds, columns), dtype=h.out.dtype, buffer=nl.sbuf)
    parts = (columns + _RESULTS - 1) // _RESULTS
    for turn in range(olds * parts):
        if turn == 0:
            _advance(h, work, starts, step)
        if step < count:
            add_squares(work.chunks[step], turn, olds * parts)
        if step >= _STAGES:
            place = (turn // parts, turn % parts)
            _multiply(result[:, place[0]], work.chunks[i], work.scales[i], work.lines[i], p, place)
    if step < count:
        means = _place(work, starts, step)[:, :, 0]
        take_squares(work.chunks[step], p.places, means, columns)
    if step >= _STAGES:
        nisa.dma_copy(dst=rows_of(h.out, starts[i][0], partitions, olds), src=result)


def _advance(h: HalfRows, work: Work, starts: list[tuple[int, int, int]], step: int) -> None:
    """What the stages in between do, each with what those before it had in an earlier step."""
    count = len(starts)
    k, t = step - 1, step - 2
    if k >= 0 and k < count:
        both = _place(work, starts, k)
        centre_squares(work.chunks[k], both, h.x.shape[1])
        work.scales.append(_scales_of(both, h.epsilon))
        _split(work.scales[k], work.terms[k % 2], h.epsilon)
        _measure(work, starts, k)
    if t >= 0 and t < count:
        work.lines.append(_turn_terms(work.terms[t % 2], starts[t]))
        store_statistics(h.mean, work.scales[t].both[:, :, 0], h.x.shape[0], starts[t][0], True)
        store_statistics(h.rstd, work.scales[t].rstds, h.x.shape[0], starts[t][0], True)


def _first_row(starts: list[tuple[int, int, int]], number: int) -> int:
    """Rows of a partition in the chunks before one."""
    first = 0
    for start in starts[0:number]:
        first += start[2]
    return first


def _place(work: Work, starts: list[tuple[int, int, int]], number: int) -> nl.NkiTensor:
    """Of the moments of the rows of a chunk."""
    first = _first_row(starts, number)
    return work.moments[0 : starts[number][1], first : first + starts[number][2]]


def _measure(work: Work, starts: list[tuple[int, int, int]], number: int) -> None:
    """The means of a chunk in deviations."""
    first = _first_row(starts, number)
    scales = work.scales[number]
    nisa.tensor_tensor(
        dst=work.far[0 : starts[number][1], first : first + starts[number][2]],
        data1=scales.both[:, :, 0], data2=scales.rstds, op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip


def _empty_terms(most: int) -> list[nl.NkiTensor]:
    """Of at `most` so many rows a partition."""
    pmax = nl.tile_size.pmax
    terms = []  # type: list[nl.NkiTensor]
    for _ in range(2):
        tile = nl.ndarray((pmax, most, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
        terms.append(tile)
    return terms


def _load_parameters(h: HalfRows, weight: nl.NkiTensor, bias: nl.NkiTensor) -> Parameters:
    """By few long rows, as DMA is busy with those of x: TensorE brings them to their partitions."""
    pmax = nl.tile_size.pmax
    dtype = h.x.dtype
    columns = h.x.shape[1]
    blocks = columns // pmax
    rows = nl.ndarray((2, columns), dtype=dtype, buffer=nl.sbuf)
    for i, vector in ((0, weight), (1, bias)):
        load_aside(rows[i : i + 1], vector.reshape((1, columns)))
    both = nl.ndarray((pmax, blocks, 2), dtype=dtype, buffer=nl.sbuf)
    diagonals = nl.ndarray((pmax, blocks, pmax), dtype=dtype, buffer=nl.sbuf)
    lines = nl.ndarray((pmax, columns), dtype=dtype, buffer=nl.sbuf)
    return Parameters(
        rows, both, diagonals, lines, place_of_rows(), identity_of(dtype), _choice(dtype)
    )


def _choice(dtype: str) -> nl.NkiTensor:
    """`[2, 128]`: a product with it has each of two rows `_TERMS` times, and those again each
    `_APART` partitions."""
    pmax = nl.tile_size.pmax
    choice = nl.ndarray((2, pmax), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=choice, value=1.0, engine=nisa.engine.gpsimd)
    for offset, compare in ((0, nl.greater_equal), (-_TERMS, nl.less)):
        nisa.affine_select(
            dst=choice, pattern=[[0, pmax // _APART], [1, _APART]], offset=offset,
            channel_multiplier=-_TERMS, on_true_tile=choice, on_false_value=0.0, cmp_op=compare,
        )  # fmt: skip
    return choice


def _spread(lines: nl.NkiTensor, rows: nl.NkiTensor, choice: nl.NkiTensor) -> None:
    """The two rows of parameters to their lines."""
    pmax = nl.tile_size.pmax
    columns = rows.shape[1]
    limit = nl.tile_size.psum_bank_fmax
    for start in range(0, columns, limit):
        end = min(columns, start + limit)
        part = nl.ndarray((pmax, end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=part, stationary=choice, moving=rows[:, start:end])
        nisa.activation(dst=lines[:, start:end], op=nl.copy, data=part)


def _fill_parameters(p: Parameters) -> None:
    """By TensorE and ScalarE, which has little to do before there are results; GpSimd would keep
    VectorE from its copies."""
    pmax, blocks, _ = p.diagonals.shape
    bank = nl.ndarray((pmax, blocks, 2), dtype=p.rows.dtype, buffer=nl.psum)
    for block in range(blocks):
        part = p.rows[:, block * pmax : (block + 1) * pmax]
        nisa.nc_transpose(dst=bank[:, block], data=part, engine=nisa.engine.tensor)
    nisa.activation(dst=p.both, op=nl.copy, data=bank)
    fill_diagonals(p.diagonals, bank[:, :, 0], p.identity)
    _spread(p.lines, p.rows, p.choice)


def _flag(good: nl.NkiTensor, data: nl.NkiTensor, most: float) -> None:
    """1 where a number is small enough; what is no number is not."""
    nisa.tensor_scalar(
        dst=good, data=data, op0=nl.abs, operand0=0.0, op1=nl.less_equal, operand1=most
    )


def _scales_of(both: nl.NkiTensor, epsilon: nl.NkiTensor) -> Scales:
    """Without 1 / rstd."""
    partitions, run, _ = both.shape
    rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=rstds, op=nl.rsqrt, data=both[:, :, 1], bias=epsilon[0:partitions])
    ends = nl.ndarray((partitions, run, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=ends[:, :, 0], op=nl.copy, data=both[:, :, 0], scale=-1.0)
    return Scales(both, rstds, ends)


def _split(s: Scales, terms: nl.NkiTensor, epsilon: nl.NkiTensor) -> None:
    """-mean and 1 / rstd as `_TERMS` terms each, and those again each `_APART` columns."""
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
    own = terms[0:partitions, 0:run].reshape_dim(2, (nl.tile_size.pmax // _APART, _APART))
    own = own[:, :, :, 0 : 2 * _TERMS].reshape_dim(3, (2, _TERMS))
    copies = own.shape[2]
    rest = nl.ndarray(s.ends.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=own[:, :, :, :, 0], src=_repeated(s.ends, copies), engine=gpsimd)
    nisa.tensor_tensor(
        dst=rest, data1=s.ends, data2=own[:, :, 0, :, 0], op=nl.subtract, engine=gpsimd
    )
    nisa.tensor_copy(dst=own[:, :, :, :, 1], src=_repeated(rest, copies), engine=gpsimd)
    nisa.tensor_tensor(
        dst=own[:, :, :, :, 2], data1=_repeated(rest, copies), data2=own[:, :, :, :, 1],
        op=nl.subtract, engine=gpsimd,
    )  # fmt: skip


def _repeated(numbers: nl.NkiTensor, copies: int) -> nl.NkiTensor:
    """`[partitions, run, 2]` as `[partitions, run, copies, 2]`."""
    return numbers.expand_dim(2).broadcast(2, copies)


def _turn_terms(terms: nl.NkiTensor, start: tuple[int, int, int]) -> nl.NkiTensor:
    """The terms of all rows of a chunk, on the partitions."""
    _, partitions, run = start
    pmax = nl.tile_size.pmax
    bank = nl.ndarray((pmax, run, partitions), dtype=terms.dtype, buffer=nl.psum)
    for r in range(run):
        part = terms[0:partitions, r]
        nisa.nc_transpose(dst=bank[:, r], data=part, engine=nisa.engine.tensor)
    turned = nl.ndarray((pmax, run, partitions), dtype=terms.dtype, buffer=nl.sbuf)
    nisa.activation(dst=turned, op=nl.copy, data=bank)
    return turned


def _multiply(
    dst: nl.NkiTensor,
    chunk: Chunk,
    s: Scales,
    lines: nl.NkiTensor,
    p: Parameters,
    place: tuple[int, int],
) -> None:
    """Of the results of a row of each partition, `[partitions, columns]`: `place` is the row and
    the part."""
    r, part = place
    pmax = nl.tile_size.pmax
    partitions, columns = dst.shape
    blocks = columns // pmax
    start, end = part * _RESULTS, min(columns, (part + 1) * _RESULTS)
    total = nl.ndarray((partitions, end - start), dtype=nl.float32, buffer=nl.psum)
    for column in range(start, end, pmax):
        block = column // pmax
        nisa.nc_matmul(
            dst=total[:, column - start : column - start + pmax],
            stationary=rows_of_block(chunk, r * blocks + block), moving=p.diagonals[:, block],
        )  # fmt: skip
    for begin in range(start, end, _PIECE):
        stop = min(end, begin + _PIECE)
        first = begin // _PIECE * _APART % pmax
        nisa.nc_matmul(
            dst=total[:, begin - start : stop - start],
            stationary=lines[first : first + 2 * _TERMS, r],
            moving=p.lines[first : first + 2 * _TERMS, begin:stop],
            tile_position=(first, 0), tile_size=(_APART, pmax),
        )  # fmt: skip
    rstds = s.rstds[:, r : r + 1]
    if (part + r) % 2 == 1:
        nisa.tensor_scalar(dst=dst[:, start:end], data=total, op0=nl.multiply, operand0=rstds)
    else:
        nisa.activation(dst=dst[:, start:end], op=nl.copy, data=total, scale=rstds)
