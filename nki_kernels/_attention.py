"""NKI helpers of attention, forward and backward: heads brought to SBUF, transposed, and masked.

A chunk is a run of batch entries and heads that are processed together, side by side in the free
dimension: tiles are `[rows, heads of the chunk, columns]`, so that one instruction serves them all.

A product contracts over partitions, so an operand is transposed on TensorE first. Heads narrower
than 64 share a transpose: `slots` of them lie below each other on the partitions, each starting at
a multiple of 32. Heads wider than 128 are cut into `cuts` equal pieces. A transposed operand is
`[partitions, groups, rows]`; a group holds `slots` heads, or one cut of one head.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

_NEG_INF = float("-inf")
# What a False of a bool mask adds to a score: far below any score, yet finite, and below the
# clamp of the row maximum that is used with it, so that the weights of a row of nothing but False
# are exp(-3e38 + 1e38) = 0.
_FALSE = 3.0e38
CLAMP_FALSE = -1.0e38
# With a float mask the clamp is the lowest float32: -inf gives weight 0, the lowest float weight 1.
CLAMP_FLOAT = -3.4028234663852886e38


class Chunk(NamedTuple):
    """Heads `head .. head+heads` of batch entries `batch .. batch+batches`: `pairs` in all."""

    batch: int
    batches: int
    head: int
    heads: int
    pairs: int


class Layout(NamedTuple):
    """How vectors of `size` elements of several heads lie on the partitions when transposed.

    `pitch`: partitions from one slot to the next, or those of one cut; `partitions`: of a group.
    """

    size: int
    slots: int
    cuts: int
    pitch: int
    partitions: int


def layout_of(size: int, shared: bool) -> Layout:
    """The layout of vectors of `size`; `shared` allows several heads in a group.

    Each slot is a row tile of TensorE: of 32 or 64 rows, on NeuronCore-v2 of 64.
    """
    pmax = nl.tile_size.pmax
    quarters = nisa.get_nc_version() != nisa.nc_version.gen2
    if shared and quarters and size <= pmax // 4:
        return Layout(size, 4, 1, pmax // 4, pmax)
    if shared and size <= pmax // 2:
        return Layout(size, 2, 1, pmax // 2, pmax)
    cuts = (size + pmax - 1) // pmax
    return Layout(size, 1, cuts, size // cuts, size // cuts)


def groups_of(layout: Layout, heads: int) -> int:
    """Groups that `heads` heads make."""
    if layout.slots == 1:
        return heads * layout.cuts
    return (heads + layout.slots - 1) // layout.slots


def split_heads(tile: nl.NkiTensor, chunk: Chunk) -> nl.NkiTensor:
    """`[rows, heads, ...]` as `[rows, batches, heads, ...]`."""
    return tile.reshape_dim(1, (chunk.batches, chunk.heads))


def rows_of(x: nl.NkiTensor, chunk: Chunk, row: int, rows: int) -> nl.NkiTensor:
    """Rows of the chunk's heads in `x[B, H, rows, width]`, as `[rows, batches, heads, width]`."""
    view = x[
        chunk.batch : chunk.batch + chunk.batches,
        chunk.head : chunk.head + chunk.heads,
        row : row + rows,
        :,
    ]
    return view.permute((2, 0, 1, 3))


def load_rows(x: nl.NkiTensor, chunk: Chunk, row: int, rows: int, layout: Layout) -> nl.NkiTensor:
    """Rows `row ..` of the chunk's heads: `[rows, heads, width]`, zero-padded for `layout`."""
    heads = groups_of(layout, chunk.pairs) * layout.slots // layout.cuts
    width = layout.pitch * layout.cuts
    tile = nl.ndarray((rows, heads, width), dtype=x.dtype, buffer=nl.sbuf)
    if heads != chunk.pairs or width != layout.size:
        nisa.memset(dst=tile, value=0)
    dst = tile[:, 0 : chunk.pairs, 0 : layout.size]
    nisa.dma_copy(dst=split_heads(dst, chunk), src=rows_of(x, chunk, row, rows))
    return tile


def load_slotted(x: nl.NkiTensor, chunk: Chunk, rows: int, keys: Layout) -> nl.NkiTensor:
    """All rows of the chunk's heads, the heads of a group below each other on the partitions:
    `[partitions of keys, batches * groups, width]`; a group is of one batch entry."""
    groups = groups_of(keys, chunk.heads)
    shape = (keys.partitions, chunk.batches, groups, x.shape[3])
    tile = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    for slot in range(min(keys.slots, chunk.heads)):
        heads = (chunk.heads - slot + keys.slots - 1) // keys.slots
        src = x[
            chunk.batch : chunk.batch + chunk.batches,
            chunk.head + slot : chunk.head + chunk.heads : keys.slots,
            :,
            :,
        ].permute((2, 0, 1, 3))
        first = slot * keys.pitch
        nisa.dma_copy(dst=tile[first : first + rows, :, 0:heads, :], src=src)
    return tile.reshape((keys.partitions, chunk.batches * groups, x.shape[3]))


def load_packed(x: nl.NkiTensor, chunk: Chunk, layout: Layout) -> nl.NkiTensor:
    """All rows of the chunk's heads, transposed: `[partitions, groups, batches * rows]`.

    The rows of all batch entries lie below each other, so that full 128x128 blocks are transposed.
    """
    rows = chunk.batches * x.shape[2]
    groups = groups_of(layout, chunk.heads)
    heads = groups * layout.slots // layout.cuts
    width = layout.pitch * layout.cuts
    tile = nl.ndarray((rows, heads, width), dtype=x.dtype, buffer=nl.sbuf)
    if heads != chunk.heads or width != layout.size:
        nisa.memset(dst=tile, value=0)
    src = x[
        chunk.batch : chunk.batch + chunk.batches,
        chunk.head : chunk.head + chunk.heads,
        :,
        :,
    ].permute((0, 2, 1, 3))
    nisa.dma_copy(dst=tile[:, 0 : chunk.heads, 0 : layout.size], src=src)
    dst = nl.ndarray((layout.partitions, groups, rows), dtype=x.dtype, buffer=nl.sbuf)
    transpose_heads(dst, tile, layout)
    return dst


def transpose_blocks(dst: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """`dst[width, outer * inner, rows]` <- `data[rows, outer, inner, width]` on TensorE.

    As many blocks as fit share one PSUM bank and are evicted by one instruction.
    """
    rows = data.shape[0]
    inner = data.shape[2]
    count = data.shape[1] * inner
    bank = nl.tile_size.psum_bank_fmax
    if data.dtype != nl.float32:
        bank = bank * 2
    step = bank // rows
    for first in range(0, count, step):
        blocks = min(step, count - first)
        turned = nl.ndarray((data.shape[3], blocks, rows), dtype=data.dtype, buffer=nl.psum)
        for block in range(blocks):
            outer = (first + block) // inner
            nisa.nc_transpose(
                dst=turned[:, block, :],
                data=data[:, outer, (first + block) % inner, :],
                engine=nisa.engine.tensor,
            )
        nisa.tensor_copy(dst=dst[:, first : first + blocks, :], src=turned)


def transpose_heads(dst: nl.NkiTensor, tile: nl.NkiTensor, layout: Layout) -> None:
    """`dst[partitions, groups, rows]` <- `tile`, made by `load_rows` for `layout`."""
    if layout.slots > 1:
        groups = tile.shape[1] // layout.slots
        data = tile.reshape((tile.shape[0], groups, 1, layout.partitions))
    else:
        data = tile.reshape_dim(2, (layout.cuts, layout.pitch))
    transpose_blocks(dst, data)


class Loaded(NamedTuple):
    """Rows of a chunk: `[partitions, groups, rows]`, and tiles `[<= 128 rows, heads, size]`."""

    transposed: nl.NkiTensor
    tiles: list[nl.NkiTensor]


def load_transposed(x: nl.NkiTensor, chunk: Chunk, row: int, rows: int, layout: Layout) -> Loaded:
    """Rows `row ..` of the chunk's heads, as they are and transposed."""
    shape = (layout.partitions, groups_of(layout, chunk.pairs), rows)
    dst = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    tiles = []
    for start in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - start)
        tile = load_rows(x, chunk, row + start, count, layout)
        transpose_heads(dst[:, :, start : start + count], tile, layout)
        tiles.append(tile[:, 0 : chunk.pairs, 0 : layout.size])
    return Loaded(dst, tiles)


def head_of(operand: nl.NkiTensor, head: int, cut: int, layout: Layout) -> nl.NkiTensor:
    """One head (one cut of it) of a transposed operand: `[size / cuts, rows]`."""
    if layout.slots == 1:
        return operand[:, head * layout.cuts + cut, :]
    start = head % layout.slots * layout.pitch
    return operand[start : start + layout.size, head // layout.slots, :]


def matmul_slot(
    dst: nl.NkiTensor, stationary: nl.NkiTensor, moving: nl.NkiTensor, start: int, layout: Layout
) -> None:
    """`dst += stationary.T @ moving` of operands from partition `start`, in that slot's row tile, so
    that the products of neighbouring slots run at the same time."""
    if layout.slots == 1:
        nisa.nc_matmul(dst=dst, stationary=stationary, moving=moving)
        return
    nisa.nc_matmul(
        dst=dst,
        stationary=stationary,
        moving=moving,
        tile_position=(start, 0),
        tile_size=(layout.pitch, nl.tile_size.pmax),
    )


def multiply_heads(
    rows: nl.NkiTensor, columns: nl.NkiTensor, heads: int, group: int, cols: int, layout: Layout
) -> nl.NkiTensor:
    """`[rows, heads, cols]` in PSUM: for each head the products of its rows with the vectors of the
    head of `columns` that serves it (`group` heads share one); both operands are transposed."""
    shape = (rows.shape[2], heads, cols)
    result = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    for head in range(heads):
        for cut in range(layout.cuts):
            matmul_slot(
                result[:, head, :],
                head_of(rows, head, cut, layout),
                head_of(columns, head // group, cut, layout)[:, 0:cols],
                head % layout.slots * layout.pitch,
                layout,
            )
    return result


# ---- rows against keys: weights [rows, heads, keys] times vectors of keys


def new_weights(chunk: Chunk, rows: int, cols: int, keys: Layout, dtype: str) -> nl.NkiTensor:
    """A tile for weights `[rows, heads, cols]`, padded with zeros for the transpose."""
    if keys.slots == 1:
        return nl.ndarray((rows, chunk.pairs, cols), dtype=dtype, buffer=nl.sbuf)
    heads = groups_of(keys, chunk.pairs) * keys.slots
    tile = nl.ndarray((rows, heads, keys.pitch), dtype=dtype, buffer=nl.sbuf)
    if heads != chunk.pairs or cols != keys.pitch:
        nisa.memset(dst=tile, value=0)
    return tile


def combine_keys(
    weights: nl.NkiTensor,
    vectors: list[nl.NkiTensor],
    heads: int,
    group: int,
    cols: int,
    keys: Layout,
) -> nl.NkiTensor:
    """`[rows, heads, width]` in PSUM: weights (from `new_weights`) times the vectors of the keys.

    `vectors` is one slotted tile where several heads share a group, else a tile
    `[keys, heads, width]` for each 128 keys.
    """
    rows = weights.shape[0]
    width = vectors[0].shape[2]
    result = nl.ndarray((rows, heads, width), dtype=nl.float32, buffer=nl.psum)
    if keys.slots > 1:
        shape = (keys.partitions, groups_of(keys, heads), rows)
        turned = nl.ndarray(shape, dtype=weights.dtype, buffer=nl.sbuf)
        transpose_heads(turned, weights, keys)
        for head in range(heads):
            start = head % keys.slots * keys.pitch
            matmul_slot(
                result[:, head, :],
                turned[start : start + cols, head // keys.slots, :],
                vectors[0][start : start + cols, head // keys.slots, :],
                start,
                keys,
            )
        return result
    pmax = nl.tile_size.pmax
    full = cols // pmax
    rest = cols % pmax
    if full > 0:
        whole = nl.ndarray((pmax, heads * full, rows), dtype=weights.dtype, buffer=nl.sbuf)
        transpose_blocks(whole, weights[:, :, 0 : full * pmax].reshape_dim(2, (full, pmax)))
    if rest > 0:
        ragged = nl.ndarray((rest, heads, rows), dtype=weights.dtype, buffer=nl.sbuf)
        transpose_blocks(ragged, weights[:, :, full * pmax : cols].expand_dim(2))
    for head in range(heads):
        for block in range(full):
            nisa.nc_matmul(
                dst=result[:, head, :],
                stationary=whole[:, head * full + block, :],
                moving=vectors[block][:, head // group, :],
            )
        if rest > 0:
            nisa.nc_matmul(
                dst=result[:, head, :],
                stationary=ragged[:, head, :],
                moving=vectors[full][0:rest, head // group, :],
            )
    return result


def load_blocks(x: nl.NkiTensor, chunk: Chunk, row: int, rows: int) -> list[nl.NkiTensor]:
    """Rows `row ..` of the chunk's heads as tiles `[<= 128, heads, width]`."""
    plain = Layout(x.shape[3], 1, 1, x.shape[3], x.shape[3])
    tiles = []
    for start in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - start)
        tiles.append(load_rows(x, chunk, row + start, count, plain))
    return tiles


# ---- masks


def as_four(mask: nl.NkiTensor) -> nl.NkiTensor:
    """A mask of fewer dimensions as `[B or 1, H or 1, L or 1, S or 1]`."""
    for _ in range(4 - mask.ndim):
        mask = mask.expand_dim(0)
    return mask


def heads_as_rows(x: nl.NkiTensor | None, group: int) -> nl.NkiTensor | None:
    """`x[B, H, 1, ...]`, which has one query, with the heads of a group as queries:
    `[B, H / group, group, ...]`. What is the same for all heads stays as it is."""
    if x is None or x.shape[1] == 1:
        return x
    return x.squeeze_dim(2).reshape_dim(1, (x.shape[1] // group, group))


def shares(mask: nl.NkiTensor, dim: int) -> bool:
    """True where a four-dimensional mask is the same all along `dim`."""
    return bool(mask.shape[dim] == 1 or mask.strides[dim] == 0)


def _along(mask: nl.NkiTensor, dim: int, start: int, size: int) -> nl.NkiTensor:
    if not shares(mask, dim):
        return mask.slice(dim, start, start + size)
    one = mask.slice(dim, 0, 1)
    return one.broadcast(dim, size) if size > 1 else one


def load_mask(
    mask: nl.NkiTensor, chunk: Chunk, row: int, rows: int, col: int, cols: int
) -> nl.NkiTensor:
    """`[rows, batches or 1, heads or 1, cols]` of a four-dimensional mask, in its own dtype."""
    batches = 1 if shares(mask, 0) else chunk.batches
    heads = 1 if shares(mask, 1) else chunk.heads
    view = _along(_along(mask, 0, chunk.batch, batches), 1, chunk.head, heads)
    view = _along(_along(view, 2, row, rows), 3, col, cols)
    tile = nl.ndarray((rows, batches, heads, cols), dtype=mask.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=view.permute((2, 0, 1, 3)))
    return tile


def causal_bias(row: int, rows: int, col: int, cols: int) -> nl.NkiTensor:
    """`[rows, 1, 1, cols]`: 0 where the key is not after the query, else -inf."""
    zeros = nl.ndarray((rows, cols), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    tile = nl.ndarray((rows, 1, 1, cols), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=tile,
        pattern=[[-1, cols]],
        offset=row - col,
        channel_multiplier=1,
        on_true_tile=zeros,
        on_false_value=_NEG_INF,
        cmp_op=nl.greater_equal,
    )
    return tile


def chunks_of(
    batches: int, heads: int, group: int, most: int, slots: int
) -> list[tuple[Chunk, list[Chunk]]]:
    """The heads of q and k in chunks of at most `most` query heads: pairs of a chunk of key heads
    and the list of the chunks of query heads that it serves."""
    plan: list[tuple[Chunk, list[Chunk]]] = []
    if group > most:
        for batch in range(batches):
            for source in range(heads // group):
                chunks = []
                for head in range(0, group, most):
                    count = min(most, group - head)
                    chunks.append(Chunk(batch, 1, source * group + head, count, count))
                plan.append((Chunk(batch, 1, source, 1, 1), chunks))
        return plan
    sources = heads // group
    width = sources  # key heads of a chunk: even shares, a multiple of `slots`
    if heads > most:
        parts = (heads + most // group * group - 1) // (most // group * group)
        width = (sources + parts - 1) // parts
        width = min((width + slots - 1) // slots * slots, most // group)
    depth = 1
    if heads <= most and heads % slots == 0:
        depth = min(batches, most // heads)
    for batch in range(0, batches, depth):
        count = min(depth, batches - batch)
        for source in range(0, sources, width):
            served = min(width, sources - source)
            chunk = Chunk(batch, count, source * group, served * group, count * served * group)
            plan.append((Chunk(batch, count, source, served, count * served), [chunk]))
    return plan


def packs_of(
    plan: list[tuple[Chunk, list[Chunk]]], batches: int, length: int, depth: int, group: int
) -> list[Chunk]:
    """Chunks over several batch entries for `load_packed`, where the rows of at least two fit 128
    partitions; none where one batch entry makes a pack of its own, or the plan has wider chunks."""
    first = plan[0][0]
    most = nl.tile_size.pmax // max(length, depth)
    packs: list[Chunk] = []
    if group > 1 or most < 2 or batches < 2 or first.batches > 1:
        return packs
    for batch in range(0, batches, most):
        count = min(most, batches - batch)
        for pair in plan:
            chunk = pair[0]
            if chunk.batch == 0:
                packs.append(Chunk(batch, count, chunk.head, chunk.heads, count * chunk.heads))
    return packs


class Masks(NamedTuple):
    """What is added to the scores: `mask` is four-dimensional; `boolean` where it is uint8."""

    mask: nl.NkiTensor | None
    boolean: bool
    causal: bool


def bias_key(
    masks: Masks, chunk: Chunk, row: int, rows: int, col: int, cols: int, crossed: bool
) -> tuple[int | bool, ...]:
    """Equal for tiles of scores that have the same bias."""
    mask = masks.mask
    if mask is None:
        return (row - col, rows, cols)
    batch = 0 if shares(mask, 0) else chunk.batch
    head = 0 if shares(mask, 1) else chunk.head
    first = 0 if shares(mask, 2) and not crossed else row
    return (batch, chunk.batches, head, chunk.heads, first, rows, col, cols)


def make_bias(
    masks: Masks, chunk: Chunk, row: int, rows: int, col: int, cols: int, crossed: bool
) -> nl.NkiTensor:
    """The bias `[rows, batches or 1, heads or 1, cols]` of a tile of scores.

    `crossed`: the diagonal of a causal mask crosses the tile.
    """
    causal = causal_bias(row, rows, col, cols) if crossed else None
    if masks.mask is None:
        return causal
    bias = load_mask(masks.mask, chunk, row, rows, col, cols)
    if masks.boolean:
        wide = nl.ndarray(bias.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=wide, data=bias, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=_FALSE
        )
        bias = wide
    if causal is not None:
        both = nl.ndarray(bias.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(
            dst=both,
            data1=bias,
            data2=causal.broadcast(1, bias.shape[1]).broadcast(2, bias.shape[2]),
            op=nl.add,
        )
        bias = both
    return bias


def spread(bias: nl.NkiTensor, chunk: Chunk) -> nl.NkiTensor:
    """`bias` as `[rows, batches, heads, cols]`."""
    if bias.shape[1] < chunk.batches:
        bias = bias.broadcast(1, chunk.batches)
    if bias.shape[2] < chunk.heads:
        bias = bias.broadcast(2, chunk.heads)
    return bias


def column(vector: nl.NkiTensor, cols: int) -> nl.NkiTensor:
    """`vector[rows, heads]` as `[rows, heads, cols]`."""
    return vector.expand_dim(2).broadcast(2, cols)


def drop(dst: nl.NkiTensor, data: nl.NkiTensor, keep: nl.NkiTensor, factor: float) -> None:
    """`dst = data * keep * factor`, where `keep` is 0 or 1."""
    nisa.scalar_tensor_tensor(
        dst=dst, data=keep, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=data
    )
