"""Whole kernels as their authors write them: tiles that do not divide, windows, gathers, rings of
PSUM banks, loops that may not turn, halves that exchange edges. Loaded as a twin.
"""

import math

import nki
import nki.isa as nisa
import nki.language as nl


def _tile(shape, dtype=nl.float32, buffer=nl.sbuf):
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def _loaded(x, dtype=None):
    tile = _tile(x.shape, dtype or x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def _result(tile, dtype=None):
    out = nl.ndarray(tile.shape, dtype=dtype or tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def _register(count):
    register = nisa.register_alloc()
    nisa.register_load(dst=register, src=_loaded(count))
    return register


@nki.jit
def layer_norm(x, gamma, eps):
    """Statistics in pieces of 512 columns; gamma reaches all partitions by a product with ones."""
    n, d = x.shape
    out = nl.ndarray((n, d), dtype=x.dtype, buffer=nl.shared_hbm)
    ones = _tile((1, 128))
    nisa.memset(dst=ones, value=1.0)
    row = _loaded(gamma.reshape((1, d)), nl.float32)
    weight = _tile((128, d))
    pieces = []
    for c in range(0, d, 512):
        pieces.append(nl.ds(c, min(512, d - c)))
    for piece in pieces:
        acc = _tile((128, row[:, piece].shape[1]), buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=ones, moving=row[:, piece])
        nisa.tensor_copy(dst=weight[:, piece], src=acc)
    for i in nl.affine_range(math.ceil(n / 128)):
        rows = nl.ds(i * 128, min(128, n - i * 128))
        tile = _loaded(x[rows, :], nl.float32)
        p = tile.shape[0]
        stats = _tile((p, 6 * len(pieces)))
        for c in range(len(pieces)):
            nisa.bn_stats(dst=stats[:, 6 * c : 6 * c + 6], data=tile[:, pieces[c]])
        moments = _tile((p, 2))
        nisa.bn_aggr(dst=moments, data=stats)
        scale = _tile((p, 1))
        nisa.tensor_scalar(
            dst=scale,
            data=moments[:, 1:2],
            op0=nl.add,
            operand0=eps,
            op1=nl.power,
            operand1=-0.5,
        )
        nisa.tensor_scalar(
            dst=tile,
            data=tile,
            op0=nl.subtract,
            operand0=moments[:, 0:1],
            op1=nl.multiply,
            operand1=scale,
        )
        done = _tile((p, d), x.dtype)
        nisa.tensor_tensor(dst=done, data1=tile, data2=weight[0:p, :], op=nl.multiply)
        nisa.dma_copy(dst=out[rows, :], src=done)
    return out


@nki.jit
def depthwise_conv(x, w, stride, dilation):
    """The windows overlap: one access pattern with three steps."""
    c, n = x.shape
    k = w.shape[1]
    m = (n - dilation * (k - 1) - 1) // stride + 1
    windows = _loaded(x).ap(pattern=[[n, c], [stride, m], [dilation, k]])
    products = _tile((c, m, k))
    weights = _loaded(w).expand_dim(1).broadcast(1, m)
    nisa.tensor_tensor(dst=products, data1=windows, data2=weights, op=nl.multiply)
    sums = _tile((c, m))
    nisa.tensor_reduce(dst=sums, op=nl.add, data=products, axis=2)
    return _result(sums)


@nki.jit
def gather_rows(table, index, mode):
    """table[index], by an access pattern, by `vector_select`, or leaving out what is not there."""
    n, d = index.shape[0], table.shape[1]
    out = nl.ndarray((n, d), dtype=table.dtype, buffer=nl.shared_hbm)
    for s in range(0, n, 128):
        p = min(128, n - s)
        rows = _loaded(index[s : s + p, :])
        source = table.ap(pattern=[[d, p], [1, d]], vector_offset=rows, indirect_dim=0)
        if mode == "select":
            source = table.vector_select(0, rows)
        tile = _tile((p, d), table.dtype)
        nisa.memset(dst=tile, value=-1)
        skips = nisa.oob_mode.skip if mode == "skip" else nisa.oob_mode.error
        nisa.dma_copy(dst=tile, src=source, oob_mode=skips)
        nisa.dma_copy(dst=out[s : s + p, :], src=tile)
    return out


@nki.jit
def product_in_all_banks(a, b):
    """Eight accumulation groups at once, interleaved."""
    k, m = a.shape
    w = b.shape[1] // 8
    banks = []
    for _ in range(8):
        banks.append(_tile((m, w), buffer=nl.psum))
    for s in range(0, k, 128):
        p = min(128, k - s)
        left, right = _loaded(a[s : s + p, :]), _loaded(b[s : s + p, :])
        for j in range(8):
            columns = right[:, j * w : (j + 1) * w]
            nisa.nc_matmul(dst=banks[j], stationary=left, moving=columns, accumulate=s > 0)
    result = _tile((m, 8 * w))
    for j in range(8):
        nisa.tensor_copy(dst=result[:, j * w : (j + 1) * w], src=banks[j])
    return _result(result)


@nki.jit
def neighbours(x):
    """y[:, i] = x[:, i - 1] + x[:, i + 1]: each program has half of the columns and asks the other
    for one more.
    """
    p, n = x.shape
    half = n // 2
    core = nl.program_id(0)
    out = nl.ndarray((p, n), dtype=x.dtype, buffer=nl.shared_hbm)
    own = nl.ds(core * half, half)
    tile = _tile((p, half + 2), x.dtype)
    nisa.memset(dst=tile, value=0)
    nisa.dma_copy(dst=tile[:, 1 : half + 1], src=x[:, own])
    edge, got = _tile((p, 1), x.dtype), _tile((p, 1), x.dtype)
    nisa.tensor_copy(dst=edge, src=tile[:, nl.ds(half if core == 0 else 1, 1)])
    nisa.sendrecv(src=edge, dst=got, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.tensor_copy(dst=tile[:, nl.ds(half + 1 if core == 0 else 0, 1)], src=got)
    sums = _tile((p, half), x.dtype)
    nisa.tensor_tensor(dst=sums, data1=tile[:, 0:half], data2=tile[:, 2 : half + 2], op=nl.add)
    nisa.dma_copy(dst=out[:, own], src=sums)
    return out


@nki.jit
def running_sum(x):
    """A scan in pieces of 100 columns: each begins with the last value of the one before."""
    n, d = x.shape
    tile, ones, sums = _loaded(x), _tile((n, d)), _tile((n, d))
    nisa.memset(dst=ones, value=1.0)
    for s in range(0, d, 100):
        piece = nl.ds(s, min(100, d - s))
        nisa.tensor_tensor_scan(
            dst=sums[:, piece],
            data0=ones[:, piece],
            data1=tile[:, piece],
            initial=0.0 if s == 0 else sums[:, s - 1 : s],
            op0=nl.multiply,
            op1=nl.add,
        )
    return _result(sums)


@nki.jit
def top_16(x):
    """The 16 largest of each row and where they are: eight, and the next eight without those."""
    p = x.shape[0]
    tile = _loaded(x)
    values, indices = _tile((p, 16)), _tile((p, 16), nl.uint32)
    first, second = nl.ds(0, 8), nl.ds(8, 8)
    nisa.max8(dst=values[:, first], src=tile)
    nisa.nc_match_replace8(
        dst=tile,
        data=tile,
        vals=values[:, first],
        imm=float("-inf"),
        dst_idx=indices[:, first],
    )
    nisa.max8(dst=values[:, second], src=tile)
    nisa.nc_find_index8(dst=indices[:, second], data=tile, vals=values[:, second])
    return _result(values), _result(indices)


@nki.jit
def turns_of_a_triangle(n):
    """Counts the turns of a loop in a loop whose bound is the outer one's counter."""
    count = _tile((1, 1))
    nisa.memset(dst=count, value=0.0)
    for i in nl.dynamic_range(0, _register(n)):
        for _ in nl.dynamic_range(0, i):
            nisa.tensor_scalar(dst=count, data=count, op0=nl.add, operand0=1.0)
    return _result(count)


@nki.jit
def doubled_rows(x, n):
    """Rows that a counter addresses are doubled, others stay."""
    d = x.shape[1]
    out = _result(_loaded(x))
    for i in nl.dynamic_range(0, _register(n)):
        pattern = [[d, 1], [1, d]]
        row = _tile((1, d), x.dtype)
        nisa.dma_copy(dst=row, src=x.ap(pattern=pattern, scalar_offset=i, indirect_dim=0))
        nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out.ap(pattern=pattern, scalar_offset=i, indirect_dim=0), src=row)
    return out


@nki.jit
def written_in_a_loop(x, n):
    """The result is written only where the loop turns."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for _ in nl.dynamic_range(0, _register(n)):
        nisa.dma_copy(dst=out, src=_loaded(x))
    return out


@nki.jit
def attention(q, k, v, is_causal):
    """Online softmax over blocks of 128 keys."""
    sq, d = q.shape
    out = nl.ndarray((sq, d), dtype=q.dtype, buffer=nl.shared_hbm)
    for i in range(0, sq, 128):
        p = min(128, sq - i)
        query = _tile((d, p), q.dtype)
        nisa.dma_transpose(dst=query, src=q[i : i + p, :])
        largest, total, sums = _tile((p, 1)), _tile((p, 1)), _tile((p, d))
        nisa.memset(dst=largest, value=-1e30)
        nisa.memset(dst=total, value=0.0)
        nisa.memset(dst=sums, value=0.0)
        for j in range(0, k.shape[0], 128):
            if not is_causal or j < i + p:
                w = min(128, k.shape[0] - j)
                keys = _tile((d, w), q.dtype)
                nisa.dma_transpose(dst=keys, src=k[j : j + w, :])
                scores = _scores(query, keys, i - j if is_causal else None)
                _add_block(scores, _loaded(v[j : j + w, :]), largest, total, sums)
        nisa.reciprocal(dst=total, data=total)
        done = _tile((p, d), q.dtype)
        nisa.tensor_scalar(dst=done, data=sums, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[i : i + p, :], src=done)
    return out


def _scores(query, keys, diagonal):
    (d, p), w = query.shape, keys.shape[1]
    acc = _tile((p, w), buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=query, moving=keys)
    scores = _tile((p, w))
    nisa.tensor_scalar(dst=scores, data=acc, op0=nl.multiply, operand0=1.0 / math.sqrt(d))
    if diagonal is None:
        return scores
    masked = _tile((p, w))
    nisa.affine_select(
        dst=masked,
        pattern=[[-1, w]],
        offset=diagonal,
        channel_multiplier=1,
        on_true_tile=scores,
        on_false_value=-1e30,
        cmp_op=nl.greater_equal,
    )
    return masked


def _add_block(scores, values, largest, total, sums):
    (p, w), d = scores.shape, values.shape[1]
    new, negative, factor, block = _tile((p, 1)), _tile((p, 1)), _tile((p, 1)), _tile((p, 1))
    nisa.tensor_reduce(dst=new, op=nl.maximum, data=scores, axis=1)
    nisa.tensor_tensor(dst=new, data1=largest, data2=new, op=nl.maximum)
    nisa.tensor_scalar(dst=negative, data=new, op0=nl.multiply, operand0=-1.0)
    nisa.activation(dst=factor, op=nl.exp, data=largest, bias=negative)
    nisa.tensor_copy(dst=largest, src=new)
    weights = _tile((p, w), values.dtype)
    nisa.activation_reduce(
        dst=weights, op=nl.exp, data=scores, reduce_op=nl.add, reduce_res=block, bias=negative
    )
    turned = _tile((w, p), values.dtype, nl.psum)
    nisa.nc_transpose(dst=turned, data=weights)
    stationary = _tile((w, p), values.dtype)
    nisa.tensor_copy(dst=stationary, src=turned)
    acc = _tile((p, d), buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=stationary, moving=values)
    for held, more in ((total, block), (sums, acc)):
        nisa.scalar_tensor_tensor(
            dst=held, data=held, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=more
        )


@nki.jit
def reduces_from_its_destination(x, start, takes_exponential):
    """dst holds the initial value of the reduction until it is written."""
    out = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.shared_hbm)
    data = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    dst = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=data, src=x)
    nisa.dma_copy(dst=dst, src=start)
    if takes_exponential:
        nisa.exponential(
            dst=dst,
            src=data,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
            reduce_init=dst,
            reduce_res=total,
        )
    else:
        nisa.tensor_scalar_reduce(
            dst=dst,
            data=data,
            op0=nl.multiply,
            operand0=3.0,
            reduce_op=nl.add,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
            reduce_init=dst,
            reduce_res=total,
        )
    nisa.dma_copy(dst=out, src=total)
    return out
