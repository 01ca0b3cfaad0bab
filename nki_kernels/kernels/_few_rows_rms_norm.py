"""The RMS norm of few long rows, which lie in several partitions each (`_few_rows.py`)."""

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
    to_parts,
)
from trnx.nki_kernels.kernels._rows import (
    add_rows,
    offset_vector,
    scale_rows,
    sum_of_squares,
)


@nki.jit
def few_rows_rms_norm_kernel(
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    weight: nl.NkiTensor | None,
    eps: float,
    offset: float,
    rounds: bool,
    returns_sum: bool,
    parts: int,
    cores: int = 1,
) -> nl.NkiTensor | tuple[nl.NkiTensor, nl.NkiTensor]:
    """As `rms_norm_kernel`; each row in `parts` partitions."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) if returns_sum else None
    columns = x.shape[-1]
    rows = x.size // columns
    first, end = share_of(rows, cores)
    if first < end:
        data = load_parts(x.reshape((rows, columns)), first, end, parts)
        if residual is not None:
            data = add_rows(data, load_parts(residual.reshape((rows, columns)), first, end, parts))
        if total is not None:
            store_parts(
                total.reshape((rows, columns)), first, data, 0, data.shape[1], parts
            )  # fmt: skip
        weights = None
        if weight is not None:
            weights = offset_vector(load_vector_parts(weight, end - first, parts), offset)
        rstds = _inverse_roots(data, parts, eps)
        result = nl.ndarray(data.shape, dtype=x.dtype, buffer=nl.sbuf)
        for start, stop in chunks_of(data.shape[1]):
            factors = weights[:, start:stop] if weights is not None else None
            part = data[:, start:stop].expand_dim(1)
            scale_rows(result[:, start:stop].expand_dim(1), part, rstds, factors, rounds)
            store_parts(out.reshape((rows, columns)), first, result, start, stop, parts)
    if total is None:
        return out
    return out, total


def _inverse_roots(data: nl.NkiTensor, parts: int, eps: float) -> nl.NkiTensor:
    """1 / sqrt(mean(data^2) + eps) of the row of each partition, `[partitions, 1]`."""
    sums = nl.ndarray((data.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    sum_of_squares(sums, data.expand_dim(1))
    turned = over_parts(sums, parts)
    totals = nl.ndarray((1, turned.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=totals, op=nl.add, data=turned, axis=2)
    roots = inverse_roots(totals, 1.0 / (parts * data.shape[1]), eps)
    return to_parts([roots], parts)
