"""Norms of few long rows: a row lies in several partitions, so that few rows use all of them.

A tile is `[rows * parts, columns / parts]`: the parts of a row follow each other. What is known of
each part, `[rows * parts, 1]`, is turned by TensorE into `[1, rows * parts]`, where the parts of a
row lie side by side, and what follows for each row is turned back. A transposition moves values and
adds nothing up, so a row that is not finite leaves the others alone.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.simulator.hardware import Hardware

_LEAST = 128  # columns of a part, so that an instruction does more than start
_TURNS = 512  # columns fewer in an instruction pay for the transpositions (by schedule)
_CHUNK = 1024  # columns that are stored while the next ones are computed


def parts_of(rows: int, columns: int, hw: Hardware) -> int:
    """In how many equal parts rows are cut so that they fill the partitions of a core; 1 where they
    do without. The same where two cores share the rows, so that sums are."""
    most = hw.partitions // rows
    parts = 1
    while 2 * parts <= most and columns % (2 * parts) == 0 and columns // (2 * parts) >= _LEAST:
        parts *= 2
    return parts if columns - columns // parts > _TURNS else 1


def load_parts(x: nl.NkiTensor, first: int, end: int, parts: int) -> nl.NkiTensor:
    """Rows `first .. end` of `x[rows, columns]`."""
    rows, columns = x.shape
    cut = x.reshape((rows * parts, columns // parts))[first * parts : end * parts]
    tile = nl.ndarray(cut.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=cut)
    return tile


def load_vector_parts(vector: nl.NkiTensor, rows: int, parts: int) -> nl.NkiTensor:
    """`vector[columns]` for each of so many rows."""
    columns = vector.size // parts
    tile = nl.ndarray((rows * parts, columns), dtype=vector.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=vector.reshape((1, parts, columns)).broadcast(0, rows))
    return tile


def over_parts(values: nl.NkiTensor, parts: int) -> nl.NkiTensor:
    """Values of the parts, `[rows * parts, 1]` in float32, as `[1, rows, parts]` in PSUM."""
    turned = nl.ndarray((1, values.shape[0]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=values, engine=nisa.engine.tensor)
    return turned.reshape((1, values.shape[0] // parts, parts))


def inverse_roots(totals: nl.NkiTensor, scale: float, eps: float) -> nl.NkiTensor:
    """1 / sqrt(totals * scale + eps) of rows, `[1, rows]` in float32.

    On GpSimd, which is more precise (SDK nki.api.shared): ScalarE would load a table for it first,
    which takes longer than all else that is done with so few numbers.
    """
    moments = nl.ndarray(totals.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=moments, data=totals, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=eps,
        engine=nisa.engine.vector,
    )  # fmt: skip
    roots = nl.ndarray(totals.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=roots, data=moments, op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.gpsimd
    )
    return roots


def to_parts(values: list[nl.NkiTensor], parts: int) -> nl.NkiTensor:
    """Values of rows, each `[1, rows]` in float32, for each of their parts: `[rows * parts, i]`."""
    rows = values[0].shape[1]
    turned = nl.ndarray((rows * parts, len(values)), dtype=nl.float32, buffer=nl.psum)
    for i in range(len(values)):
        spread = nl.ndarray((1, rows, parts), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(
            dst=spread, src=values[i].expand_dim(2).broadcast(2, parts), engine=nisa.engine.vector
        )
        flat = spread.reshape((1, rows * parts))
        nisa.nc_transpose(dst=turned[:, i : i + 1], data=flat, engine=nisa.engine.tensor)
    result = nl.ndarray(turned.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=turned, engine=nisa.engine.vector)
    return result


def chunks_of(columns: int) -> list[tuple[int, int]]:
    """Columns `start .. end` of a part, stored one after the other."""
    chunks = []  # type: list[tuple[int, int]]
    for start in range(0, columns, _CHUNK):
        chunks.append((start, min(columns, start + _CHUNK)))
    return chunks


def store_parts(
    x: nl.NkiTensor, first: int, tile: nl.NkiTensor, start: int, end: int, parts: int
) -> None:
    """Columns `start .. end` of the parts of rows from `first` on of `x[rows, columns]`."""
    rows, columns = x.shape
    cut = x.reshape((rows * parts, columns // parts))
    nisa.dma_copy(
        dst=cut[first * parts : first * parts + tile.shape[0], start:end], src=tile[:, start:end]
    )


def store_row_values(dst: nl.NkiTensor, values: nl.NkiTensor, rows: int, first: int) -> None:
    """`values[1, count]` of the rows from `first` on, in the dtype of `dst`, which has `rows`."""
    source = values
    if dst.dtype != nl.float32:
        source = nl.ndarray(values.shape, dtype=dst.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=source, src=values, engine=nisa.engine.vector)
    nisa.dma_copy(dst=dst.reshape((1, rows))[:, first : first + values.shape[1]], src=source)
