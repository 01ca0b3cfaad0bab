"""NKI helpers of the backward pass of attention: the weights are recomputed from lse, tile by tile.

For a tile of keys the gradients of keys and values accumulate in PSUM while the queries stream by;
the gradient of a query is complete after its last tile of keys; until then its partial sum is kept
in HBM. With W the weights, G the gradient of the output and O the output:

    dV = W^T G      dW = G V^T      dS = W * (dW - rowsum(G * O))      dQ = dS K      dK = dS^T Q
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._heads import (
    Loaded,
    column,
    combine_keys,
    load_blocks,
    load_packed,
    load_slotted,
    load_transposed,
    multiply_heads,
    new_weights,
)
from trnx.nki_kernels.kernels.attention._layout import (
    Chunk,
    HeadLayout,
    groups_of,
    head_rows,
    heads_of,
    split_heads,
)
from trnx.nki_kernels.kernels.attention._mask_gradient import add_mask_gradient, clear_mask_gradient
from trnx.nki_kernels.kernels.attention._masks import (
    Masks,
    add_bias,
    crosses,
    drop,
    first_key,
    load_mask,
    make_bias,
)


class Gradients(NamedTuple):
    """What the kernel writes. Partial sums in float32: `dq_sum` where there are several tiles of
    keys, `dmask` where the mask has a gradient."""

    dq: nl.NkiTensor
    dk: nl.NkiTensor
    dv: nl.NkiTensor
    dq_sum: nl.NkiTensor | None
    dmask: nl.NkiTensor | None


class BackwardProblem(NamedTuple):
    """What the kernel reads, and how it computes."""

    grad: nl.NkiTensor
    q: nl.NkiTensor
    k: nl.NkiTensor
    v: nl.NkiTensor
    out: nl.NkiTensor
    lse: nl.NkiTensor
    masks: Masks
    dropout: nl.NkiTensor | None
    factor: float
    scale: float
    group: int
    features: HeadLayout
    values: HeadLayout
    keys: HeadLayout
    tile: int


class KeySide(NamedTuple):
    """A tile of keys: `start`, `size`, transposed keys and values, keys for `combine_keys`."""

    start: int
    size: int
    keys: nl.NkiTensor
    values: nl.NkiTensor
    vectors: list[nl.NkiTensor]


class KeyGradients(NamedTuple):
    """Gradients of a tile of keys in PSUM: `[<= 128 keys, blocks * key heads, width]`."""

    dk: nl.NkiTensor
    dv: nl.NkiTensor


class Weights(NamedTuple):
    """Weights `[rows, heads, keys]` in float32, and dropped ones in the dtype of the products."""

    plain: nl.NkiTensor
    dropped: nl.NkiTensor
    keep: nl.NkiTensor | None


class Started(NamedTuple):
    """Rows from `row` of a chunk and a tile of keys, up to the gradients of the scores.

    `padded` holds these gradients for `combine_keys`; `wide` without padding, in float32 if the
    mask has a gradient. `sources` are the key heads; `last`: the last rows that use the tile.
    """

    side: KeySide
    sources: Chunk
    chunk: Chunk
    row: int
    queries: nl.NkiTensor
    grad: nl.NkiTensor
    weights: Weights
    padded: nl.NkiTensor
    wide: nl.NkiTensor
    last: bool


class BackwardPipeline(NamedTuple):
    """Rows whose last products are computed after the first products of the next rows, and the
    gradients of their tile of keys so far (None before its first rows)."""

    started: Started
    sums: KeyGradients | None


def _load_side(p: BackwardProblem, sources: Chunk, start: int, size: int) -> KeySide:
    keys = load_transposed(p.k, sources, start, size, p.features)
    values = load_transposed(p.v, sources, start, size, p.values)
    vectors = keys.tiles
    if p.keys.slots > 1:
        vectors = [load_slotted(p.k, sources, size, p.keys)]
    return KeySide(start, size, keys.transposed, values.transposed, vectors)


def _new_key_gradients(p: BackwardProblem, sources: Chunk, size: int) -> KeyGradients:
    """Accumulators of a tile of keys; the first product overwrites them."""
    pmax = nl.tile_size.pmax
    blocks = (size + pmax - 1) // pmax * sources.pairs
    dk = nl.ndarray((min(size, pmax), blocks, p.k.shape[3]), dtype=nl.float32, buffer=nl.psum)
    dv = nl.ndarray((min(size, pmax), blocks, p.v.shape[3]), dtype=nl.float32, buffer=nl.psum)
    return KeyGradients(dk, dv)


def _load_row_values(x: nl.NkiTensor, chunk: Chunk, row: int, rows: int) -> nl.NkiTensor:
    """`x[B, H, L]` of the chunk as `[rows, heads]`."""
    tile = nl.ndarray((rows, chunk.pairs), dtype=nl.float32, buffer=nl.sbuf)
    source = heads_of(x, chunk)[:, :, row : row + rows].permute((2, 0, 1))
    nisa.dma_copy(dst=split_heads(tile, chunk), src=source)
    return tile


def _negated_delta(p: BackwardProblem, grad: nl.NkiTensor, chunk: Chunk, row: int) -> nl.NkiTensor:
    """`-rowsum(grad * out)`: `[rows, heads]`."""
    rows = grad.shape[0]
    out = load_blocks(p.out, chunk, row, rows)[0]
    both = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=both, data1=grad, data2=out, op=nl.multiply)
    delta = nl.ndarray((rows, chunk.pairs), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=delta, op=nl.add, data=both, axis=2, negate=True)
    return delta


def _weights(
    p: BackwardProblem, queries: nl.NkiTensor, side: KeySide, chunk: Chunk, row: int
) -> Weights:
    rows = queries.shape[2]
    scores = multiply_heads(queries, side.keys, chunk.pairs, p.group, side.size, p.features)
    lse = _load_row_values(p.lse, chunk, row, rows)
    scale = p.scale
    crossed = crosses(p.masks, row, rows, side.start, side.size)
    if p.masks.mask is not None or crossed:
        bias = make_bias(p.masks, chunk, row, rows, side.start, side.size, crossed)
        biased = add_bias(scores, scale, bias, chunk)
        scores = biased
        scale = 1.0
    shifted = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=shifted,
        data=scores,
        op0=nl.multiply,
        operand0=scale,
        op1=nl.subtract,
        operand1=column(lse, side.size),
    )
    plain = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=plain, op=nl.exp, data=shifted)
    if p.dropout is not None:
        keep = load_mask(p.dropout, chunk, row, rows, side.start, side.size)
        dropped = nl.ndarray(scores.shape, dtype=p.q.dtype, buffer=nl.sbuf)
        drop(split_heads(dropped, chunk), split_heads(plain, chunk), keep, p.factor)
        return Weights(plain, dropped, keep)
    if p.q.dtype == nl.float32:
        return Weights(plain, plain, None)
    rounded = nl.ndarray(scores.shape, dtype=p.q.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=plain)
    return Weights(plain, rounded, None)


def _score_gradients(
    p: BackwardProblem,
    grad: Loaded,
    side: KeySide,
    weights: Weights,
    chunk: Chunk,
    row: int,
    dst: nl.NkiTensor,
) -> None:
    """`dst = W * (dW - delta)`, `[rows, heads, keys]`."""
    delta = _negated_delta(p, grad.tiles[0], chunk, row)
    dweights = multiply_heads(
        grad.transposed, side.values, chunk.pairs, p.group, side.size, p.values
    )
    if weights.keep is not None:
        kept = nl.ndarray(dweights.shape, dtype=nl.float32, buffer=nl.sbuf)
        drop(split_heads(kept, chunk), split_heads(dweights, chunk), weights.keep, p.factor)
        dweights = kept
    if chunk.pairs == 1:
        nisa.scalar_tensor_tensor(
            dst=dst,
            data=dweights,
            op0=nl.add,
            operand0=delta,
            op1=nl.multiply,
            operand1=weights.plain,
        )
        return
    centred = nl.ndarray(dweights.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=centred, data1=dweights, data2=column(delta, side.size), op=nl.add)
    nisa.tensor_tensor(dst=dst, data1=centred, data2=weights.plain, op=nl.multiply)


def _accumulate_keys(
    dst: nl.NkiTensor, weights: nl.NkiTensor, rows: nl.NkiTensor, heads: int, group: int
) -> None:
    """`dst[keys, blocks * key heads, width]` += weights`[rows, heads, keys]`^T rows`[rows, ..]`."""
    pmax = nl.tile_size.pmax
    size = weights.shape[2]
    sources = (heads + group - 1) // group
    for head in range(heads):
        for start in range(0, size, pmax):
            count = min(pmax, size - start)
            nisa.nc_matmul(
                dst=dst[0:count, start // pmax * sources + head // group, :],
                stationary=weights[:, head, start : start + count],
                moving=rows[:, head, :],
            )


def _store_query_gradient(
    p: BackwardProblem, g: Gradients, product: nl.NkiTensor, side: KeySide, chunk: Chunk, row: int
) -> None:
    rows = product.shape[0]
    end = side.start + side.size
    last = end == p.k.shape[2] or (p.masks.causal and end > row + rows - 1)
    dtype = g.dq.dtype if last else nl.float32
    total = nl.ndarray(product.shape, dtype=dtype, buffer=nl.sbuf)
    if side.start <= first_key(p.masks, row):
        nisa.tensor_scalar(dst=total, data=product, op0=nl.multiply, operand0=p.scale)
    else:
        before = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=split_heads(before, chunk), src=head_rows(g.dq_sum, chunk, row, rows))
        nisa.scalar_tensor_tensor(
            dst=total,
            data=product,
            op0=nl.multiply,
            operand0=p.scale,
            op1=nl.add,
            operand1=before,
        )
    target = g.dq if last else g.dq_sum
    nisa.dma_copy(dst=head_rows(target, chunk, row, rows), src=split_heads(total, chunk))


def _start(
    p: BackwardProblem,
    g: Gradients,
    side: KeySide,
    sources: Chunk,
    chunk: Chunk,
    row: int,
    queries: Loaded,
    grad: Loaded,
    last: bool,
) -> Started:
    rows = queries.transposed.shape[2]
    weights = _weights(p, queries.transposed, side, chunk, row)
    padded = new_weights(chunk, rows, side.size, p.keys, p.q.dtype)
    dscores = padded[:, 0 : chunk.pairs, 0 : side.size]
    wide = dscores
    if g.dmask is not None and p.q.dtype != nl.float32:
        wide = nl.ndarray(dscores.shape, dtype=nl.float32, buffer=nl.sbuf)
        _score_gradients(p, grad, side, weights, chunk, row, wide)
        nisa.tensor_copy(dst=dscores, src=wide)
    else:
        _score_gradients(p, grad, side, weights, chunk, row, wide)
    return Started(
        side,
        sources,
        chunk,
        row,
        queries.tiles[0],
        grad.tiles[0],
        weights,
        padded,
        wide,
        last,
    )


def finish_rows(
    p: BackwardProblem, g: Gradients, pipeline: BackwardPipeline
) -> KeyGradients | None:
    """The products with the gradients of the scores. Returns the gradients of the keys so far, None
    after the last rows, which store them."""
    s = pipeline.started
    side = s.side
    chunk = s.chunk
    sums = pipeline.sums
    if sums is None:
        sums = _new_key_gradients(p, s.sources, side.size)
    _accumulate_keys(sums.dv, s.weights.dropped, s.grad, chunk.pairs, p.group)
    if g.dmask is not None:
        add_mask_gradient(g.dmask, s.wide, chunk, s.row, side.start)
    dscores = s.padded[:, 0 : chunk.pairs, 0 : side.size]
    _accumulate_keys(sums.dk, dscores, s.queries, chunk.pairs, p.group)
    product = combine_keys(s.padded, side.vectors, chunk.pairs, p.group, side.size, p.keys)
    _store_query_gradient(p, g, product, side, chunk, s.row)
    if s.last:
        _store_keys(g.dk, sums.dk, s.sources, side.start, side.size, p.scale)
        _store_keys(g.dv, sums.dv, s.sources, side.start, side.size, 1.0)
        sums = None
    return sums


def _step(
    p: BackwardProblem, g: Gradients, pipeline: BackwardPipeline | None, started: Started
) -> BackwardPipeline:
    """Finish the previous rows after the first products of the next ones have been issued: TensorE
    computes those while the other engines compute the gradients of scores."""
    sums = None
    if pipeline is not None:
        sums = finish_rows(p, g, pipeline)
    return BackwardPipeline(started, sums)


def _store_keys(
    target: nl.NkiTensor,
    sums: nl.NkiTensor | None,
    sources: Chunk,
    start: int,
    size: int,
    scale: float,
) -> None:
    """Gradients of keys or values; `sums` is None where no query sees them."""
    pmax = nl.tile_size.pmax
    for block in range(0, size, pmax):
        count = min(pmax, size - block)
        tile = nl.ndarray((count, sources.pairs, target.shape[3]), target.dtype, buffer=nl.sbuf)
        if sums is None:
            nisa.memset(dst=tile, value=0)
        else:
            first = block // pmax * sources.pairs
            total = sums[0:count, first : first + sources.pairs, :]
            nisa.tensor_scalar(dst=tile, data=total, op0=nl.multiply, operand0=scale)
        destination = head_rows(target, sources, start + block, count)
        nisa.dma_copy(dst=destination, src=split_heads(tile, sources))


def backward_chunk(
    p: BackwardProblem,
    g: Gradients,
    sources: Chunk,
    chunks: list[Chunk],
    pipeline: BackwardPipeline | None,
) -> BackwardPipeline | None:
    """All gradients through the key heads of `sources`, whose query heads are `chunks`; what is
    left to `finish_rows`."""
    length = p.q.shape[2]
    pmax = nl.tile_size.pmax
    for start in range(0, p.k.shape[2], p.tile):
        size = min(p.tile, p.k.shape[2] - start)
        if p.masks.causal and start >= length:
            _unseen_keys(p, g, sources, chunks, start, size)
            continue
        side = _load_side(p, sources, start, size)
        end = length  # of the queries that see these keys
        if p.masks.window > 0:
            end = min(length, start + size - 1 + p.masks.window)
        for number in range(len(chunks)):
            chunk = chunks[number]
            for row in range(0, length, pmax):
                rows = min(pmax, length - row)
                if row < end and (not p.masks.causal or row + rows > start):
                    queries = load_transposed(p.q, chunk, row, rows, p.features)
                    grad = load_transposed(p.grad, chunk, row, rows, p.values)
                    last = number == len(chunks) - 1 and row + rows >= end
                    started = _start(p, g, side, sources, chunk, row, queries, grad, last)
                    pipeline = _step(p, g, pipeline, started)
                elif g.dmask is not None:
                    clear_mask_gradient(g.dmask, chunk, row, rows, start, size)
    return pipeline


def _unseen_keys(
    p: BackwardProblem,
    g: Gradients,
    sources: Chunk,
    chunks: list[Chunk],
    start: int,
    size: int,
) -> None:
    """Zeros: no query sees these keys."""
    _store_keys(g.dk, None, sources, start, size, 1.0)
    _store_keys(g.dv, None, sources, start, size, 1.0)
    if g.dmask is None:
        return
    length = p.q.shape[2]
    for chunk in chunks:
        for row in range(0, length, nl.tile_size.pmax):
            rows = min(nl.tile_size.pmax, length - row)
            clear_mask_gradient(g.dmask, chunk, row, rows, start, size)


def backward_pack(
    p: BackwardProblem, g: Gradients, pack: Chunk, pipeline: BackwardPipeline | None
) -> BackwardPipeline | None:
    """Short sequences of several batch entries: transposed together, then one by one."""
    rows = p.q.shape[2]
    cols = p.k.shape[2]
    queries = load_packed(p.q, pack, p.features)
    grads = load_packed(p.grad, pack, p.values)
    keys = load_packed(p.k, pack, p.features)
    values = load_packed(p.v, pack, p.values)
    vectors = load_slotted(p.k, pack, cols, p.keys)
    groups = groups_of(p.keys, pack.heads)
    for entry in range(pack.batches):
        chunk = Chunk(pack.batch + entry, 1, pack.head, pack.heads, pack.heads)
        first = entry * rows
        start = entry * cols
        side = KeySide(
            0,
            cols,
            keys[:, :, start : start + cols],
            values[:, :, start : start + cols],
            [vectors[:, entry * groups : (entry + 1) * groups, :]],
        )
        query = Loaded(queries[:, :, first : first + rows], load_blocks(p.q, chunk, 0, rows))
        grad = Loaded(grads[:, :, first : first + rows], load_blocks(p.grad, chunk, 0, rows))
        started = _start(p, g, side, chunk, chunk, 0, query, grad, True)
        pipeline = _step(p, g, pipeline, started)
    return pipeline
