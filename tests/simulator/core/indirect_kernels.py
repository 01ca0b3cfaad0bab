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
        nisa.reciprocal(dst=small.indirect(at, 4), data=tile[:, 0:4])
    elif what == "wide product":
        acc = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.psum)
        square = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=square, value=0.0)
        nisa.nc_matmul(dst=acc.indirect(at, 8), stationary=square, moving=tile)
    elif what == "tiling":
        half = nl.ndarray((32, 32), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=half, value=0.0)
        acc = nl.ndarray((32, 8), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_matmul(
            dst=acc.indirect(at, 8),
            stationary=half,
            moving=half[:, 0:8],
            tile_position=(32, 0),
            tile_size=(32, 128),
        )
    elif what == "partly":
        half = nl.ndarray((32, 32), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=half, value=0.0)
        acc = nl.ndarray((32, 64), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_matmul(dst=acc[:, 0:8], stationary=half, moving=half[:, 0:8])
        nisa.nc_matmul(dst=acc.indirect(at, 8), stationary=half, moving=half[:, 0:8])
    elif what == "index start":
        low = nl.ndarray((16, 8), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
        index = nl.ndarray((32, 2), dtype=nl.int32, buffer=nl.sbuf, address=(0, 1024))
        nisa.memset(dst=low, value=0.0)
        nisa.memset(dst=index, value=0)
        nisa.tensor_copy(dst=small[0:16], src=low.indirect(index[16:32], 4))
    elif what == "starts differ":
        low = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
        index = nl.ndarray((32, 2), dtype=nl.int32, buffer=nl.sbuf, address=(32, 0))
        nisa.memset(dst=low, value=0.0)
        nisa.memset(dst=index, value=0)
        nisa.tensor_copy(dst=small, src=low.indirect(index, 4))
    elif what == "scatter starts differ":
        low = nl.ndarray((32, 4), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
        index = nl.ndarray((32, 2), dtype=nl.int32, buffer=nl.sbuf, address=(32, 0))
        nisa.memset(dst=low, value=0.0)
        nisa.memset(dst=index, value=0)
        nisa.tensor_copy(dst=tile.indirect(index, 4), src=low)
    elif what == "scalar into psum":
        acc = nl.ndarray((32, 8), dtype=nl.float32, buffer=nl.psum)
        nisa.memset(dst=acc, value=0.0)
        nisa.activation(dst=acc.indirect(at, 4), op=nl.copy, data=tile[:, 0:4])
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


@nki.jit
def scatters_products(x, y, index, width, accumulate):
    """Two products into columns of a tile in PSUM, which is filled by a product first."""
    m, n = x.shape[1], y.shape[1]
    out = nl.ndarray((m, width), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    at = nl.ndarray(index.shape, dtype=index.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    nisa.dma_copy(dst=right, src=y)
    nisa.dma_copy(dst=at, src=index)
    acc = nl.ndarray((m, width), dtype=nl.bfloat16, buffer=nl.psum)
    nisa.memset(dst=acc, value=1.0)
    for _ in range(2):
        nisa.nc_matmul(
            dst=acc.indirect(at, n), stationary=left, moving=right, accumulate=accumulate
        )
    tile = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def scatters_by_predicate(x, mask, index, width):
    out = nl.ndarray((x.shape[0], width), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    flags = nl.ndarray(mask.shape, dtype=mask.dtype, buffer=nl.sbuf)
    at = nl.ndarray(index.shape, dtype=index.dtype, buffer=nl.sbuf)
    result = nl.ndarray(out.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=flags, src=mask)
    nisa.dma_copy(dst=at, src=index)
    nisa.memset(dst=result, value=-1.0)
    nisa.tensor_copy_predicated(dst=result.indirect(at, x.shape[1]), src=tile, predicate=flags)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def multiplies_gathered_mx(a, a_scale, b, b_scale, dtype, index, count, same):
    """Stationary data and scales gathered by one index, or (not same) the data alone."""
    out = nl.ndarray((count, b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    left_scale = nl.ndarray(a_scale.shape, dtype=nl.uint8, buffer=nl.sbuf)
    right_scale = nl.ndarray(b_scale.shape, dtype=nl.uint8, buffer=nl.sbuf)
    at = nl.ndarray(index.shape, dtype=index.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.dma_copy(dst=left_scale, src=a_scale)
    nisa.dma_copy(dst=right_scale, src=b_scale)
    nisa.dma_copy(dst=at, src=index)
    nisa.nc_matmul_mx(
        dst=acc,
        stationary=left.view(dtype).indirect(at, count),
        moving=right.view(dtype),
        stationary_scale=left_scale.indirect(at, count) if same else left_scale[:, 0:count],
        moving_scale=right_scale,
    )
    tile = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def stores_a_token(cache, token, slot):
    """A slot counts tokens over all blocks of the cache; one that does not exist is skipped."""
    out = nl.ndarray(cache.shape, dtype=cache.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=cache)
    at = nl.ndarray((1, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=slot)
    row = nl.ndarray(token.shape, dtype=token.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=token)
    width = cache.shape[2]
    target = out.ap(
        [[width, token.shape[0]], [1, width]], offset=0, scalar_offset=at, indirect_dim=1
    )
    nisa.dma_copy(dst=target, src=row, oob_mode=nisa.oob_mode.skip)
    return out


@nki.jit
def selects_a_rank(x, rank):
    """The index goes to a dimension of size 1, which has the stride of the one before."""
    count, ranks, width = x.shape
    out = nl.ndarray((count, width), dtype=x.dtype, buffer=nl.shared_hbm)
    at = nl.ndarray((1, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=rank)
    chosen = x.reshape((count, ranks, 1, width)).ap(
        [[ranks * width, count], [1, width]], offset=0, scalar_offset=at, indirect_dim=2
    )
    nisa.dma_copy(dst=out, src=chosen)
    return out
