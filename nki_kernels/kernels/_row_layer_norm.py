"""The layer norm of rows that lie in one partition each: narrow ones by the tile, others in stages
(`_half_rows.py` where they are long, in half precision)."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._half_rows import HalfRows, normalise_half_rows
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
from trnx.nki_kernels.kernels._rows import (
    WIDE,
    add_rows,
    combine_rows,
    load_rows,
    load_vector,
    over_rows,
    rows_of,
    scale_rows,
    sum_of_squares,
    tiles_of,
)
from trnx.nki_kernels.kernels._scalar_table import early_epsilon


@nki.jit
def layer_norm_kernel(
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    eps: float,
    columns: int,
    fold: int,
    lag: int,
    stats_shape: tuple[int, ...],
    stats_in_float32: bool,
    shares: tuple[int, int],
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """x and residual of one shape, weight and bias of `columns` -> (out, mean, rstd);
    `cores` share the rows."""
    stats_dtype = nl.float32 if stats_in_float32 else x.dtype
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mean = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rstd = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rows = x.size // columns
    flat = x.reshape((rows, columns))
    other = residual.reshape((rows, columns)) if residual is not None else None
    flat_out = out.reshape((rows, columns))
    epsilon = early_epsilon(eps)
    done, end = share_of(rows, cores)
    if columns >= WIDE:
        starts = tiles_of(done, end, fold)
        if x.dtype == nl.float32 or columns <= nl.tile_size.bn_stats_fmax:
            _long_rows(flat, other, flat_out, (mean, rstd), epsilon, (weight, bias), starts, lag)
        else:
            on_scalar, on_gpsimd = columns * shares[0] // 100, columns * shares[1] // 100
            half = HalfRows(flat, other, flat_out, mean, rstd, epsilon, on_scalar, on_gpsimd)
            normalise_half_rows(half, weight, bias, starts, lag > 0)
        return out, mean, rstd
    weights = load_vector(weight) if weight is not None else None
    biases = load_vector(bias) if bias is not None else None
    while done < end:
        partitions = min(nl.tile_size.pmax, end - done)
        run = min(fold, (end - done) // partitions)
        data = _load(flat, other, done, partitions, run)
        means = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
        centred = _centre(data, means)
        _inverse_deviation(rstds, centred, epsilon)
        result = nl.ndarray(data.shape, dtype=x.dtype, buffer=nl.sbuf)
        _scale_and_shift(result, centred, rstds, weights, biases)
        nisa.dma_copy(dst=rows_of(flat_out, done, partitions, run), src=result)
        store_statistics(mean, means, rows, done)
        store_statistics(rstd, rstds, rows, done)
        done = done + partitions * run
    return out, mean, rstd


def _load(
    x: nl.NkiTensor, residual: nl.NkiTensor | None, start: int, partitions: int, run: int
) -> nl.NkiTensor:
    data = load_rows(x, start, partitions, run)
    if residual is None:
        return data
    return add_rows(data, load_rows(residual, start, partitions, run))


def _long_rows(
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    out: nl.NkiTensor,
    statistics: tuple[nl.NkiTensor, nl.NkiTensor],
    epsilon: nl.NkiTensor,
    parameters: tuple[nl.NkiTensor | None, nl.NkiTensor | None],
    starts: list[tuple[int, int, int]],
    lag: int,
) -> None:
    """Tiles in three stages, so that no engine waits for what another one does now: stage s has the
    tile that is `s * lag` behind the one that is loaded.
    """
    rows, columns = x.shape
    data = []  # type: list[nl.NkiTensor]
    rstds = []  # type: list[nl.NkiTensor]
    shifts = []  # type: list[nl.NkiTensor]
    parts = []  # type: list[nl.NkiTensor]
    steps = 0 if len(starts) == 0 else len(starts) + 2 * lag
    for step in range(steps):
        if step < len(starts):
            data.append(_load(x, residual, starts[step][0], starts[step][1], starts[step][2]))
            parts.append(partial_statistics(data[step]))
        if step == lag:  # behind the tiles with which the engines begin
            vectors = load_parameters(parameters[0], parameters[1], columns, x.dtype)
        i = step - 2 * lag
        centred = None
        if lag > 0 and i >= 0:
            centred = centre(data[i], shifts[i])
        i = step - lag
        if i >= 0 and i < len(starts):
            moments = row_moments(parts[i])
            rstds.append(inverse_deviations(moments, epsilon))
            shifts.append(negative_means(moments))
            store_statistics(statistics[0], moments[:, :, 0], rows, starts[i][0])
            store_statistics(statistics[1], rstds[i], rows, starts[i][0])
        i = step - 2 * lag
        if lag == 0:
            centred = centre(data[i], shifts[i])
        if i >= 0:
            result = scale_and_shift(centred, rstds[i], vectors[0], vectors[1], x.dtype)
            nisa.dma_copy(dst=rows_of(out, starts[i][0], starts[i][1], starts[i][2]), src=result)


def _centre(data: nl.NkiTensor, means: nl.NkiTensor) -> nl.NkiTensor:
    """Each row minus its mean, which goes to `means`."""
    totals = nl.ndarray(means.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=totals, op=nl.add, data=data, axis=2)
    nisa.tensor_scalar(dst=means, data=totals, op0=nl.multiply, operand0=1.0 / data.shape[2])
    centred = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    combine_rows(centred, data, means, nl.subtract)
    return centred


def _inverse_deviation(rstds: nl.NkiTensor, centred: nl.NkiTensor, epsilon: nl.NkiTensor) -> None:
    """1 / sqrt(variance + eps) of centred rows."""
    totals = nl.ndarray(rstds.shape, dtype=nl.float32, buffer=nl.sbuf)
    sum_of_squares(totals, centred)
    nisa.activation(
        dst=rstds,
        op=nl.rsqrt,
        data=totals,
        scale=1.0 / centred.shape[2],
        bias=epsilon[0 : rstds.shape[0]],
    )


def _scale_and_shift(
    dst: nl.NkiTensor,
    centred: nl.NkiTensor,
    rstds: nl.NkiTensor,
    weights: nl.NkiTensor | None,
    biases: nl.NkiTensor | None,
) -> None:
    """dst = centred * rstds * weights + biases."""
    if biases is None:
        scale_rows(dst, centred, rstds, weights)
    else:
        scaled = nl.ndarray(centred.shape, dtype=nl.float32, buffer=nl.sbuf)
        scale_rows(scaled, centred, rstds, weights)
        nisa.tensor_tensor(dst=dst, data1=scaled, data2=over_rows(biases, centred), op=nl.add)
