"""NKI helpers of the gradients of attention of long sequences: blocks of 128 queries against tiles
of up to 512 keys.

The gradients of a tile of keys gather in PSUM while all queries go by, those of queries in SBUF
while all tiles do. Nothing else stays there: queries and what belongs to them are loaded again for
each tile. TensorE does five products and one transposition of a pair of block and tile;
while it does those of one pair, ScalarE and VectorE find the weights of the next and their
gradients. A mask of keys is one more product, of ones and what it adds to the scores.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import is_first
from trnx.nki_kernels.kernels.attention._long_keys import key_span, load_turned
from trnx.nki_kernels.kernels.attention._masks import shares

# What hides a key, before the scale: the products of 2-byte elements are below.
_HIDING = 1.0e37
# Blocks of queries that are loaded together.
_RUN = 8
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


class KeyRows(NamedTuple):
    """Keys and values `[d, keys]`, and keys as rows, `[128, keys / 128, d]`. `bias[1, keys]`: what
    a mask of keys adds to the scores."""

    keys: nl.NkiTensor
    values: nl.NkiTensor
    rows: nl.NkiTensor
    bias: nl.NkiTensor | None


class KeyTile(NamedTuple):
    """Keys `start .. start + size` of a head; `loaded` has one element while they are in SBUF."""

    start: int
    size: int
    loaded: list[KeyRows]


class QueryRows(NamedTuple):
    """Queries and output gradients `[d, queries]`, and as rows, `[128, queries / 128, d]`; so are
    outputs, in a list of one where they are needed."""

    queries: nl.NkiTensor
    grads: nl.NkiTensor
    query_rows: nl.NkiTensor
    grad_rows: nl.NkiTensor
    out_rows: list[nl.NkiTensor]


class QueryRun(NamedTuple):
    """Blocks `first .. end` of the queries of a head, which meet a tile of keys one after the
    other; `loaded` as of `KeyTile`. `begins`: the last of them has met none before."""

    first: int
    end: int
    begins: bool
    loaded: list[QueryRows]


class KeySide(NamedTuple):
    """A key head. `dk` and `dv`: their sums over the query heads so far, in HBM, `[128, S / 128,
    d]`, where there are several."""

    batch: int
    head: int
    dk: nl.NkiTensor | None
    dv: nl.NkiTensor | None


class QuerySide(NamedTuple):
    """A query head; `logs` is lse, up to 128 blocks a tile. Of each query, `[128, L / 128]`:
    `neglse` and `delta`, the sum of output times its gradient. `dq`: sums over tiles of keys.
    `first` and `last` of those that share a key head."""

    head: int
    first: bool
    last: bool
    source: KeySide
    logs: list[nl.NkiTensor]
    neglse: nl.NkiTensor
    delta: nl.NkiTensor
    dq: nl.NkiTensor


class Pair(NamedTuple):
    """Query block `block` and keys `skip .. width` of a tile; the last 128 of them are on the
    diagonal where `crossed`. `opens` and `closes` the tile, `begins` and `ends` the sums of its
    queries. `sums` of the tile: dk and dv, `[128, size / 128, d]` in PSUM, once there are any."""

    side: QuerySide
    queries: QueryRun
    tile: KeyTile
    block: int
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


def load_blocks(x: nl.NkiTensor) -> nl.NkiTensor:
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


def _key_bias(mask: nl.NkiTensor | None, batch: int, start: int, end: int) -> nl.NkiTensor | None:
    if mask is None:
        return None
    row = mask[0 if shares(mask, 0) else batch, 0, 0:1, start:end]
    flags = nl.ndarray(row.shape, dtype=mask.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=flags, src=row)
    bias = nl.ndarray(row.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=bias, data=flags, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=_HIDING
    )
    return bias


def load_keys(
    g: LongGradients, tile: KeyTile, k: nl.NkiTensor, v: nl.NkiTensor, source: KeySide
) -> None:
    """Load keys and values of a head."""
    end = tile.start + tile.size
    keys = k[source.batch, source.head, tile.start : end]
    values = v[source.batch, source.head, tile.start : end]
    tile.loaded.append(
        KeyRows(
            load_turned(keys, 1)[:, 0, :],
            load_turned(values, 1)[:, 0, :],
            load_blocks(keys),
            _key_bias(g.mask, source.batch, tile.start, end),
        )
    )


def load_queries(
    run: QueryRun, tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor], side: QuerySide
) -> None:
    """Load queries and output gradients of a head of q, grad_out and out."""
    pmax = nl.tile_size.pmax
    q, grad, out = tensors
    batch = side.source.batch
    head = side.head
    first = run.first * pmax
    end = run.end * pmax
    queries = q[batch, head, first:end]
    grads = grad[batch, head, first:end]
    out_rows: list[nl.NkiTensor] = []
    if run.begins:
        out_rows.append(load_blocks(out[batch, head, first:end]))
    run.loaded.append(
        QueryRows(
            load_turned(queries, 1)[:, 0, :],
            load_turned(grads, 1)[:, 0, :],
            load_blocks(queries),
            load_blocks(grads),
            out_rows,
        )
    )


def query_side(
    lse: nl.NkiTensor, source: KeySide, head: int, place: tuple[bool, bool], dq: nl.NkiTensor
) -> QuerySide:
    """A query head, `place` is whether it is the first and the last of those that share its keys;
    its lse is loaded."""
    pmax = nl.tile_size.pmax
    blocks = lse.shape[2] // pmax
    neglse = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    delta = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    rows = lse[source.batch, head].reshape((blocks, pmax))
    logs: list[nl.NkiTensor] = []
    for first in range(0, blocks, pmax):
        part = rows[first : min(blocks, first + pmax)]
        tile = nl.ndarray(part.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=part)
        logs.append(tile)
    return QuerySide(head, place[0], place[1], source, logs, neglse, delta, dq)


def negate_logs(side: QuerySide) -> None:
    """`neglse` of a head."""
    pmax = nl.tile_size.pmax
    for number in range(len(side.logs)):
        logs = side.logs[number]
        first = number * pmax
        part = side.neglse[:, first : first + logs.shape[0]]
        turned = nl.ndarray(part.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=logs, engine=nisa.engine.tensor)
        nisa.tensor_scalar(dst=part, data=turned, op0=nl.multiply, operand0=-1.0)


def find_delta(pair: Pair) -> None:
    """`delta` of a block of queries."""
    rows = pair.queries.loaded[0]
    place = pair.block - pair.queries.first
    outs = rows.out_rows[0]
    shape = (nl.tile_size.pmax, outs.shape[2])
    product = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=product,
        data1=rows.grad_rows[:, place, :],
        data2=outs[:, place, :],
        op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )
    delta = pair.side.delta[:, pair.block : pair.block + 1]
    nisa.tensor_reduce(dst=delta, op=nl.add, data=product, axis=1)


def pairs_of(g: LongGradients, side: QuerySide) -> list[Pair]:
    """The pairs of a head, tile by tile of keys."""
    bank = nl.tile_size.psum_bank_fmax
    depth = g.dk.shape[2]
    if g.causal:
        depth = min(depth, g.dq.shape[2])
    pairs: list[Pair] = []
    for start in range(0, depth, bank):
        tile = KeyTile(start, min(bank, depth - start), [])
        pairs = pairs + _pairs_of_tile(g, side, tile)
    return pairs


def _pairs_of_tile(g: LongGradients, side: QuerySide, tile: KeyTile) -> list[Pair]:
    """The blocks of queries that see a tile of keys."""
    pmax = nl.tile_size.pmax
    start, size = tile.start, tile.size
    depth = g.dk.shape[2]
    first = start // pmax if g.causal else 0
    stop = g.dq.shape[2] // pmax
    if g.window > 0:
        stop = min(stop, (start + size + g.window - 2) // pmax + 1)
    sums: list[nl.NkiTensor] = []
    pairs: list[Pair] = []
    for run_first in range(first, stop, _RUN):
        end = min(stop, run_first + _RUN)
        begins = key_span(end - 1, depth, g.causal, g.window)[0] >= start
        run = QueryRun(run_first, end, begins, [])
        for block in range(run_first, end):
            seen = key_span(block, depth, g.causal, g.window)
            width = min(size, seen[1] - start)
            pairs.append(
                Pair(
                    side,
                    run,
                    tile,
                    block,
                    max(0, seen[0] - start),
                    width,
                    g.causal and width == (block + 1) * pmax - start,
                    block == first,
                    block + 1 == stop,
                    seen[0] >= start,
                    start + width == seen[1],
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
    queries = pair.queries.loaded[0]
    source = pair.tile.loaded[0]
    row = (pair.block - pair.queries.first) * pmax
    rows = slice(row, row + pmax)
    keys = slice(pair.skip, pair.width)
    shape = (pmax, pair.width - pair.skip)
    scores = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    seen = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    column = slice(pair.block, pair.block + 1)
    nisa.nc_matmul(dst=scores, stationary=queries.queries[:, rows], moving=source.keys[:, keys])
    if source.bias is not None:
        nisa.nc_matmul(dst=scores, stationary=g.ones, moving=source.bias[:, keys])
    nisa.nc_matmul(dst=seen, stationary=queries.grads[:, rows], moving=source.values[:, keys])
    wide = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=wide, op=nl.exp, data=scores, scale=g.scale, bias=side.neglse[:, column])
    if pair.crossed:
        _hide(wide[:, shape[1] - pmax : shape[1]])
    if g.window > 0:
        first = pair.tile.start + pair.skip
        _hide_before(wide, first - pair.block * pmax + g.window - 1)
    weights = nl.ndarray(shape, dtype=queries.queries.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=weights, src=wide, engine=nisa.engine.gpsimd)
    grads = nl.ndarray(shape, dtype=queries.queries.dtype, buffer=nl.sbuf)
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
            moving=rows[:, pair.block - pair.queries.first, :],
        )


def finish_pair(g: LongGradients, scored: Scored, waiting: list[Turned]) -> None:
    """All gradients of a pair, but that of queries of the pairs that are left `waiting`."""
    pmax = nl.tile_size.pmax
    pair = scored.pair
    side = pair.side
    if pair.opens:
        for target in (g.dk, g.dv):
            shape = (pmax, pair.tile.size // pmax, target.shape[3])
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
    queries = pair.queries.loaded[0]
    _sum_up(pair, pair.sums[1], queries.grad_rows, scored.weights)
    _sum_up(pair, pair.sums[0], queries.query_rows, scored.grads)
    if pair.block + 1 == pair.queries.end:
        pair.queries.loaded.pop()  # the simulator keeps what a list holds
    if pair.closes:
        _store_keys(pair, g.dk, pair.sums[0], side.source.dk, g.scale)
        _store_keys(pair, g.dv, pair.sums[1], side.source.dv, 1.0)
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
    pair: Pair,
    target: nl.NkiTensor,
    sums: nl.NkiTensor,
    total: nl.NkiTensor | None,
    scale: float,
) -> None:
    """The gradients of a tile of keys; `total` is of the query heads before."""
    pmax = nl.tile_size.pmax
    side = pair.side
    start = pair.tile.start
    place = target[side.source.batch, side.source.head, start : start + pair.tile.size]
    place = place.reshape_dim(0, (sums.shape[1], pmax)).permute((1, 0, 2))
    before = None
    if total is not None:
        first = start // pmax
        part = total[:, first : first + sums.shape[1], :]
        if not side.first:
            before = nl.ndarray(part.shape, dtype=part.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=before, src=part)
        if not side.last:
            place = part
    result = nl.ndarray(sums.shape, dtype=place.dtype, buffer=nl.sbuf)
    _add(result, sums, scale, before)
    nisa.dma_copy(dst=place, src=result)


def finish_queries(g: LongGradients, turned: Turned) -> None:
    """The gradients of scores times their keys."""
    pmax = nl.tile_size.pmax
    pair = turned.pair
    side = pair.side
    rows = pair.tile.loaded[0].rows
    first = pair.skip // pmax
    product = nl.ndarray((pmax, g.dq.shape[3]), dtype=nl.float32, buffer=nl.psum)
    for key in range(turned.grads.shape[1]):
        nisa.nc_matmul(
            dst=product,
            stationary=turned.grads[:, key, :],
            moving=rows[:, first + key, :],
        )
    if pair.closes:
        pair.tile.loaded.pop()
    total = side.dq[:, pair.block, :]
    before = None if pair.begins else total
    if not pair.ends:
        _add(total, product, g.scale, before)
        return
    result = nl.ndarray(product.shape, dtype=g.dq.dtype, buffer=nl.sbuf)
    _add(result, product, g.scale, before)
    row = pair.block * pmax
    nisa.dma_copy(dst=g.dq[side.source.batch, side.head, row : row + pmax], src=result)


def join_key_gradients(g: LongGradients, parts: nl.NkiTensor) -> None:
    """Add up what two programs have of the gradients of all keys and values, `parts[2, key heads,
    128, S / 128, d + Dv]`: the first one those of keys, the second one those of values."""
    nisa.core_barrier(parts, (0, 1))
    width = g.dk.shape[3]
    target = g.dk if is_first() else g.dv
    first = 0 if is_first() else width
    columns = slice(first, first + target.shape[3])
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    depth = target.shape[2]
    if g.causal:
        depth = min(depth, g.dq.shape[2])
    for number in range(parts.shape[1]):
        rows = target[number // target.shape[1], number % target.shape[1]]
        for start in range(0, depth, bank):
            size = min(bank, depth - start)
            blocks = slice(start // pmax, (start + size) // pmax)
            some = parts[:, number, :, blocks, columns]
            every = nl.ndarray(
                (pmax, 2, size // pmax, target.shape[3]), dtype=nl.float32, buffer=nl.sbuf
            )
            nisa.dma_copy(dst=every, src=some.permute((1, 0, 2, 3)))
            total = nl.ndarray(every[:, 0].shape, dtype=target.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=total, data1=every[:, 0], data2=every[:, 1], op=nl.add)
            place = rows[start : start + size].reshape_dim(0, (size // pmax, pmax))
            nisa.dma_copy(dst=place.permute((1, 0, 2)), src=total)
