"""Softmax's row sums where a row is cut into pieces: each piece has a maximum and a sum of its own.

All that a piece gives is relative to its own maximum, so no piece waits for another; `merge_pieces`
makes them relative to the row's.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

PIECE = 4096  # columns of a long row that are loaded at once
# A piece of nothing but -inf has this maximum, so that its exponentials are 0, not NaN.
_LEAST_MAXIMUM = -3.0e38


def pieces_of(columns: int) -> int:
    """Into how many pieces a row is cut."""
    return (columns + PIECE - 1) // PIECE


def piece_of(rows: nl.NkiTensor, index: int) -> nl.NkiTensor:
    """Piece `index` of `rows[partitions, columns]` in HBM as `[partitions, 1, piece]`."""
    end = min(rows.shape[1], (index + 1) * PIECE)
    return rows[:, index * PIECE : end].expand_dim(1)


def load_piece(rows: nl.NkiTensor, index: int) -> nl.NkiTensor:
    """Piece `index` of rows in HBM as a tile `[partitions, 1, piece]`."""
    part = piece_of(rows, index)
    tile = nl.ndarray(part.shape, dtype=part.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=part)
    return tile


def minus_piece_maximum(lowest: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """lowest[partitions, 1] = the negative maximum of data `[partitions, 1, columns]`."""
    # In the dtype of data: short types are reduced at twice the rate, and a maximum is exact.
    exact = nl.ndarray(lowest.shape, dtype=data.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=exact, op=nl.maximum, data=data, axis=2, negate=True)
    nisa.tensor_scalar(dst=lowest, data=exact, op0=nl.minimum, operand0=-_LEAST_MAXIMUM)


def sum_exponentials(
    dst: nl.NkiTensor, data: nl.NkiTensor, lowest: nl.NkiTensor, total: nl.NkiTensor
) -> None:
    """dst = exp(data + lowest), and total[partitions, 1] its row sums, in one pass of ScalarE."""
    nisa.activation(
        dst=dst,
        op=nl.exp,
        data=data,
        bias=lowest,
        reduce_op=nl.add,
        reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def merge_pieces(
    lowest: nl.NkiTensor, sums: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """Of rows whose pieces have these negative maxima and sums, `[partitions, rows, pieces]`: the
    rows' negative maxima, the factors of the pieces' exponentials, and the rows' sums.
    """
    shape = lowest.shape[0:2]
    bottom = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=bottom, op=nl.minimum, data=lowest, axis=2)
    factors = nl.ndarray(lowest.shape, dtype=nl.float32, buffer=nl.sbuf)
    wide = bottom.expand_dim(2).broadcast(2, lowest.shape[2])
    nisa.tensor_tensor(dst=factors, data1=wide, data2=lowest, op=nl.subtract)
    nisa.activation(dst=factors, op=nl.exp, data=factors)
    parts = nl.ndarray(lowest.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=parts, data1=sums, data2=factors, op=nl.multiply)
    totals = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=totals, op=nl.add, data=parts, axis=2)
    return bottom, factors, totals
