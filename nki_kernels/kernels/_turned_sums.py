"""NKI helpers of `_turned_layer_norm_backward.py`: the sums over rows.

Those for the weight are of `(x - mean) * grad * weight * rstd`, and the weights divide them at the
end. Those for the bias are of turned blocks of the gradient: TensorE turns some of them back and
adds them up in PSUM, GpSimd adds up the others as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._column_sums import Gradients, keep_lines

_TOGETHER = 2  # rows of a partition that GpSimd adds at once


class RowSums(NamedTuple):
    """`products[128, blocks]` in PSUM: sums for the weight times that; `factors` turn them into
    those. Of the gradient, summed up over tiles: `straight[128, n, 128]` in PSUM, the first n
    blocks; `turned[128, run, others, 128]`, the other blocks, turned. `totals[128, 2 * blocks]`:
    what the sums come to, for the weight and for the bias; `ones[128, 1]`. All in float32."""

    products: nl.NkiTensor
    factors: nl.NkiTensor
    straight: nl.NkiTensor
    turned: nl.NkiTensor
    totals: nl.NkiTensor
    ones: nl.NkiTensor


def new_row_sums(weights: nl.NkiTensor, run: int, on_tensor: int) -> RowSums:
    """Of tiles of up to `run` rows a partition; the first `on_tensor` blocks are TensorE's.
    `weights[128, blocks]`."""
    pmax, blocks = weights.shape
    products = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.psum)
    factors = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=factors, data=weights)
    straight = nl.ndarray((pmax, on_tensor, pmax), dtype=nl.float32, buffer=nl.psum)
    shape = (pmax, min(run, _TOGETHER), blocks - on_tensor, pmax)
    turned = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    totals = nl.ndarray((pmax, 2 * blocks), dtype=nl.float32, buffer=nl.sbuf)
    ones = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    return RowSums(products, factors, straight, turned, totals, ones)


def add_products(
    s: RowSums, products: nl.NkiTensor, rstd: nl.NkiTensor, columns: tuple[int, int],
    is_started: bool,
) -> None:  # fmt: skip
    """Those of some columns of one row of each partition, in float32, by TensorE, for which they
    are rounded to 11 bits: sums in half precision have as many at most."""
    pmax = nl.tile_size.pmax
    factors = rstd.view(nl.tfloat32)
    for column in range(0, products.shape[1], pmax):
        block = (columns[0] + column) // pmax
        nisa.nc_matmul(
            dst=s.products[:, block : block + 1],
            stationary=products[:, column : column + pmax].view(nl.tfloat32), moving=factors,
            accumulate=is_started,
        )  # fmt: skip


def add_turned(s: RowSums, turned: nl.NkiTensor, is_started: bool) -> None:
    """A turned gradient `[128, run, blocks, partitions]`, by GpSimd."""
    _, run, blocks, partitions = turned.shape
    together = s.turned.shape[1]
    for r in range(0, run, together):
        rows = turned[:, r : min(run, r + together), s.straight.shape[1] : blocks]
        own = s.turned[:, 0 : rows.shape[1], :, 0:partitions]
        if is_started or r > 0:
            nisa.tensor_tensor(dst=own, data1=own, data2=rows, op=nl.add, engine=nisa.engine.gpsimd)
        else:
            nisa.tensor_copy(dst=own, src=rows, engine=nisa.engine.gpsimd)


def add_straight(
    s: RowSums, turned: nl.NkiTensor, identity: nl.NkiTensor, columns: tuple[int, int],
    is_started: bool,
) -> None:  # fmt: skip
    """The blocks of one row of each partition, `turned[128, blocks, partitions]`, that are
    TensorE's."""
    pmax = nl.tile_size.pmax
    for block in range(columns[0] // pmax, min(columns[1] // pmax, s.straight.shape[1])):
        nisa.nc_matmul(
            dst=s.straight[0 : turned.shape[2], block], stationary=turned[:, block],
            moving=identity, accumulate=is_started,
        )  # fmt: skip


def total_row_sums(s: RowSums) -> None:
    """All but those that TensorE sums up, by VectorE."""
    blocks, own = s.factors.shape[1], s.straight.shape[1]
    nisa.tensor_tensor(dst=s.totals[:, 0:blocks], data1=s.products, data2=s.factors, op=nl.multiply)
    nisa.tensor_reduce(
        dst=s.totals[:, blocks + own : 2 * blocks], op=nl.add,
        data=s.turned.permute((0, 2, 1, 3)), axis=(2, 3),
    )  # fmt: skip


def keep_row_sums(results: Gradients, s: RowSums) -> None:
    """The results, or this program's part of them: TensorE sums its blocks up over the partitions,
    and brings all sums to rows."""
    pmax, blocks = s.factors.shape
    own = s.straight.shape[1]
    straight = nl.ndarray(s.straight.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=straight, op=nl.copy, data=s.straight)
    bank = nl.ndarray((pmax, own), dtype=nl.float32, buffer=nl.psum)
    for block in range(own):
        nisa.nc_matmul(dst=bank[:, block : block + 1], stationary=straight[:, block], moving=s.ones)
    nisa.tensor_copy(dst=s.totals[:, blocks : blocks + own], src=bank, engine=nisa.engine.vector)
    lines = nl.ndarray((2 * blocks, pmax), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=lines, data=s.totals, engine=nisa.engine.tensor)
    keep_lines(results, lines)
