"""Layer norm of rows that are too long for one `bn_stats`, on three engines at once.

A tile is `[partitions, run, columns]`. VectorE takes the statistics with `bn_stats`, which centres
as it goes; in half precision, where DMA takes half of the time, ScalarE takes those of the last
half of the columns, so that the three engines are about as busy. ScalarE centres, VectorE scales,
GpSimd adds the bias. None of VectorE's instructions is in a fast mode, which would wait for the
port that GpSimd holds. TensorE could add the bias, but its sums run over the rows of a tile: one
NaN would spread to all of them.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._rows import load_vector, over_rows

_TRIPLE = 3  # count, mean and variance * count, as `bn_stats` gives and `bn_aggr` takes them


def load_parameters(
    weight: nl.NkiTensor | None, bias: nl.NkiTensor | None, columns: int, dtype: str
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Weights and bias, or ones and zeros, in every partition."""
    vectors = []  # type: list[nl.NkiTensor]
    for vector, missing in ((weight, 1.0), (bias, 0.0)):
        if vector is not None:
            tile = load_vector(vector)
        else:
            tile = nl.ndarray((nl.tile_size.pmax, columns), dtype=dtype, buffer=nl.sbuf)
            nisa.memset(dst=tile, value=missing)
        vectors.append(tile)
    return vectors[0], vectors[1]


def partial_statistics(data: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor | None]:
    """`bn_stats` of the pieces of each row, with a free triple for ScalarE's columns if it has any,
    and what ScalarE adds to those.
    """
    partitions, run, columns = data.shape
    most = nl.tile_size.bn_stats_fmax
    last = scalar_columns(data)
    first = columns - last
    pieces = (first + most - 1) // most
    size = 2 * _TRIPLE * pieces + (_TRIPLE if last > 0 else 0)
    parts = nl.ndarray((partitions, run, size), dtype=nl.float32, buffer=nl.sbuf)
    shifts = None
    if last > 0:
        shifts = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=shifts, op=nl.copy, data=data[:, :, 0], scale=-1.0)
        count = parts[:, :, size - 3]
        nisa.memset(dst=count, value=float(last), engine=nisa.engine.gpsimd)
    for r in range(run):
        for i in range(pieces):
            start, end = i * first // pieces, (i + 1) * first // pieces
            place = parts[:, r, 2 * _TRIPLE * i : 2 * _TRIPLE * (i + 1)]
            nisa.bn_stats(dst=place, data=data[:, r, start:end])
    return parts, shifts


def scalar_columns(data: nl.NkiTensor) -> int:
    """How many of the last columns' statistics ScalarE takes."""
    return 0 if data.dtype == nl.float32 else data.shape[2] // 2


def shifted_sums(data: nl.NkiTensor, shifts: nl.NkiTensor | None) -> nl.NkiTensor | None:
    """`[partitions, 2, run]`: the sums of ScalarE's columns and of their squares, as distances from
    the first element of the row, so that a large mean costs no accuracy.
    """
    if shifts is None:
        return None
    partitions, run, columns = data.shape
    last = scalar_columns(data)
    unused = nl.ndarray((partitions, last), dtype=data.dtype, buffer=nl.sbuf)
    sums = nl.ndarray((partitions, 2, run), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        for i, op in ((0, nl.copy), (1, nl.square)):
            nisa.activation(
                dst=unused, op=op, data=data[:, r, columns - last : columns],
                bias=shifts[:, r : r + 1], reduce_op=nl.add, reduce_res=sums[:, i, r : r + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )  # fmt: skip
    return sums


def row_moments(data: nl.NkiTensor, parts: nl.NkiTensor, sums: nl.NkiTensor | None) -> nl.NkiTensor:
    """Mean and variance of each row, `[partitions, run, 2]`, from its statistics."""
    partitions, run, size = parts.shape
    if sums is not None:
        last = scalar_columns(data)
        mean, spread = parts[:, :, size - 2], parts[:, :, size - 1]
        nisa.scalar_tensor_tensor(
            dst=mean, data=sums[:, 0], op0=nl.multiply, operand0=1.0 / last,
            op1=nl.add, operand1=data[:, :, 0],
        )  # fmt: skip
        product = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=product, data=sums[:, 0], op0=nl.multiply, operand0=-1.0 / last,
            op1=nl.multiply, operand1=sums[:, 0],
        )  # fmt: skip
        nisa.tensor_tensor(dst=spread, data1=sums[:, 1], data2=product, op=nl.add)
    moments = nl.ndarray((partitions, run, 2), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        nisa.bn_aggr(dst=moments[:, r], data=parts[:, r])
    return moments


def inverse_deviations(moments: nl.NkiTensor, epsilon: nl.NkiTensor) -> nl.NkiTensor:
    """1 / sqrt(variance + eps) of each row, `[partitions, run]`."""
    partitions, run, _ = moments.shape
    rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=rstds, op=nl.rsqrt, data=moments[:, :, 1], bias=epsilon[0:partitions])
    return rstds


def negative_means(moments: nl.NkiTensor) -> nl.NkiTensor:
    """`[partitions, run]`"""
    partitions, run, _ = moments.shape
    shifts = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shifts, op=nl.copy, data=moments[:, :, 0], scale=-1.0)
    return shifts


def centre(data: nl.NkiTensor, shifts: nl.NkiTensor) -> nl.NkiTensor:
    """data + shifts in float32, in its place where it is."""
    centred = data
    if data.dtype != nl.float32:
        centred = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    for r in range(data.shape[1]):
        nisa.activation(
            dst=centred[:, r], op=nl.copy, data=data[:, r], bias=shifts[:, r : r + 1]
        )  # fmt: skip
    return centred


def scale(centred: nl.NkiTensor, rstds: nl.NkiTensor, weights: nl.NkiTensor) -> None:
    """centred * rstd * weights, in its place."""
    partitions, run, _ = centred.shape
    for r in range(run):
        nisa.scalar_tensor_tensor(
            dst=centred[:, r], data=centred[:, r], op0=nl.multiply, operand0=rstds[:, r : r + 1],
            op1=nl.multiply, operand1=weights[0:partitions],
        )  # fmt: skip


def add_bias(scaled: nl.NkiTensor, bias: nl.NkiTensor, dtype: str) -> nl.NkiTensor:
    """scaled + bias, rounded to `dtype`."""
    result = scaled
    if dtype != nl.float32:
        result = nl.ndarray(scaled.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=result, data1=scaled, data2=over_rows(bias, scaled), op=nl.add,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip
    return result
