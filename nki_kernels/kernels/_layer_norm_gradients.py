"""NKI helpers of `layer_norm_backward`: the stages of a tile of 128 rows, float32 inside.

ScalarE sums rows up and scales them, VectorE and GpSimd multiply.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._column_sums import (
    Gradients,
    add_columns,
    keep_each,
    new_sums,
    ones_of,
)
from trnx.nki_kernels.kernels._rows import load_vector
from trnx.nki_kernels.kernels._transfers import load_aside

# Tiles whose means and rstds one DMA loads: 256 bytes of a partition each.
_TILES_TOGETHER = 64


class RowValues(NamedTuple):
    """Of the rows of a tile, `[rows, 1]` in float32: mean, its negative, rstd, and what the sums of
    a row are multiplied with: `scale` is -rstd / columns, `square` rstd^2. `tilt` is -mean * scale,
    where ScalarE computes the lines of rows."""

    mean: nl.NkiTensor
    negmean: nl.NkiTensor
    rstd: nl.NkiTensor
    scale: nl.NkiTensor
    square: nl.NkiTensor
    tilt: nl.NkiTensor


class Source(NamedTuple):
    """`mean` and `rstd`, one value a row, in HBM. `group`: the first row of the newest tiles that
    one DMA loaded, and their values, `[128, tiles]`; none at first. `tilts`: those are wanted."""

    mean: nl.NkiTensor
    rstd: nl.NkiTensor
    columns: int
    tilts: bool
    group: list[tuple[int, RowValues]]


class Tile(NamedTuple):
    """Rows of x, of the gradient times the weights, and of the gradient times the centred x."""

    x: nl.NkiTensor
    weighted: nl.NkiTensor
    product: nl.NkiTensor
    rows: RowValues


def no_tiles() -> list[Tile]:
    """As a list to which they come."""
    return []


def load_tile(source: nl.NkiTensor) -> nl.NkiTensor:
    tile = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def statistics_of(s: Source, start: int, end: int, last: int) -> RowValues:
    """Those of rows `start .. end`; rows up to `last` follow."""
    pmax = nl.tile_size.pmax
    if len(s.group) == 0 or start - s.group[0][0] >= pmax * _TILES_TOGETHER:
        until = min(last, start + pmax * _TILES_TOGETHER)
        values = _row_values(s, start, until)
        if len(s.group) > 0:
            s.group.pop()
        s.group.append((start, values))
    first, values = s.group[0]
    i = (start - first) // pmax
    rows = end - start
    return RowValues(
        values.mean[0:rows, i : i + 1],
        values.negmean[0:rows, i : i + 1],
        values.rstd[0:rows, i : i + 1],
        values.scale[0:rows, i : i + 1],
        values.square[0:rows, i : i + 1],
        values.tilt[0:rows, i : i + 1],
    )


def _row_values(s: Source, start: int, end: int) -> RowValues:
    """`[128, tiles]` of each."""
    means = _load_columns(s.mean, start, end)
    rstds = _load_columns(s.rstd, start, end)
    negmeans = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=negmeans, op=nl.copy, data=means, scale=-1.0)
    scales = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=scales, op=nl.copy, data=rstds, scale=-1.0 / s.columns)
    squares = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=squares, op=nl.square, data=rstds)
    tilts = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
    if s.tilts:
        nisa.tensor_tensor(dst=tilts, data1=negmeans, data2=scales, op=nl.multiply)
    return RowValues(means, negmeans, rstds, scales, squares, tilts)


def _load_columns(source: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
    """`[128, tiles]` in float32: rows `start .. end` of a vector, 128 a column; zeros behind the
    last one."""
    pmax = nl.tile_size.pmax
    whole, rest = (end - start) // pmax, (end - start) % pmax
    tiles = whole + (1 if rest > 0 else 0)
    tile = nl.ndarray((pmax, tiles), dtype=source.dtype, buffer=nl.sbuf)
    middle = start + whole * pmax
    if rest > 0:
        nisa.memset(dst=tile[:, whole:tiles], value=0.0)
        load_aside(tile[0:rest, whole:tiles], source[middle:end].reshape((rest, 1)))
    if whole > 0:
        src = source[start:middle].reshape((whole, pmax)).permute((1, 0))
        load_aside(tile[:, 0:whole], src)
    if source.dtype == nl.float32:
        return tile
    wide = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=wide, op=nl.copy, data=tile)
    return wide


def begin(x: nl.NkiTensor, grad: nl.NkiTensor, weights: nl.NkiTensor, rows: RowValues) -> Tile:
    """What is multiplied with the gradient."""
    product = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=product, data=x, op0=nl.subtract, operand0=rows.mean, op1=nl.multiply, operand1=grad
    )
    return Tile(x, _multiply(grad, weights, nisa.engine.gpsimd), product, rows)


def _multiply(a: nl.NkiTensor, b: nl.NkiTensor, engine: object) -> nl.NkiTensor:
    product = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=product, data1=a, data2=b[0 : a.shape[0]], op=nl.multiply, engine=engine)
    return product


def weigh(product: nl.NkiTensor, weights: nl.NkiTensor, share: int) -> nl.NkiTensor:
    """product * weights: VectorE `share` percent of the columns, GpSimd the others."""
    rows, columns = product.shape
    result = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
    end = columns * share // 100
    vector, gpsimd = nisa.engine.vector, nisa.engine.gpsimd
    for start, stop, engine in ((0, end, vector), (end, columns, gpsimd)):
        if start < stop:
            nisa.tensor_tensor(
                dst=result[:, start:stop], data1=product[:, start:stop],
                data2=weights[0:rows, start:stop], op=nl.multiply, engine=engine,
            )  # fmt: skip
    return result


def sum_up(total: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """total[rows, 1] = the sum of each row, on ScalarE."""
    nisa.activation(
        dst=data, op=nl.copy, data=data, reduce_op=nl.add, reduce_res=total,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip


def line_of(line: nl.NkiTensor, tile: Tile, totals: nl.NkiTensor) -> None:
    """line = `x * slope + shift`, both of a row, which is -rstd * (mean(weighted) + (x - mean) *
    rstd^2 * mean(weighted * (x - mean)))."""
    rows = tile.rows
    slope = nl.ndarray(rows.rstd.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=slope, data=totals[:, 1:2], op0=nl.multiply, operand0=rows.square,
        op1=nl.multiply, operand1=rows.scale,
    )  # fmt: skip
    shift = nl.ndarray(rows.rstd.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=shift, data1=totals[:, 0:1], data2=rows.scale, op=nl.multiply)
    nisa.scalar_tensor_tensor(
        dst=shift, data=slope, op0=nl.multiply, operand0=rows.negmean, op1=nl.add, operand1=shift
    )
    nisa.activation(dst=line, op=nl.copy, data=tile.x, scale=slope, bias=shift)


def begin_line(tile: Tile, totals: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """What `line_of` needs of the sums, by ScalarE, which would wait for the two others where tiles
    are long: `mean(weighted * (x - mean)) * rstd^2 * columns`, `-rstd * mean(weighted)`."""
    rows = tile.rows
    bend = nl.ndarray(rows.rstd.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=bend, op=nl.copy, data=totals[:, 1:2], scale=rows.square)
    level = nl.ndarray(rows.rstd.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=level, op=nl.copy, data=totals[:, 0:1], scale=rows.scale)
    return bend, level


def end_line(line: nl.NkiTensor, tile: Tile, bend: nl.NkiTensor, level: nl.NkiTensor) -> None:
    """`line_of` from what `begin_line` gave."""
    rows = tile.rows
    slope = nl.ndarray(level.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=slope, op=nl.copy, data=bend, scale=rows.scale)
    shift = nl.ndarray(level.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shift, op=nl.copy, data=bend, scale=rows.tilt, bias=level)
    nisa.activation(dst=line, op=nl.copy, data=tile.x, scale=slope, bias=shift)


def finish(dx: nl.NkiTensor, start: int, tile: Tile, line: nl.NkiTensor) -> None:
    """Store weighted * rstd + line."""
    rows, columns = tile.x.shape
    result = tile.weighted
    if dx.dtype != nl.float32:
        result = nl.ndarray(tile.x.shape, dtype=dx.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=result, data=tile.weighted, op0=nl.multiply, operand0=tile.rows.rstd,
        op1=nl.add, operand1=line,
    )  # fmt: skip
    flat = dx.reshape((dx.size // columns, columns))
    nisa.dma_copy(dst=flat[start : start + rows], src=result)


def gradients_of_rows(
    x: nl.NkiTensor,
    grad: nl.NkiTensor,
    mean: nl.NkiTensor,
    rstd: nl.NkiTensor,
    weight: nl.NkiTensor,
    dx: nl.NkiTensor,
    results: Gradients,
    first: int,
    last: int,
) -> None:
    """Rows `first .. last` of dx by themselves, one tile behind the other, and the sums over them:
    x, the gradient and dx are `[rows, columns]`, mean and rstd `[rows]`; columns a multiple of
    128."""
    pmax = nl.tile_size.pmax
    columns = x.shape[1]
    source = Source(mean, rstd, columns, False, [])
    weights, ones = load_vector(weight), ones_of(1, grad.dtype)
    weight_sums, bias_sums = new_sums(columns), new_sums(columns)
    for start in range(first, last, pmax):
        end = min(last, start + pmax)
        rows = statistics_of(source, start, end, last)
        gradient = load_tile(grad[start:end])
        tile = begin(load_tile(x[start:end]), gradient, weights, rows)
        add_columns(bias_sums, gradient, ones[0 : end - start], start > first)
        add_columns(weight_sums, tile.product, rows.rstd, start > first)
        totals = nl.ndarray((end - start, 2), dtype=nl.float32, buffer=nl.sbuf)
        sum_up(totals[:, 0:1], tile.weighted)
        line = weigh(tile.product, weights, 100)
        sum_up(totals[:, 1:2], line)
        line_of(line, tile, totals)
        finish(dx, start, tile, line)
    keep_each(results, weight_sums, bias_sums)
