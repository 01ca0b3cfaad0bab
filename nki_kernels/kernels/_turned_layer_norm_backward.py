"""The kernel of `layer_norm_backward` for long rows in half precision of which there are many.

TensorE turns blocks of the gradient, 128 columns of one row of each partition. A turned block times
a diagonal matrix of weights is `grad * weight`, exact in float32, and times their column it is the
sum of that over the columns. A row adds to that a line, `x * slope + shift`. ScalarE computes the
line of some columns, and VectorE adds it. Of the others, TensorE multiplies x with diagonal
matrices of the slopes, by two terms of bfloat16, which have 16 bits, and ScalarE adds the shift,
which is computed of the same two terms, so that a large mean costs no accuracy.

An infinity or NaN spoils the rows of other partitions, and one in the gradient the sums for the
weight. Where the sums of a row have one, or are too large, all is computed again as
`layer_norm_backward.py` does.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._column_sums import (
    Gradients,
    join_parts,
    keep_both,
    new_gradients,
    new_sums,
    ones_of,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._layer_norm_gradients import gradients_of_rows
from trnx.nki_kernels.kernels._repairs import column_of_ones, repairs_of
from trnx.nki_kernels.kernels._rows import load_rows, rows_of, tiles_of
from trnx.nki_kernels.kernels._turned_gradients import Chunk
from trnx.nki_kernels.kernels._turned_parameters import (
    fill_blocks,
    load_numbers,
    load_others,
    load_parameters,
    new_numbers,
    new_parameters,
    numbers_at,
)
from trnx.nki_kernels.kernels._turned_steps import LAG, SPAN, Work, run_step

_MOST = 2.0**60  # what float32 holds of products of such numbers


class Tensors(NamedTuple):
    """HBM: x, the gradient and the result `[rows, columns]`, mean and rstd `[rows]`."""

    x: nl.NkiTensor
    grad: nl.NkiTensor
    dx: nl.NkiTensor
    mean: nl.NkiTensor
    rstd: nl.NkiTensor


@nki.jit
def turned_layer_norm_backward_kernel(
    grad: nl.NkiTensor,
    x: nl.NkiTensor,
    mean: nl.NkiTensor,
    rstd: nl.NkiTensor,
    weight: nl.NkiTensor,
    fold: int,
    on_scalar: int,
    on_vector: int,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """As `layer_norm_backward_kernel`; `fold` rows of a partition at once. ScalarE copies
    `on_scalar` percent of the turned blocks, VectorE adds the lines of `on_vector` percent of the
    results."""
    columns = weight.size
    rows = x.size // columns
    dx = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    results = new_gradients(weight, cores)
    t = Tensors(
        x.reshape((rows, columns)), grad.reshape((rows, columns)), dx.reshape((rows, columns)),
        mean.reshape((rows,)), rstd.reshape((rows,)),
    )  # fmt: skip
    first, last = share_of(rows, cores)
    starts = _tapered(tiles_of(first, last, fold))
    sums = new_sums(columns)
    if len(starts) > 0:
        work = _new_work(starts, weight, sums, on_scalar, on_vector)
        repairs = _differentiate(t, weight, results, work)
        for _ in nl.dynamic_range(repairs):
            gradients_of_rows(t.x, t.grad, t.mean, t.rstd, weight, t.dx, results, first, last)
    elif cores > 1:
        keep_both(results, sums)
    join_parts(results, cores)
    return dx, results.weight, results.bias


def _tapered(starts: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The last tile of several rows a partition in halves of what is left of it each, as nothing
    else is done while its last rows are."""
    tapered = []  # type: list[tuple[int, int, int]]
    for i in range(len(starts)):
        first, partitions, run = starts[i]
        is_last = i + 1 == len(starts) or starts[i + 1][2] == 1
        while is_last and run > 1:
            tapered.append((first, partitions, run // 2))
            first = first + partitions * (run // 2)
            run = run - run // 2
        tapered.append((first, partitions, run))
    return tapered


def _new_work(
    starts: list[tuple[int, int, int]], weight: nl.NkiTensor, sums: nl.NkiTensor, on_scalar: int,
    on_vector: int,
) -> Work:  # fmt: skip
    pmax = nl.tile_size.pmax
    rows = 0
    for start in starts:
        rows += start[2]
    totals = nl.ndarray((pmax, 2, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=totals, value=0.0, engine=nisa.engine.gpsimd)
    parameters, numbers = new_parameters(weight), new_numbers(rows)
    ones = ones_of(2, weight.dtype)
    return Work(starts, parameters, numbers, totals, sums, ones, [], [], [], on_scalar, on_vector)


def _differentiate(t: Tensors, weight: nl.NkiTensor, results: Gradients, work: Work) -> object:
    """The gradient of x, and the sums over rows; gives a register: 1 where something spoils them,
    else 0.

    A chunk goes through stages, one in each step, so that no engine waits for what another one does
    now: it is loaded, multiplied and turned; its rows are summed up; its result is computed.
    """
    count, columns = len(work.starts), t.x.shape[1]
    load_numbers(work.numbers, t.mean, t.rstd, work.starts[0:1], 0, columns)
    row = 0
    for number in range(count + LAG):
        if number < count:
            work.chunks.append(_load(t, work, number, row))
            row += work.starts[number][2]
        if number == 0:
            load_parameters(work.parameters, weight)
        run_step(t.dx, work, number)
        if number == 0:
            load_others(work.numbers, t.mean, t.rstd, work.starts, columns)
            fill_blocks(work.parameters)
        if number == count:
            keep_both(results, work.sums)
        if number == count + LAG - 1:
            repairs = repairs_of(_good(work.totals), column_of_ones())
    return repairs


def _good(totals: nl.NkiTensor) -> nl.NkiTensor:
    """`[128, 2 * rows]` in bfloat16, 1 where a total spoils nothing."""
    pmax, kinds, rows = totals.shape
    good = nl.ndarray((pmax, kinds * rows), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=good, data=totals.reshape(good.shape), op0=nl.abs, operand0=0.0, op1=nl.less_equal,
        operand1=_MOST,
    )  # fmt: skip
    return good


def _load(t: Tensors, work: Work, number: int, row: int) -> Chunk:
    """A chunk whose rows are those from `row` on of each partition; what is computed is not filled
    yet. The first one comes in parts: what is loaded first is computed first."""
    pmax = nl.tile_size.pmax
    first, partitions, run = work.starts[number]
    if number > 0:
        data = load_rows(t.x, first, partitions, run)
        grad = load_rows(t.grad, first, partitions, run)
    else:
        data, grad = _load_in_parts(t, work.starts[0])
    columns = t.x.shape[1]
    return Chunk(
        first, data, grad,
        nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray((pmax, run * (columns // pmax), partitions), dtype=grad.dtype, buffer=nl.sbuf),
        numbers_at(work.numbers, partitions, row, row + run),
        work.totals[0:partitions, :, row : row + run],
    )  # fmt: skip


def _load_in_parts(t: Tensors, start: tuple[int, int, int]) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    first, partitions, run = start
    columns = t.x.shape[1]
    x, grad = rows_of(t.x, first, partitions, run), rows_of(t.grad, first, partitions, run)
    data = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    gradient = nl.ndarray(x.shape, dtype=grad.dtype, buffer=nl.sbuf)
    for r in range(run):
        for begin in range(0, columns, SPAN):
            end = min(columns, begin + SPAN)
            nisa.dma_copy(dst=data[:, r, begin:end], src=x[:, r, begin:end])
            nisa.dma_copy(dst=gradient[:, r, begin:end], src=grad[:, r, begin:end])
    return data, gradient
