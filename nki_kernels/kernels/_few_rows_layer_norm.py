"""The layer norm of few long rows, which lie in several partitions each (`_few_rows.py`)."""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._few_rows import (
    chunks_of,
    inverse_roots,
    load_parts,
    load_vector_parts,
    over_parts,
    store_parts,
    store_row_values,
    to_parts,
)
from trnx.nki_kernels.kernels._rows import add_rows


@nki.jit
def few_rows_layer_norm_kernel(
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    eps: float,
    columns: int,
    parts: int,
    stats_shape: tuple[int, ...],
    stats_in_float32: bool,
    cores: int = 1,
) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """As `layer_norm_kernel`; each row in `parts` partitions."""
    stats_dtype = nl.float32 if stats_in_float32 else x.dtype
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mean = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rstd = nl.ndarray(stats_shape, dtype=stats_dtype, buffer=nl.shared_hbm)
    rows = x.size // columns
    first, end = share_of(rows, cores)
    if first == end:
        return out, mean, rstd
    data = load_parts(x.reshape((rows, columns)), first, end, parts)
    if residual is not None:
        data = add_rows(data, load_parts(residual.reshape((rows, columns)), first, end, parts))
    weights = load_vector_parts(weight, end - first, parts) if weight is not None else None
    biases = load_vector_parts(bias, end - first, parts) if bias is not None else None
    means, rstds = _row_moments(_part_moments(data), parts, eps)
    store_row_values(mean, means, rows, first)
    store_row_values(rstd, rstds, rows, first)
    moments = to_parts([means, rstds], parts)
    result = nl.ndarray(data.shape, dtype=x.dtype, buffer=nl.sbuf)
    for start, stop in chunks_of(data.shape[1]):
        _normalise(result, data, moments, weights, biases, (start, stop))
        store_parts(out.reshape((rows, columns)), first, result, start, stop, parts)
    return out, mean, rstd


def _part_moments(data: nl.NkiTensor) -> nl.NkiTensor:
    """Mean and variance of each part, `[partitions, 2]`."""
    partitions, columns = data.shape
    most = nl.tile_size.bn_stats_fmax
    pieces = (columns + most - 1) // most
    found = nl.ndarray((partitions, 6 * pieces), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(pieces):
        start, end = i * columns // pieces, (i + 1) * columns // pieces
        nisa.bn_stats(dst=found[:, 6 * i : 6 * (i + 1)], data=data[:, start:end])
    moments = nl.ndarray((partitions, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.bn_aggr(dst=moments, data=found)
    return moments


def _row_moments(
    moments: nl.NkiTensor, parts: int, eps: float
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Mean and 1 / sqrt(variance + eps) of each row, `[1, rows]`, from those of its parts: the
    variance is the mean one of the parts, and that of their means."""
    part_means = over_parts(moments[:, 0:1], parts)
    part_variances = over_parts(moments[:, 1:2], parts)
    shape = (1, part_means.shape[1])
    means = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=means, op=nl.add, data=part_means, axis=2)
    nisa.tensor_scalar(
        dst=means, data=means, op0=nl.multiply, operand0=1.0 / parts, engine=nisa.engine.vector
    )
    distances = nl.ndarray(part_means.shape, dtype=nl.float32, buffer=nl.sbuf)
    spread = means.expand_dim(2).broadcast(2, parts)
    nisa.tensor_tensor(dst=distances, data1=part_means, data2=spread, op=nl.subtract)
    squares = nl.ndarray(part_means.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=squares, data1=distances, data2=distances, op=nl.multiply)
    nisa.tensor_tensor(dst=squares, data1=squares, data2=part_variances, op=nl.add)
    totals = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=totals, op=nl.add, data=squares, axis=2)
    return means, inverse_roots(totals, 1.0 / parts, eps)


def _normalise(
    result: nl.NkiTensor,
    data: nl.NkiTensor,
    moments: nl.NkiTensor,
    weights: nl.NkiTensor | None,
    biases: nl.NkiTensor | None,
    place: tuple[int, int],
) -> None:
    """Columns `place` of the result: (data - mean) * rstd * weights + biases."""
    start, end = place
    part, goal = data[:, start:end], result[:, start:end]
    mean, rstd = moments[:, 0:1], moments[:, 1:2]
    if weights is not None and biases is not None:
        # The weights before rstd: two passes, not three.
        scaled = nl.ndarray(part.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=scaled, data=part, op0=nl.subtract, operand0=mean,
            op1=nl.multiply, operand1=weights[:, start:end],
        )  # fmt: skip
        nisa.scalar_tensor_tensor(
            dst=goal, data=scaled, op0=nl.multiply, operand0=rstd,
            op1=nl.add, operand1=biases[:, start:end],
        )  # fmt: skip
        return
    normal = goal
    if weights is not None or biases is not None:
        normal = nl.ndarray(part.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=normal, data=part, op0=nl.subtract, operand0=mean,
        op1=nl.multiply, operand1=rstd, engine=nisa.engine.vector,
    )  # fmt: skip
    if weights is not None:
        nisa.tensor_tensor(dst=goal, data1=normal, data2=weights[:, start:end], op=nl.multiply)
    if biases is not None:
        nisa.tensor_tensor(dst=goal, data1=normal, data2=biases[:, start:end], op=nl.add)
