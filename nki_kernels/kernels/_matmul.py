"""NKI helpers of the matrix products: one blocked product with a fused epilogue, of operands that
`_operands.py` brings to SBUF.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._blocking import COLUMN_UNIT, ROWS, shares_rows
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._matmul_epilogue import (
    Epilogue,
    added_bias,
    apply_epilogue,
    columns_of,
    evict,
    finish_tile,
    load_added,
    load_bias,
    multiply_bias,
    new_tile,
)
from trnx.nki_kernels.kernels._operands import (
    MatmulOperand,
    Pieces,
    depth_of,
    fill_operand,
    load_broadcast,
    load_operand,
    load_pieces,
    piece_columns,
    piece_rows,
)

# The first products of a program are those of up to four tiles of 128 rows and two banks of
# columns, all eight banks of PSUM; two tiles take less time than the loads of the columns.
_FIRST_BANKS = 2
_FIRST_ROWS = 256
# Of K, which each bank of them gets when the others are done with: more time than the bank takes to
# be evicted.
_LAST_CHUNKS = 3


class Blocks(NamedTuple):
    """Block sizes of M, N and K: multiples of 128, 512 and 128 unless they are the whole size.

    `keep`: all of x stays in SBUF while column blocks of w stream by (K is one block then).
    """

    rows: int
    columns: int
    depth: int
    keep: bool


class Part(NamedTuple):
    """Rows `row .. end_row` and columns `col .. end_col` of a product."""

    row: int
    end_row: int
    col: int
    end_col: int


def own_part(rows: int, columns: int, cores: int) -> Part:
    """This program's part, where `cores` share the rows or the columns."""
    return part_of(rows, columns, shares_rows(rows, columns), cores)


def part_of(rows: int, columns: int, by_rows: bool, cores: int) -> Part:
    """The same where it is decided which."""
    if not by_rows:
        col, end_col = share_of(columns, cores, COLUMN_UNIT)
        return Part(0, rows, col, end_col)
    row, end_row = share_of(rows, cores)
    if row == end_row:
        return Part(0, 0, 0, 0)
    return Part(row, end_row, 0, columns)


def multiply(
    dst: nl.NkiTensor,
    x: nl.NkiTensor,
    row: int,
    w: nl.NkiTensor,
    col: int,
    depth: int,
) -> None:
    """`dst[rows, cols]` in PSUM: rows `row ..` of `x` times rows `col ..` of `w`, both in SBUF."""
    multiply_chunks(dst, x, row, w, col, 0, depth)


def multiply_chunks(
    dst: nl.NkiTensor, x: nl.NkiTensor, row: int, w: nl.NkiTensor, col: int, k: int, end: int
) -> None:
    """The part of the same that indices `k .. end` of the contraction contribute."""
    pmax = nl.tile_size.pmax
    rows, cols = dst.shape
    for first in range(k, end, pmax):
        part = min(pmax, end - first)
        nisa.nc_matmul(
            dst=dst,
            stationary=x[0:part, first // pmax, row : row + rows],
            moving=w[0:part, first // pmax, col : col + cols],
        )


def product(
    out: nl.NkiTensor,
    x: MatmulOperand,
    w: MatmulOperand,
    blocks: Blocks,
    then: Epilogue,
    part: Part,
    kept: list[Pieces],
) -> None:
    """`out[M, N] = activation(x[M, K] @ w[N, K].T + bias[N]) + residual[M, N]`, a part of it.

    `kept`: blocks of rows of x that are in SBUF already, none at first; more are added where
    `blocks.keep` says so.
    """
    depth = depth_of(w)
    for col in range(part.col, part.end_col, blocks.columns):
        cols = min(blocks.columns, part.end_col - col)
        rows = min(blocks.rows, part.end_row - part.row)
        data = Pieces(rows, [])
        weights = Pieces(piece_columns(w, depth, cols), [])
        chunked = len(kept) == 0 and depth <= blocks.depth and _starts_with_chunks(x, w, rows)
        chunked = chunked and col == part.col
        if then.norm is not None and cols > _FIRST_BANKS * nl.tile_size.psum_bank_fmax:
            chunked = False  # rows are normalised as a whole
        if chunked:
            weights = Pieces(_FIRST_BANKS * nl.tile_size.psum_bank_fmax, [])
            load_chunks(data, weights, x, part.row, w, (col, min(weights.step, cols)))
        bias = load_bias(then, col, cols, out.shape[0])
        if chunked:
            load_pieces(weights, w, col + weights.step, cols - weights.step, depth)
        for row in range(part.row, part.end_row, blocks.rows):
            rows = min(blocks.rows, part.end_row - row)
            if depth > blocks.depth:
                _deep_block(out, row, rows, col, cols, x, w, blocks.depth, bias, then)
                continue
            first = row == part.row
            if first and chunked:
                done = min(weights.step, cols)
                _block_by_chunks(out, (row, rows), (col, done), data, weights, depth, bias, then)
                multiply_block(
                    out, (row, rows), (col, cols), data, weights, depth, bias, then, done
                )
                if blocks.keep:
                    kept.append(data)
                continue
            number = (row - part.row) // blocks.rows
            if number >= len(kept):
                data = Pieces(piece_rows(x, depth, nl.tile_size.pmax), [])
                # The first product of all reads one piece of x and one of w.
                head = min(rows, data.step) if first else rows
                load_pieces(data, x, row, head, depth)
                if first:
                    load_pieces(weights, w, col, cols, depth)
                    load_pieces(data, x, row + head, rows - head, depth)
                if blocks.keep:
                    kept.append(data)
            else:
                data = kept[number]
                if first:
                    load_pieces(weights, w, col, cols, depth)
            multiply_block(out, (row, rows), (col, cols), data, weights, depth, bias, then)


def _starts_with_chunks(x: MatmulOperand, w: MatmulOperand, rows: int) -> bool:
    """Whether the first block is multiplied chunk by chunk of K, as they arrive: TensorE waits for
    the first of them alone. Few rows take less time than the loads of their weights, which are
    better done with by columns; what TensorE transposes needs banks of its own.
    """
    return rows > _FIRST_ROWS and x.layout != ROWS and w.layout != ROWS


def load_chunks(
    data: Pieces,
    weights: Pieces,
    x: MatmulOperand,
    row: int,
    w: MatmulOperand,
    col_range: tuple[int, int],
) -> None:
    """All rows of `data` and the first columns of `weights`, chunks of K of both in turn."""
    pmax = nl.tile_size.pmax
    depth = depth_of(w)
    col, cols = col_range
    shape = (min(depth, pmax), (depth + pmax - 1) // pmax)
    data.tiles.append(nl.ndarray(shape + (data.step,), dtype=x.segments[0].dtype, buffer=nl.sbuf))
    weights.tiles.append(nl.ndarray(shape + (cols,), dtype=w.segments[0].dtype, buffer=nl.sbuf))
    most = piece_rows(w, max(data.step, cols), pmax)
    k = 0
    while k < depth:
        ks = min(pmax if k == 0 else most, depth - k)
        chunks = (ks + pmax - 1) // pmax
        fill_operand(data.tiles[0][:, nl.ds(k // pmax, chunks), :], x, row, k, ks)
        fill_operand(weights.tiles[0][:, nl.ds(k // pmax, chunks), :], w, col, k, ks)
        k = k + ks


def _block_by_chunks(
    out: nl.NkiTensor,
    row_range: tuple[int, int],
    col_range: tuple[int, int],
    data: Pieces,
    weights: Pieces,
    depth: int,
    bias: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    """A block whose products are in all banks at a time: first chunk by chunk, as loads arrive,
    then bank by bank, so that banks are done one after another.
    """
    pmax = nl.tile_size.pmax
    fmax = nl.tile_size.psum_bank_fmax
    row, rows = row_range
    col, cols = col_range
    banks = []
    for start in range(0, rows, pmax):
        for left in range(0, cols, fmax):
            shape = (min(pmax, rows - start), min(fmax, cols - left))
            banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    across = (cols + fmax - 1) // fmax
    chunks = (depth + pmax - 1) // pmax
    turn = max(0, chunks - max(chunks // 4, _LAST_CHUNKS)) * pmax
    added = []  # before GpSimd has more to do
    for start in range(0, rows, pmax):
        count = min(pmax, rows - start)
        own = added_bias(then, bias, count, 0, cols)
        added.append(load_added(then, row + start, col, own, count, cols))
    for k in range(0, turn, pmax):
        for number in range(len(banks)):
            start, left = number // across * pmax, number % across * fmax
            multiply_chunks(
                banks[number], data.tiles[0], start, weights.tiles[0], left, k, k + pmax
            )
    for start in range(0, rows, pmax):
        count = min(pmax, rows - start)
        other = added[start // pmax]
        tile = new_tile(out, then, count, cols)
        before = None if then.before is None else new_tile(out, then, count, cols)
        for left in range(0, cols, fmax):
            bank = banks[start // pmax * across + left // fmax]
            width = bank.shape[1]
            multiply_chunks(bank, data.tiles[0], start, weights.tiles[0], left, turn, depth)
            multiply_bias(then, bank, bias, left)
            own = None if other is not None else added_bias(then, bias, count, left, width)
            part = tile[:, left : left + width]
            evict(
                part,
                columns_of(before, count, left, width),
                bank,
                own,
                columns_of(other, count, left, width),
                then,
            )
        finish_tile(out, row + start, col, tile, before, then)


def product_of_tile(
    out: nl.NkiTensor,
    data: nl.NkiTensor,
    w: MatmulOperand,
    block_columns: int,
    then: Epilogue,
    columns: tuple[int, int],
) -> None:
    """The same of few rows that are in SBUF already, `data[128, chunks, M]`: the columns from the
    first of `columns` to the second.
    """
    depth = depth_of(w)
    rows = data.shape[2]
    for col in range(columns[0], columns[1], block_columns):
        cols = min(block_columns, columns[1] - col)
        bias = None
        if then.bias is not None:
            bias = load_broadcast(then.bias, col, cols, rows)
        weights = Pieces(piece_columns(w, depth, cols), [])
        load_pieces(weights, w, col, cols, depth)
        multiply_block(
            out, (0, rows), (col, cols), Pieces(rows, [data]), weights, depth, bias, then
        )


def multiply_block(
    out: nl.NkiTensor,
    row_range: tuple[int, int],
    col_range: tuple[int, int],
    data: Pieces,
    weights: Pieces,
    depth: int,
    bias: nl.NkiTensor | None,
    then: Epilogue,
    done: int = 0,
) -> None:
    """One block, `(first, count)` of rows and columns, whose whole contraction is in SBUF: row
    tiles are finished straight from PSUM. `done` columns are there already.
    """
    row, rows = row_range
    col, cols = col_range
    if done == cols:
        return
    for start in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - start)
        own = added_bias(then, bias, count, done, cols - done)
        added = load_added(then, row + start, col + done, own, count, cols - done)
        tile = new_tile(out, then, count, cols - done)
        before = None if then.before is None else new_tile(out, then, count, cols - done)
        for left in range(done, cols, nl.tile_size.psum_bank_fmax):
            width = min(nl.tile_size.psum_bank_fmax, cols - left)
            bank = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.psum)
            multiply(
                bank,
                data.tiles[start // data.step],
                start % data.step,
                weights.tiles[left // weights.step],
                left % weights.step,
                depth,
            )
            multiply_bias(then, bank, bias, left)
            own = None if added is not None else added_bias(then, bias, count, left, width)
            place = left - done
            part = tile[:, place : place + width]
            evict(
                part,
                columns_of(before, count, place, width),
                bank,
                own,
                columns_of(added, count, place, width),
                then,
            )
        finish_tile(out, row + start, col + done, tile, before, then)


def _deep_block(
    out: nl.NkiTensor,
    row: int,
    rows: int,
    col: int,
    cols: int,
    x: MatmulOperand,
    w: MatmulOperand,
    step: int,
    bias: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    """One block where K is too deep for SBUF: the partial sums of K blocks add up in float32."""
    pmax = nl.tile_size.pmax
    tiles = (rows + pmax - 1) // pmax
    depth = depth_of(w)
    sums = nl.ndarray((min(rows, pmax), tiles, cols), dtype=nl.float32, buffer=nl.sbuf)
    for k in range(0, depth, step):
        ks = min(step, depth - k)
        weights = load_operand(w, col, cols, k, ks)
        data = load_operand(x, row, rows, k, ks)
        for tile in range(tiles):
            count = min(pmax, rows - tile * pmax)
            for left in range(0, cols, nl.tile_size.psum_bank_fmax):
                width = min(nl.tile_size.psum_bank_fmax, cols - left)
                part = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.psum)
                multiply(part, data, tile * pmax, weights, left, ks)
                total = sums[0:count, tile, left : left + width]
                if k == 0:
                    nisa.tensor_copy(dst=total, src=part)
                else:
                    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    for tile in range(tiles):
        first = row + tile * pmax
        count = min(pmax, rows - tile * pmax)
        own = columns_of(bias, count, 0, cols)
        added = load_added(then, first, col, own, count, cols)
        result = nl.ndarray((count, cols), dtype=out.dtype, buffer=nl.sbuf)
        total = sums[0:count, tile, :]
        own = None if added is not None else own
        apply_epilogue(result, total, own, added, then.activation)
        nisa.dma_copy(dst=out[first : first + count, col : col + cols], src=result)
