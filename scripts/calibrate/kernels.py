"""Kernels of the calibration: what the published descriptions say, written for this repository.

Products take `lhs_t` [K, M] and `rhs` [K, N] and return [M, N] in their dtype; tiles are 128 rows
of K, 128 columns of M, 512 of N.
"""

import nki
import nki.isa as nisa
import nki.language as nl


def _load(source, row, column, width):
    tile = nl.ndarray((128, width), dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source[row : row + 128, column : column + width])
    return tile


def _load_rows(source, first, last, column, width):
    tiles = []
    for row in range(first, last, 128):
        tiles.append(_load(source, row, column, width))
    return tiles


def _store(out, acc, row, column):
    tile = nl.ndarray((128, 512), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out[row : row + 128, column : column + 512], src=tile)


def _accumulator():
    return nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)


@nki.jit
def tiled(lhs_t, rhs):
    """Both tiles of every product are loaded for it."""
    depth, height = lhs_t.shape
    out = nl.ndarray((height, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, 128):
        for n in range(0, rhs.shape[1], 512):
            acc = _accumulator()
            for k in range(0, depth, 128):
                a = _load(lhs_t, k, m, 128)
                b = _load(rhs, k, n, 512)
                nisa.nc_matmul(dst=acc, stationary=a, moving=b)
            _store(out, acc, m, n)
    return out


@nki.jit
def hoisted(lhs_t, rhs):
    """The stationary tiles of a row of blocks are loaded once for it."""
    depth, height = lhs_t.shape
    out = nl.ndarray((height, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, 128):
        stationary = _load_rows(lhs_t, 0, depth, m, 128)
        for n in range(0, rhs.shape[1], 512):
            acc = _accumulator()
            moving = _load_rows(rhs, 0, depth, n, 512)
            for a, b in zip(stationary, moving, strict=True):
                nisa.nc_matmul(dst=acc, stationary=a, moving=b)
            _store(out, acc, m, n)
    return out


@nki.jit
def blocked(lhs_t, rhs, tiles_m, tiles_n):
    """Blocks of tiles_m x tiles_n tiles of the result share what was loaded for them."""
    depth, height = lhs_t.shape
    out = nl.ndarray((height, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, 128 * tiles_m):
        stationary = _load_rows(lhs_t, 0, depth, m, 128 * tiles_m)
        for n in range(0, rhs.shape[1], 512 * tiles_n):
            moving = _load_rows(rhs, 0, depth, n, 512 * tiles_n)
            for i in range(tiles_m):
                for j in range(tiles_n):
                    acc = _accumulator()
                    for a, b in zip(stationary, moving, strict=True):
                        nisa.nc_matmul(
                            dst=acc,
                            stationary=a[:, 128 * i : 128 * i + 128],
                            moving=b[:, 512 * j : 512 * j + 512],
                        )
                    _store(out, acc, m + 128 * i, n + 512 * j)
    return out


@nki.jit
def blocked_in_depth(lhs_t, rhs, tiles_m, tiles_n, tiles_k):
    """Blocks in all three dimensions; sums over blocks of K are kept in SBUF, in the dtype of
    the operands.
    """
    depth, height = lhs_t.shape
    out = nl.ndarray((height, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    block_m, block_n, block_k = 128 * tiles_m, 512 * tiles_n, 128 * tiles_k
    for n in range(0, rhs.shape[1], block_n):
        sums = []
        for _ in range(height // 128):
            tile = nl.ndarray((128, block_n), dtype=lhs_t.dtype, buffer=nl.sbuf)
            nisa.memset(dst=tile, value=0.0)
            sums.append(tile)
        for k in range(0, depth, block_k):
            moving = _load_rows(rhs, k, k + block_k, n, block_n)
            for m in range(0, height, block_m):
                stationary = _load_rows(lhs_t, k, k + block_k, m, block_m)
                _add_block(sums, stationary, moving, m // 128, tiles_m, tiles_n)
        for i, tile in enumerate(sums):
            _store_row(out, tile, 128 * i, n)
    return out


def _add_block(sums, stationary, moving, first, tiles_m, tiles_n):
    for j in range(tiles_n):
        for i in range(tiles_m):
            acc = _accumulator()
            for a, b in zip(stationary, moving, strict=True):
                nisa.nc_matmul(
                    dst=acc,
                    stationary=a[:, 128 * i : 128 * i + 128],
                    moving=b[:, 512 * j : 512 * j + 512],
                )
            part = sums[first + i][:, 512 * j : 512 * j + 512]
            nisa.tensor_tensor(dst=part, data1=acc, data2=part, op=nl.add)


def _store_row(out, tile, row, column):
    width = tile.shape[1]
    packed = nl.ndarray((128, width), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=packed, src=tile)
    nisa.dma_copy(dst=out[row : row + 128, column : column + width], src=packed)


@nki.jit
def load_and_store(x):
    """One tile in, one out."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def instruction(x, kind, is_from_psum):
    """One instruction of VectorE or ScalarE on x [P, N]; twice, each needing the one before."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=x)
    if is_from_psum:
        held = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.tensor_copy(dst=held, src=b)
        b = held
    for _ in range(2):
        _emit(kind, a, b)
    nisa.dma_copy(dst=out, src=a)
    return out


def _emit(kind, a, b):
    if kind == "multiply":
        nisa.tensor_tensor(dst=a, data1=b, data2=a, op=nl.multiply)
    elif kind == "add":
        nisa.tensor_tensor(dst=a, data1=b, data2=a, op=nl.add)
    elif kind == "copy":
        nisa.tensor_copy(dst=a, src=b, engine=nisa.vector_engine)
    elif kind == "select":
        nisa.scalar_tensor_tensor(
            dst=a, data=a, op0=nl.multiply, operand0=2.0, op1=nl.multiply, operand1=b
        )
    elif kind == "maximum":
        column = nl.ndarray((a.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=column, op=nl.maximum, data=a, axis=1)
    elif kind == "quantize":
        narrow = nl.ndarray(a.shape, dtype=nl.float8_e4m3, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=narrow, data=a, op0=nl.multiply, operand0=2.0)
    elif kind == "square_sum":
        column = nl.ndarray((a.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=a, op=nl.square, data=a, reduce_op=nl.add, reduce_res=column)
    else:
        nisa.activation(dst=a, op=nl.exp if kind == "exp" else nl.copy, data=a)


@nki.jit
def product(lhs_t, rhs):
    """One matrix product."""
    out = nl.ndarray((lhs_t.shape[1], rhs.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray(lhs_t.shape, dtype=lhs_t.dtype, buffer=nl.sbuf)
    b = nl.ndarray(rhs.shape, dtype=rhs.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=lhs_t)
    nisa.dma_copy(dst=b, src=rhs)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=a, moving=b)
    held = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=acc)
    nisa.dma_copy(dst=out, src=held)
    return out
