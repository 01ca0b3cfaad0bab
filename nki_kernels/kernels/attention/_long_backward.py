"""NKI helpers of the gradients of attention of long sequences: blocks of 128 queries against tiles
of up to 512 keys.

The gradients of a tile of keys gather in PSUM while all queries go by, those of queries in SBUF
while all tiles do. TensorE does five products and one transposition of a pair of block and tile;
while it does those of one pair, ScalarE and VectorE find the weights of the next and their
gradients. A mask of keys is one more product, of ones and what it adds to the scores.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._long_keys import key_span, load_turned
from trnx.nki_kernels.kernels.attention._masks import shares

# What hides a key, before the scale: the products of 2-byte elements are below.
_HIDING = 1.0e37
# Pairs whose turned score gradients wait for their keys: copies out of PSUM take that long.
_WAITING = 2


class LongGradients(NamedTuple):
    """What the kernel computes."""

    dq: nl.NkiTensor
    dk: nl.NkiTensor
    dv: nl.NkiTensor
    causal: bool
    window: int
    scale: float
    mask: nl.NkiTensor | None
    ones: nl.NkiTensor


class KeySide(NamedTuple):
    """Keys and values of a head, `[d, S]`, and keys as rows, `[128, S / 128, d]`. `dk` and `dv`:
    their sums over the query heads so far, `[128, S / 128, d]`, where there are several. `bias[1,
    S]`: what a mask of keys adds to the scores."""

    batch: int
    head: int
    keys: nl.NkiTensor
    values: nl.NkiTensor
    key_rows: nl.NkiTensor
    dk: nl.NkiTensor | None
    dv: nl.NkiTensor | None
    bias: nl.NkiTensor | None


class QuerySide(NamedTuple):
    """Queries and output gradients of a head, `[d, L]`, and as rows, `[128, L / 128, d]`, as are
    outputs; `logs` is lse. Of each query, `[128, L / 128]`: `neglse` and `delta`, the sum of output
    times its gradient. `dq`: sums over tiles of keys. `first` and `last` of those that share a key
    head."""

    head: int
    first: bool
    last: bool
    source: KeySide
    queries: nl.NkiTensor
    grads: nl.NkiTensor
    query_rows: nl.NkiTensor
    grad_rows: nl.NkiTensor
    out_rows: nl.NkiTensor
    logs: nl.NkiTensor
    neglse: nl.NkiTensor
    delta: nl.NkiTensor
    dq: nl.NkiTensor


class Pair(NamedTuple):
    """Query block `block` and keys `start + skip .. start + width`; the last 128 of them are on the
    diagonal where `crossed`. `opens` and `closes` a tile of keys of `size`, `begins` and `ends` the
    sums of its queries. `sums` of the tile: dk and dv, `[128, size / 128, d]` in PSUM, once there
    are any."""

    side: QuerySide
    block: int
    start: int
    size: int
    skip: int
    width: int
    crossed: bool
    opens: bool
    closes: bool
    begins: bool
    ends: bool
    sums: list[nl.NkiTensor]


class Scored(NamedTuple):
    """Weights and the gradients of their scores, `[128, width - skip]`, unscaled."""

    pair: Pair
    weights: nl.NkiTensor
    grads: nl.NkiTensor


class Turned(NamedTuple):
    """The gradients of the scores, turned: `[128 keys, (width - skip) / 128, 128 queries]`."""

    pair: Pair
    grads: nl.NkiTensor


def _rows(x: nl.NkiTensor) -> nl.NkiTensor:
    """`x[N, width]` as `[128, N / 128, width]`."""
    pmax = nl.tile_size.pmax
    blocks = x.shape[0] // pmax
    tile = nl.ndarray((pmax, blocks, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.reshape_dim(0, (blocks, pmax)).permute((1, 0, 2)))
    return tile


def long_gradients(
    dq: nl.NkiTensor,
    dk: nl.NkiTensor,
    dv: nl.NkiTensor,
    causal: bool,
    window: int,
    scale: float,
    mask: nl.NkiTensor | None,
) -> LongGradients:
    """What the kernel computes; `mask[B or 1, .., .., S]` of keys."""
    ones = nl.ndarray((1, nl.tile_size.pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    return LongGradients(dq, dk, dv, causal, window, scale, mask, ones)


def _key_bias(mask: nl.NkiTensor | None, batch: int) -> nl.NkiTensor | None:
    if mask is None:
        return None
    row = mask[0 if shares(mask, 0) else batch, 0, 0:1]
    flags = nl.ndarray(row.shape, dtype=mask.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=flags, src=row)
    bias = nl.ndarray(row.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bias, data=flags, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=_HIDING
    )
    return bias


def load_key_side(
    g: LongGradients, k: nl.NkiTensor, v: nl.NkiTensor, batch: int, head: int, shared: bool
) -> KeySide:
    """Load a key head; `shared` by several query heads."""
    pmax = nl.tile_size.pmax
    blocks = k.shape[2] // pmax
    dk = None
    dv = None
    if shared:
        dk = nl.ndarray((pmax, blocks, k.shape[3]), dtype=nl.float32, buffer=nl.sbuf)
        dv = nl.ndarray((pmax, blocks, v.shape[3]), dtype=nl.float32, buffer=nl.sbuf)
    keys = load_turned(k[batch, head], 1)[:, 0, :]
    values = load_turned(v[batch, head], 1)[:, 0, :]
    return KeySide(
        batch, head, keys, values, _rows(k[batch, head]), dk, dv, _key_bias(g.mask, batch)
    )


def load_query_side(
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    source: KeySide,
    head: int,
    shared: int,
) -> QuerySide:
    """Load a query head of q, grad_out, out and lse, which shares its keys with others."""
    pmax = nl.tile_size.pmax
    batch = source.batch
    q, grad, out, lse = tensors
    blocks = q.shape[2] // pmax
    queries = load_turned(q[batch, head], 1)[:, 0, :]
    grads = load_turned(grad[batch, head], 1)[:, 0, :]
    grad_rows = _rows(grad[batch, head])
    out_rows = _rows(out[batch, head])
    neglse = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    delta = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    logs = nl.ndarray((blocks, pmax), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=logs, src=lse[batch, head].reshape((blocks, pmax)))
    dq = nl.ndarray((pmax, blocks, q.shape[3]), dtype=nl.float32, buffer=nl.sbuf)
    return QuerySide(
        head,
        head % shared == 0,
        head % shared == shared - 1,
        source,
        queries,
        grads,
        _rows(q[batch, head]),
        grad_rows,
        out_rows,
        logs,
        neglse,
        delta,
        dq,
    )


def prepare_block(side: QuerySide, block: int) -> None:
    """What the pairs of a block of queries need of `out` and `lse`."""
    pmax = nl.tile_size.pmax
    if block == 0:
        turned = nl.ndarray(side.neglse.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=side.logs, engine=nisa.engine.tensor)
        nisa.tensor_scalar(dst=side.neglse, data=turned, op0=nl.multiply, operand0=-1.0)
    product = nl.ndarray((pmax, side.out_rows.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=product,
        data1=side.grad_rows[:, block, :],
        data2=side.out_rows[:, block, :],
        op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )
    nisa.tensor_reduce(dst=side.delta[:, block : block + 1], op=nl.add, data=product, axis=1)


def pairs_of(g: LongGradients, side: QuerySide) -> list[Pair]:
    """The pairs of a head, tile by tile of keys."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    blocks = side.queries.shape[1] // pmax
    keys = side.source.keys.shape[1]
    depth = keys
    if g.causal:
        depth = min(depth, side.queries.shape[1])
    pairs: list[Pair] = []
    for start in range(0, depth, bank):
        size = min(bank, depth - start)
        first = start // pmax if g.causal else 0
        stop = blocks
        if g.window > 0:
            stop = min(blocks, (start + size + g.window - 2) // pmax + 1)
        sums: list[nl.NkiTensor] = []
        for block in range(first, stop):
            span = key_span(block, keys, g.causal, g.window)
            diagonal = (block + 1) * pmax - start
            width = min(size, span[1] - start)
            pairs.append(
                Pair(
                    side,
                    block,
                    start,
                    size,
                    max(0, span[0] - start),
                    width,
                    g.causal and width == diagonal,
                    block == first,
                    block + 1 == stop,
                    span[0] >= start,
                    start + width == span[1],
                    sums,
                )
            )
    return pairs


def clear_unseen_keys(g: LongGradients, source: KeySide, length: int) -> None:
    """Zeros for the keys after the last query."""
    pmax = nl.tile_size.pmax
    for target in (g.dk, g.dv):
        tile = nl.ndarray((pmax, target.shape[3]), dtype=target.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0)
        for start in range(length, target.shape[2], pmax):
            rows = target[source.batch, source.head, start : start + pmax]
            nisa.dma_copy(dst=rows, src=tile)


def score_pair(g: LongGradients, pair: Pair) -> Scored:
    """Weights and the gradients of their scores."""
    pmax = nl.tile_size.pmax
    side = pair.side
    rows = slice(pair.block * pmax, (pair.block + 1) * pmax)
    first = pair.start + pair.skip
    keys = slice(first, pair.start + pair.width)
    shape = (pmax, pair.width - pair.skip)
    scores = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    seen = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    column = slice(pair.block, pair.block + 1)
    nisa.nc_matmul(dst=scores, stationary=side.queries[:, rows], moving=side.source.keys[:, keys])
    if side.source.bias is not None:
        nisa.nc_matmul(dst=scores, stationary=g.ones, moving=side.source.bias[:, keys])
    nisa.nc_matmul(dst=seen, stationary=side.grads[:, rows], moving=side.source.values[:, keys])
    wide = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=wide, op=nl.exp, data=scores, scale=g.scale, bias=side.neglse[:, column])
    if pair.crossed:
        _hide(wide[:, shape[1] - pmax : shape[1]])
    if g.window > 0:
        _hide_before(wide, first - pair.block * pmax + g.window - 1)
    weights = nl.ndarray(shape, dtype=side.queries.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=weights, src=wide, engine=nisa.engine.gpsimd)
    grads = nl.ndarray(shape, dtype=side.queries.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=grads,
        data=seen,
        op0=nl.subtract,
        operand0=side.delta[:, column],
        op1=nl.multiply,
        operand1=wide,
    )
    return Scored(pair, weights, grads)


def _hide(weights: nl.NkiTensor) -> None:
    """No weight for the keys after a query (partition), in a block on the diagonal."""
    nisa.affine_select(
        dst=weights,
        pattern=[[-1, weights.shape[1]]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=weights,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )


def _hide_before(weights: nl.NkiTensor, first: int) -> None:
    """No weight for the keys before the window of a query; `first`: the last query that sees the
    first key."""
    count = min(weights.shape[1], nl.tile_size.pmax - 1 - first)
    if count > 0:
        nisa.affine_select(
            dst=weights[:, 0:count],
            pattern=[[1, count]],
            offset=first,
            channel_multiplier=-1,
            on_true_tile=weights[:, 0:count],
            on_false_value=0.0,
            cmp_op=nl.greater_equal,
        )


def _sum_up(pair: Pair, target: nl.NkiTensor, rows: nl.NkiTensor, left: nl.NkiTensor) -> None:
    """Add `left`, turned, times a block of `rows` to the sums of a tile of keys."""
    pmax = nl.tile_size.pmax
    first = pair.skip // pmax
    for key in range(left.shape[1] // pmax):
        nisa.nc_matmul(
            dst=target[:, first + key, :],
            stationary=left[:, key * pmax : (key + 1) * pmax],
            moving=rows[:, pair.block, :],
        )


def finish_pair(g: LongGradients, scored: Scored, waiting: list[Turned]) -> None:
    """All gradients of a pair, but that of queries of the pairs that are left `waiting`."""
    pmax = nl.tile_size.pmax
    pair = scored.pair
    side = pair.side
    if pair.opens:
        for target in (g.dk, g.dv):
            shape = (pmax, pair.size // pmax, target.shape[3])
            pair.sums.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    if len(waiting) == _WAITING:
        finish_queries(g, waiting.pop(0))
    blocks = (pair.width - pair.skip) // pmax
    turned = nl.ndarray((pmax, blocks, pmax), dtype=scored.grads.dtype, buffer=nl.psum)
    for key in range(blocks):
        nisa.nc_transpose(
            dst=turned[:, key, :],
            data=scored.grads[:, key * pmax : (key + 1) * pmax],
            engine=nisa.engine.tensor,
        )
    grads = nl.ndarray(turned.shape, dtype=turned.dtype, buffer=nl.sbuf)
    nisa.activation(dst=grads, op=nl.copy, data=turned)
    _sum_up(pair, pair.sums[1], side.grad_rows, scored.weights)
    _sum_up(pair, pair.sums[0], side.query_rows, scored.grads)
    if pair.closes:
        _store_keys(side, pair, g.dk, pair.sums[0], side.source.dk, g.scale)
        _store_keys(side, pair, g.dv, pair.sums[1], side.source.dv, 1.0)
    waiting.append(Turned(pair, grads))


def _add(dst: nl.NkiTensor, data: nl.NkiTensor, scale: float, total: nl.NkiTensor | None) -> None:
    """`dst = data * scale + total`."""
    if total is None:
        nisa.tensor_scalar(dst=dst, data=data, op0=nl.multiply, operand0=scale)
    else:
        nisa.scalar_tensor_tensor(
            dst=dst, data=data, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=total
        )


def _store_keys(
    side: QuerySide,
    pair: Pair,
    target: nl.NkiTensor,
    sums: nl.NkiTensor,
    total: nl.NkiTensor | None,
    scale: float,
) -> None:
    """The gradients of a tile of keys; `total` is of the query heads before."""
    pmax = nl.tile_size.pmax
    first = pair.start // pmax
    part = None
    if total is not None:
        part = total[:, first : first + sums.shape[1], :]
    before = None if side.first else part
    if part is not None and not side.last:
        _add(part, sums, scale, before)
        return
    result = nl.ndarray(sums.shape, dtype=target.dtype, buffer=nl.sbuf)
    _add(result, sums, scale, before)
    rows = target[side.source.batch, side.source.head, pair.start : pair.start + pair.size]
    nisa.dma_copy(dst=rows.reshape_dim(0, (sums.shape[1], pmax)).permute((1, 0, 2)), src=result)


def finish_queries(g: LongGradients, turned: Turned) -> None:
    """The gradients of scores times their keys."""
    pmax = nl.tile_size.pmax
    pair = turned.pair
    side = pair.side
    product = nl.ndarray((pmax, g.dq.shape[3]), dtype=nl.float32, buffer=nl.psum)
    for key in range(turned.grads.shape[1]):
        nisa.nc_matmul(
            dst=product,
            stationary=turned.grads[:, key, :],
            moving=side.source.key_rows[:, (pair.start + pair.skip) // pmax + key, :],
        )
    total = side.dq[:, pair.block, :]
    before = None if pair.begins else total
    if not pair.ends:
        _add(total, product, g.scale, before)
        return
    result = nl.ndarray(product.shape, dtype=g.dq.dtype, buffer=nl.sbuf)
    _add(result, product, g.scale, before)
    rows = slice(pair.block * pmax, (pair.block + 1) * pmax)
    nisa.dma_copy(dst=g.dq[side.source.batch, side.head, rows], src=result)
