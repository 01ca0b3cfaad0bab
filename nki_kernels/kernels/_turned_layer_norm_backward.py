"""The kernel of `layer_norm_backward` for long rows in half precision of which there are many.

TensorE turns blocks of the gradient, 128 columns of one row of each partition. A turned block times
a diagonal matrix of weights is `grad * weight`, exact in float32, and times their column it is the
sum of that over the columns. x times diagonal matrices of rows adds what a row adds in proportion
to x, by two terms of bfloat16, which have 16 bits. The shift of the row is computed of the same two
terms, so that a large mean costs no accuracy. ScalarE multiplies the sum with rstd.

An infinity or NaN spoils the rows of other partitions. Where the sums of a row have one, or are too
large, the gradient of the input is computed again as `layer_norm_backward.py` does.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._column_sums import (
    ColumnSums,
    exchange_column_sums,
    new_column_sums,
    store_column_sums,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._identity import fill_diagonals, identity_of
from trnx.nki_kernels.kernels._layer_norm_gradients import gradients_of_rows
from trnx.nki_kernels.kernels._repairs import column_of_ones, repairs_of
from trnx.nki_kernels.kernels._rows import (
    load_aside,
    load_rows,
    load_vector,
    rows_of,
    tiles_of,
)
from trnx.nki_kernels.kernels._turned_gradients import (
    RESULTS,
    TOGETHER,
    Chunk,
    Lines,
    Parameters,
    RowNumbers,
    add_row,
    begin_row,
    fill_diagonals_of_rows,
    finish_part,
    lines_of,
    numbers_of,
    total_row,
    turn_row,
    weigh_row,
)

_STAGES = 3  # from the load of a chunk to its result
_MOST = 2.0**60  # what float32 holds of products of such numbers


class Tensors(NamedTuple):
    """HBM: x, the gradient and the result `[rows, columns]`, mean and rstd `[rows]`."""

    x: nl.NkiTensor
    grad: nl.NkiTensor
    dx: nl.NkiTensor
    mean: nl.NkiTensor
    rstd: nl.NkiTensor


class Work(NamedTuple):
    """What there is so far: at most one `parameters`, the others of each chunk."""

    parameters: list[Parameters]
    chunks: list[Chunk]
    numbers: list[RowNumbers]
    lines: list[Lines]


@nki.jit
def turned_layer_norm_backward_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    mean: nl.NkiTensor,
    rstd: nl.NkiTensor,
    weight: nl.NkiTensor,
    fold: int,
    on_scalar: int,
    summed: int,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """As `layer_norm_backward_kernel`; `fold` rows of a partition at once. ScalarE copies
    `on_scalar` percent of the turned blocks, and sums up `summed` percent of the columns."""
    columns = weight.size
    rows = x.size // columns
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    dweight = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    dbias = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    tensors = Tensors(
        x.reshape((rows, columns)), grad.reshape((rows, columns)), dx.reshape((rows, columns)),
        mean.reshape((rows,)), rstd.reshape((rows,)),
    )  # fmt: skip
    first, last = share_of(rows, cores)
    starts = tiles_of(first, last, fold)
    sums = new_column_sums(columns, grad.dtype, cores)
    if len(starts) == 0:
        exchange_column_sums(sums, True)
    else:
        good = _differentiate(tensors, weight, sums, starts, (on_scalar, summed))
    store_column_sums(dweight, dbias, sums, cores)
    if len(starts) > 0:
        for _ in nl.dynamic_range(repairs_of(good, column_of_ones())):
            gradients_of_rows(
                tensors.x, tensors.grad, tensors.mean, tensors.rstd, weight, tensors.dx, first, last
            )
    return dx, dweight, dbias


def _differentiate(
    t: Tensors,
    weight: nl.NkiTensor,
    sums: ColumnSums,
    starts: list[tuple[int, int, int]],
    shares: tuple[int, int],
) -> nl.NkiTensor:
    """The gradient of x, and the sums over rows; gives `good[128, 2 * rows]` in bfloat16, 1 where
    nothing spoils the result.

    A chunk goes through stages, one in each step, so that no engine waits for what another one does
    now: it is loaded, multiplied and turned; its rows are summed up; the diagonals of its rows are
    filled; its result is computed.
    """
    pmax = nl.tile_size.pmax
    rows, count = 0, len(starts)
    for start in starts:
        rows += start[2]
    totals = nl.ndarray((pmax, rows, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=totals, value=0.0, engine=nisa.engine.gpsimd)
    work = Work([], [], [], [])
    row = 0
    for step in range(count + _STAGES):
        if step < count:
            work.chunks.append(_begin(t, starts[step], totals, row))
            row += starts[step][2]
        if step == 0:
            work.parameters.append(_parameters(weight, t.x.dtype))
        if step < count:
            work.numbers.append(numbers_of(work.chunks[step], sums.ones))
        _step(t, work, sums, shares, (step, count))
        if step >= 1 and step - 1 < count:
            work.lines.append(lines_of(work.chunks[step - 1], work.numbers[step - 1]))
        if step == count:
            exchange_column_sums(sums, False)
    size = 2 * rows
    good = nl.ndarray((pmax, size), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=good, data=totals.reshape((pmax, size)), op0=nl.abs, operand0=0.0, op1=nl.less_equal,
        operand1=_MOST,
    )  # fmt: skip
    return good


def _step(
    t: Tensors, work: Work, sums: ColumnSums, shares: tuple[int, int], place: tuple[int, int]
) -> None:
    """All stages, row by row of each partition where engines take turns."""
    step, count = place
    runs = [0, 0, 0, 0]
    for stage in range(_STAGES + 1):
        if step >= stage and step - stage < count:
            runs[stage] = work.chunks[step - stage].x.shape[1]
    if runs[1] > 0:
        mid = work.chunks[step - 1]
        bank = nl.ndarray((mid.x.shape[0], runs[1]), dtype=nl.float32, buffer=nl.psum)
    if runs[_STAGES] > 0:
        old = work.chunks[step - _STAGES]
        result = nl.ndarray(old.x.shape, dtype=t.dx.dtype, buffer=nl.sbuf)
    p = work.parameters[0]
    blocks = p.column.shape[1]
    most = max((t.x.shape[1] + RESULTS - 1) // RESULTS, blocks // TOGETHER + 2, 3)
    for turn in range(most * max(runs)):
        r, part = turn // most, turn % most
        if r < runs[0]:
            begin_row(work.chunks[step], p, r, part)
        if r < runs[1] and part == 0:
            total_row(mid, r, shares[1])
        if r < runs[2] and part == 0:
            fill_diagonals_of_rows(work.lines[step - 2], p, r)
        if r < runs[0]:
            turn_row(work.chunks[step], r, part, shares[0])
        if r < runs[_STAGES] and part * RESULTS < t.x.shape[1]:
            i = step - _STAGES
            finish_part(result[:, r], old, work.numbers[i], work.lines[i], p, (r, part))
        if r < runs[1] and part == 1:
            weigh_row(bank, mid, p, r)
        if r < runs[1] and part == 2:
            add_row(mid, work.numbers[step - 1], sums, r, step > 1 or r > 0)
        if r == runs[1] - 1 and part == 2:
            nisa.activation(dst=mid.totals[:, :, 0], op=nl.copy, data=bank)
    if runs[_STAGES] > 0:
        nisa.dma_copy(dst=rows_of(t.dx, old.row, result.shape[0], runs[_STAGES]), src=result)


def _begin(t: Tensors, start: tuple[int, int, int], totals: nl.NkiTensor, row: int) -> Chunk:
    """Loads; what is computed is not filled yet."""
    pmax = nl.tile_size.pmax
    first, partitions, run = start
    mean, rstd = _load_numbers(t.mean, start), _load_numbers(t.rstd, start)
    data = load_rows(t.x, first, partitions, run)
    grad = load_rows(t.grad, first, partitions, run)
    blocks = run * (data.shape[2] // pmax)
    parts = nl.ndarray((partitions, 2, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=parts, value=0.0, engine=nisa.engine.gpsimd)
    return Chunk(
        first, data, grad,
        nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray((pmax, blocks, partitions), dtype=grad.dtype, buffer=nl.sbuf),
        mean, rstd,
        totals[0:partitions, row : row + run],
        parts,
    )  # fmt: skip


def _load_numbers(source: nl.NkiTensor, start: tuple[int, int, int]) -> nl.NkiTensor:
    """One of each row of a chunk, `[partitions, run]`."""
    first, partitions, run = start
    tile = nl.ndarray((partitions, run), dtype=source.dtype, buffer=nl.sbuf)
    src = source[first : first + partitions * run].reshape((partitions, run))
    nisa.dma_copy(dst=tile, src=src)
    return tile


def _parameters(weight: nl.NkiTensor, dtype: str) -> Parameters:
    """Behind the first rows; the weights of a block are brought to the partitions by TensorE."""
    pmax = nl.tile_size.pmax
    blocks = weight.size // pmax
    weights = load_vector(weight)
    square = nl.ndarray((blocks, pmax), dtype=dtype, buffer=nl.sbuf)
    load_aside(square, weight.reshape((blocks, pmax)))
    bank = nl.ndarray((pmax, blocks), dtype=dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=square, engine=nisa.engine.tensor)
    column = nl.ndarray((pmax, blocks), dtype=dtype, buffer=nl.sbuf)
    nisa.activation(dst=column, op=nl.copy, data=bank)
    diagonals = nl.ndarray((pmax, blocks, pmax), dtype=dtype, buffer=nl.sbuf)
    fill_diagonals(diagonals, bank, identity_of(dtype))
    return Parameters(weights, column, diagonals, identity_of(nl.bfloat16))
