"""NKI helpers of products of few rows with weights `[K, N]`, N adjacent in memory, which take the
time of reading the weights.

A partition takes neighbouring rows of K: what a load brings to it lies in one run of memory, also
where N is small, and so does its part of a row of x. The order of K does not matter to a product,
as long as x and the weights have the same.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._matmul import Part
from trnx.nki_kernels.kernels._matmul_epilogue import (
    Epilogue,
    evict,
    finish_tile,
    load_added,
    load_bias,
)

# Columns whose sums are in PSUM at a time: half of its banks, so that the next ones begin while
# these are evicted.
_COLUMNS = 2048
# Of weights, that one DMA brings.
_PIECE_ELEMENTS = 256 * 1024
# Rows that are loaded by partitions.
_DEALT_ROWS = 16


def neighbours_product(
    out: nl.NkiTensor, x: nl.NkiTensor, w: nl.NkiTensor, then: Epilogue, part: Part
) -> None:
    """A part of `out[M, N] = activation(x[M, K] @ w[N, K].T + bias[N]) + residual[M, N]`: K whole
    chunks of 128, the second dimension of x and the first of w adjacent in memory, M 128 at most.
    """
    if part.row == part.end_row or part.col == part.end_col:
        return
    pmax = nl.tile_size.pmax
    fmax = nl.tile_size.psum_bank_fmax
    rows = part.end_row - part.row
    chunks = x.shape[1] // pmax
    data = _load_rows(x[part.row : part.end_row])
    # [128, chunks, N]
    source = w.reshape_dim(1, (pmax, chunks)).permute((1, 2, 0))
    for col in range(part.col, part.end_col, _COLUMNS):
        cols = min(_COLUMNS, part.end_col - col)
        banks = []
        for left in range(0, cols, fmax):
            width = min(fmax, cols - left)
            banks.append(nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum))
        at_once = max(1, _PIECE_ELEMENTS // (cols * pmax))
        for first in range(0, chunks, at_once):
            count = min(at_once, chunks - first)
            weights = nl.ndarray((pmax, count, cols), dtype=w.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=weights, src=source[:, first : first + count, col : col + cols])
            for c in range(count):
                for n in range(len(banks)):
                    left = n * fmax
                    nisa.nc_matmul(
                        dst=banks[n],
                        stationary=data[:, first + c, :],
                        moving=weights[:, c, left : left + banks[n].shape[1]],
                    )
        # Behind the weights, which the products wait for.
        bias = load_bias(then, col, cols, rows)
        added = load_added(then, part.row, col, bias, rows, cols)
        tile = nl.ndarray((rows, cols), dtype=out.dtype, buffer=nl.sbuf)
        for n in range(len(banks)):
            left = n * fmax
            width = banks[n].shape[1]
            own = None
            if bias is not None and added is None:
                own = bias[0:rows, left : left + width]
            other = None
            if added is not None:
                other = added[0:rows, left : left + width]
            evict(tile[:, left : left + width], None, banks[n], own, other, then)
        finish_tile(out, part.row, col, tile, None, then)


def _load_rows(x: nl.NkiTensor) -> nl.NkiTensor:
    """`x[M, K]` as `[128, chunks, M]`. A descriptor for each partition of each row takes longer
    than the weights where there are many rows: these are loaded whole, and transposed by TensorE.
    """
    pmax = nl.tile_size.pmax
    rows, depth = x.shape
    chunks = depth // pmax
    if rows <= _DEALT_ROWS:
        tile = nl.ndarray((pmax, rows, chunks), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x.reshape_dim(1, (pmax, chunks)).permute((1, 0, 2)))
        return tile.permute((0, 2, 1))
    whole = nl.ndarray((rows, depth), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=whole, src=x)
    data = nl.ndarray((pmax, chunks, rows), dtype=x.dtype, buffer=nl.sbuf)
    at_once = nl.tile_size.psum_bank_fmax // rows
    for first in range(0, chunks, at_once):
        count = min(at_once, chunks - first)
        bank = nl.ndarray((pmax, count, rows), dtype=x.dtype, buffer=nl.psum)
        for c in range(count):
            start = first + c
            columns = whole[:, start : start + (pmax - 1) * chunks + 1 : chunks]
            nisa.nc_transpose(dst=bank[:, c], data=columns, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=data[:, first : first + count], src=bank)
    return data
