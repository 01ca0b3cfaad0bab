"""Kernels on tiles with rows of 16 KiB, which lie apart in memory; loaded as a twin."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def through_wide_rows(x, shape):
    """x -> a wide tile -> an array of `shape`: DMA counts elements, not rows."""
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((64, 4096), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def from_wide_rows(x):
    """x[64, 4096] -> its halves and a pattern of it, added; blocks transposed; a product."""
    added = nl.ndarray((64, 1024), dtype=x.dtype, buffer=nl.shared_hbm)
    turned = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    words = nl.ndarray((64, 8192), dtype=nl.int16, buffer=nl.shared_hbm)
    tile = nl.ndarray((64, 2, 2048), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.reshape((64, 2, 2048)))
    other = nl.ndarray((64, 4096), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=other, value=0.0)
    nisa.tensor_tensor(
        dst=other[:, 1024:2048],
        data1=tile[:, 1, 0:2048:2],
        data2=tile.ap([[4096, 64], [3, 1024]], offset=5),
        op=nl.add,
    )
    nisa.dma_copy(dst=added, src=other[:, 1024:2048])
    block = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=block, data=tile[:, 1, 128:256])
    kept = nl.ndarray((128, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=kept, src=block)
    nisa.dma_copy(dst=turned, src=kept)
    bank = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=tile[:, 0, 128:256], moving=tile[:, 1, 512:1024])
    result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=bank)
    nisa.dma_copy(dst=product, src=result)
    nisa.dma_copy(dst=words, src=tile.reshape((64, 4096)).view(nl.int16))
    return added, turned, product, words


@nki.jit
def turned_by_dma(x):
    """x[64, 4096] in SBUF -> its first 128 columns transposed into long rows; all of it in HBM."""
    tile = nl.ndarray((64, 4096), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    turned = nl.ndarray((128, 4096), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=turned, value=0.0)
    nisa.dma_transpose(dst=turned[:, 0:64], src=tile[:, 0:128])
    whole = nl.ndarray((4096, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_transpose(dst=whole, src=tile)
    out = nl.ndarray((128, 4096), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=turned)
    return out, whole
