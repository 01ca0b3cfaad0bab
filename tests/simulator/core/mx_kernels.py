"""Kernels of the tests of MX formats; loaded as a twin."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def product(a, a_scale, b, b_scale, dtype, times):
    """Packed operands as their integer words, scales as uint8 in the layout of the tile."""
    out = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    left_scale = nl.ndarray(a_scale.shape, dtype=nl.uint8, buffer=nl.sbuf)
    right_scale = nl.ndarray(b_scale.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.dma_copy(dst=left_scale, src=a_scale)
    nisa.dma_copy(dst=right_scale, src=b_scale)
    for _ in range(times):
        nisa.nc_matmul_mx(
            dst=acc,
            stationary=left.view(dtype),
            moving=right.view(dtype),
            stationary_scale=left_scale,
            moving_scale=right_scale.view(nl.float8_e8m0fnu),
        )
    tile = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def quantised_product(x, y, dtype, out_dtype):
    """Both operands quantised on chip, their scales in one tile; bfloat16 or float32 result."""
    rows, m, n = x.shape[0], x.shape[1] // 4, y.shape[1] // 4
    out = nl.ndarray((m, n), dtype=out_dtype, buffer=nl.shared_hbm)
    left = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    nisa.dma_copy(dst=right, src=y)
    a = nl.ndarray((rows, m), dtype=dtype, buffer=nl.sbuf)
    b = nl.ndarray((rows, n), dtype=dtype, buffer=nl.sbuf)
    scales = nl.ndarray((128, max(m, n)), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(dst=a, src=left, dst_scale=scales[0:, :m])
    nisa.quantize_mx(dst=b, src=right, dst_scale=scales[4:, :n])
    acc = nl.ndarray((m, n), dtype=out_dtype, buffer=nl.psum)
    nisa.nc_matmul_mx(acc, a, b, scales[0:, :m], scales[4:, :n])
    tile = nl.ndarray((m, n), dtype=out_dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def quantised_product_of_blocks(x, y, dtype, blocks):
    """The same in float32, with tiles of two free dimensions."""
    rows, m, n = x.shape[0], x.shape[1] // 4, y.shape[1] // 4
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((rows, blocks, m // blocks * 4), dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray((rows, blocks, n // blocks * 4), dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x.reshape(left.shape))
    nisa.dma_copy(dst=right, src=y.reshape(right.shape))
    a = nl.ndarray((rows, blocks, m // blocks), dtype=dtype, buffer=nl.sbuf)
    b = nl.ndarray((rows, blocks, n // blocks), dtype=dtype, buffer=nl.sbuf)
    # The scales of y lie with a gap between its blocks.
    a_scale = nl.ndarray(a.shape, dtype=nl.uint8, buffer=nl.sbuf)
    b_scale = nl.ndarray((rows, blocks, n // blocks + 1), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(dst=a, src=left, dst_scale=a_scale)
    nisa.quantize_mx(dst=b, src=right, dst_scale=b_scale[:, :, : n // blocks])
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(acc, a, b, a_scale, b_scale[:, :, : n // blocks])
    tile = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def padded_product(x, y, width, stored):
    """Moving columns up to `width`, of which nothing writes those behind y's own."""
    rows, m, n = x.shape[0], x.shape[1] // 4, y.shape[1] // 4
    out = nl.ndarray((m, stored), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    right = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=x)
    nisa.dma_copy(dst=right, src=y)
    a = nl.ndarray((rows, m), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    b = nl.ndarray((rows, width), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    a_scale = nl.ndarray((rows, m), dtype=nl.uint8, buffer=nl.sbuf)
    b_scale = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.quantize_mx(dst=a, src=left, dst_scale=a_scale)
    nisa.quantize_mx(dst=b[:, :n], src=right, dst_scale=b_scale[:, :n])
    acc = nl.ndarray((m, width), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul_mx(acc, a, b, a_scale, b_scale)
    tile = nl.ndarray((m, stored), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc[:, :stored])
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def quantised(x):
    """The words and the scales of one quadrant."""
    words = nl.ndarray((32, x.shape[1] // 4), dtype=nl.int32, buffer=nl.shared_hbm)
    scales = nl.ndarray((4, x.shape[1] // 4), dtype=nl.uint8, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    packed = nl.ndarray(words.shape, dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    scale = nl.ndarray(scales.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.quantize_mx(dst=packed, src=tile, dst_scale=scale)
    nisa.dma_copy(dst=words, src=packed.view(nl.int32))
    nisa.dma_copy(dst=scales, src=scale)
    return words, scales


@nki.jit
def breaks(x, what):
    tile = nl.ndarray((64, 16), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    scale = nl.ndarray((64, 16), dtype=nl.uint8, buffer=nl.sbuf)
    acc = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=tile, value=0)
    if what != "unwritten":
        nisa.memset(dst=scale, value=127)
    if what == "start":
        nisa.nc_matmul_mx(acc, tile[0:32], tile[0:32], scale[2:], scale)
    elif what == "shape":
        nisa.nc_matmul_mx(acc, tile, tile, scale[0:32], scale)
    elif what == "type":
        nisa.nc_matmul_mx(acc, scale, tile, scale, scale)
    elif what == "partitions":
        nisa.nc_matmul_mx(acc, tile[0:16], tile[0:16], scale, scale)
    elif what == "odd":
        nisa.nc_matmul_mx(acc[0:15], tile[:, 0:15], tile, scale[:, 0:15], scale)
    elif what == "columns":
        nisa.nc_matmul_mx(acc, tile, tile, scale, scale, (0, 64), (64, 64))
    else:
        nisa.nc_matmul_mx(acc, tile, tile, scale, scale)
    return x
