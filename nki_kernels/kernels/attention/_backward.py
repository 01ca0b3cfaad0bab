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
    Bias,
    Masks,
    apply_bias,
    crosses,
    drop,
    first_key,
    keep_seen,
    load_mask,
    make_bias,
)

# From this many keys on heads take an instruction each.
_MANY_KEYS = 128


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


class Prepared(NamedTuple):
    """Rows from `row` of a chunk, what TensorE needs of them transposed, and a tile of keys.

    `queries` and `grad` as `load_transposed` gives them; `[rows, heads]`: `shift` the negated lse,
    `delta` the negated sums of grad * out. `sources` are the key heads; `last`: the last rows that
    use the tile.
    """

    side: KeySide
    sources: Chunk
    chunk: Chunk
    row: int
    queries: Loaded
    grad: Loaded
    shift: nl.NkiTensor
    delta: nl.NkiTensor
    last: bool


class Started(NamedTuple):
    """The same rows, up to the gradients of the scores.

    `padded` holds these gradients for `combine_keys`; `wide` without padding, in float32 if the
    mask has a gradient.
    """

    prepared: Prepared
    weights: Weights
    padded: nl.NkiTensor
    wide: nl.NkiTensor


class BackwardPipeline(NamedTuple):
    """Rows that are transposed while the first products of those before are computed, whose last
    products are computed after that; and the gradients of their tile of keys so far (None before
    its first rows)."""

    prepared: Prepared | None
    started: Started | None
    sums: KeyGradients | None


def _load_side(p: BackwardProblem, sources: Chunk, start: int, size: int) -> KeySide:
    keys = load_transposed(p.k, sources, start, size, p.features)
    values = load_transposed(p.v, sources, start, size, p.values)
    vectors = keys.tiles
    if p.keys.slots > 1:
        vectors = [load_slotted(p.k, sources, size, p.keys)]
    return KeySide(start, size, keys.transposed, values.transposed, vectors)


def new_key_gradients(p: BackwardProblem, sources: Chunk, size: int) -> KeyGradients:
    """Accumulators of a tile of keys; the first product overwrites them."""
    pmax = nl.tile_size.pmax
    blocks = (size + pmax - 1) // pmax * sources.pairs
    dk = nl.ndarray((min(size, pmax), blocks, p.k.shape[3]), dtype=nl.float32, buffer=nl.psum)
    dv = nl.ndarray((min(size, pmax), blocks, p.v.shape[3]), dtype=nl.float32, buffer=nl.psum)
    return KeyGradients(dk, dv)


def load_row_values(x: nl.NkiTensor, chunk: Chunk, row: int, rows: int) -> nl.NkiTensor:
    """`x[B, H, L]` of the chunk as `[rows, heads]`."""
    tile = nl.ndarray((rows, chunk.pairs), dtype=nl.float32, buffer=nl.sbuf)
    source = heads_of(x, chunk)[:, :, row : row + rows].permute((2, 0, 1))
    nisa.dma_copy(dst=split_heads(tile, chunk), src=source)
    return tile


def _spare_engine() -> object:
    """GpSimd, but VectorE on NeuronCore-v2, where the two take turns."""
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        return nisa.engine.vector
    return nisa.engine.gpsimd


def _by_heads(tile: nl.NkiTensor) -> bool:
    """Whether the heads of `[rows, heads, keys]` take an instruction each: one of their own has the
    values of their rows for nothing."""
    return bool(tile.shape[1] == 1 or tile.shape[2] >= _MANY_KEYS)


def negated_delta(grad: nl.NkiTensor, out: nl.NkiTensor) -> nl.NkiTensor:
    """`-rowsum(grad * out)`: `[rows, heads]`."""
    both = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=both, data1=grad, data2=out, op=nl.multiply, engine=_spare_engine())
    delta = nl.ndarray((out.shape[0], out.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=delta, op=nl.add, data=both, axis=2, negate=True)
    return delta


def weights_of(p: BackwardProblem, t: Prepared) -> Weights:
    """The weights, recomputed."""
    queries = t.queries.transposed
    side = t.side
    chunk = t.chunk
    row = t.row
    rows = queries.shape[2]
    scores = multiply_heads(queries, side.keys, chunk.pairs, p.group, side.size, p.features)
    scale = p.scale
    seen = None
    if p.masks.mask is not None or crosses(p.masks, row, rows, side.start, side.size):
        bias = make_bias(p.masks, chunk, row, rows, side.start, side.size)
        hidden = apply_bias(scores, scale, Bias(bias.added, None), chunk)
        scores, scale = hidden.scores, hidden.scale
        seen = bias.seen
    plain = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    _exponentials(plain, scores, t.shift, scale)
    if seen is not None:  # behind the exponential: the shift of a row may be NaN
        plain = keep_seen(plain, seen, chunk, 0.0)
    if p.dropout is not None:
        keep = load_mask(p.dropout, chunk, row, rows, side.start, side.size)
        dropped = nl.ndarray(scores.shape, dtype=p.q.dtype, buffer=nl.sbuf)
        drop(split_heads(dropped, chunk), split_heads(plain, chunk), keep, p.factor)
        return Weights(plain, dropped, keep)
    if p.q.dtype == nl.float32:
        return Weights(plain, plain, None)
    rounded = nl.ndarray(scores.shape, dtype=p.q.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=plain, engine=_spare_engine())
    return Weights(plain, rounded, None)


def _exponentials(
    dst: nl.NkiTensor, scores: nl.NkiTensor, shift: nl.NkiTensor, scale: float
) -> None:
    """`dst = exp(scores * scale + shift)`."""
    if _by_heads(scores):
        for head in range(scores.shape[1]):
            nisa.activation(
                dst=dst[:, head, :],
                op=nl.exp,
                data=scores[:, head, :],
                bias=shift[:, head : head + 1],
                scale=scale,
            )
        return
    shifted = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=shifted,
        data=scores,
        op0=nl.multiply,
        operand0=scale,
        op1=nl.add,
        operand1=column(shift, scores.shape[2]),
    )
    nisa.activation(dst=dst, op=nl.exp, data=shifted)


def weight_gradients(p: BackwardProblem, t: Prepared) -> nl.NkiTensor:
    """`dW` in PSUM, `[rows, heads, keys]`."""
    return multiply_heads(
        t.grad.transposed, t.side.values, t.chunk.pairs, p.group, t.side.size, p.values
    )


def _score_gradients(
    p: BackwardProblem, t: Prepared, weights: Weights, dweights: nl.NkiTensor, dst: nl.NkiTensor
) -> None:
    """`dst = W * (dW - delta)`, `[rows, heads, keys]`."""
    chunk = t.chunk
    delta = t.delta
    if weights.keep is not None:
        kept = nl.ndarray(dweights.shape, dtype=nl.float32, buffer=nl.sbuf)
        drop(split_heads(kept, chunk), split_heads(dweights, chunk), weights.keep, p.factor)
        dweights = kept
    if _by_heads(dweights):
        for head in range(chunk.pairs):
            nisa.scalar_tensor_tensor(
                dst=dst[:, head, :],
                data=dweights[:, head, :],
                op0=nl.add,
                operand0=delta[:, head : head + 1],
                op1=nl.multiply,
                operand1=weights.plain[:, head, :],
            )
        return
    centred = nl.ndarray(dweights.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=centred, data1=dweights, data2=column(delta, t.side.size), op=nl.add)
    nisa.tensor_tensor(dst=dst, data1=centred, data2=weights.plain, op=nl.multiply)


def accumulate_keys(
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


def _prepare(
    p: BackwardProblem,
    side: KeySide,
    sources: Chunk,
    chunk: Chunk,
    row: int,
    queries: Loaded,
    grad: Loaded,
    last: bool,
) -> Prepared:
    rows = queries.transposed.shape[2]
    shift = load_row_values(p.lse, chunk, row, rows)
    nisa.tensor_scalar(dst=shift, data=shift, op0=nl.multiply, operand0=-1.0)
    out = load_blocks(p.out, chunk, row, rows)[0]
    delta = negated_delta(grad.tiles[0], out)
    return Prepared(side, sources, chunk, row, queries, grad, shift, delta, last)


def score_gradients(
    p: BackwardProblem, g: Gradients, t: Prepared, weights: Weights, dweights: nl.NkiTensor
) -> Started:
    """The gradients of the scores, of the `weights` and their gradients."""
    rows = t.queries.transposed.shape[2]
    padded = new_weights(t.chunk, rows, t.side.size, p.keys, p.q.dtype)
    dscores = padded[:, 0 : t.chunk.pairs, 0 : t.side.size]
    wide = dscores
    if g.dmask is not None and p.q.dtype != nl.float32:
        wide = nl.ndarray(dscores.shape, dtype=nl.float32, buffer=nl.sbuf)
        _score_gradients(p, t, weights, dweights, wide)
        nisa.tensor_copy(dst=dscores, src=wide)
    else:
        _score_gradients(p, t, weights, dweights, wide)
    return Started(t, weights, padded, wide)


def _start(p: BackwardProblem, g: Gradients, t: Prepared) -> Started:
    weights = weights_of(p, t)
    return score_gradients(p, g, t, weights, weight_gradients(p, t))


def _finish_rows(
    p: BackwardProblem, g: Gradients, s: Started, before: KeyGradients | None
) -> KeyGradients | None:
    """The products with the gradients of the scores. Returns the gradients of the keys so far, None
    after the last rows, which store them."""
    t = s.prepared
    side = t.side
    chunk = t.chunk
    sums = before
    if sums is None:
        sums = new_key_gradients(p, t.sources, side.size)
    accumulate_keys(sums.dv, s.weights.dropped, t.grad.tiles[0], chunk.pairs, p.group)
    if g.dmask is not None:
        add_mask_gradient(g.dmask, s.wide, chunk, t.row, side.start)
    dscores = s.padded[:, 0 : chunk.pairs, 0 : side.size]
    accumulate_keys(sums.dk, dscores, t.queries.tiles[0], chunk.pairs, p.group)
    product = combine_keys(s.padded, side.vectors, chunk.pairs, p.group, side.size, p.keys)
    _store_query_gradient(p, g, product, side, chunk, t.row)
    if t.last:
        _store_keys(g.dk, sums.dk, t.sources, side.start, side.size, p.scale)
        _store_keys(g.dv, sums.dv, t.sources, side.start, side.size, 1.0)
        sums = None
    return sums


def _step(
    p: BackwardProblem, g: Gradients, pipeline: BackwardPipeline, prepared: Prepared | None
) -> BackwardPipeline:
    """Advance each stage: TensorE has transposed the rows of `prepared` and computes the first
    products of those before while the other engines compute the gradients of older scores."""
    started = None
    if pipeline.prepared is not None:
        started = _start(p, g, pipeline.prepared)
    sums = pipeline.sums
    if pipeline.started is not None:
        sums = _finish_rows(p, g, pipeline.started, sums)
    return BackwardPipeline(prepared, started, sums)


def empty_backward_pipeline() -> BackwardPipeline:
    """Nothing is under way."""
    return BackwardPipeline(None, None, None)


def finish_backward(p: BackwardProblem, g: Gradients, pipeline: BackwardPipeline) -> None:
    """The rows that are under way."""
    for _ in range(2):
        pipeline = _step(p, g, pipeline, None)


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
    pipeline: BackwardPipeline,
) -> BackwardPipeline:
    """All gradients through the key heads of `sources`, whose query heads are `chunks`; what is
    left to `finish_backward`."""
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
                    prepared = _prepare(p, side, sources, chunk, row, queries, grad, last)
                    pipeline = _step(p, g, pipeline, prepared)
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
    p: BackwardProblem, g: Gradients, pack: Chunk, pipeline: BackwardPipeline
) -> BackwardPipeline:
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
        prepared = _prepare(p, side, chunk, chunk, 0, query, grad, True)
        pipeline = _step(p, g, pipeline, prepared)
    return pipeline
