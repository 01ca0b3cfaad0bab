"""Layer norm of rows that are too long for one `bn_stats`: statistics and results that keep the
DMA engines busy.

A tile is `[partitions, run, columns]`. VectorE takes the statistics with `bn_stats`, which centres
as it goes. In float32 ScalarE centres, VectorE scales and GpSimd adds the bias. In half precision,
where DMA takes half of the time, VectorE computes the first columns itself; for the others ScalarE
centres and scales, GpSimd multiplies by the weights, TensorE adds the bias (a unit matrix times the
tile, and ones times the bias, in float32 in PSUM), and ScalarE rounds. VectorE's instructions are
none of its fast modes, which would wait for the port that GpSimd holds.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._rows import load_vector, over_rows

# VectorE's share of the columns in half precision, in 32nds, so that it is as busy as ScalarE on
# trn2: the fixed time of its instructions counts more in short rows.
_SHARE, _SHORT_SHARE = 4, 2
_SHORT = 2048
_BANKS = 2  # of PSUM, that ScalarE reads at once


def load_parameters(
    weight: nl.NkiTensor | None, bias: nl.NkiTensor | None, columns: int, dtype: str
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Weights and bias, or ones and zeros, in every partition."""
    vectors = []
    for vector, missing in ((weight, 1.0), (bias, 0.0)):
        if vector is not None:
            tile = load_vector(vector)
        else:
            tile = nl.ndarray((nl.tile_size.pmax, columns), dtype=dtype, buffer=nl.sbuf)
            nisa.memset(dst=tile, value=missing)
        vectors.append(tile)
    return vectors[0], vectors[1]


def unit_matrix() -> nl.NkiTensor:
    """`[128, 128]` with ones on the diagonal, float32."""
    size = nl.tile_size.pmax
    ones = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    unit = nl.ndarray((size, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=unit,
        pattern=[[-1, size]],
        channel_multiplier=1,
        on_true_tile=ones,
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    return unit


def ones_row(dtype: str) -> nl.NkiTensor:
    """`[1, 128]`"""
    ones = nl.ndarray((1, nl.tile_size.pmax), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    return ones


def row_moments(data: nl.NkiTensor) -> nl.NkiTensor:
    """Mean and variance of each row, `[partitions, run, 2]`."""
    partitions, run, columns = data.shape
    most = nl.tile_size.bn_stats_fmax
    pieces = (columns + most - 1) // most
    moments = nl.ndarray((partitions, run, 2), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        parts = nl.ndarray((partitions, pieces, 6), dtype=nl.float32, buffer=nl.sbuf)
        for i in range(pieces):
            start, end = i * columns // pieces, (i + 1) * columns // pieces
            nisa.bn_stats(dst=parts[:, i], data=data[:, r, start:end])
        nisa.bn_aggr(dst=moments[:, r], data=parts)
    return moments


def inverse_deviations(moments: nl.NkiTensor, epsilon: nl.NkiTensor) -> nl.NkiTensor:
    """1 / sqrt(variance + eps) of each row, `[partitions, run]`."""
    partitions, run, _ = moments.shape
    rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=rstds, op=nl.rsqrt, data=moments[:, :, 1], bias=epsilon[0:partitions])
    return rstds


def row_shifts(moments: nl.NkiTensor, rstds: nl.NkiTensor, is_float32: bool) -> nl.NkiTensor:
    """What ScalarE adds to each row: -mean, in half precision -mean * rstd."""
    shifts = nl.ndarray(rstds.shape, dtype=nl.float32, buffer=nl.sbuf)
    means = moments[:, :, 0]
    if is_float32:
        nisa.activation(dst=shifts, op=nl.copy, data=means, scale=-1.0)
    else:
        nisa.scalar_tensor_tensor(
            dst=shifts, data=means, op0=nl.multiply, operand0=-1.0, op1=nl.multiply, operand1=rstds
        )
    return shifts


def vector_columns(columns: int) -> int:
    """How many of the first columns VectorE has in half precision."""
    return columns * (_SHARE if columns >= _SHORT else _SHORT_SHARE) // 32


def centre(
    data: nl.NkiTensor,
    moments: nl.NkiTensor,
    rstds: nl.NkiTensor,
    shifts: nl.NkiTensor,
    weights: nl.NkiTensor,
) -> nl.NkiTensor:
    """float32: data - mean, in its place, so that a large mean costs no accuracy.

    Half precision, which is coarser than what is lost by scaling first: (data - mean) * weights of
    VectorE's columns and (data - mean) * rstd of the others, in float32.
    """
    partitions, run, columns = data.shape
    if data.dtype == nl.float32:
        for r in range(run):
            row = data[:, r]
            nisa.activation(dst=row, op=nl.copy, data=row, bias=shifts[:, r : r + 1])
        return data
    normal = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    left = vector_columns(columns)
    for r in range(run):
        nisa.activation(
            dst=normal[:, r, left:columns], op=nl.copy, data=data[:, r, left:columns],
            scale=rstds[:, r : r + 1], bias=shifts[:, r : r + 1],
        )  # fmt: skip
        nisa.scalar_tensor_tensor(
            dst=normal[:, r, 0:left], data=data[:, r, 0:left],
            op0=nl.subtract, operand0=moments[:, r, 0:1],
            op1=nl.multiply, operand1=weights[0:partitions, 0:left],
        )  # fmt: skip
    return normal


def multiply(
    normal: nl.NkiTensor,
    result: nl.NkiTensor,
    rstds: nl.NkiTensor,
    weights: nl.NkiTensor,
    bias: nl.NkiTensor,
) -> None:
    """float32: normal * rstd * weights, in its place. Half precision: VectorE's columns of the
    result; the others of normal times weights, in their place.
    """
    partitions, run, columns = normal.shape
    if result.dtype == nl.float32:
        for r in range(run):
            nisa.scalar_tensor_tensor(
                dst=normal[:, r], data=normal[:, r], op0=nl.multiply, operand0=rstds[:, r : r + 1],
                op1=nl.multiply, operand1=weights[0:partitions],
            )  # fmt: skip
        return
    left = vector_columns(columns)
    for r in range(run):
        nisa.scalar_tensor_tensor(
            dst=result[:, r, 0:left], data=normal[:, r, 0:left],
            op0=nl.multiply, operand0=rstds[:, r : r + 1],
            op1=nl.add, operand1=bias[0:partitions, 0:left],
        )  # fmt: skip
    rest = normal[:, :, left:columns]
    nisa.tensor_tensor(
        dst=rest, data1=rest, data2=over_rows(weights[:, left:columns], rest), op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip


def sum_pieces(run: int, columns: int) -> list[tuple[int, int, int]]:
    """(row, first column, columns) of what is summed in `_BANKS` banks of PSUM at a time."""
    size = _BANKS * nl.tile_size.psum_bank_fmax
    pieces = []
    for r in range(run):
        for start in range(vector_columns(columns), columns, size):
            pieces.append((r, start, min(size, columns - start)))
    return pieces


def fits_in_psum(pieces: list[tuple[int, int, int]]) -> bool:
    """Whether the sums of all pieces do."""
    return len(pieces) * _BANKS <= 8


def add_bias(
    normal: nl.NkiTensor,
    bias: nl.NkiTensor,
    unit: nl.NkiTensor,
    ones: nl.NkiTensor,
    piece: tuple[int, int, int],
) -> nl.NkiTensor:
    """Half precision: normal + bias of a piece, in PSUM."""
    partitions = normal.shape[0]
    r, start, count = piece
    bank = nl.tile_size.psum_bank_fmax
    total = nl.ndarray((partitions, _BANKS * bank), dtype=nl.float32, buffer=nl.psum)
    for first in range(0, count, bank):
        end = min(first + bank, count)
        nisa.nc_matmul(
            dst=total[:, first:end], stationary=unit[0:partitions, 0:partitions],
            moving=normal[:, r, start + first : start + end], is_stationary_onezero=True,
        )  # fmt: skip
        nisa.nc_matmul(
            dst=total[:, first:end], stationary=ones[:, 0:partitions],
            moving=bias[0:1, start + first : start + end], is_stationary_onezero=True,
        )  # fmt: skip
    return total


def round_sum(result: nl.NkiTensor, total: nl.NkiTensor, piece: tuple[int, int, int]) -> None:
    """The sum of a piece as columns of the result."""
    r, start, count = piece
    nisa.activation(dst=result[:, r, start : start + count], op=nl.copy, data=total[:, 0:count])
