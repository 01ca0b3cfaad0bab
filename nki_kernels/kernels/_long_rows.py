"""Layer norm of rows that are too long for one `bn_stats`, on three engines at once.

A tile is `[partitions, run, columns]`. VectorE takes the statistics with `bn_stats`, which centres
as it goes; in half precision, where DMA takes half of the time, ScalarE takes those of the last
half or so of the columns, so that the three engines are about as busy. ScalarE centres, VectorE
scales, GpSimd adds the bias. None of VectorE's instructions is in a fast mode, which would wait for
the port that GpSimd holds. TensorE could add the bias, but its sums run over the rows of a tile:
one NaN would spread to all of them.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._rows import load_vector, over_rows

_ON_SCALAR = 47  # percent of the statistics, in half precision
_CHUNK = 2048  # elements per partition that one engine passes to the next
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


def scalar_columns(data: nl.NkiTensor) -> int:
    """How many of the last columns' statistics ScalarE takes; the same for every tile, so that a
    row has the same result wherever it stands."""
    return 0 if data.dtype == nl.float32 else data.shape[2] * _ON_SCALAR // 100


def partial_statistics(data: nl.NkiTensor) -> nl.NkiTensor:
    """`bn_stats` of the pieces of VectorE's columns of each row, with a free triple for ScalarE's
    columns if it has any.
    """
    partitions, run, columns = data.shape
    most = nl.tile_size.bn_stats_fmax
    last = scalar_columns(data)
    first = columns - last
    pieces = (first + most - 1) // most
    size = 2 * _TRIPLE * pieces + (_TRIPLE if last > 0 else 0)
    parts = nl.ndarray((partitions, run, size), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        for i in range(pieces):
            start, end = i * first // pieces, (i + 1) * first // pieces
            place = parts[:, r, 2 * _TRIPLE * i : 2 * _TRIPLE * (i + 1)]
            nisa.bn_stats(dst=place, data=data[:, r, start:end])
    if last > 0:  # VectorE would wait for it before the rest
        count = parts[:, :, size - 3]
        nisa.memset(dst=count, value=float(last), engine=nisa.engine.gpsimd)
    return parts


def shifted_sums(data: nl.NkiTensor, parts: nl.NkiTensor) -> nl.NkiTensor | None:
    """`[partitions, 2, run]`: the sums of ScalarE's columns and of their squares, if it has some,
    as distances of the elements from a mean of some others, so that neither a large mean nor an
    outlier costs accuracy.
    """
    partitions, run, columns = data.shape
    last = scalar_columns(data)
    if last == 0:
        return None
    unused = nl.ndarray((partitions, last), dtype=data.dtype, buffer=nl.sbuf)
    sums = nl.ndarray((partitions, 2, run), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        for i, op in ((0, nl.copy), (1, nl.square)):
            nisa.activation(
                dst=unused, op=op, data=data[:, r, columns - last : columns], scale=-1.0,
                bias=parts[:, r, 1:2], reduce_op=nl.add, reduce_res=sums[:, i, r : r + 1],
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
            dst=mean, data=sums[:, 0], op0=nl.multiply, operand0=-1.0 / last,
            op1=nl.add, operand1=parts[:, :, 1],
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


def chunks_of(run: int, columns: int) -> list[tuple[int, int, int, int]]:
    """Parts of a tile, `(first row, end, first column, end)`, which go from engine to engine one by
    one: some whole rows, or columns of one."""
    chunks = []  # type: list[tuple[int, int, int, int]]
    rows = max(1, _CHUNK // columns)
    pieces = (columns + _CHUNK - 1) // _CHUNK
    for first in range(0, run, rows):
        for i in range(pieces):
            place = (i * columns // pieces, (i + 1) * columns // pieces)
            chunks.append((first, min(run, first + rows), place[0], place[1]))
    return chunks


def centre(data: nl.NkiTensor, shifts: nl.NkiTensor) -> nl.NkiTensor:
    """data + shifts in float32, in its place where it is."""
    centred = data
    if data.dtype != nl.float32:
        centred = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    for first, end, start, stop in chunks_of(data.shape[1], data.shape[2]):
        for r in range(first, end):
            nisa.activation(
                dst=centred[:, r, start:stop], op=nl.copy, data=data[:, r, start:stop],
                bias=shifts[:, r : r + 1],
            )  # fmt: skip
    return centred


def scale_and_shift(
    centred: nl.NkiTensor,
    rstds: nl.NkiTensor,
    weights: nl.NkiTensor,
    bias: nl.NkiTensor,
    dtype: str,
) -> nl.NkiTensor:
    """centred * rstd * weights, in its place, + bias, rounded to `dtype`."""
    partitions, run, columns = centred.shape
    result = centred
    if dtype != nl.float32:
        result = nl.ndarray(centred.shape, dtype=dtype, buffer=nl.sbuf)
    for first, end, start, stop in chunks_of(run, columns):
        for r in range(first, end):
            part = centred[:, r, start:stop]
            nisa.scalar_tensor_tensor(
                dst=part, data=part, op0=nl.multiply, operand0=rstds[:, r : r + 1],
                op1=nl.multiply, operand1=weights[0:partitions, start:stop],
            )  # fmt: skip
        part = centred[:, first:end, start:stop]
        nisa.tensor_tensor(
            dst=result[:, first:end, start:stop], data1=part,
            data2=over_rows(bias[:, start:stop], part), op=nl.add, engine=nisa.engine.gpsimd,
        )  # fmt: skip
    return result


def store_statistics(dst: nl.NkiTensor, per_row: nl.NkiTensor, rows: int, start: int) -> None:
    """Values of rows `start ..` to `dst`, which has `rows` elements."""
    partitions, run = per_row.shape
    source = per_row
    if dst.dtype != nl.float32:
        source = nl.ndarray(per_row.shape, dtype=dst.dtype, buffer=nl.sbuf)
        nisa.activation(dst=source, op=nl.copy, data=per_row)
    flat = dst.reshape((rows,))
    target = flat[start : start + partitions * run].reshape((partitions, run))
    nisa.dma_copy(dst=target, src=source)
