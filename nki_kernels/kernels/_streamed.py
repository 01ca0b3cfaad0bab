"""NKI helpers of products of few rows, which take the time of reading the weights: `[N, K]` of a
2-byte type, K adjacent in memory.

The DMA engines transpose at 90 % of their rate, so most columns are loaded as they lie, at the full
rate, and TensorE transposes 128x128 blocks of them. It has the time for both that and the product
where the weights are the stationary operand: then a block takes as many cycles as there are rows,
64 at least, where 128 columns of weights that move take 128. The sums have N on the partitions, and
are transposed, 512 columns at a time, for the epilogue.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._blocking import STREAM
from trnx.nki_kernels.kernels._matmul import product_of_tile
from trnx.nki_kernels.kernels._matmul_epilogue import Epilogue, apply_epilogue, load_added
from trnx.nki_kernels.kernels._operands import MatmulOperand

# Of K, which one DMA brings for 128 columns: 512 KiB, 1.4 us on trn2, more than its trigger.
_DEPTH = 2048
# Loads of which the blocks are transposed before the oldest of them is multiplied: TensorE does not
# wait for the evictions.
AHEAD = 2
# Tiles of 128 columns of which the sums are transposed into one bank of PSUM.
_TILES = 4
# The DMA engines transpose the last tile, which then takes the least time behind the last load, and
# one of as many as K has pairs of chunks: the less K, the more of TensorE's time the sums take. By
# schedule; trn3 loads 1.4 times as fast, and has the same TensorE.
_CHUNKS_A_TILE = 2
_PERIOD_GEN4 = 2


class Load(NamedTuple):
    """Columns `col .. col + cols` and indices `k .. k + ks` of the contraction."""

    col: int
    cols: int
    k: int
    ks: int
    by_dma: bool


class _Sums(NamedTuple):
    """Sums of columns `col .. col + cols`: `[128, tiles, M]`, float32, in SBUF."""

    tile: nl.NkiTensor
    col: int
    cols: int


def load_few_rows(x: nl.NkiTensor) -> nl.NkiTensor:
    """`x[M, K]` as `[128, chunks, M]`: parts of K lie side by side on the partitions at first, so
    that all DMA engines load, and are transposed by TensorE.

    The trigger is on the ring of ScalarE, so that the first weights do not wait for it.
    """
    pmax = nl.tile_size.pmax
    rows, depth = x.shape
    chunks = depth // pmax
    parts = 1
    while parts * 2 * rows <= pmax and chunks % (parts * 2) == 0:
        parts = parts * 2
    each = chunks // parts
    data = nl.ndarray((parts * rows, each * pmax), dtype=x.dtype, buffer=nl.sbuf)
    source = x.reshape_dim(1, (parts, each * pmax)).permute((1, 0, 2))
    nisa.dma_copy(dst=data, src=source, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
    result = nl.ndarray((pmax, chunks, rows), dtype=x.dtype, buffer=nl.sbuf)
    target = result.reshape_dim(1, (parts, each)).permute((0, 2, 1, 3))
    at_once = 2 * nl.tile_size.psum_bank_fmax // (parts * rows)
    for chunk in range(0, each, at_once):
        count = min(at_once, each - chunk)
        bank = nl.ndarray((pmax, count, parts, rows), dtype=x.dtype, buffer=nl.psum)
        for c in range(count):
            block = data[:, (chunk + c) * pmax : (chunk + c + 1) * pmax]
            nisa.nc_transpose(dst=bank[:, c], data=block, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=target[:, chunk : chunk + count], src=bank)
    return result


def product_of_rows(
    out: nl.NkiTensor,
    data: nl.NkiTensor,
    w: MatmulOperand,
    block_columns: int,
    then: Epilogue,
    columns: tuple[int, int],
) -> None:
    """`stream_product` where the layout of `w` says so, else `product_of_tile`."""
    if w.layout == STREAM:
        stream_product(out, data, w.segments[0], then, columns)
    else:
        product_of_tile(out, data, w, block_columns, then, columns)


def stream_product(
    out: nl.NkiTensor,
    data: nl.NkiTensor,
    w: nl.NkiTensor,
    then: Epilogue,
    columns: tuple[int, int],
) -> None:
    """`out[M, N] = activation(x @ w[N, K].T + bias[N]) + residual[M, N]`, the columns from the
    first of `columns` to the second; x is `data[128, chunks, M]` in SBUF, K whole chunks of 128, M
    64 at most.
    """
    pmax = nl.tile_size.pmax
    loads = loads_of(columns, w.shape[1])
    bias = None if then.bias is None else _bias_by_columns(then.bias, columns)
    tiles = []  # type: list[nl.NkiTensor]
    waiting = []  # type: list[_Sums]
    bank = nl.ndarray((pmax, _TILES, data.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for number in range(len(loads) + AHEAD):
        if number < len(loads):
            tiles.append(load_transposed(w, loads[number]))
        if number < AHEAD:
            continue
        load = loads[number - AHEAD]
        place = (load.col - columns[0]) // pmax % _TILES
        if place == 0 and load.k == 0:
            bank = nl.ndarray(bank.shape, dtype=nl.float32, buffer=nl.psum)
        multiply_loaded(bank[0 : load.cols, place, :], tiles[number - AHEAD], data, load.k)
        # Behind the products of the next load, so that TensorE does not wait for the copy.
        for sums in waiting:
            _finish(out, sums, then)
        waiting = []
        if load.k + load.ks == w.shape[1] and _is_last(load, place, columns):
            waiting.append(_take(bank, load, place, bias, columns))
    for sums in waiting:
        _finish(out, sums, then)


def loads_of(columns: tuple[int, int], depth: int) -> list[Load]:
    """The loads of weights `[N, K]`, tile by tile of 128 of the `columns` from the first to the
    second."""
    pmax = nl.tile_size.pmax
    period = max(2, depth // pmax // _CHUNKS_A_TILE)
    if nisa.get_nc_version() == nisa.nc_version.gen4:
        period = _PERIOD_GEN4
    loads = []
    for col in range(columns[0], columns[1], pmax):
        cols = min(pmax, columns[1] - col)
        by_dma = col + cols == columns[1] or (col - columns[0]) // pmax % period == period - 1
        for k in range(0, depth, _DEPTH):
            loads.append(Load(col, cols, k, min(_DEPTH, depth - k), by_dma))
    return loads


def load_transposed(w: nl.NkiTensor, load: Load) -> nl.NkiTensor:
    """`[128, chunks, cols]` of the weights `[N, K]`."""
    pmax = nl.tile_size.pmax
    chunks = load.ks // pmax
    source = w[load.col : load.col + load.cols, load.k : load.k + load.ks]
    tile = nl.ndarray((pmax, chunks, load.cols), dtype=w.dtype, buffer=nl.sbuf)
    if load.by_dma:
        nisa.dma_transpose(dst=tile, src=source.reshape_dim(1, (chunks, pmax)), axes=(2, 1, 0))
        return tile
    rows = nl.ndarray((load.cols, load.ks), dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=source)
    at_once = 2 * nl.tile_size.psum_bank_fmax // pmax
    for chunk in range(0, chunks, at_once):
        count = min(at_once, chunks - chunk)
        bank = nl.ndarray((pmax, count, load.cols), dtype=w.dtype, buffer=nl.psum)
        for c in range(count):
            block = rows[:, (chunk + c) * pmax : (chunk + c + 1) * pmax]
            nisa.nc_transpose(dst=bank[:, c], data=block, engine=nisa.engine.tensor)
        target = tile[:, chunk : chunk + count]
        if _is_vectors(load, chunk // at_once):
            nisa.tensor_copy(dst=target, src=bank)
        else:
            nisa.activation(dst=target, op=nl.copy, data=bank)
    return tile


def _is_vectors(load: Load, number: int) -> bool:
    """Whether VectorE evicts the bank, three of five; else ScalarE, which takes longer."""
    banks = _DEPTH // (2 * nl.tile_size.psum_bank_fmax)
    first = load.col // nl.tile_size.pmax * 3 + load.k // _DEPTH * banks  # type: int
    return (first + number) * 3 % 5 < 3


def multiply_loaded(dst: nl.NkiTensor, tile: nl.NkiTensor, data: nl.NkiTensor, k: int) -> None:
    """`dst[cols, M] += tile[128, chunks, cols].T @ data`, from index k on."""
    first = k // nl.tile_size.pmax
    for chunk in range(tile.shape[1]):
        nisa.nc_matmul(dst=dst, stationary=tile[:, chunk], moving=data[:, first + chunk])


def _is_last(load: Load, place: int, columns: tuple[int, int]) -> bool:
    """Whether the sums up to this tile of columns go on. The last tile goes alone, because it has
    the least left to do behind the last load then, and may be narrower."""
    rest = columns[1] - load.col - load.cols
    return place == _TILES - 1 or rest <= nl.tile_size.pmax


def _take(
    bank: nl.NkiTensor,
    load: Load,
    place: int,
    bias: nl.NkiTensor | None,
    columns: tuple[int, int],
) -> _Sums:
    """Sums that are done, out of PSUM, with the bias."""
    pmax = nl.tile_size.pmax
    first = place if load.col + load.cols == columns[1] else 0
    source = bank[0 : load.cols, first : place + 1, :]
    tile = nl.ndarray(source.shape, dtype=nl.float32, buffer=nl.sbuf)
    number = (load.col - columns[0]) // pmax
    if bias is None:
        nisa.tensor_copy(dst=tile, src=source)
    else:
        own = bias[0 : load.cols, number - (place - first) : number + 1]
        own = own.reshape_dim(1, (own.shape[1], 1)).broadcast(2, source.shape[2])
        nisa.tensor_tensor(dst=tile, data1=source, data2=own, op=nl.add)
    return _Sums(tile, load.col - (place - first) * pmax, (place - first) * pmax + load.cols)


def _finish(out: nl.NkiTensor, sums: _Sums, then: Epilogue) -> None:
    """Rows of the sums to HBM."""
    pmax = nl.tile_size.pmax
    cols, tiles, rows = sums.tile.shape
    bank = nl.ndarray((rows, sums.cols), dtype=nl.float32, buffer=nl.psum)
    for tile in range(tiles):
        target = bank[:, tile * pmax : tile * pmax + cols]
        nisa.nc_transpose(dst=target, data=sums.tile[:, tile], engine=nisa.engine.tensor)
    added = load_added(then, 0, sums.col, None, rows, sums.cols)
    result = nl.ndarray((rows, sums.cols), dtype=out.dtype, buffer=nl.sbuf)
    apply_epilogue(result, bank, None, added, then.activation)
    nisa.dma_copy(dst=out[:, sums.col : sums.col + sums.cols], src=result)


def _bias_by_columns(bias: nl.NkiTensor, columns: tuple[int, int]) -> nl.NkiTensor:
    """`[128, tiles]` in float32: element `[p, t]` is that of column `columns[0] + 128 t + p`."""
    pmax = nl.tile_size.pmax
    count = columns[1] - columns[0]
    tile = nl.ndarray((pmax, (count + pmax - 1) // pmax), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, count, pmax * pmax):
        rest = min(pmax * pmax, count - first)
        whole = rest // pmax
        if whole > 0:
            source = bias[columns[0] + first : columns[0] + first + whole * pmax]
            _turn_bias(tile[:, nl.ds(first // pmax, whole)], source.reshape((whole, pmax)))
        if rest % pmax > 0:
            source = bias[columns[1] - rest % pmax : columns[1]].reshape((1, rest % pmax))
            _turn_bias(tile[0 : rest % pmax, nl.ds(first // pmax + whole, 1)], source)
    return tile


def _turn_bias(dst: nl.NkiTensor, source: nl.NkiTensor) -> None:
    rows = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=source, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
    bank = nl.ndarray(dst.shape, dtype=source.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=rows, engine=nisa.engine.tensor)
    nisa.tensor_copy(dst=dst, src=bank)
