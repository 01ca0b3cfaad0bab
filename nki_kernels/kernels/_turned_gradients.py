"""NKI helpers of `_turned_layer_norm_backward.py`: what is done with some columns of one row of
each partition."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._turned_parameters import Numbers, Parameters


class Chunk(NamedTuple):
    """Rows from `row` on: x `[partitions, run, columns]`, the gradient `turned[128, run, blocks,
    partitions]`. `totals[partitions, 2, run]`: the sums of `grad * weight`, which are in `bank` at
    first, and of its product with the centred x."""

    row: int
    x: nl.NkiTensor
    turned: nl.NkiTensor
    numbers: Numbers
    totals: nl.NkiTensor
    bank: nl.NkiTensor


class Lines(NamedTuple):
    """What the sums of a row add to its result is `x * slope + shift`: the shift and the slope over
    rstd, `[partitions, run]` in float32. `terms[partitions, 2, run]`: what rounds to the two terms
    of bfloat16 that add up to that slope."""

    shift: nl.NkiTensor
    slope: nl.NkiTensor
    terms: nl.NkiTensor


class Part(NamedTuple):
    """Columns of row `row` of each partition of a chunk: the first of them and the one behind the
    last."""

    chunk: Chunk
    row: int
    columns: tuple[int, int]


def weigh_columns(part: Part, p: Parameters) -> nl.NkiTensor:
    """`grad * weight` in PSUM, by TensorE."""
    start, end = part.columns
    pmax = nl.tile_size.pmax
    partitions = part.chunk.x.shape[0]
    total = nl.ndarray((partitions, end - start), dtype=nl.float32, buffer=nl.psum)
    for column in range(start, end, pmax):
        block = column // pmax
        nisa.nc_matmul(
            dst=total[:, column - start : column - start + pmax],
            stationary=part.chunk.turned[:, part.row, block], moving=p.diagonals[:, block],
        )  # fmt: skip
    return total


def multiply_columns(part: Part, weighted: nl.NkiTensor) -> nl.NkiTensor:
    """The product with the centred row, by VectorE."""
    (start, end), r, chunk = part.columns, part.row, part.chunk
    product = nl.ndarray(weighted.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=product, data=chunk.x[:, r, start:end], op0=nl.subtract,
        operand0=chunk.numbers.mean[:, r : r + 1], op1=nl.multiply, operand1=weighted,
    )  # fmt: skip
    return product


def total_turned(part: Part, p: Parameters) -> None:
    """The sum of `grad * weight`, by TensorE."""
    pmax = nl.tile_size.pmax
    r = part.row
    for block in range(part.columns[0] // pmax, part.columns[1] // pmax):
        nisa.nc_matmul(
            dst=part.chunk.bank[:, r : r + 1], stationary=part.chunk.turned[:, r, block],
            moving=p.column[:, block : block + 1], accumulate=block > 0,
        )  # fmt: skip


def total_columns(part: Part, product: nl.NkiTensor, unused: nl.NkiTensor) -> None:
    """The sum of the product of a row, from its first columns to its last, by ScalarE, which has to
    write, too."""
    (start, end), r, chunk = part.columns, part.row, part.chunk
    result = None
    if end == chunk.x.shape[2]:
        result = chunk.totals[:, 1, r : r + 1]
    command = nisa.reduce_cmd.reset_reduce
    if start > 0:
        command = nisa.reduce_cmd.reduce
    nisa.activation(
        dst=unused[0 : chunk.x.shape[0], 0 : end - start], op=nl.copy,
        data=product, reduce_op=nl.add, reduce_res=result,
        reduce_cmd=command,
    )  # fmt: skip


def lines_of(chunk: Chunk, is_split: bool) -> Lines:
    """By GpSimd, which need not wait for itself. The slope is the sum of its terms where it
    `is_split`, else it is not rounded, and there are none."""
    n, shape = chunk.numbers, chunk.numbers.mean.shape
    partitions, run = shape
    nisa.activation(dst=chunk.totals[:, 0], op=nl.copy, data=chunk.bank)
    terms = nl.ndarray((partitions, 2, run), dtype=nl.float32, buffer=nl.sbuf)
    slope = terms[:, 0]
    _combine(slope, chunk.totals[:, 1], n.square, nl.multiply)
    if is_split:
        slope = _split(terms)
    level = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    _combine(level, chunk.totals[:, 0], n.scale, nl.multiply)
    shift = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    _combine(shift, n.tilt, slope, nl.multiply)
    _combine(shift, shift, level, nl.add)
    return Lines(shift, slope, terms)


def _split(terms: nl.NkiTensor) -> nl.NkiTensor:
    """The second term from the first one; gives the sum of both, rounded."""
    shape = terms[:, 0].shape
    high = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    low = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=high, src=terms[:, 0], engine=nisa.engine.gpsimd)
    _combine(terms[:, 1], terms[:, 0], high, nl.subtract)
    nisa.tensor_copy(dst=low, src=terms[:, 1], engine=nisa.engine.gpsimd)
    total = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    _combine(total, high, low, nl.add)
    return total


def _combine(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor, op: object) -> None:
    """A few numbers of each partition."""
    nisa.tensor_tensor(dst=dst, data1=a, data2=b, op=op, engine=nisa.engine.gpsimd)


def diagonals_of(lines: Lines, p: Parameters, r: int) -> nl.NkiTensor:
    """`[partitions, 2, partitions]` in bfloat16: both terms of row `r`, by VectorE; rounding the
    slope gives the first one."""
    partitions = lines.terms.shape[0]
    shape = (partitions, 2, partitions)
    diagonals = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=diagonals, data1=p.identity[0:partitions, 0:partitions].expand_dim(1).broadcast(1, 2),
        data2=lines.terms[:, :, r : r + 1].broadcast(2, partitions), op=nl.multiply,
        engine=nisa.engine.vector,
    )  # fmt: skip
    return diagonals


def add_slope(total: nl.NkiTensor, part: Part, diagonals: nl.NkiTensor) -> None:
    """x times both terms of the slope, by TensorE."""
    start, end = part.columns
    bank = nl.tile_size.psum_bank_fmax
    for term in range(2):
        for first in range(start, end, bank):
            last = min(end, first + bank)
            nisa.nc_matmul(
                dst=total[:, first - start : last - start], stationary=diagonals[:, term],
                moving=part.chunk.x[:, part.row, first:last], accumulate=True,
            )  # fmt: skip


def with_slope(total: nl.NkiTensor, part: Part, lines: Lines) -> nl.NkiTensor:
    """The same by VectorE, in SBUF."""
    (start, end), r = part.columns, part.row
    result = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=result, data=part.chunk.x[:, r, start:end], op0=nl.multiply,
        operand0=lines.slope[:, r : r + 1], op1=nl.add, operand1=total,
    )  # fmt: skip
    return result


def finish(dst: nl.NkiTensor, part: Part, lines: Lines, total: nl.NkiTensor) -> None:
    """`[partitions, columns]` of the gradient of x, by ScalarE."""
    r = part.row
    nisa.activation(
        dst=dst, op=nl.copy, data=total, scale=part.chunk.numbers.rstd[:, r : r + 1],
        bias=lines.shift[:, r : r + 1],
    )  # fmt: skip
