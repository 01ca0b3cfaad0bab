"""Held-out kernels with matrix products. Written for this repository from the published
descriptions; see `held_out.py`.
"""

import nki
import nki.isa as nisa
import nki.language as nl


def _tile(shape, dtype):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)


def _sum(rows, columns):
    return nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.psum)


def _transposed(data):
    """[p, f] to [f, p] through TensorE."""
    held = nl.ndarray((data.shape[1], data.shape[0]), dtype=data.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=held, data=data, engine=nisa.tensor_engine)
    tile = _tile(held.shape, data.dtype)
    nisa.tensor_copy(dst=tile, src=held, engine=nisa.vector_engine)
    return tile


def _rows_transposed(tile, depth):
    """Columns of a tile [rows, depth] as tiles [128, rows]."""
    pieces = []
    for k in range(0, depth, 128):
        pieces.append(_transposed(tile[:, k : k + 128]))
    return pieces


def _evict(acc, dtype, engine):
    tile = _tile(acc.shape, dtype)
    nisa.tensor_copy(dst=tile, src=acc, engine=engine)
    return tile


@nki.jit
def matmul_row_blocks(x, w, block):
    """x [M, K] by w [K, N]: blocks of `block` tiles of M, transposed by TensorE, while w streams by
    in tiles of 512 columns.
    """
    height, depth = x.shape
    columns = w.shape[1]
    out = nl.ndarray((height, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for m in range(0, height, 128 * block):
        stationary = []
        for row in range(m, m + 128 * block, 128):
            tile = _tile((128, depth), x.dtype)
            nisa.dma_copy(dst=tile, src=x[row : row + 128])
            stationary.append(_rows_transposed(tile, depth))
        for n in range(0, columns, 512):
            sums = []
            for _ in range(block):
                sums.append(_sum(128, 512))
            for k in range(0, depth, 128):
                moving = _tile((128, 512), w.dtype)
                nisa.dma_copy(dst=moving, src=w[k : k + 128, n : n + 512])
                for i in range(block):
                    nisa.nc_matmul(dst=sums[i], stationary=stationary[i][k // 128], moving=moving)
            for i in range(block):
                tile = _evict(sums[i], x.dtype, nisa.vector_engine)
                row = m + 128 * i
                nisa.dma_copy(dst=out[row : row + 128, n : n + 512], src=tile)
    return out


@nki.jit
def transpose_matmul(lhs, rhs, block, products):
    """lhs [K, M], rhs [K, N], both with K on the partitions; `products` bf16 products stand for one
    in float32 (1: float32 itself). rhs is cut into 512 columns and a rest.
    """
    depth, height = lhs.shape
    columns = rhs.shape[1]
    out = nl.ndarray((height, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    for m in range(0, height, 128 * block):
        stationary = []
        for k in range(0, depth, 128):
            tile = _tile((128, 128 * block), lhs.dtype)
            nisa.dma_copy(dst=tile, src=lhs[k : k + 128, m : m + 128 * block])
            stationary.append(_halved(tile, products))
        for n in range(0, columns, 512):
            width = min(512, columns - n)
            moving = []
            for k in range(0, depth, 128):
                tile = _tile((128, width), rhs.dtype)
                nisa.dma_copy(dst=tile, src=rhs[k : k + 128, n : n + width])
                moving.append(_halved(tile, products))
            for i in range(block):
                acc = _sum(128, width)
                for a, b in zip(stationary, moving, strict=True):
                    part = a[:, 128 * i : 128 * i + 128]
                    for _ in range(products):
                        nisa.nc_matmul(dst=acc, stationary=part, moving=b)
                row = m + 128 * i
                tile = _evict(acc, nl.float32, nisa.vector_engine)
                nisa.dma_copy(dst=out[row : row + 128, n : n + width], src=tile)
    return out


def _halved(tile, products):
    """A tile in bfloat16 where several products stand for one."""
    if products == 1:
        return tile
    half = _tile(tile.shape, nl.bfloat16)
    nisa.tensor_copy(dst=half, src=tile, engine=nisa.vector_engine)
    low = _tile(tile.shape, nl.bfloat16)
    nisa.tensor_tensor(dst=low, data1=tile, data2=half, op=nl.subtract)
    return half


@nki.jit
def lora(x, w, a, b, block):
    """x @ w + (x @ a) @ b, float32: x [M, K], w [K, N], a [K, R], b [R, N]."""
    height, depth = x.shape
    columns, rank = w.shape[1], a.shape[1]
    out = nl.ndarray((height, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    down = []
    for k in range(0, depth, 128):
        tile = _tile((128, rank), a.dtype)
        nisa.dma_copy(dst=tile, src=a[k : k + 128])
        down.append(tile)
    for m in range(0, height, 128 * block):
        stationary = []
        low = []
        for row in range(m, m + 128 * block, 128):
            tile = _tile((128, depth), x.dtype)
            nisa.dma_copy(dst=tile, src=x[row : row + 128])
            pieces = _rows_transposed(tile, depth)
            acc = _sum(rank, 128)
            for piece, factor in zip(pieces, down, strict=True):
                nisa.nc_matmul(dst=acc, stationary=factor, moving=piece)
            low.append(_evict(acc, x.dtype, nisa.scalar_engine))
            stationary.append(pieces)
        for n in range(0, columns, 512):
            sums = []
            for _ in range(block):
                sums.append(_sum(128, 512))
            for k in range(0, depth, 128):
                moving = _tile((128, 512), w.dtype)
                nisa.dma_copy(dst=moving, src=w[k : k + 128, n : n + 512])
                for i in range(block):
                    nisa.nc_matmul(dst=sums[i], stationary=stationary[i][k // 128], moving=moving)
            up = _tile((rank, 512), b.dtype)
            nisa.dma_copy(dst=up, src=b[:, n : n + 512])
            for i in range(block):
                nisa.nc_matmul(dst=sums[i], stationary=low[i], moving=up)
                row = m + 128 * i
                tile = _evict(sums[i], x.dtype, nisa.vector_engine)
                nisa.dma_copy(dst=out[row : row + 128, n : n + 512], src=tile)
    return out


@nki.jit
def rmsnorm_matmul(x, w):
    """RMS norm of the rows of x [M, K] without a weight, then by w [K, N], which stays in SBUF."""
    height, depth = x.shape
    columns = w.shape[1]
    out = nl.ndarray((height, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    width = min(512, columns)
    weights = []
    for k in range(0, depth, 128):
        tile = _tile((128, columns), w.dtype)
        nisa.dma_copy(dst=tile, src=w[k : k + 128])
        weights.append(tile)
    epsilon = _tile((128, 1), nl.float32)
    nisa.memset(dst=epsilon, value=1e-6)
    for m in range(0, height, 128):
        tile = _tile((128, depth), x.dtype)
        nisa.dma_copy(dst=tile, src=x[m : m + 128])
        square = _tile((128, depth), x.dtype)
        total = _tile((128, 1), nl.float32)
        nisa.activation_reduce(
            dst=square, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=total
        )
        scale = _tile((128, 1), nl.float32)
        nisa.activation(dst=scale, op=nl.rsqrt, data=total, scale=1.0 / depth, bias=epsilon)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
        pieces = _rows_transposed(tile, depth)
        result = _tile((128, columns), x.dtype)
        for n in range(0, columns, width):
            acc = _sum(128, width)
            for piece, weight in zip(pieces, weights, strict=True):
                nisa.nc_matmul(dst=acc, stationary=piece, moving=weight[:, n : n + width])
            nisa.tensor_copy(dst=result[:, n : n + width], src=acc, engine=nisa.vector_engine)
        nisa.dma_copy(dst=out[m : m + 128], src=result)
    return out


@nki.jit
def double_row_matmul(x, weights, scales):
    """x [M, K] bf16 by weights [K / 256, 128, 2, N] fp8, scales of the columns [128, N]: blocks of
    256 rows and 2048 of K, in which x is quantised to fp8 row by row and transposed by TensorE;
    products of 256 rows of K; sums of a block get their rows' scales, sums of all their columns'.
    """
    rows, depth = x.shape
    columns = weights.shape[3]
    out = nl.ndarray((rows, columns), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    for m in range(0, rows, 256):
        totals = []
        for _ in range(2):
            total = _tile((128, columns), nl.bfloat16)
            nisa.memset(dst=total, value=0.0)
            totals.append(total)
        for k in range(0, depth, 2048):
            quantised = [_quantised(x[m + r : m + r + 128, k : k + 2048]) for r in (0, 128)]
            moving = []
            for pair in range(k // 256, k // 256 + 8):
                tile = _tile((128, 2, columns), weights.dtype)
                nisa.dma_copy(dst=tile, src=weights[pair])
                moving.append(tile)
            for row in range(2):
                sums = _double_row_sums(quantised[row][0], moving, columns)
                scaled = _tile((128, columns), nl.bfloat16)
                nisa.tensor_scalar(
                    dst=scaled, data=sums, op0=nl.multiply, operand0=quantised[row][1]
                )
                nisa.tensor_tensor(dst=totals[row], data1=totals[row], data2=scaled, op=nl.add)
        factors = _tile((128, columns), nl.bfloat16)
        nisa.dma_copy(dst=factors, src=scales)
        for row in range(2):
            result = _tile((128, columns), nl.bfloat16)
            nisa.tensor_tensor(dst=result, data1=totals[row], data2=factors, op=nl.multiply)
            nisa.dma_copy(dst=out[m + 128 * row : m + 128 * row + 128], src=result)
    return out


def _quantised(source):
    """([128 of K, tile of K, 128 rows] fp8, the scales of the rows) of a block [128, K]."""
    count, depth = source.shape
    tile = _tile((count, depth), source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    size = _tile((count, depth), source.dtype)
    nisa.activation(dst=size, op=nl.abs, data=tile)
    scale = _tile((count, 1), nl.float32)
    nisa.tensor_reduce(dst=scale, op=nl.maximum, data=size, axis=1)
    nisa.tensor_scalar(dst=scale, data=scale, op0=nl.multiply, operand0=1.0 / 240.0)
    inverse = _tile((count, 1), nl.float32)
    nisa.reciprocal(dst=inverse, data=scale)
    narrow = _tile((count, depth), nl.bfloat16)
    nisa.tensor_scalar(dst=narrow, data=tile, op0=nl.multiply, operand0=inverse)
    turned = _tile((128, depth // 128, count), nl.float8_e5m2)
    for i in range(depth // 128):
        acc = nl.ndarray((128, count), dtype=nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(
            dst=acc, data=narrow[:, 128 * i : 128 * i + 128], engine=nisa.tensor_engine
        )
        nisa.tensor_copy(dst=turned[:, i], src=acc, engine=nisa.vector_engine)
    return turned, scale


def _double_row_sums(stationary, moving, columns):
    """One block's sums [128, columns] in bf16."""
    sums = _tile((128, columns), nl.bfloat16)
    for n in range(0, columns, 512):
        acc = _sum(128, 512)
        for i, tile in enumerate(moving):
            nisa.nc_matmul(
                dst=acc, stationary=stationary[:, 2 * i : 2 * i + 2],
                moving=tile[:, :, n : n + 512], perf_mode="double_row",
            )  # fmt: skip
        nisa.tensor_copy(dst=sums[:, n : n + 512], src=acc, engine=nisa.vector_engine)
    return sums


@nki.jit
def convolution(x, w, bias, rows):
    """3 x 3 without padding: x [C, H, W], w [O, C, 3, 3], bias [O] -> [O, H - 2, W - 2]; `rows`
    rows of the result at a time, nine shifted products per 128 channels. TensorE transposes w.
    """
    channels, height, width = x.shape
    outputs = w.shape[0]
    tall, wide = height - 2, width - 2
    out = nl.ndarray((outputs, tall, wide), dtype=x.dtype, buffer=nl.shared_hbm)
    weights, biases = _taps(w), []
    for o in range(0, outputs, 128):
        tile = _tile((128, 1), nl.float32)
        nisa.dma_copy(dst=tile, src=bias.reshape((outputs, 1))[o : o + 128])
        biases.append(tile)
    for top in range(0, tall, rows):
        count = min(rows, tall - top)
        images = []
        for c in range(0, channels, 128):
            tile = _tile((128, count + 2, width), x.dtype)
            nisa.dma_copy(dst=tile, src=x[c : c + 128, top : top + count + 2])
            images.append(tile)
        for o in range(0, outputs, 128):
            _convolve(out, images, weights, biases[o // 128], (o, top, count, wide))
    return out


def _taps(w):
    """w [O, C, 3, 3] as tiles [128 of C, O], by tap and then by C."""
    outputs, channels = w.shape[0], w.shape[1]
    flat = w.reshape((outputs, channels * 9))
    tiles = []
    for _ in range(9 * (channels // 128)):
        tiles.append(_tile((128, outputs), w.dtype))
    for o in range(0, outputs, 128):
        loaded = _tile((128, channels * 9), w.dtype)
        nisa.dma_copy(dst=loaded, src=flat[o : o + 128])
        for tap in range(9):
            for c in range(0, channels, 128):
                first = c * 9 + tap
                turned = nl.ndarray((128, 128), dtype=w.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=loaded[:, first : first + 127 * 9 + 1 : 9])
                target = tiles[tap * (channels // 128) + c // 128][:, o : o + 128]
                nisa.tensor_copy(dst=target, src=turned, engine=nisa.vector_engine)
    return tiles


def _convolve(out, images, weights, bias, place):
    o, top, count, wide = place
    per_bank = 512 // wide
    result = _tile((128, count, wide), out.dtype)
    for first in range(0, count, per_bank):
        last = min(first + per_bank, count)
        acc = nl.ndarray((128, last - first, wide), dtype=nl.float32, buffer=nl.psum)
        for tap in range(9):
            down, right = tap // 3, tap % 3
            for c in range(len(images)):
                nisa.nc_matmul(
                    dst=acc,
                    stationary=weights[tap * len(images) + c][:, o : o + 128],
                    moving=images[c][:, first + down : last + down, right : right + wide],
                )
        nisa.tensor_scalar(dst=result[:, first:last], data=acc, op0=nl.add, operand0=bias)
    nisa.dma_copy(dst=out[o : o + 128, top : top + count], src=result)


@nki.jit
def mlp(x, matrices, down, residual):
    """silu(x @ gate) * (x @ up) @ down (+ residual) for many rows; matrices are gate and up, or up
    alone: x [S, H], matrices [H, I], down [I, H], which is read anew for every 128 rows. The rows
    are shared out to the programs; x is transposed by TensorE.
    """
    rows, hidden = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    share = rows // nl.num_programs(0)
    own = nl.program_id(0) * share
    weights = []
    for matrix in matrices:
        weights.append(_load_rows(matrix, hidden))
    for m in range(own, own + share, 128):
        count = min(128, own + share - m)
        tile = _tile((count, hidden), x.dtype)
        nisa.dma_copy(dst=tile, src=x[m : m + count])
        if residual is not None:
            added = _tile((count, hidden), x.dtype)
            nisa.dma_copy(dst=added, src=residual[m : m + count])
            nisa.tensor_tensor(dst=tile, data1=tile, data2=added, op=nl.add)
        inward = _inner_rows(_rows_transposed(tile, hidden), weights, count, down.shape[0])
        _project(out[m : m + count], inward, down)
    return out


def _inner_rows(pieces, weights, count, inner):
    """The transposed, activated products of a row block."""
    held = _tile((count, inner), pieces[0].dtype)
    for n in range(0, inner, 512):
        width = min(512, inner - n)
        both = []
        for matrix in weights:
            acc = _sum(count, width)
            for piece, weight in zip(pieces, matrix, strict=True):
                nisa.nc_matmul(dst=acc, stationary=piece, moving=weight[:, n : n + width])
            both.append(acc)
        _gated(held[:, n : n + width], both)
    inward = []
    for k in range(0, inner, 128):
        inward.append(_transposed(held[:, k : min(k + 128, inner)]))
    return inward


def _project(out, inward, down):
    """out = rows of `inward` @ down."""
    count, hidden = out.shape
    tiles = _load_rows(down, down.shape[0])
    result = _tile((count, hidden), out.dtype)
    for n in range(0, hidden, 512):
        width = min(512, hidden - n)
        acc = _sum(count, width)
        for piece, weight in zip(inward, tiles, strict=True):
            nisa.nc_matmul(dst=acc, stationary=piece, moving=weight[:, n : n + width])
        nisa.tensor_copy(dst=result[:, n : n + width], src=acc, engine=nisa.vector_engine)
    nisa.dma_copy(dst=out, src=result)


def _load_rows(matrix, depth):
    """A matrix [depth, columns] as tiles of 128 rows."""
    tiles = []
    for k in range(0, depth, 128):
        rows = min(128, depth - k)
        tile = _tile((rows, matrix.shape[1]), matrix.dtype)
        nisa.dma_copy(dst=tile, src=matrix[k : k + rows])
        tiles.append(tile)
    return tiles


def _gated(dst, both):
    active = _tile(dst.shape, dst.dtype)
    nisa.activation(dst=active, op=nl.silu, data=both[0])
    if len(both) == 1:
        nisa.tensor_copy(dst=dst, src=active, engine=nisa.vector_engine)
        return
    nisa.tensor_tensor(dst=dst, data1=active, data2=both[1], op=nl.multiply)


@nki.jit
def stream_weights(x, matrices, down, is_turned):
    """A few rows x [T, H] through matrices [H, I] and `down` [I, H] if there is one: the time is
    that of reading the weights. The programs share H, each partition has rows of a matrix that lie
    behind one another, 16 to a load, and two programs exchange and add their sums. With
    `is_turned`, for up to 128 columns, the weights are the stationary operand.
    """
    rows, hidden = x.shape
    columns = matrices[0].shape[1]
    share = hidden // nl.num_programs(0)
    own = nl.program_id(0) * share
    stationary = _by_partitions(x[:, own : own + share])
    if is_turned:
        sums = _tile((columns, len(matrices), rows), nl.float32)
    else:
        sums = _tile((rows, len(matrices), columns), nl.float32)
    for m in range(len(matrices)):
        matrix = matrices[m][own : own + share]
        if is_turned:
            _accumulate_turned(sums[:, m], stationary, matrix)
        else:
            _accumulate(sums[:, m], stationary, matrix)
    if nl.num_programs(0) > 1:
        other = 1 - nl.program_id(0)
        received = _tile(sums.shape, nl.float32)
        nisa.sendrecv(src=sums, dst=received, send_to_rank=other, recv_from_rank=other, pipe_id=0)
        nisa.tensor_tensor(dst=sums, data1=sums, data2=received, op=nl.add)
    held = _tile((columns, rows) if is_turned else (rows, columns), x.dtype)
    if down is None:
        out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.tensor_copy(dst=held, src=sums[:, 0], engine=nisa.vector_engine)
        half = columns // nl.num_programs(0)
        first = nl.program_id(0) * half
        nisa.dma_copy(dst=out[:, first : first + half], src=held[:, first : first + half])
        return out
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    _gated(held, [sums[:, 0], sums[:, 1]])
    inward = []
    if is_turned:
        inward.append(held)
    else:
        for k in range(0, columns, 128):
            inward.append(_transposed(held[:, k : min(k + 128, columns)]))
    _project_in_squares(out[:, own : own + share], inward, down[:, own : own + share])
    return out


def _by_partitions(x):
    """x [T, H] as [128, T, H / 128], a run of H / 128 elements to a partition; up to 2048 columns
    are loaded as they lie, and transposed by TensorE.
    """
    rows, hidden = x.shape
    inner = hidden // 128
    tile = _tile((128, rows, inner), x.dtype)
    if hidden > 2048:
        nisa.dma_copy(dst=tile, src=x.reshape((rows, 128, inner)).permute((1, 0, 2)))
        return tile
    flat = _tile((rows, hidden), x.dtype)
    nisa.dma_copy(dst=flat, src=x)
    for i in range(inner):
        part = flat[:, i : i + 127 * inner + 1 : inner]
        turned = nl.ndarray((128, rows), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=part)
        nisa.tensor_copy(dst=tile[:, :, i], src=turned, engine=nisa.vector_engine)
    return tile


def _accumulate(dst, stationary, matrix):
    """x @ matrix into dst [T, I]; up to 16 rows of the matrix a partition and load."""
    rows, columns = dst.shape
    inner = stationary.shape[2]
    by_partition = matrix.reshape((128, inner, columns))
    parts = []
    for n in range(0, columns, 512):
        parts.append(_sum(rows, min(512, columns - n)))
    for first in range(0, inner, 16):
        count = min(16, inner - first)
        tile = _tile((128, count, columns), matrix.dtype)
        nisa.dma_copy(dst=tile, src=by_partition[:, first : first + count])
        for i in range(count):
            for n in range(len(parts)):
                nisa.nc_matmul(
                    dst=parts[n],
                    stationary=stationary[:, :, first + i],
                    moving=tile[:, i, 512 * n : 512 * n + parts[n].shape[1]],
                )
    for n in range(len(parts)):
        width = parts[n].shape[1]
        nisa.tensor_copy(
            dst=dst[:, 512 * n : 512 * n + width], src=parts[n], engine=nisa.vector_engine
        )


def _accumulate_turned(dst, stationary, matrix):
    """The transpose of x @ matrix into dst [I, T]."""
    columns, rows = dst.shape
    inner = stationary.shape[2]
    by_partition = matrix.reshape((128, inner, columns))
    acc = _sum(columns, rows)
    for first in range(0, inner, 16):
        count = min(16, inner - first)
        tile = _tile((128, count, columns), matrix.dtype)
        nisa.dma_copy(dst=tile, src=by_partition[:, first : first + count])
        for i in range(count):
            nisa.nc_matmul(dst=acc, stationary=tile[:, i], moving=stationary[:, :, first + i])
    nisa.tensor_copy(dst=dst, src=acc, engine=nisa.vector_engine)


def _project_in_squares(out, inward, down):
    """out [T, H] of `inward`, 128 of I by T a tile, and down [I, H], T up to 32: four products of
    512 columns side by side in TensorE's array, each in 32 of its columns, 128 rows of `down` after
    another as they arrive.
    """
    rows, hidden = out.shape
    result = _tile((rows, hidden), out.dtype)
    for start in range(0, hidden, 4096):
        columns = min(4096, hidden - start)
        banks = []
        for _ in range(0, columns, 2048):
            banks.append(_sum(128, 512))
        for k, piece in enumerate(inward):
            first = 128 * k
            tile = _tile((piece.shape[0], columns), piece.dtype)
            nisa.dma_copy(
                dst=tile,
                src=down[first : first + piece.shape[0], start : start + columns],
                dge_mode=nisa.dge_mode.none,
            )
            for n in range(0, columns, 512):
                part = _square(banks, n, rows, min(512, columns - n))
                column = n // 512 % 4 * 32
                nisa.nc_matmul(
                    dst=part,
                    stationary=piece,
                    moving=tile[:, n : n + part.shape[1]],
                    tile_position=(0, column),
                    tile_size=(128, 32),
                )
        for n in range(0, columns, 512):
            part = _square(banks, n, rows, min(512, columns - n))
            engine = nisa.scalar_engine if n // 512 % 2 else nisa.vector_engine
            target = result[:, start + n : start + n + part.shape[1]]
            nisa.tensor_copy(dst=target, src=part, engine=engine)
    nisa.dma_copy(dst=out, src=result)


def _square(banks, column, rows, width):
    """The sums of `width` columns from `column` on."""
    first = column // 512 % 4 * 32
    return banks[column // 2048][first : first + rows, 0:width]


@nki.jit
def batched(lhs, rhs, block):
    """lhs [batch, M, 64] by rhs [batch, 64, N], float32: TensorE transposes `block` tiles of lhs,
    then multiplies them; VectorE and ScalarE take turns at evicting, 1024 columns to a store.
    """
    batch, height, depth = lhs.shape
    columns = rhs.shape[2]
    out = nl.ndarray((batch, height, columns), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in range(batch):
        moving = _tile((depth, columns), nl.float32)
        nisa.dma_copy(dst=moving, src=rhs[i])
        for m in range(0, height, 128 * block):
            stationary = []
            for row in range(m, m + 128 * block, 128):
                tile = _tile((128, depth), nl.float32)
                nisa.dma_copy(dst=tile, src=lhs[i, row : row + 128])
                stationary.append(_transposed(tile))
            for j in range(block):
                row = m + 128 * j
                for n in range(0, columns, 1024):
                    tile = _tile((128, 1024), nl.float32)
                    for half in range(2):
                        acc = _sum(128, 512)
                        first = n + 512 * half
                        nisa.nc_matmul(
                            dst=acc, stationary=stationary[j], moving=moving[:, first : first + 512]
                        )
                        engine = nisa.vector_engine if half else nisa.scalar_engine
                        nisa.tensor_copy(
                            dst=tile[:, 512 * half : 512 * half + 512], src=acc, engine=engine
                        )
                    nisa.dma_copy(dst=out[i, row : row + 128, n : n + 1024], src=tile)
    return out
