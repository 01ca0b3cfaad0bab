"""NKI helpers of `_turned_layer_norm_backward.py`: what is done with some columns of one row of
each partition. `columns` are the first of them and the one behind the last."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._column_sums import add_columns
from trnx.nki_kernels.kernels._turned_parameters import Numbers, Parameters


class Chunk(NamedTuple):
    """Rows from `row` on, `[partitions, run, columns]`: x and the gradient, their product with x
    centred, that times the weights. `turned[128, run * blocks, partitions]`: the gradient.
    `totals[partitions, 2, run]`: the sums of `grad * weight` and of `weighted`."""

    row: int
    x: nl.NkiTensor
    grad: nl.NkiTensor
    product: nl.NkiTensor
    weighted: nl.NkiTensor
    turned: nl.NkiTensor
    numbers: Numbers
    totals: nl.NkiTensor


class Lines(NamedTuple):
    """What the sums of a row add to its result is `x * slope + shift`: `lines[partitions, 2, run]`
    in float32, the shift, the slope. `terms[partitions, 2, run]`: what rounds to the two terms of
    bfloat16 that add up to the slope over rstd."""

    lines: nl.NkiTensor
    terms: nl.NkiTensor


class Turned(NamedTuple):
    """Blocks of the gradient in PSUM, `[128, blocks, partitions]`, from block `first` on."""

    bank: nl.NkiTensor
    chunk: Chunk
    first: int


class Result(NamedTuple):
    """Columns of row `row` in PSUM: `grad * weight`, and `line` to be added in SBUF; without one,
    the line has been added but for the shift."""

    total: nl.NkiTensor
    line: list[nl.NkiTensor]
    row: int
    columns: tuple[int, int]


def multiply_columns(chunk: Chunk, r: int, columns: tuple[int, int]) -> None:
    """The product with the centred row, by VectorE."""
    start, end = columns
    nisa.scalar_tensor_tensor(
        dst=chunk.product[:, r, start:end], data=chunk.x[:, r, start:end], op0=nl.subtract,
        operand0=chunk.numbers.mean[:, r : r + 1], op1=nl.multiply,
        operand1=chunk.grad[:, r, start:end],
    )  # fmt: skip


def weigh_product(
    chunk: Chunk, p: Parameters, rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    """That of some rows times the weights, by GpSimd."""
    start, end = columns
    first, last = rows
    weights = p.weights[0 : chunk.x.shape[0], start:end].expand_dim(1).broadcast(1, last - first)
    nisa.tensor_tensor(
        dst=chunk.weighted[:, first:last, start:end], data1=chunk.product[:, first:last, start:end],
        data2=weights, op=nl.multiply, engine=nisa.engine.gpsimd,
    )  # fmt: skip


def turn_columns(chunk: Chunk, r: int, columns: tuple[int, int]) -> Turned:
    """The gradient, by TensorE."""
    start, end = columns
    pmax = nl.tile_size.pmax
    blocks = (end - start) // pmax
    shape = (pmax, blocks, chunk.x.shape[0])
    bank = nl.ndarray(shape, dtype=chunk.grad.dtype, buffer=nl.psum)
    for block in range(blocks):
        rows = chunk.grad[:, r, start + block * pmax : start + (block + 1) * pmax]
        nisa.nc_transpose(dst=bank[:, block], data=rows, engine=nisa.engine.tensor)
    return Turned(bank, chunk, (r * chunk.x.shape[2] + start) // pmax)


def keep_turned(turned: Turned, by_scalar: bool) -> None:
    """To SBUF."""
    _, blocks, partitions = turned.bank.shape
    target = turned.chunk.turned[:, turned.first : turned.first + blocks]
    if by_scalar or partitions % 2:
        nisa.tensor_copy(dst=target, src=turned.bank, engine=nisa.engine.scalar)
        return
    # Two elements as one of 4 bytes: a fast copy of 2-byte elements would take turns with GpSimd.
    pairs = target.view(nl.uint32)
    nisa.tensor_copy(dst=pairs, src=turned.bank.view(nl.uint32), engine=nisa.engine.vector)


def total_columns(chunk: Chunk, r: int, columns: tuple[int, int]) -> None:
    """The sum of `weighted` of row `r`, from its first columns to its last, by ScalarE."""
    start, end = columns
    data = chunk.weighted[:, r, start:end]
    result = None
    if end == chunk.x.shape[2]:
        result = chunk.totals[:, 1, r : r + 1]
    command = nisa.reduce_cmd.reset_reduce
    if start > 0:
        command = nisa.reduce_cmd.reduce
    nisa.activation(
        dst=data, op=nl.copy, data=data, reduce_op=nl.add, reduce_res=result, reduce_cmd=command
    )


def total_turned(
    bank: nl.NkiTensor, chunk: Chunk, p: Parameters, r: int, columns: tuple[int, int]
) -> None:
    """The sum of `grad * weight` of row `r`, added to `bank[partitions, run]`, by TensorE."""
    pmax = nl.tile_size.pmax
    blocks = p.column.shape[1]
    for block in range(columns[0] // pmax, columns[1] // pmax):
        nisa.nc_matmul(
            dst=bank[:, r : r + 1], stationary=chunk.turned[:, r * blocks + block],
            moving=p.column[:, block : block + 1], accumulate=block > 0,
        )  # fmt: skip


def add_row(chunk: Chunk, sums: nl.NkiTensor, ones: nl.NkiTensor, r: int, is_started: bool) -> None:
    """Row `r` of each partition to the sums over rows. The gradient adds its zeros to those for the
    weight, too, which is why an infinity in it is one of what spoils them."""
    add_columns(sums, chunk.grad[:, r], ones[0 : chunk.x.shape[0]], is_started)
    add_columns(sums, chunk.product[:, r], chunk.numbers.rstd[:, r : r + 1], True)


def lines_of(chunk: Chunk) -> Lines:
    """By GpSimd, which need not wait for itself."""
    n, shape = chunk.numbers, chunk.numbers.mean.shape
    partitions, run = shape
    terms = nl.ndarray((partitions, 2, run), dtype=nl.float32, buffer=nl.sbuf)
    high = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    low = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    _combine(terms[:, 0], chunk.totals[:, 1], n.square, nl.multiply)
    nisa.tensor_copy(dst=high, src=terms[:, 0], engine=nisa.engine.gpsimd)
    _combine(terms[:, 1], terms[:, 0], high, nl.subtract)
    nisa.tensor_copy(dst=low, src=terms[:, 1], engine=nisa.engine.gpsimd)
    level = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    _combine(level, chunk.totals[:, 0], n.scale, nl.multiply)
    slope = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    _combine(slope, high, low, nl.add)
    lines = nl.ndarray((partitions, 2, run), dtype=nl.float32, buffer=nl.sbuf)
    _combine(lines, n.both, slope.expand_dim(1).broadcast(1, 2), nl.multiply)
    _combine(lines[:, 0], lines[:, 0], level, nl.add)
    return Lines(lines, terms)


def _combine(dst: nl.NkiTensor, a: nl.NkiTensor, b: nl.NkiTensor, op: object) -> None:
    """A few numbers of each partition."""
    nisa.tensor_tensor(dst=dst, data1=a, data2=b, op=op, engine=nisa.engine.gpsimd)


def diagonals_of(lines: Lines, p: Parameters, r: int) -> nl.NkiTensor:
    """`[partitions, 2, partitions]` in bfloat16: both terms of row `r`; rounding the slope gives
    the first one."""
    partitions = lines.terms.shape[0]
    shape = (partitions, 2, partitions)
    diagonals = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    for i in range(2):
        nisa.activation(
            dst=diagonals[:, i], op=nl.copy, data=p.identity[0:partitions, 0:partitions],
            scale=lines.terms[:, i, r : r + 1],
        )  # fmt: skip
    return diagonals


def line_of_columns(chunk: Chunk, lines: Lines, r: int, columns: tuple[int, int]) -> nl.NkiTensor:
    """`x * slope + shift`, by ScalarE."""
    start, end = columns
    line = nl.ndarray((chunk.x.shape[0], end - start), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=line, op=nl.copy, data=chunk.x[:, r, start:end], scale=lines.lines[:, 1, r : r + 1],
        bias=lines.lines[:, 0, r : r + 1],
    )  # fmt: skip
    return line


def weigh_columns(chunk: Chunk, p: Parameters, r: int, columns: tuple[int, int]) -> nl.NkiTensor:
    """`grad * weight` in PSUM, by TensorE."""
    start, end = columns
    pmax = nl.tile_size.pmax
    blocks = p.column.shape[1]
    total = nl.ndarray((chunk.x.shape[0], end - start), dtype=nl.float32, buffer=nl.psum)
    for column in range(start, end, pmax):
        block = column // pmax
        nisa.nc_matmul(
            dst=total[:, column - start : column - start + pmax],
            stationary=chunk.turned[:, r * blocks + block], moving=p.diagonals[:, block],
        )  # fmt: skip
    return total


def add_slope(
    total: nl.NkiTensor, chunk: Chunk, diagonals: nl.NkiTensor, r: int, columns: tuple[int, int]
) -> None:
    """x times both terms of the slope, by TensorE."""
    start, end = columns
    bank = nl.tile_size.psum_bank_fmax
    for term in range(2):
        for first in range(start, end, bank):
            last = min(end, first + bank)
            nisa.nc_matmul(
                dst=total[:, first - start : last - start], stationary=diagonals[:, term],
                moving=chunk.x[:, r, first:last],
            )  # fmt: skip


def finish(dst: nl.NkiTensor, chunk: Chunk, lines: Lines, result: Result) -> None:
    """`[partitions, columns]` of the gradient of x: by VectorE where there is a line to be added,
    else by ScalarE."""
    r = result.row
    rstd = chunk.numbers.rstd[:, r : r + 1]
    if len(result.line) > 0:
        nisa.scalar_tensor_tensor(
            dst=dst, data=result.total, op0=nl.multiply, operand0=rstd, op1=nl.add,
            operand1=result.line[0],
        )  # fmt: skip
        return
    nisa.activation(
        dst=dst, op=nl.copy, data=result.total, scale=rstd, bias=lines.lines[:, 0, r : r + 1]
    )
