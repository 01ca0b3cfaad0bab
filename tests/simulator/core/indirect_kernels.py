"""Kernels of the tests of tensor indirection; loaded as a twin."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def gathers(x, index, count):
    out = nl.ndarray((x.shape[0], count), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    at = nl.ndarray(index.shape, dtype=index.dtype, buffer=nl.sbuf)
    result = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=at, src=index)
    nisa.activation(dst=result, op=nl.copy, data=tile.indirect(at, count), scale=2.0)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def scatters(x, index, width):
    out = nl.ndarray((x.shape[0], width), dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    at = nl.ndarray(index.shape, dtype=index.dtype, buffer=nl.sbuf)
    result = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=at, src=index)
    nisa.memset(dst=result, value=-1.0)
    nisa.tensor_copy(dst=result.indirect(at, x.shape[1]), src=tile)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def multiplies(x, y, index, count):
    """The stationary operand is gathered, in groups of 32 partitions."""
    out = nl.ndarray((count, y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    at = nl.ndarray(index.shape, dtype=index.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    nisa.dma_copy(dst=right, src=y)
    nisa.dma_copy(dst=at, src=index)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=left.indirect(at, count), moving=right)
    tile = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def breaks(x, what):
    tile = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.sbuf)
    at = nl.ndarray((32, 2), dtype=nl.int32, buffer=nl.sbuf)
    small = nl.ndarray((32, 4), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.memset(dst=at, value=8 if what == "bounds" else 0)
    if what == "dma":
        nisa.dma_copy(dst=small, src=tile.indirect(at, 4))
    elif what == "data2":
        nisa.tensor_tensor(dst=small, data1=tile[:, 0:4], data2=tile.indirect(at, 4), op=nl.add)
    elif what == "dst":
        acc = nl.ndarray((8, 8), dtype=nl.float32, buffer=nl.psum)
        wide = nl.ndarray((32, 2), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=wide, value=0)
        nisa.nc_matmul(dst=acc.indirect(wide[0:8], 8), stationary=tile, moving=tile)
    elif what == "count":
        tile.indirect(at, 65)
    elif what == "offsets":
        big = nl.ndarray((32, 40), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=big, src=tile.indirect(at, 40))
    elif what == "float":
        tile.indirect(tile)
    else:
        nisa.tensor_copy(dst=small, src=tile.indirect(at, 4))
    return x
