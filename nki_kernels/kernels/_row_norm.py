"""NKI helpers of a layer norm of tiles that a product leaves in SBUF (`linear_layer_norm`).

A tile is float32 `[rows, columns]` with whole rows. The scaling of a tile comes behind the
statistics of the next one, so that VectorE does not wait for ScalarE, which centres in between.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Waiting(NamedTuple):
    """A tile `[rows, 1, columns]`, centred, that is not scaled yet: rows `row ..` of the result."""

    row: int
    centred: nl.NkiTensor
    rstds: nl.NkiTensor


class RowNorm(NamedTuple):
    """What is done with the rows of a product. HBM: `weight` and `bias` `[N]` or None, `total`
    `[M, N]` gets the sum that is normalised, `mean` and `rstd` its statistics, where they are not
    None. `epsilon` `[128, 1]` in SBUF. `vectors`: weight and bias in SBUF, none at first;
    `waiting`: at most one tile.
    """

    weight: nl.NkiTensor | None
    bias: nl.NkiTensor | None
    epsilon: nl.NkiTensor
    total: nl.NkiTensor | None
    mean: nl.NkiTensor | None
    rstd: nl.NkiTensor | None
    vectors: list[tuple[nl.NkiTensor, nl.NkiTensor]]
    waiting: list[Waiting]


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
    moments = row_moments(data, partial_statistics(data), None)
    rstds = inverse_deviations(moments, norm.epsilon)
    centred = centre(data, negative_means(moments))
    if norm.mean is not None and norm.rstd is not None:
        store_statistics(norm.mean, moments[:, :, 0], out.shape[0], row)
        store_statistics(norm.rstd, rstds, out.shape[0], row)
    flush(norm, out)
    norm.waiting.append(Waiting(row, centred, rstds))


def flush(norm: RowNorm, out: nl.NkiTensor) -> None:
    """Scale and store the tile that waits, if there is one."""
    if len(norm.waiting) == 0:
        return
    done = norm.waiting.pop()
    weight, bias = norm.vectors[0]
    result = scale_and_shift(done.centred, done.rstds, weight, bias, out.dtype)
    rows = result.shape[0]
    nisa.dma_copy(dst=out[done.row : done.row + rows], src=result.reshape((rows, result.shape[2])))
