"""NKI helpers of a layer norm of tiles that a product leaves in SBUF (`linear_layer_norm`).

A tile is float32 `[rows, columns]` with whole rows. The scaling of a tile comes behind the
statistics of the next one, so that VectorE does not wait for ScalarE, which centres in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._long_rows import (
    centre,
    inverse_deviations,
    load_parameters,
    negative_means,
    partial_statistics,
    row_moments,
    scale_and_shift,
    store_statistics,
)
from trnx.nki_kernels.kernels._scalar_table import early_epsilon

# Percent of the columns that VectorE multiplies with the weight, and to which it adds the bias, as
# GpSimd does with the rest; of the last tile, behind which it has nothing else to do.
_SCALED_ON_VECTOR = 35
_ON_VECTOR = 0
_ON_VECTOR_LAST = 62


class Waiting(NamedTuple):
    """A tile `[rows, 1, columns]`, centred, that is not scaled yet: rows `row ..` of the result."""

    row: int
    centred: nl.NkiTensor
    rstds: nl.NkiTensor | None


class RowNorm(NamedTuple):
    """What is done with the rows of a product. HBM: `weight` and `bias` `[N]` or None, `total`
    `[M, N]` gets the sum that is normalised, `mean` and `rstd` its statistics, where they are not
    None. `epsilon` `[128, 1]` in SBUF; `ones` `[1, 128]`, by which TensorE adds the bias of the
    product, in half precision. `vectors`: weight and bias in SBUF, none at first;
    `waiting`: at most one tile.
    """

    weight: nl.NkiTensor | None
    bias: nl.NkiTensor | None
    epsilon: nl.NkiTensor
    ones: nl.NkiTensor | None
    total: nl.NkiTensor | None
    mean: nl.NkiTensor | None
    rstd: nl.NkiTensor | None
    vectors: list[tuple[nl.NkiTensor, nl.NkiTensor]]
    waiting: list[Waiting]


class RowResults(NamedTuple):
    """Results in HBM `[..., N]`, `mean` and `rstd` `[..., 1]`; those that are not wanted None."""

    out: nl.NkiTensor
    total: nl.NkiTensor | None
    mean: nl.NkiTensor | None
    rstd: nl.NkiTensor | None


def new_row_results(
    shape: tuple[int, ...], dtype: str, with_statistics: bool, with_total: bool
) -> RowResults:
    """Unfilled results for rows of `shape`."""
    mean, rstd, total = None, None, None
    if with_statistics:
        mean = nl.ndarray(shape[:-1] + (1,), dtype=dtype, buffer=nl.shared_hbm)
        rstd = nl.ndarray(shape[:-1] + (1,), dtype=dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
    if with_total:
        total = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
    return RowResults(out, total, mean, rstd)


def returned(results: RowResults) -> Any:
    """What a kernel returns of them: mean, rstd, out and total, as far as they are wanted."""
    outs = [results.out]
    if results.mean is not None and results.rstd is not None:
        outs = [results.mean, results.rstd, results.out]
    if results.total is not None:
        outs.append(results.total)
    if len(outs) == 1:
        return outs[0]
    return tuple(outs)


def new_row_norm(
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    eps: float,
    results: RowResults,
    multiplies_bias: bool,
) -> RowNorm:
    """The norm of rows that gives `results`; `multiplies_bias`: TensorE has time for the bias of
    the product, which it adds in half precision alone."""
    epsilon = early_epsilon(eps)
    ones = None
    if multiplies_bias and results.out.dtype != nl.float32:
        ones = nl.ndarray((1, nl.tile_size.pmax), dtype=results.out.dtype, buffer=nl.sbuf)
        nisa.memset(dst=ones, value=1.0)
    total = results.total
    if total is not None:
        total = total.reshape((total.size // total.shape[-1], total.shape[-1]))
    return RowNorm(weight, bias, epsilon, ones, total, results.mean, results.rstd, [], [])


def normalise(norm: RowNorm, out: nl.NkiTensor, row: int, tile: nl.NkiTensor) -> None:
    """Rows `row ..` of `out[M, N]` from those of the product; `flush` stores the last ones."""
    rows, columns = tile.shape
    if len(norm.vectors) == 0:  # behind the loads of the first products
        norm.vectors.append(load_parameters(norm.weight, norm.bias, columns, out.dtype))
    data = tile.reshape((rows, 1, columns))
    if norm.total is not None:
        total = nl.ndarray(tile.shape, dtype=out.dtype, buffer=nl.sbuf)
        nisa.activation(dst=total, op=nl.copy, data=tile)
        nisa.dma_copy(dst=norm.total[row : row + rows], src=total)
    moments = row_moments(partial_statistics(data))
    rstds = inverse_deviations(moments, norm.epsilon)
    if norm.mean is not None and norm.rstd is not None:
        store_statistics(norm.mean, moments[:, :, 0], out.shape[0], row)
        store_statistics(norm.rstd, rstds, out.shape[0], row)
    if out.dtype == nl.float32:
        waiting = Waiting(row, centre(data, negative_means(moments)), rstds)
    else:
        waiting = Waiting(row, _standardise(data, moments, rstds), None)
    _finish(norm, out, False)
    norm.waiting.append(waiting)


def flush(norm: RowNorm, out: nl.NkiTensor) -> None:
    """Scale and store the tile that waits, if there is one; no more follow."""
    _finish(norm, out, True)


def _standardise(data: nl.NkiTensor, moments: nl.NkiTensor, rstds: nl.NkiTensor) -> nl.NkiTensor:
    """(data - mean) * rstd in float32, by one instruction of ScalarE, as data * rstd - mean * rstd:
    what that costs in accuracy is below the rounding to half precision, unless the mean is so large
    that the terms of the sum were rounded to more."""
    shifts = nl.ndarray(rstds.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shifts, op=nl.copy, data=negative_means(moments), scale=rstds[:, 0:1])
    result = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=result[:, 0], op=nl.copy, data=data[:, 0], scale=rstds[:, 0:1], bias=shifts[:, 0:1]
    )
    return result


def _finish(norm: RowNorm, out: nl.NkiTensor, is_last: bool) -> None:
    """Scale and store the tile that waits, if there is one."""
    if len(norm.waiting) == 0:
        return
    done = norm.waiting.pop()
    weight, bias = norm.vectors[0]
    if done.rstds is not None:
        result = scale_and_shift(done.centred, done.rstds, weight, bias, out.dtype)
    else:
        result = _affine(done.centred, weight, bias, out.dtype, is_last)
    rows = result.shape[0]
    nisa.dma_copy(dst=out[done.row : done.row + rows], src=result.reshape((rows, result.shape[2])))


def _affine(
    data: nl.NkiTensor, weight: nl.NkiTensor, bias: nl.NkiTensor, dtype: str, is_last: bool
) -> nl.NkiTensor:
    """data * weight, in its place, + bias, rounded to `dtype`: VectorE, which has more to do with
    the next tile, and GpSimd share the columns."""
    columns = data.shape[2]
    result = nl.ndarray(data.shape, dtype=dtype, buffer=nl.sbuf)
    both = columns * (_ON_VECTOR_LAST if is_last else _ON_VECTOR) // 100
    scaled = both if is_last else columns * _SCALED_ON_VECTOR // 100
    for first, end, on_vector in ((0, scaled, True), (scaled, columns, False)):
        _combine(data, data, weight, nl.multiply, (first, end), on_vector)
    for first, end, on_vector in ((0, both, True), (both, columns, False)):
        _combine(result, data, bias, nl.add, (first, end), on_vector)
    return result


def _combine(
    dst: nl.NkiTensor,
    data: nl.NkiTensor,
    vector: nl.NkiTensor,
    op: Any,
    columns: tuple[int, int],
    on_vector: bool,
) -> None:
    """`dst = op(data, vector)` of columns `first .. end` of tiles `[rows, 1, N]`."""
    first, end = columns
    if first < end:
        nisa.tensor_tensor(
            dst=dst[:, 0, first:end], data1=data[:, 0, first:end],
            data2=vector[0 : data.shape[0], first:end], op=op,
            engine=nisa.engine.vector if on_vector else nisa.engine.gpsimd,
        )  # fmt: skip
