"""The kernel of `layer_norm_backward` for long rows in half precision of which there are many.

DMA turns blocks of the gradient, 128 columns of one row of each partition, as it loads them. A
turned block times a diagonal matrix of weights is `grad * weight`, exact in float32, and times
their column it is the sum of that over the columns. VectorE multiplies it with the centred x, so
that a large mean costs no accuracy; of this product there are sums over the columns, by ScalarE,
and over the rows, by TensorE, which the weights divide at the end (`_turned_sums.py`).

A row adds to `grad * weight` a line, `x * slope + shift`. VectorE multiplies some rows of x with
their slopes. Others TensorE multiplies with diagonal matrices of the slopes, by two terms of
bfloat16, which have 16 bits: enough for a result in bfloat16, also where the gradient is nearly
a multiple of the centred x. ScalarE scales the sum and adds the shift, which is computed of the
same two terms.

An infinity or NaN spoils all of its row, and sums over rows; a weight near zero is no divisor.
Where the sums of a row are not finite or too large, or a weight is too small, all is computed again
as `layer_norm_backward.py` does.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._column_sums import (
    Gradients,
    join_parts,
    keep_each,
    new_gradients,
    new_sums,
)
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._layer_norm_gradients import gradients_of_rows
from trnx.nki_kernels.kernels._repairs import column_of_ones, repairs_of
from trnx.nki_kernels.kernels._rows import rows_of, tiles_of
from trnx.nki_kernels.kernels._turned_gradients import Chunk
from trnx.nki_kernels.kernels._turned_parameters import (
    fill_blocks,
    load_numbers,
    load_others,
    load_parameters,
    new_numbers,
    numbers_at,
)
from trnx.nki_kernels.kernels._turned_steps import LAG, Work, leave_last, run_step, width_of
from trnx.nki_kernels.kernels._turned_sums import keep_row_sums, new_row_sums, total_row_sums

_MOST = 2.0**60  # what float32 holds of products of such numbers
_FIRST = 1024  # columns of the first rows that one DMA loads
_LEAST = 2.0**-20  # of a weight that divides sums: products with it are in range of float32


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
    on_vector: int,
    on_tensor: int,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """As `layer_norm_backward_kernel`; `fold` rows of a partition at once. VectorE multiplies
    `on_vector` percent of the rows with their slopes, TensorE sums up `on_tensor` blocks of the
    gradient."""
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
    if len(starts) > 0:
        repairs = _differentiate(t, weight, results, starts, (on_vector, on_tensor))
        for _ in nl.dynamic_range(repairs):
            gradients_of_rows(t.x, t.grad, t.mean, t.rstd, weight, t.dx, results, first, last)
    elif cores > 1:
        sums = new_sums(columns)
        keep_each(results, sums, sums)
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


def _differentiate(
    t: Tensors, weight: nl.NkiTensor, results: Gradients, starts: list[tuple[int, int, int]],
    shares: tuple[int, int],
) -> object:  # fmt: skip
    """The gradient of x, and the sums over rows; gives a register: 1 where something spoils them,
    else 0.

    A chunk goes through stages, one in each step, so that no engine waits for what another one does
    now: it is loaded, multiplied and summed up; its result is computed.
    """
    work = _new_work(t, weight, starts, shares)
    count, columns = len(starts), t.x.shape[1]
    for number in range(count + LAG):
        while len(work.chunks) < min(count, number + 2):
            _load(t, work)
        run_step(t.dx, work, number)
        if number == 0:
            load_others(work.numbers, t.mean, t.rstd, starts, columns)
        if number == count:
            good = _good(work)
            total_row_sums(work.sums)
    leave_last(t.dx, work)
    keep_row_sums(results, work.sums)
    return repairs_of(good, work.ones)


def _new_work(
    t: Tensors, weight: nl.NkiTensor, starts: list[tuple[int, int, int]], shares: tuple[int, int]
) -> Work:
    pmax, columns = nl.tile_size.pmax, weight.size
    rows = []  # type: list[tuple[int, int]]
    most = 0
    for i in range(len(starts)):
        most = max(most, starts[i][2])
        for r in range(starts[i][2]):
            rows.append((i, r))
    parameters, numbers = load_parameters(weight), new_numbers(len(rows))
    fill_blocks(parameters)
    load_numbers(numbers, t.mean, t.rstd, starts[0:1], 0, columns)
    totals = nl.ndarray((pmax, 2, len(rows)), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=totals, value=0.0, engine=nisa.engine.gpsimd)
    unused = nl.ndarray((pmax, width_of(columns)), dtype=nl.bfloat16, buffer=nl.sbuf)
    sums = new_row_sums(parameters.column, most, shares[1])
    return Work(
        starts, rows, parameters, numbers, totals, sums, column_of_ones(), unused, [], [], [], [],
        [], [], shares[0],
    )  # fmt: skip


def _good(work: Work) -> nl.NkiTensor:
    """`[128, n]` in bfloat16, 1 where a total or a weight spoils nothing."""
    pmax, kinds, rows = work.totals.shape
    column = work.parameters.column
    size = kinds * rows
    good = nl.ndarray((pmax, size + column.shape[1]), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=good[:, 0:size], data=work.totals.reshape((pmax, size)), op0=nl.abs, operand0=0.0,
        op1=nl.less_equal, operand1=_MOST,
    )  # fmt: skip
    nisa.tensor_scalar(
        dst=good[:, size : good.shape[1]], data=column, op0=nl.abs, operand0=0.0,
        op1=nl.greater_equal, operand1=_LEAST,
    )  # fmt: skip
    return good


def _load(t: Tensors, work: Work) -> None:
    """The next chunk; the first one comes in parts: what is loaded first is computed first."""
    pmax, number, row = nl.tile_size.pmax, len(work.chunks), 0
    for start in work.starts[0:number]:
        row += start[2]
    first, partitions, run = work.starts[number]
    columns = t.x.shape[1]
    x = nl.ndarray((partitions, run, columns), dtype=t.x.dtype, buffer=nl.sbuf)
    shape = (pmax, run, columns // pmax, partitions)
    turned = nl.ndarray(shape, dtype=t.grad.dtype, buffer=nl.sbuf)
    source = rows_of(t.x, first, partitions, run)
    grad = rows_of(t.grad, first, partitions, run).reshape_dim(2, (columns // pmax, pmax))
    width = columns if number > 0 else min(columns, _FIRST)
    for r in range(run):
        for begin in range(0, columns, width):
            end = min(columns, begin + width)
            first_block, last_block = begin // pmax, end // pmax
            nisa.dma_transpose(
                dst=turned[:, r : r + 1, first_block:last_block],
                src=grad[:, r : r + 1, first_block:last_block], axes=(3, 1, 2, 0),
            )  # fmt: skip
            if number == 0:
                nisa.dma_copy(dst=x[:, r, begin:end], src=source[:, r, begin:end])
    if number > 0:
        nisa.dma_copy(dst=x, src=source)
    work.chunks.append(Chunk(
        first, x, turned,
        numbers_at(work.numbers, partitions, row, row + run),
        work.totals[0:partitions, :, row : row + run],
        nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.psum),
    ))  # fmt: skip
