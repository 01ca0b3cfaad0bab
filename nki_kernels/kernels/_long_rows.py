"""Layer norm of rows that are too long for one `bn_stats`, on three engines at once.

A tile is `[partitions, run, columns]`. VectorE takes the statistics with `bn_stats`, which centres
as it goes; in half precision, where DMA takes half of the time, ScalarE takes about half of them
(whole rows where a partition has several, else columns), so that the three engines are as busy.
ScalarE centres, VectorE scales, GpSimd adds the bias. None of VectorE's instructions is in a fast
mode, which would wait for the port that GpSimd holds. TensorE could add the bias, but its sums run
over the rows of a tile: one NaN would spread to all of them.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._rows import load_vector, over_rows

_ON_SCALAR = 47  # percent of the statistics, in half precision
_CHUNK = 2048  # elements per partition that one engine passes to the next
_SHIFT = 64  # elements from whose mean ScalarE takes the distances of a row
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


def scalar_part(data: nl.NkiTensor) -> tuple[int, int]:
    """How many of the last rows of each partition, or of the last columns where there is one row,
    are ScalarE's; at most one of the two is not 0.
    """
    _, run, columns = data.shape
    if data.dtype == nl.float32:
        return 0, 0
    if run == 1:
        return 0, columns * _ON_SCALAR // 100
    return (run * _ON_SCALAR + 50) // 100, 0


def partial_statistics(data: nl.NkiTensor) -> nl.NkiTensor:
    """`bn_stats` of the pieces of VectorE's part of each row, with a free triple for ScalarE's
    columns if it has any; of its rows, those of the first elements.
    """
    partitions, run, columns = data.shape
    most = nl.tile_size.bn_stats_fmax
    last_rows, last = scalar_part(data)
    first = columns - last
    pieces = (first + most - 1) // most
    size = 2 * _TRIPLE * pieces + (_TRIPLE if last > 0 else 0)
    parts = nl.ndarray((partitions, run, size), dtype=nl.float32, buffer=nl.sbuf)
    if last > 0:
        count = parts[:, :, size - 3]
        nisa.memset(dst=count, value=float(last), engine=nisa.engine.gpsimd)
    for r in range(run - last_rows, run):
        nisa.bn_stats(dst=parts[:, r, 0 : 2 * _TRIPLE], data=data[:, r, 0:_SHIFT])
    for i in range(pieces):
        start, end = i * first // pieces, (i + 1) * first // pieces
        for r in range(run - last_rows):
            place = parts[:, r, 2 * _TRIPLE * i : 2 * _TRIPLE * (i + 1)]
            nisa.bn_stats(dst=place, data=data[:, r, start:end])
    return parts


def shifted_sums(data: nl.NkiTensor, parts: nl.NkiTensor) -> nl.NkiTensor | None:
    """`[partitions, 2, rows]`: the sums of ScalarE's part of its rows and of their squares, if it
    has one, as distances of the elements from a mean of some others, so that neither a large mean
    nor an outlier costs accuracy.
    """
    partitions, run, columns = data.shape
    rows, last = scalar_part(data)
    if rows == 0 and last == 0:
        return None
    if rows == 0:
        rows = run
    first = columns - last if last > 0 else 0
    unused = nl.ndarray((partitions, columns - first), dtype=data.dtype, buffer=nl.sbuf)
    sums = nl.ndarray((partitions, 2, rows), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(rows):
        r = run - rows + i
        for j, op in ((0, nl.copy), (1, nl.square)):
            nisa.activation(
                dst=unused, op=op, data=data[:, r, first:columns], scale=-1.0,
                bias=parts[:, r, 1:2], reduce_op=nl.add, reduce_res=sums[:, j, i : i + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )  # fmt: skip
    return sums


def row_moments(data: nl.NkiTensor, parts: nl.NkiTensor, sums: nl.NkiTensor | None) -> nl.NkiTensor:
    """Mean and variance of each row, `[partitions, run, 2]`, from its statistics."""
    partitions, run, size = parts.shape
    rows, last = scalar_part(data)
    moments = nl.ndarray((partitions, run, 2), dtype=nl.float32, buffer=nl.sbuf)
    if rows > 0:
        first = run - rows
        factor = 1.0 / data.shape[2]
        _from_sums(moments[:, first:run], parts[:, first:run, 1], sums, factor, factor)
    elif sums is not None:
        _from_sums(parts[:, :, size - 2 : size], parts[:, :, 1], sums, 1.0 / last, 1.0)
    for r in range(run - rows):
        nisa.bn_aggr(dst=moments[:, r], data=parts[:, r])
    return moments


def _from_sums(
    moments: nl.NkiTensor, shifts: nl.NkiTensor, sums: nl.NkiTensor, share: float, factor: float
) -> None:
    """Mean and factor / share * variance, `[.., 2]`, of 1 / share elements, of whose distances from
    `shifts` there are the sums."""
    total = sums[:, 0]
    nisa.scalar_tensor_tensor(
        dst=moments[:, :, 0], data=total, op0=nl.multiply, operand0=-share,
        op1=nl.add, operand1=shifts,
    )  # fmt: skip
    product = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=product, data=total, op0=nl.multiply, operand0=-share * factor,
        op1=nl.multiply, operand1=total,
    )  # fmt: skip
    nisa.scalar_tensor_tensor(
        dst=moments[:, :, 1], data=sums[:, 1], op0=nl.multiply, operand0=factor,
        op1=nl.add, operand1=product,
    )  # fmt: skip


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
