"""Layer norm on three engines at once, of rows with instructions of their own; `_half_rows.py` is
that of rows in half precision which are too long for one `bn_stats`.

A tile is `[partitions, run, columns]`. VectorE takes the statistics with `bn_stats`, which centres
as it goes, ScalarE centres, VectorE scales, GpSimd adds the bias. None of VectorE's instructions is
in a fast mode, which would wait for the port that GpSimd holds. TensorE could add the bias, but its
sums run over the rows of a tile: one NaN would spread to all of them.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._rows import load_vector, over_rows

_CHUNK = 2048  # elements per partition that one engine passes to the next
_NUMBERS = 6  # two triples of count, mean and variance * count, as `bn_stats` gives them


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


def partial_statistics(data: nl.NkiTensor) -> nl.NkiTensor:
    """`bn_stats` of the pieces of each row."""
    partitions, run, columns = data.shape
    most = nl.tile_size.bn_stats_fmax
    pieces = (columns + most - 1) // most
    parts = nl.ndarray((partitions, run, _NUMBERS * pieces), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        for i in range(pieces):
            start, end = i * columns // pieces, (i + 1) * columns // pieces
            place = parts[:, r, _NUMBERS * i : _NUMBERS * (i + 1)]
            nisa.bn_stats(dst=place, data=data[:, r, start:end])
    return parts


def row_moments(parts: nl.NkiTensor) -> nl.NkiTensor:
    """Mean and variance of each row, `[partitions, run, 2]`, from its statistics."""
    partitions, run, _ = parts.shape
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


def store_statistics(
    dst: nl.NkiTensor, per_row: nl.NkiTensor, rows: int, start: int, on_gpsimd: bool = False
) -> None:
    """Values of rows `start ..` to `dst`, which has `rows` elements; ScalarE or GpSimd rounds."""
    partitions, run = per_row.shape
    source = per_row
    if dst.dtype != nl.float32:
        source = nl.ndarray(per_row.shape, dtype=dst.dtype, buffer=nl.sbuf)
        if on_gpsimd:
            nisa.tensor_copy(dst=source, src=per_row, engine=nisa.engine.gpsimd)
        else:
            nisa.activation(dst=source, op=nl.copy, data=per_row)
    flat = dst.reshape((rows,))
    target = flat[start : start + partitions * run].reshape((partitions, run))
    nisa.dma_copy(dst=target, src=source)
