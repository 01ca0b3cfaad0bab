"""Held-out kernels that stream rows: silu, AdamW, RMS norm with quantisation, average pooling.

Written for this repository from the published descriptions; see `held_out.py`.
"""

import nki
import nki.isa as nisa
import nki.language as nl


def _tile(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


@nki.jit
def silu(x, width):
    """x [128, columns]: tiles of `width` columns in, one activation, out."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[1], width):
        tile = _tile((128, width), x.dtype)
        result = _tile((128, width), x.dtype)
        nisa.dma_copy(dst=tile, src=x[:, start : start + width])
        nisa.activation(dst=result, op=nl.silu, data=tile)
        nisa.dma_copy(dst=out[:, start : start + width], src=result)
    return out


def _adamw_tile(theta, grad, first, second):
    """999 v + g^2, 9 m + g, (.) * rsqrt(.), 0.99999 theta - 0.001 (.)"""
    shape = theta.shape
    square = _tile(shape, nl.float32)
    nisa.activation(dst=square, op=nl.square, data=grad)
    nisa.scalar_tensor_tensor(
        dst=second, data=second, op0=nl.multiply, operand0=999.0, op1=nl.add, operand1=square
    )
    nisa.scalar_tensor_tensor(
        dst=first, data=first, op0=nl.multiply, operand0=9.0, op1=nl.add, operand1=grad
    )
    root = _tile(shape, nl.float32)
    nisa.activation(dst=root, op=nl.rsqrt, data=second)
    nisa.scalar_tensor_tensor(
        dst=root, data=first, op0=nl.multiply, operand0=-0.001, op1=nl.multiply, operand1=root
    )
    result = _tile(shape, nl.float32)
    nisa.scalar_tensor_tensor(
        dst=result, data=theta, op0=nl.multiply, operand0=0.99999, op1=nl.add, operand1=root
    )
    return result


@nki.jit
def adamw_rows(theta, grad, first, second):
    """Four tensors [rows, columns] in, 128 rows at a time, one out."""
    out = nl.ndarray(theta.shape, dtype=theta.dtype, buffer=nl.shared_hbm)
    rows, columns = theta.shape
    for start in range(0, rows, 128):
        end = min(start + 128, rows)
        tiles = []
        for tensor in (theta, grad, first, second):
            tile = _tile((end - start, columns), nl.float32)
            nisa.dma_copy(dst=tile, src=tensor[start:end])
            tiles.append(tile)
        nisa.dma_copy(dst=out[start:end], src=_adamw_tile(tiles[0], tiles[1], tiles[2], tiles[3]))
    return out


@nki.jit
def adamw_columns(theta, grad, first, second, width):
    """The same on [128, columns], `width` columns at a time."""
    out = nl.ndarray(theta.shape, dtype=theta.dtype, buffer=nl.shared_hbm)
    for start in range(0, theta.shape[1], width):
        tiles = []
        for tensor in (theta, grad, first, second):
            tile = _tile((128, width), nl.float32)
            nisa.dma_copy(dst=tile, src=tensor[:, start : start + width])
            tiles.append(tile)
        nisa.dma_copy(
            dst=out[:, start : start + width],
            src=_adamw_tile(tiles[0], tiles[1], tiles[2], tiles[3]),
        )
    return out


@nki.jit
def rmsnorm_quant(x, gamma, has_norm):
    """x [rows, columns] bf16, rows shared out to programs: RMS norm with gamma [1, columns], then
    fp8, one scale per row. TensorE copies gamma to all partitions, 512 columns at a time.
    """
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=nl.float8_e4m3, buffer=nl.shared_hbm)
    scales = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.shared_hbm)
    share = rows // nl.num_programs(0)
    own = nl.program_id(0) * share
    ones = _tile((1, 128), x.dtype)
    nisa.memset(dst=ones, value=1.0)
    epsilon = _tile((128, 1), nl.float32)
    nisa.memset(dst=epsilon, value=1e-6)
    for start in range(own, own + share, 128):
        end = min(start + 128, own + share)
        count = end - start
        tile = _tile((count, columns), x.dtype)
        nisa.dma_copy(dst=tile, src=x[start:end])
        if has_norm:
            _normalise(tile, gamma, ones[:, 0:count], epsilon[0:count])
        size = _tile((count, columns), x.dtype)
        most = _tile((count, 1), nl.float32)
        nisa.tensor_scalar_reduce(
            dst=size, data=tile, op0=nl.abs, operand0=0.0, reduce_op=nl.maximum, reduce_res=most
        )
        nisa.activation(dst=most, op=nl.copy, data=most, scale=1 / 240)
        nisa.tensor_scalar(dst=most, data=most, op0=nl.maximum, operand0=1e-6)
        inverse = _tile((count, 1), nl.float32)
        nisa.reciprocal(dst=inverse, data=most)
        narrow = _tile((count, columns), nl.float8_e4m3)
        nisa.tensor_scalar(
            dst=narrow, data=tile, op0=nl.multiply, operand0=inverse, engine=nisa.vector_engine
        )
        nisa.dma_copy(dst=out[start:end], src=narrow)
        nisa.dma_copy(dst=scales[start:end], src=most)
    return out, scales


def _normalise(tile, gamma, ones, epsilon):
    """RMS norm of a tile in place."""
    count, columns = tile.shape
    weights = _tile((1, columns), gamma.dtype)
    nisa.dma_copy(dst=weights, src=gamma)
    square = _tile((count, columns), nl.float32)
    scale = _tile((count, 1), nl.float32)
    nisa.activation_reduce(dst=square, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=scale)
    nisa.activation(dst=scale, op=nl.rsqrt, data=scale, scale=1.0 / columns, bias=epsilon)
    for n in range(0, columns, 512):
        acc = nl.ndarray((count, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=ones, moving=weights[:, n : n + 512])
        part = tile[:, n : n + 512]
        nisa.scalar_tensor_tensor(
            dst=part, data=part, op0=nl.multiply, operand0=scale, op1=nl.multiply, operand1=acc
        )


@nki.jit
def resize_nearest(x, rows, columns):
    """x [images, height, width, channels] to rows x columns: each pixel of the result is loaded and
    stored, images on the partitions.
    """
    images, height, width, channels = x.shape
    out = nl.ndarray((images, rows * columns, channels), dtype=x.dtype, buffer=nl.shared_hbm)
    flat = x.reshape((images, height * width, channels))
    for row in range(rows):
        for column in range(columns):
            source = row * height // rows * width + column * width // columns
            tile = _tile((images, channels), x.dtype)
            nisa.dma_copy(dst=tile, src=flat[0:images, source])
            nisa.dma_copy(dst=out[0:images, row * columns + column], src=tile)
    return out


@nki.jit
def average_pool(x, size):
    """x [images, channels, height, width] to size x size: images and channels on the partitions, a
    load for each window, its sum added to an accumulator that was cleared, divided by its count.
    """
    images, channels, height, width = x.shape
    rows = images * channels
    out = nl.ndarray((rows, size, size), dtype=x.dtype, buffer=nl.shared_hbm)
    flat = x.reshape((rows, height, width))
    for start in range(0, rows, 128):
        end = min(start + 128, rows)
        result = _tile((end - start, size, size), x.dtype)
        for i in range(size):
            top, bottom = i * height // size, -(-(i + 1) * height // size)
            for j in range(size):
                left, right = j * width // size, -(-(j + 1) * width // size)
                window = flat[start:end, top:bottom, left:right]
                _pool_window(result[:, i, j : j + 1], window)
        nisa.dma_copy(dst=out[start:end], src=result)
    return out


def _pool_window(result, window):
    """The mean of a window [rows, height, width] in HBM, at most 128 x 128 of it at a time."""
    rows, height, width = window.shape
    acc = _tile((rows, 1), nl.float32)
    nisa.memset(dst=acc, value=0.0)
    for top in range(0, height, 128):
        for left in range(0, width, 128):
            part = window[:, top : min(top + 128, height), left : min(left + 128, width)]
            tile = _tile(part.shape, window.dtype)
            nisa.dma_copy(dst=tile, src=part)
            total = _tile((rows, 1), nl.float32)
            nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=(1, 2))
            nisa.tensor_tensor(dst=acc, data1=acc, data2=total, op=nl.add)
    nisa.tensor_scalar(dst=result, data=acc, op0=nl.multiply, operand0=1.0 / (height * width))


def _product(data1, data2, op, engine=nisa.vector_engine):
    result = _tile(data1.shape, nl.float32)
    nisa.tensor_tensor(dst=result, data1=data1, data2=data2, op=op, engine=engine)
    return result


@nki.jit
def rope_halves(x, cos, sin, width):
    """x [128, columns], cos and sin [64, columns]: the halves of x apart, six VectorE instructions
    on 64 partitions for each `width` columns.
    """
    half, columns = cos.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, columns, width):
        end = start + width
        tiles = []
        for source in (x[0:half], x[half:128], cos, sin):
            tile = _tile((half, width), x.dtype)
            nisa.dma_copy(dst=tile, src=source[:, start:end])
            tiles.append(tile)
        low = _product(
            _product(tiles[0], tiles[2], nl.multiply),
            _product(tiles[1], tiles[3], nl.multiply),
            nl.subtract,
        )
        nisa.dma_copy(dst=out[0:half, start:end], src=low)
        high = _product(
            _product(tiles[1], tiles[2], nl.multiply),
            _product(tiles[0], tiles[3], nl.multiply),
            nl.add,
        )
        nisa.dma_copy(dst=out[half:128, start:end], src=high)
    return out


@nki.jit
def rope_packed(x, cos, sin, width):
    """The same on 128 partitions: ScalarE copies cos and sin to the other half and swaps those of
    x, VectorE has three instructions.
    """
    half, columns = cos.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, columns, width):
        end = start + width
        tile = _tile((128, width), x.dtype)
        nisa.dma_copy(dst=tile, src=x[:, start:end])
        angles = []
        for source in (cos, sin):
            both = _tile((128, width), x.dtype)
            nisa.dma_copy(dst=both[0:half], src=source[:, start:end])
            nisa.activation(dst=both[half:128], op=nl.copy, data=both[0:half])
            angles.append(both)
        swapped = _tile((128, width), x.dtype)
        nisa.activation(dst=swapped[0:half], op=nl.copy, data=tile[half:128], scale=-1.0)
        nisa.activation(dst=swapped[half:128], op=nl.copy, data=tile[0:half])
        kept = _product(tile, angles[0], nl.multiply)
        turned = _product(kept, _product(swapped, angles[1], nl.multiply), nl.add)
        nisa.dma_copy(dst=out[:, start:end], src=turned)
    return out


def _over_partitions(row, ones):
    """A row [1, columns] on 128 partitions: a product with ones, evicted by ScalarE."""
    acc = nl.ndarray((128, row.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=ones, moving=row)
    tile = _tile(acc.shape, nl.float32)
    nisa.activation(dst=tile, op=nl.copy, data=acc)
    return tile


@nki.jit
def selective_scan(delta, u, a, b, c, width):
    """Mamba: delta and u [channels, length], a [channels, states], b and c [states, length];
    `width` steps at a time, b and c on the partitions once for all channels.
    """
    channels, length = delta.shape
    states, tiles = a.shape[1], channels // 128
    out = nl.ndarray(delta.shape, dtype=delta.dtype, buffer=nl.shared_hbm)
    ones = _tile((1, 128), nl.float32)
    nisa.memset(dst=ones, value=1.0)
    state = _tile((128, tiles, states), nl.float32)
    nisa.memset(dst=state, value=0.0)
    decay = _tile((128, tiles, states), nl.float32)
    nisa.dma_copy(dst=decay, src=a.reshape((tiles, 128, states)).permute((1, 0, 2)))
    for start in range(0, length, width):
        end = start + width
        deltas, inputs, sums = [], [], []
        for i in range(tiles):
            rows = nl.ds(128 * i, 128)
            step, value = _tile((128, width), nl.float32), _tile((128, width), nl.float32)
            nisa.dma_copy(dst=step, src=delta[rows, start:end])
            nisa.dma_copy(dst=value, src=u[rows, start:end])
            deltas.append(step)
            inputs.append(_product(step, value, nl.multiply))
            total = _tile((128, width), nl.float32)
            nisa.memset(dst=total, value=0.0)
            sums.append(total)
        for s in range(states):
            both = []
            for source in (b, c):
                row = _tile((1, width), nl.float32)
                nisa.dma_copy(dst=row, src=source[s : s + 1, start:end])
                both.append(_over_partitions(row, ones))
            for i in range(tiles):
                last = state[:, i, s : s + 1]
                kept = _tile((128, width), nl.float32)
                nisa.activation(dst=kept, op=nl.exp, data=deltas[i], scale=decay[:, i, s : s + 1])
                scanned = _tile((128, width), nl.float32)
                nisa.tensor_tensor_scan(
                    dst=scanned, data0=kept, data1=_product(inputs[i], both[0], nl.multiply),
                    initial=last, op0=nl.multiply, op1=nl.add,
                )  # fmt: skip
                nisa.tensor_copy(
                    dst=last, src=scanned[:, width - 1 : width], engine=nisa.vector_engine
                )
                part = _product(scanned, both[1], nl.multiply)
                nisa.tensor_tensor(dst=sums[i], data1=sums[i], data2=part, op=nl.add)
        for i in range(tiles):
            nisa.dma_copy(dst=out[nl.ds(128 * i, 128), start:end], src=sums[i])
    return out
