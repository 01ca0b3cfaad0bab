"""NKI helpers of the forward pass of attention: keys in SBUF, the softmax of a tile of scores.

Up to 512 keys are one tile: the scores of all heads of a chunk share a PSUM bank and the softmax is
a single pass. More keys make several tiles, one head at a time, with a running maximum and sum.
The row maximum is kept negated, because it is the bias of exp on ScalarE.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._transfers import transfer
from trnx.nki_kernels.kernels.attention._heads import (
    column,
    combine_turned,
    load_blocks,
    load_packed,
    load_slotted,
    load_transposed,
    multiply_heads,
    new_weights,
    turn_weights,
)
from trnx.nki_kernels.kernels.attention._layout import (
    Chunk,
    HeadLayout,
    groups_of,
    head_rows,
    split_heads,
)
from trnx.nki_kernels.kernels.attention._masks import (
    CLAMP_FALSE,
    CLAMP_FLOAT,
    Bias,
    Hidden,
    Masks,
    apply_bias,
    bias_key,
    crosses,
    drop,
    first_key,
    load_mask,
    make_bias,
)
from trnx.nki_kernels.kernels.attention._maxima import with_maxima
from trnx.nki_kernels.kernels.attention._row_logs import TINY, RowLogs, RowSums, add_sums

# From this many keys on ScalarE takes one instruction per head, which saves VectorE two passes.
_MANY_KEYS = 128


class Problem(NamedTuple):
    """What the kernel computes, and how: `group` query heads share a key head; keys come in
    tiles of `tile`; `resident`: they stay in SBUF while queries stream by. `scales_exactly`: the
    product of a score and `scale` is not rounded. `is_static`: as in `transfer`."""

    masks: Masks
    dropout: nl.NkiTensor | None
    factor: float
    scale: float
    group: int
    features: HeadLayout
    keys: HeadLayout
    tile: int
    resident: bool
    scales_exactly: bool
    is_static: bool


class KeyTile(NamedTuple):
    """Keys `start .. start+size` of a chunk: transposed keys, and values by `combine_turned`."""

    start: int
    size: int
    keys: nl.NkiTensor
    values: list[nl.NkiTensor]


class State(NamedTuple):
    """Softmax of the keys so far: negated maximum and sum `[rows, heads]`, product with values."""

    negmax: nl.NkiTensor
    total: nl.NkiTensor
    product: nl.NkiTensor


class Outputs(NamedTuple):
    """What the kernel writes."""

    out: nl.NkiTensor
    logs: RowLogs


class Scored(NamedTuple):
    """Scores in PSUM of the rows from `row` of a chunk and `cols` keys, those that they see of the
    tile from `start`. `last`: no more tiles follow for these rows."""

    scores: nl.NkiTensor
    bias: Bias | None
    values: list[nl.NkiTensor]
    chunk: Chunk
    row: int
    start: int
    cols: int
    last: bool


class Weighted(NamedTuple):
    """The weights of a tile of scores, padded for `turn_weights`, and the softmax so far."""

    scored: Scored
    padded: nl.NkiTensor
    negmax: nl.NkiTensor
    total: nl.NkiTensor


class Prepared(NamedTuple):
    """Transposed queries, the rows from `row` of a chunk, and the keys that they meet next."""

    queries: nl.NkiTensor
    tile: KeyTile
    chunk: Chunk
    row: int
    bias: Bias | None
    last: bool


class Turned(NamedTuple):
    """A tile of weights, and the same transposed."""

    weighted: Weighted
    tiles: list[nl.NkiTensor]


class Pipeline(NamedTuple):
    """Software pipeline, a tile a stage: while the operands of a tile are transposed, TensorE
    computes the scores of the tile before (`prepared`), VectorE and ScalarE the weights of the one
    before that (`scored`), and the older ones are transposed (`weighted`) and multiplied by the
    values (`turned`). So TensorE never waits for what it has just asked of another engine. `state`
    is that of the rows of `turned` before this tile, None where it is their first."""

    prepared: Prepared | None
    scored: Scored | None
    weighted: Weighted | None
    turned: Turned | None
    state: State | None


# Steps without a tile that empty the pipeline.
STAGES = 4


def empty_pipeline() -> Pipeline:
    """Nothing is under way."""
    return Pipeline(None, None, None, None, None)


def load_keys(p: Problem, k: nl.NkiTensor, v: nl.NkiTensor, chunk: Chunk, start: int) -> KeyTile:
    """A tile of keys and values of a chunk of key heads."""
    size = min(p.tile, k.shape[2] - start)
    keys = load_transposed(k, chunk, start, size, p.features, p.is_static).transposed
    if p.keys.slots > 1:
        return KeyTile(start, size, keys, [load_slotted(v, chunk, size, p.keys, p.is_static)])
    return KeyTile(start, size, keys, load_blocks(v, chunk, start, size, p.is_static))


def _clamp(masks: Masks) -> float | None:
    """What the maximum of a row is at least, where a mask or a window may hide all of it."""
    if masks.mask is None and masks.window == 0:
        return None
    return CLAMP_FLOAT if masks.mask is not None and not masks.boolean else CLAMP_FALSE


def _exponentials(
    weights: nl.NkiTensor, scores: nl.NkiTensor, negmax: nl.NkiTensor, scale: float
) -> nl.NkiTensor:
    """`weights = exp(scores * scale + negmax)`; returns the row sums `[rows, heads]`."""
    rows = scores.shape[0]
    heads = scores.shape[1]
    total = nl.ndarray((rows, heads), dtype=nl.float32, buffer=nl.sbuf)
    if heads == 1 or scores.shape[2] >= _MANY_KEYS:
        for head in range(heads):
            nisa.activation(
                dst=weights[:, head, :],
                op=nl.exp,
                data=scores[:, head, :],
                bias=negmax[:, head : head + 1],
                scale=scale,
                reduce_op=nl.add,
                reduce_res=total[:, head : head + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )
        return total
    # Sums are those of the unrounded weights, because backward recomputes the weights from them.
    shifted = weights
    if weights.dtype != nl.float32:
        shifted = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=shifted,
        data=scores,
        op0=nl.multiply,
        operand0=scale,
        op1=nl.add,
        operand1=column(negmax, scores.shape[2]),
    )
    nisa.activation(dst=shifted, op=nl.exp, data=shifted)
    nisa.tensor_reduce(dst=total, op=nl.add, data=shifted, axis=2)
    if weights.dtype != nl.float32:
        nisa.tensor_copy(dst=weights, src=shifted)
    return total


def _combined_max(negmax: nl.NkiTensor, old: nl.NkiTensor | None) -> nl.NkiTensor:
    if old is None:
        return negmax
    both = nl.ndarray(negmax.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=both, data1=negmax, data2=old, op=nl.minimum)
    return both


def _score(p: Problem, t: Prepared) -> Scored:
    """One more tile of scores."""
    cols = visible(p, t.row, t.queries.shape[2], t.tile.start, t.tile.size)
    scores = multiply_heads(t.queries, t.tile.keys, t.chunk.pairs, p.group, cols, p.features)
    return Scored(scores, t.bias, t.tile.values, t.chunk, t.row, t.tile.start, cols, t.last)


def _weigh(p: Problem, dtype: str, s: Scored, oldmax: nl.NkiTensor | None) -> Weighted:
    """The weights in `dtype`, relative to the maximum that includes `oldmax`."""
    chunk = s.chunk
    rows = s.scores.shape[0]
    scores = Hidden(s.scores, p.scale)
    if s.bias is not None:
        scores = apply_bias(s.scores, p.scale, s.bias, chunk)
    is_exact = p.scales_exactly or s.cols < _MANY_KEYS
    scores, negmax = with_maxima(scores, is_exact, _clamp(p.masks))
    negmax = _combined_max(negmax, oldmax)
    padded = new_weights(chunk, rows, s.cols, p.keys, dtype)
    weights = padded[:, 0 : chunk.pairs, 0 : s.cols]
    total = _exponentials(weights, scores.scores, negmax, scores.scale)
    if p.dropout is not None:
        keep = load_mask(p.dropout, chunk, s.row, rows, s.start, s.cols)
        drop(split_heads(weights, chunk), split_heads(weights, chunk), keep, p.factor)
    return Weighted(s, padded, negmax, total)


def _finish(p: Problem, outputs: Outputs, t: Turned, old: State | None) -> State | None:
    """The product with the values. Returns the state, None after the rows' last tile, which stores
    the result."""
    w = t.weighted
    s = w.scored
    product = combine_turned(t.tiles, s.values, s.chunk.pairs, p.group, s.cols, p.keys)
    if old is not None:
        state = _rescale(old, State(w.negmax, w.total, product))
    elif s.last:
        state = State(w.negmax, w.total, product)
    else:
        kept = nl.ndarray(product.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=kept, src=product)
        state = State(w.negmax, w.total, kept)
    if not s.last:
        return state
    _store_rows(p, outputs, state, s.chunk, s.row)
    return None


def step(p: Problem, outputs: Outputs, pipeline: Pipeline, prepared: Prepared | None) -> Pipeline:
    """Advance each stage by one tile; `STAGES` steps with `prepared` None empty the pipeline."""
    scored = None
    if pipeline.prepared is not None:
        scored = _score(p, pipeline.prepared)
    oldmax = None
    if pipeline.weighted is not None and not pipeline.weighted.scored.last:
        oldmax = pipeline.weighted.negmax
    weighted = None
    if pipeline.scored is not None:
        weighted = _weigh(p, outputs.out.dtype, pipeline.scored, oldmax)
    turned = None
    if pipeline.weighted is not None:
        w = pipeline.weighted
        heads = w.scored.chunk.pairs
        turned = Turned(w, turn_weights(w.padded, heads, w.scored.cols, p.keys))
    state = None
    if pipeline.turned is not None:
        state = _finish(p, outputs, pipeline.turned, pipeline.state)
    return Pipeline(prepared, scored, weighted, turned, state)


def _rescale(old: State, new: State) -> State:
    """`old`, rescaled to the maximum of `new`, plus `new` (one head)."""
    rows = old.negmax.shape[0]
    factor = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=factor, op=nl.exp, data=old.negmax, bias=new.negmax, scale=-1.0)
    total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    product = nl.ndarray(old.product.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=total, data=old.total, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=new.total
    )
    nisa.scalar_tensor_tensor(
        dst=product,
        data=old.product,
        op0=nl.multiply,
        operand0=factor,
        op1=nl.add,
        operand1=new.product,
    )
    return State(new.negmax, total, product)


def visible(p: Problem, row: int, rows: int, start: int, size: int) -> int:
    """How many of the keys `start .. start+size` any of the rows may see."""
    if p.masks.causal:
        return max(0, min(size, row + rows - start))
    return size


def _store_rows(p: Problem, outputs: Outputs, state: State, chunk: Chunk, row: int) -> None:
    """Normalise and store the rows from `row`; `add_sums` has their sums stored later."""
    out = outputs.out
    rows = state.negmax.shape[0]
    width = state.product.shape[2]
    total = state.total
    if p.masks.mask is not None:
        total = nl.ndarray(state.total.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=total, data=state.total, op0=nl.maximum, operand0=TINY)
    inverse = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    result = nl.ndarray(state.product.shape, dtype=out.dtype, buffer=nl.sbuf)
    if chunk.pairs == 1:
        nisa.tensor_scalar(dst=result, data=state.product, op0=nl.multiply, operand0=inverse)
    else:
        nisa.tensor_tensor(
            dst=result, data1=state.product, data2=column(inverse, width), op=nl.multiply
        )
    transfer(head_rows(out, chunk, row, rows), split_heads(result, chunk), p.is_static)
    add_sums(outputs.logs, RowSums(state.total, state.negmax, chunk, row))


class Biases(NamedTuple):
    """Cached bias tiles: `(key, tile)` pairs. Causal tiles repeat along the diagonal and are all
    kept; of tiles of a mask only the last one is."""

    made: list[tuple[tuple[int | bool, ...], Bias]]


def bias_of(
    p: Problem, biases: Biases, chunk: Chunk, row: int, rows: int, start: int, cols: int
) -> Bias | None:
    """The bias of a tile of scores, or None."""
    crossed = crosses(p.masks, row, rows, start, cols)
    if p.masks.mask is None and not crossed:
        return None
    key = bias_key(p.masks, chunk, row, rows, start, cols, crossed)
    for pair in biases.made:
        if pair[0] == key:
            return pair[1]
    tile = make_bias(p.masks, chunk, row, rows, start, cols)
    if p.masks.mask is not None and len(biases.made) > 0:
        biases.made.pop()
    biases.made.append((key, tile))
    return tile


def _prepare(
    p: Problem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    sources: Chunk,
    tiles: list[KeyTile],
    queries: nl.NkiTensor,
    chunk: Chunk,
    row: int,
    start: int,
    biases: Biases,
    last: bool,
) -> Prepared:
    """The keys from `start`, which are in `tiles` where keys are resident, for these queries."""
    if p.resident:
        tile = tiles[start // p.tile]
    else:
        tile = load_keys(p, tensors[1], tensors[2], sources, start)
    rows = queries.shape[2]
    cols = visible(p, row, rows, start, tile.size)
    bias = bias_of(p, biases, chunk, row, rows, start, cols)
    return Prepared(queries, tile, chunk, row, bias, last)


def forward_chunk(
    p: Problem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    outputs: Outputs,
    sources: Chunk,
    chunks: list[Chunk],
    biases: Biases,
    pipeline: Pipeline,
) -> Pipeline:
    """All rows of the chunks of query heads that are served by the key heads of `sources`."""
    q = tensors[0]
    k = tensors[1]
    length = k.shape[2]
    tiles = []
    if p.resident:
        for start in range(0, length, p.tile):
            tiles.append(load_keys(p, k, tensors[2], sources, start))
    for chunk in chunks:
        for row in range(0, q.shape[2], nl.tile_size.pmax):
            rows = min(nl.tile_size.pmax, q.shape[2] - row)
            queries = load_transposed(q, chunk, row, rows, p.features, p.is_static).transposed
            seen = visible(p, row, rows, 0, length)
            first = first_key(p.masks, row) // p.tile * p.tile
            for start in range(first, seen, p.tile):
                last = start + p.tile >= seen
                prepared = _prepare(
                    p, tensors, sources, tiles, queries, chunk, row, start, biases, last
                )
                pipeline = step(p, outputs, pipeline, prepared)
    return pipeline


def forward_pack(
    p: Problem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    outputs: Outputs,
    pack: Chunk,
    biases: Biases,
    pipeline: Pipeline,
) -> Pipeline:
    """Short sequences of several batch entries: loaded and transposed together, then one by one."""
    rows = tensors[0].shape[2]
    cols = tensors[1].shape[2]
    queries = load_packed(tensors[0], pack, p.features, p.is_static)
    keys = load_packed(tensors[1], pack, p.features, p.is_static)
    values = load_slotted(tensors[2], pack, cols, p.keys, p.is_static)
    groups = groups_of(p.keys, pack.heads)
    for entry in range(pack.batches):
        chunk = Chunk(pack.batch + entry, 1, pack.head, pack.heads, pack.heads)
        tile = KeyTile(
            0,
            cols,
            keys[:, :, entry * cols : (entry + 1) * cols],
            [values[:, entry * groups : (entry + 1) * groups, :]],
        )
        bias = bias_of(p, biases, chunk, 0, rows, 0, visible(p, 0, rows, 0, cols))
        mine = queries[:, :, entry * rows : (entry + 1) * rows]
        pipeline = step(p, outputs, pipeline, Prepared(mine, tile, chunk, 0, bias, True))
    return pipeline
