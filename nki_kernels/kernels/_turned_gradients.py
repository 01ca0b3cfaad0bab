"""NKI helpers of `_turned_layer_norm_backward.py`: what is done with one row of each partition."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._column_sums import WIDTH, ColumnSums, add_columns

TOGETHER = 6  # turned blocks that leave PSUM together
RESULTS = 512  # columns of results in PSUM at once
_PIECE = 2048  # columns that an engine multiplies at once, so that others can begin


class Parameters(NamedTuple):
    """The weights in every partition, those of a block on the partitions, `[128, blocks]`, and on
    the diagonals of the blocks, `[128, blocks, 128]`; the identity matrix."""

    weights: nl.NkiTensor
    column: nl.NkiTensor
    diagonals: nl.NkiTensor
    identity: nl.NkiTensor


class RowNumbers(NamedTuple):
    """Of the rows of a chunk, `[partitions, run]` in float32: -mean, rstd, -rstd / columns,
    -rstd^2 / columns; rstd 32 times, `[partitions, run, 32]`."""

    negmean: nl.NkiTensor
    rstd: nl.NkiTensor
    scale: nl.NkiTensor
    square: nl.NkiTensor
    spread: nl.NkiTensor


class Chunk(NamedTuple):
    """Rows from `row` on, `[partitions, run, columns]`: x and the gradient, their product with x
    centred, that times the weights. `turned[128, run * blocks, partitions]`: the gradient.
    `totals[partitions, run, 2]`: the sums of `grad * weight` and of `weighted`; `parts[partitions,
    2, run]`: the latter in two parts. mean and rstd as loaded."""

    row: int
    x: nl.NkiTensor
    grad: nl.NkiTensor
    product: nl.NkiTensor
    weighted: nl.NkiTensor
    turned: nl.NkiTensor
    mean: nl.NkiTensor
    rstd: nl.NkiTensor
    totals: nl.NkiTensor
    parts: nl.NkiTensor


class Lines(NamedTuple):
    """What the sums of a row give, over rstd, is `x * slope`, and `shift` more at the end,
    `[partitions, run]`; `low` is what bfloat16 holds of what it does not hold of the slope, in
    float32. `diagonals[partitions, run, 2, partitions]`: matrices of both terms."""

    shift: nl.NkiTensor
    slope: nl.NkiTensor
    low: nl.NkiTensor
    diagonals: nl.NkiTensor


def numbers_of(chunk: Chunk, ones: nl.NkiTensor) -> RowNumbers:
    made = []  # type: list[nl.NkiTensor]
    columns = chunk.x.shape[2]
    for loaded, factor in (
        (chunk.mean, -1.0), (chunk.rstd, 1.0), (chunk.rstd, -1.0 / columns),
    ):  # fmt: skip
        tile = nl.ndarray(loaded.shape, dtype=nl.float32, buffer=nl.sbuf)
        # By ones, too: what takes no second tile would wait for GpSimd.
        nisa.scalar_tensor_tensor(
            dst=tile, data=loaded, op0=nl.multiply, operand0=factor, op1=nl.multiply,
            operand1=ones[0 : loaded.shape[0], 0 : loaded.shape[1]],
        )  # fmt: skip
        made.append(tile)
    square = nl.ndarray(made[1].shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=square, data1=made[1], data2=made[2], op=nl.multiply)
    partitions, run = square.shape
    spread = nl.ndarray((partitions, run, WIDTH), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(
        dst=spread, src=made[1].expand_dim(2).broadcast(2, WIDTH), engine=nisa.engine.gpsimd
    )
    return RowNumbers(made[0], made[1], made[2], square, spread)


def _on_gpsimd(
    a: nl.NkiTensor, b: nl.NkiTensor, op: object, dtype: str = nl.float32
) -> nl.NkiTensor:
    """A few numbers of each partition."""
    result = nl.ndarray(a.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=result, data1=a, data2=b, op=op, engine=nisa.engine.gpsimd)
    return result


def weigh_row(bank: nl.NkiTensor, chunk: Chunk, p: Parameters, r: int) -> None:
    """The sum of `grad * weight` of row `r` of each partition to `bank[partitions, run]`."""
    blocks = p.column.shape[1]
    for block in range(blocks):
        nisa.nc_matmul(
            dst=bank[:, r : r + 1], stationary=chunk.turned[:, r * blocks + block],
            moving=p.column[:, block : block + 1],
        )  # fmt: skip


def add_row(chunk: Chunk, n: RowNumbers, sums: ColumnSums, r: int, is_started: bool) -> None:
    """Row `r` of each partition to the sums over rows."""
    partitions = chunk.x.shape[0]
    add_columns(sums.bias, chunk.grad[:, r], sums.ones[0:partitions], is_started)
    add_columns(sums.weight, chunk.product[:, r], n.spread[:, r], is_started)


def total_row(chunk: Chunk, r: int, share: int) -> None:
    """The sum of `weighted` of row `r`: ScalarE takes `share` percent of the columns, VectorE the
    others."""
    columns = chunk.x.shape[2]
    end = columns * share // 100
    if end > 0:
        nisa.activation(
            dst=chunk.weighted[:, r, 0:end], op=nl.copy, data=chunk.weighted[:, r, 0:end],
            reduce_op=nl.add, reduce_res=chunk.parts[:, 0, r : r + 1],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
    if end < columns:
        nisa.tensor_reduce(
            dst=chunk.parts[:, 1, r : r + 1], op=nl.add, data=chunk.weighted[:, r, end:columns],
            axis=1,
        )  # fmt: skip


def lines_of(chunk: Chunk, n: RowNumbers) -> Lines:
    """By GpSimd, which need not wait for itself; the diagonals are not filled yet."""
    nisa.tensor_tensor(
        dst=chunk.totals[:, :, 1], data1=chunk.parts[:, 0], data2=chunk.parts[:, 1], op=nl.add,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip
    slope = _on_gpsimd(chunk.totals[:, :, 1], n.square, nl.multiply)
    high = nl.ndarray(slope.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=high, src=slope, engine=nisa.engine.gpsimd)
    rest = _on_gpsimd(slope, high, nl.subtract, nl.bfloat16)
    low = nl.ndarray(slope.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=low, src=rest, engine=nisa.engine.gpsimd)
    level = _on_gpsimd(chunk.totals[:, :, 0], n.scale, nl.multiply)
    tilt = _on_gpsimd(n.negmean, n.rstd, nl.multiply)
    bend = _on_gpsimd(_on_gpsimd(high, low, nl.add), tilt, nl.multiply)
    partitions, run = slope.shape
    shape = (partitions, run, 2, partitions)
    diagonals = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    return Lines(_on_gpsimd(bend, level, nl.add), slope, low, diagonals)


def fill_diagonals_of_rows(lines: Lines, p: Parameters, r: int) -> None:
    """Those of row `r` of each partition; rounding the slope gives its first term."""
    partitions = lines.shift.shape[0]
    for i, term in ((0, lines.slope), (1, lines.low)):
        nisa.activation(
            dst=lines.diagonals[:, r, i], op=nl.copy, data=p.identity[0:partitions, 0:partitions],
            scale=term[:, r : r + 1],
        )  # fmt: skip


def begin_row(chunk: Chunk, p: Parameters, r: int, part: int) -> None:
    """Some columns of the product with the centred row, and that times the weights."""
    partitions, _, columns = chunk.x.shape
    start, end = part * _PIECE, min(columns, (part + 1) * _PIECE)
    if start >= end:
        return
    product = chunk.product[:, r, start:end]
    nisa.scalar_tensor_tensor(
        dst=product, data=chunk.x[:, r, start:end], op0=nl.subtract,
        operand0=chunk.mean[:, r : r + 1], op1=nl.multiply,
        operand1=chunk.grad[:, r, start:end],
    )  # fmt: skip
    nisa.tensor_tensor(
        dst=chunk.weighted[:, r, start:end], data1=product,
        data2=p.weights[0:partitions, start:end], op=nl.multiply, engine=nisa.engine.gpsimd,
    )  # fmt: skip


def turn_row(chunk: Chunk, r: int, part: int, share: int) -> None:
    """Blocks of the gradient that leave PSUM together: part `part` of those of which the last one
    is one of row `r`. ScalarE copies `share` percent."""
    pmax = nl.tile_size.pmax
    partitions, run, columns = chunk.grad.shape
    blocks = columns // pmax
    number = r * blocks // TOGETHER + part
    start, end = number * TOGETHER, min(run * blocks, (number + 1) * TOGETHER)
    if start >= end or end > (r + 1) * blocks:
        return
    bank = nl.ndarray((pmax, end - start, partitions), dtype=chunk.grad.dtype, buffer=nl.psum)
    for block in range(start, end):
        first = block % blocks * pmax
        rows = chunk.grad[:, block // blocks, first : first + pmax]
        nisa.nc_transpose(dst=bank[:, block - start], data=rows, engine=nisa.engine.tensor)
    target = chunk.turned[:, start:end]
    if (number + 1) * share // 100 > number * share // 100 or partitions % 2:
        nisa.tensor_copy(dst=target, src=bank, engine=nisa.engine.scalar)
        return
    # Two elements as one of 4 bytes: a fast copy of 2-byte elements would take turns with GpSimd.
    pairs = target.view(nl.uint32)
    nisa.tensor_copy(dst=pairs, src=bank.view(nl.uint32), engine=nisa.engine.vector)


def finish_part(
    dst: nl.NkiTensor, chunk: Chunk, n: RowNumbers, lines: Lines, p: Parameters,
    place: tuple[int, int],
) -> None:  # fmt: skip
    """A part of a row of the result, `[partitions, columns]`; `place` is the row and the part."""
    r, part = place
    pmax = nl.tile_size.pmax
    partitions, columns = dst.shape
    blocks = columns // pmax
    start, end = part * RESULTS, min(columns, (part + 1) * RESULTS)
    total = nl.ndarray((partitions, end - start), dtype=nl.float32, buffer=nl.psum)
    for column in range(start, end, pmax):
        block = column // pmax
        nisa.nc_matmul(
            dst=total[:, column - start : column - start + pmax],
            stationary=chunk.turned[:, r * blocks + block], moving=p.diagonals[:, block],
        )  # fmt: skip
    for term in range(2):
        nisa.nc_matmul(
            dst=total, stationary=lines.diagonals[:, r, term], moving=chunk.x[:, r, start:end]
        )
    nisa.activation(
        dst=dst[:, start:end], op=nl.copy, data=total, scale=n.rstd[:, r : r + 1],
        bias=lines.shift[:, r : r + 1],
    )  # fmt: skip
