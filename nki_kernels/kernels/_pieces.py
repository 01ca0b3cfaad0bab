"""Softmax's row sums where a row is cut into pieces: each piece has a maximum and a sum of its own.

All that a piece gives is relative to its own maximum, so no piece waits for another; `merge_pieces`
makes them relative to the row's.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

# A piece of nothing but -inf has this maximum, so that its exponentials are 0, not NaN.
_LEAST_MAXIMUM = -3.0e38


def minus_piece_maximum(lowest: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """lowest[partitions, 1] = the negative maximum of data `[partitions, 1, columns]`."""
    # In the dtype of data: short types are reduced at twice the rate, and a maximum is exact.
    exact = nl.ndarray(lowest.shape, dtype=data.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=exact, op=nl.maximum, data=data, axis=2, negate=True)
    nisa.tensor_scalar(dst=lowest, data=exact, op0=nl.minimum, operand0=-_LEAST_MAXIMUM)


def merge_pieces(
    lowest: nl.NkiTensor, sums: nl.NkiTensor
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """Of rows whose pieces have these negative maxima and sums `[partitions, pieces]`: the negative
    maximum, the factor of each piece's exponentials, and the sum.
    """
    shape = (lowest.shape[0], 1)
    bottom = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=bottom, op=nl.minimum, data=lowest, axis=1)
    factors = nl.ndarray(lowest.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=factors, op=nl.exp, data=lowest, scale=-1.0, bias=bottom)
    parts = nl.ndarray(lowest.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=parts, data1=sums, data2=factors, op=nl.multiply)
    total = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=parts, axis=1)
    return bottom, factors, total
