"""NKI helpers of attention, both passes: heads loaded and transposed, and their products."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._transfers import transfer
from trnx.nki_kernels.kernels.attention._layout import (
    Chunk,
    HeadLayout,
    groups_of,
    head_rows,
    heads_of,
    split_heads,
)


def load_heads(
    x: nl.NkiTensor,
    chunk: Chunk,
    row: int,
    rows: int,
    layout: HeadLayout,
    is_static: bool = False,
) -> nl.NkiTensor:
    """Rows `row ..` of the chunk's heads: `[rows, heads, width]`, zero-padded for `layout`;
    `is_static` as in `transfer`, here and below."""
    heads = groups_of(layout, chunk.pairs) * layout.slots // layout.cuts
    width = layout.pitch * layout.cuts
    tile = nl.ndarray((rows, heads, width), dtype=x.dtype, buffer=nl.sbuf)
    if heads != chunk.pairs or width != layout.size:
        nisa.memset(dst=tile, value=0, engine=nisa.engine.gpsimd)
    dst = tile[:, 0 : chunk.pairs, 0 : layout.size]
    transfer(split_heads(dst, chunk), head_rows(x, chunk, row, rows), is_static)
    return tile


def load_slotted(
    x: nl.NkiTensor, chunk: Chunk, rows: int, keys: HeadLayout, is_static: bool = False
) -> nl.NkiTensor:
    """All rows of the chunk's heads, the heads of a group below each other on the partitions:
    `[partitions of keys, batches * groups, width]`; a group is of one batch entry."""
    groups = groups_of(keys, chunk.heads)
    shape = (keys.partitions, chunk.batches, groups, x.shape[3])
    tile = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    for slot in range(min(keys.slots, chunk.heads)):
        heads = (chunk.heads - slot + keys.slots - 1) // keys.slots
        src = heads_of(x, chunk)[:, slot : chunk.heads : keys.slots].permute((2, 0, 1, 3))
        first = slot * keys.pitch
        transfer(tile[first : first + rows, :, 0:heads, :], src, is_static)
    return tile.reshape((keys.partitions, chunk.batches * groups, x.shape[3]))


def load_packed(
    x: nl.NkiTensor, chunk: Chunk, layout: HeadLayout, is_static: bool = False
) -> nl.NkiTensor:
    """All rows of the chunk's heads, transposed: `[partitions, groups, batches * rows]`.

    The rows of all batch entries lie below each other, so that full 128x128 blocks are transposed.
    """
    rows = chunk.batches * x.shape[2]
    groups = groups_of(layout, chunk.heads)
    heads = groups * layout.slots // layout.cuts
    width = layout.pitch * layout.cuts
    tile = nl.ndarray((rows, heads, width), dtype=x.dtype, buffer=nl.sbuf)
    if heads != chunk.heads or width != layout.size:
        nisa.memset(dst=tile, value=0, engine=nisa.engine.gpsimd)
    src = heads_of(x, chunk).permute((0, 2, 1, 3))
    transfer(tile[:, 0 : chunk.heads, 0 : layout.size], src, is_static)
    dst = nl.ndarray((layout.partitions, groups, rows), dtype=x.dtype, buffer=nl.sbuf)
    transpose_heads(dst, tile, layout)
    return dst


def transpose_blocks(dst: nl.NkiTensor, data: nl.NkiTensor, scalar: bool) -> None:
    """`dst[width, outer * inner, rows]` <- `data[rows, outer, inner, width]` on TensorE.

    As many blocks as fit share one PSUM bank and leave it by one instruction, of ScalarE if
    `scalar`.
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
        target = dst[:, first : first + blocks, :]
        if scalar:
            nisa.activation(dst=target, op=nl.copy, data=turned)
        else:
            nisa.tensor_copy(dst=target, src=turned)


def transpose_heads(dst: nl.NkiTensor, tile: nl.NkiTensor, layout: HeadLayout) -> None:
    """`dst[partitions, groups, rows]` <- `tile`, made by `load_heads` for `layout`."""
    if layout.slots > 1:
        groups = tile.shape[1] // layout.slots
        data = tile.reshape((tile.shape[0], groups, 1, layout.partitions))
    else:
        data = tile.reshape_dim(2, (layout.cuts, layout.pitch))
    transpose_blocks(dst, data, layout.scalar)


class Loaded(NamedTuple):
    """Rows of a chunk: `[partitions, groups, rows]`, and tiles `[<= 128 rows, heads, size]`."""

    transposed: nl.NkiTensor
    tiles: list[nl.NkiTensor]


def load_transposed(
    x: nl.NkiTensor,
    chunk: Chunk,
    row: int,
    rows: int,
    layout: HeadLayout,
    is_static: bool = False,
) -> Loaded:
    """Rows `row ..` of the chunk's heads, as they are and transposed."""
    shape = (layout.partitions, groups_of(layout, chunk.pairs), rows)
    dst = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    tiles = []
    for start in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - start)
        tile = load_heads(x, chunk, row + start, count, layout, is_static)
        transpose_heads(dst[:, :, start : start + count], tile, layout)
        tiles.append(tile[:, 0 : chunk.pairs, 0 : layout.size])
    return Loaded(dst, tiles)


def turned_heads(tile: nl.NkiTensor, first: int, heads: int, layout: HeadLayout) -> Loaded:
    """Heads `first ..` of a tile of `load_heads`, as they are and transposed; `first` is a multiple
    of the heads of a group."""
    groups = groups_of(layout, heads)
    part = tile[:, first : first + groups * layout.slots // layout.cuts, :]
    shape = (layout.partitions, groups, tile.shape[0])
    turned = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.sbuf)
    transpose_heads(turned, part, layout)
    return Loaded(turned, [part[:, 0:heads, 0 : layout.size]])


def head_of(operand: nl.NkiTensor, head: int, cut: int, layout: HeadLayout) -> nl.NkiTensor:
    """One head (one cut of it) of a transposed operand: `[size / cuts, rows]`."""
    if layout.slots == 1:
        return operand[:, head * layout.cuts + cut, :]
    start = head % layout.slots * layout.pitch
    return operand[start : start + layout.size, head // layout.slots, :]


def matmul_slot(
    dst: nl.NkiTensor,
    stationary: nl.NkiTensor,
    moving: nl.NkiTensor,
    start: int,
    layout: HeadLayout,
) -> None:
    """`dst += stationary.T @ moving` of operands from partition `start`, in that slot's row tile,
    so that the products of neighbouring slots run at the same time."""
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
    rows: nl.NkiTensor, columns: nl.NkiTensor, heads: int, group: int, cols: int, layout: HeadLayout
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


def new_weights(chunk: Chunk, rows: int, cols: int, keys: HeadLayout, dtype: str) -> nl.NkiTensor:
    """A tile for weights `[rows, heads, cols]`, padded with zeros for the transpose."""
    if keys.slots == 1:
        return nl.ndarray((rows, chunk.pairs, cols), dtype=dtype, buffer=nl.sbuf)
    heads = groups_of(keys, chunk.pairs) * keys.slots
    tile = nl.ndarray((rows, heads, keys.pitch), dtype=dtype, buffer=nl.sbuf)
    if heads != chunk.pairs or cols != keys.pitch:
        nisa.memset(dst=tile, value=0, engine=nisa.engine.gpsimd)
    return tile


def turn_weights(
    weights: nl.NkiTensor, heads: int, cols: int, keys: HeadLayout
) -> list[nl.NkiTensor]:
    """Weights (from `new_weights`), transposed for `combine_turned`: one slotted tile, or the full
    blocks of 128 keys of all heads and the ragged ones, as far as there are any."""
    rows = weights.shape[0]
    if keys.slots > 1:
        shape = (keys.partitions, groups_of(keys, heads), rows)
        turned = nl.ndarray(shape, dtype=weights.dtype, buffer=nl.sbuf)
        transpose_heads(turned, weights, keys)
        return [turned]
    pmax = nl.tile_size.pmax
    full = cols // pmax
    rest = cols % pmax
    tiles = []
    if full > 0:
        whole = nl.ndarray((pmax, heads * full, rows), dtype=weights.dtype, buffer=nl.sbuf)
        blocks = weights[:, :, 0 : full * pmax].reshape_dim(2, (full, pmax))
        transpose_blocks(whole, blocks, keys.scalar)
        tiles.append(whole)
    if rest > 0:
        ragged = nl.ndarray((rest, heads, rows), dtype=weights.dtype, buffer=nl.sbuf)
        transpose_blocks(ragged, weights[:, :, full * pmax : cols].expand_dim(2), keys.scalar)
        tiles.append(ragged)
    return tiles


def combine_turned(
    turned: list[nl.NkiTensor],
    vectors: list[nl.NkiTensor],
    heads: int,
    group: int,
    cols: int,
    keys: HeadLayout,
) -> nl.NkiTensor:
    """`[rows, heads, width]` in PSUM: weights (from `turn_weights`) times the vectors of the keys.

    `vectors` is one slotted tile where several heads share a group, else a tile
    `[keys, heads, width]` for each 128 keys.
    """
    shape = (turned[0].shape[2], heads, vectors[0].shape[2])
    result = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    if keys.slots > 1:
        for head in range(heads):
            start = head % keys.slots * keys.pitch
            matmul_slot(
                result[:, head, :],
                turned[0][start : start + cols, head // keys.slots, :],
                vectors[0][start : start + cols, head // keys.slots, :],
                start,
                keys,
            )
        return result
    pmax = nl.tile_size.pmax
    full = cols // pmax
    rest = cols % pmax
    for head in range(heads):
        for block in range(full):
            nisa.nc_matmul(
                dst=result[:, head, :],
                stationary=turned[0][:, head * full + block, :],
                moving=vectors[block][:, head // group, :],
            )
        if rest > 0:
            nisa.nc_matmul(
                dst=result[:, head, :],
                stationary=turned[len(turned) - 1][:, head, :],
                moving=vectors[full][0:rest, head // group, :],
            )
    return result


def combine_keys(
    weights: nl.NkiTensor,
    vectors: list[nl.NkiTensor],
    heads: int,
    group: int,
    cols: int,
    keys: HeadLayout,
) -> nl.NkiTensor:
    """Both, one right after the other."""
    turned = turn_weights(weights, heads, cols, keys)
    return combine_turned(turned, vectors, heads, group, cols, keys)


def load_blocks(
    x: nl.NkiTensor, chunk: Chunk, row: int, rows: int, is_static: bool = False
) -> list[nl.NkiTensor]:
    """Rows `row ..` of the chunk's heads as tiles `[<= 128, heads, width]`."""
    plain = HeadLayout(x.shape[3], 1, 1, x.shape[3], x.shape[3], False)
    tiles = []
    for start in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - start)
        tiles.append(load_heads(x, chunk, row + start, count, plain, is_static))
    return tiles


def column(vector: nl.NkiTensor, cols: int) -> nl.NkiTensor:
    """`vector[rows, heads]` as `[rows, heads, cols]`."""
    return vector.expand_dim(2).broadcast(2, cols)
