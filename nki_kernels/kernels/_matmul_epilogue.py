"""NKI helpers of the matrix products: what is applied to a product between PSUM and HBM."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._operands import load_broadcast, pieces_of
from trnx.nki_kernels.kernels._row_norm import RowNorm, normalise


class Epilogue(NamedTuple):
    """What is applied to a product before rounding: `activation(product + bias) + residual`.

    A residual comes with the activation "none", or with a derivative (`gelu_dx`), which is of the
    residual then, and multiplied with the product. `bias` is `[N]`, `residual` `[M, N]`, both in
    HBM. With a `norm` the rows are normalised instead of rounded; blocks have all columns then, and
    all of K. `before` `[M, N]` in HBM gets `product + bias`, rounded, of which the activation is
    then; blocks have all of K. `more`: results that get the rows behind those of the first one,
    each as many.
    """

    bias: nl.NkiTensor | None
    residual: nl.NkiTensor | None
    activation: str
    norm: RowNorm | None = None
    before: nl.NkiTensor | None = None
    more: tuple[nl.NkiTensor, ...] = ()


def activation_function(activation: str) -> object:
    """The function of ScalarE that computes `activation`."""
    if activation == "gelu":
        return nl.gelu
    if activation == "gelu_tanh":
        return nl.gelu_apprx_tanh
    if activation == "quick_gelu":
        return nl.gelu_apprx_sigmoid
    if activation == "relu":
        return nl.relu
    if activation == "silu":
        return nl.silu
    if activation == "tanh":
        return nl.tanh
    if activation == "sigmoid":
        return nl.sigmoid
    return nl.copy


def derivative(activation: str) -> object:
    """The function of ScalarE that `activation` names, if it is a derivative; None if not."""
    if activation == "gelu_dx":
        return nl.gelu_dx
    if activation == "silu_dx":
        return nl.silu_dx
    return None


def activate(dst: nl.NkiTensor, src: nl.NkiTensor, activation: str) -> None:
    """`dst = activation(src)` on ScalarE, a copy on VectorE."""
    if activation == "none":
        nisa.tensor_copy(dst=dst, src=src)
    else:
        nisa.activation(dst=dst, op=activation_function(activation), data=src)


def apply_epilogue(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    residual: nl.NkiTensor | None,
    activation: str,
) -> None:
    """`dst = activation(src + bias) + residual` in float32 with one rounding, all tiles on chip; a
    `residual` of a derivative (`load_added`) is multiplied."""
    value = src
    if bias is not None:
        last = activation == "none" and residual is None
        value = dst if last else nl.ndarray(src.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=value, data1=src, data2=bias, op=nl.add)
        if last:
            return
    if residual is not None:
        op = nl.add if derivative(activation) is None else nl.multiply
        nisa.tensor_tensor(dst=dst, data1=value, data2=residual, op=op)
    else:
        activate(dst, value, activation)


def columns_of(tile: nl.NkiTensor | None, rows: int, left: int, width: int) -> nl.NkiTensor | None:
    return None if tile is None else tile[0:rows, left : left + width]


def load_bias(then: Epilogue, col: int, cols: int, rows: int) -> nl.NkiTensor | None:
    """The bias of columns `col ..`, if there is one: in the partitions of a tile of `rows`, or in
    one, where TensorE adds it."""
    if then.bias is None:
        return None
    if _multiplies_bias(then):
        return load_broadcast(then.bias, col, cols, 1)
    return load_broadcast(then.bias, col, cols, min(nl.tile_size.pmax, rows))


def _multiplies_bias(then: Epilogue) -> bool:
    """Whether TensorE adds the bias as a product with ones."""
    return then.norm is not None and then.norm.ones is not None


def multiply_bias(then: Epilogue, bank: nl.NkiTensor, bias: nl.NkiTensor | None, left: int) -> None:
    """Add the bias of columns `left ..` to a bank of sums, where TensorE does so: last, because it
    is loaded behind what the first sums wait for."""
    rows, width = bank.shape
    if bias is not None and then.norm is not None and then.norm.ones is not None:
        row = bias[0:1, left : left + width]
        nisa.nc_matmul(dst=bank, stationary=then.norm.ones[:, 0:rows], moving=row)


def added_bias(
    then: Epilogue, bias: nl.NkiTensor | None, rows: int, left: int, width: int
) -> nl.NkiTensor | None:
    """The part of the bias that is added behind the product, if any is."""
    return None if _multiplies_bias(then) else columns_of(bias, rows, left, width)


def load_added(
    then: Epilogue, row: int, col: int, bias: nl.NkiTensor | None, rows: int, cols: int
) -> nl.NkiTensor | None:
    """`[rows, cols]`: the residual, if there is one, plus the bias of its columns, by GpSimd, which
    has nothing else to do; or the derivative at the residual.
    """
    if then.residual is None:
        return None
    tile = nl.ndarray((rows, cols), dtype=then.residual.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=then.residual[row : row + rows, col : col + cols])
    slope = derivative(then.activation)
    if slope is not None:
        slopes = nl.ndarray((rows, cols), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=slopes, op=slope, data=tile)
        return slopes
    if bias is None:
        return tile
    added = nl.ndarray((rows, cols), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=added, data1=tile, data2=bias, op=nl.add, engine=nisa.engine.gpsimd)
    return added


def new_tile(out: nl.NkiTensor, then: Epilogue, rows: int, cols: int) -> nl.NkiTensor:
    """Rows of the result, or of what is normalised, which is not rounded before."""
    dtype = out.dtype if then.norm is None else nl.float32
    return nl.ndarray((rows, cols), dtype=dtype, buffer=nl.sbuf)


def evict(
    dst: nl.NkiTensor,
    before: nl.NkiTensor | None,
    bank: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    added: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    """A bank of products to `dst`, and what the activation is of to `before`, both in SBUF."""
    if before is None:
        apply_epilogue(dst, bank, bias, added, then.activation)
    else:
        apply_epilogue(before, bank, bias, None, "none")
        activate(dst, before, then.activation)


def finish_tile(
    out: nl.NkiTensor,
    row: int,
    col: int,
    tile: nl.NkiTensor,
    before: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    rows, cols = tile.shape
    if then.norm is not None:
        normalise(then.norm, out, row, tile)
    else:
        done = 0
        outs = [out]
        for more in then.more:
            outs.append(more)
        for piece in pieces_of(outs, row, rows):
            target = piece[0][piece[1] : piece[1] + piece[2], col : col + cols]
            nisa.dma_copy(dst=target, src=tile[done : done + piece[2]])
            done = done + piece[2]
    if then.before is not None:
        nisa.dma_copy(dst=then.before[row : row + rows, col : col + cols], src=before)
