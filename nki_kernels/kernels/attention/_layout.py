"""NKI helpers of attention: which heads are processed together, and their layout.

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

from trnx.nki_kernels.kernels._cores import share_of

# Elements of a row of the heads that are loaded together: eight such tiles of two spans fit SBUF.
_MOST = 1024


class Chunk(NamedTuple):
    """Heads `head .. head+heads` of batch entries `batch .. batch+batches`: `pairs` in all."""

    batch: int
    batches: int
    head: int
    heads: int
    pairs: int


class HeadLayout(NamedTuple):
    """How vectors of `size` elements of several heads lie on the partitions when transposed.

    `pitch`: partitions from one slot to the next, or those of one cut; `partitions`: of a group.
    `scalar`: ScalarE, not VectorE, copies transposed blocks from PSUM to SBUF.
    """

    size: int
    slots: int
    cuts: int
    pitch: int
    partitions: int
    scalar: bool


def head_layout(size: int, shared: bool, scalar: bool) -> HeadLayout:
    """The layout of vectors of `size`; `shared` allows several heads in a group.

    Each slot is a row tile of TensorE: of 32 or 64 rows, on NeuronCore-v2 of 64.
    """
    pmax = nl.tile_size.pmax
    quarters = nisa.get_nc_version() != nisa.nc_version.gen2
    if shared and quarters and size <= pmax // 4:
        return HeadLayout(size, 4, 1, pmax // 4, pmax, scalar)
    if shared and size <= pmax // 2:
        return HeadLayout(size, 2, 1, pmax // 2, pmax, scalar)
    cuts = (size + pmax - 1) // pmax
    return HeadLayout(size, 1, cuts, size // cuts, size // cuts, scalar)


def groups_of(layout: HeadLayout, heads: int) -> int:
    """Groups that `heads` heads make."""
    if layout.slots == 1:
        return heads * layout.cuts
    return (heads + layout.slots - 1) // layout.slots


def split_heads(tile: nl.NkiTensor, chunk: Chunk) -> nl.NkiTensor:
    """`[rows, heads, ...]` as `[rows, batches, heads, ...]`."""
    return tile.reshape_dim(1, (chunk.batches, chunk.heads))


def heads_of(x: nl.NkiTensor, chunk: Chunk) -> nl.NkiTensor:
    """The chunk's part of `x[B, H, ...]`."""
    return x[chunk.batch : chunk.batch + chunk.batches, chunk.head : chunk.head + chunk.heads]


def head_rows(x: nl.NkiTensor, chunk: Chunk, row: int, rows: int) -> nl.NkiTensor:
    """Rows of the chunk's heads in `x[B, H, rows, width]`, as `[rows, batches, heads, width]`."""
    return heads_of(x, chunk)[:, :, row : row + rows].permute((2, 0, 1, 3))


class HeadPart(NamedTuple):
    """Batch entries `batch .. end_batch`, and of each the key heads `source .. end_source`."""

    batch: int
    end_batch: int
    source: int
    end_source: int


def own_heads(batches: int, sources: int, cores: int) -> HeadPart:
    """This program's part, where `cores` share batch entries, or heads where those are odd."""
    if batches % cores > 0 and (sources % cores == 0 or sources > batches):
        source, end_source = share_of(sources, cores)
        return HeadPart(0, batches, source, end_source)
    batch, end_batch = share_of(batches, cores)
    return HeadPart(batch, end_batch, 0, sources)


def has_heads(part: HeadPart) -> bool:
    """Whether it is not empty."""
    return part.batch < part.end_batch and part.source < part.end_source


def part_of(x: nl.NkiTensor, part: HeadPart, group: int) -> nl.NkiTensor:
    """The part of `x[B, H, ...]`, `group` heads of which belong to a key head; dimensions of one
    element stand for all."""
    batch, end_batch = part.batch, part.end_batch
    if x.shape[0] == 1:
        batch, end_batch = 0, 1
    head, end_head = part.source * group, part.end_source * group
    if x.shape[1] == 1:
        head, end_head = 0, 1
    return x[batch:end_batch, head:end_head]


def part_of_any(x: nl.NkiTensor | None, part: HeadPart, group: int) -> nl.NkiTensor | None:
    """The same of what there may not be."""
    return None if x is None else part_of(x, part, group)


def chunks_of(
    batches: int, heads: int, group: int, most: int, slots: int
) -> list[tuple[Chunk, list[Chunk]]]:
    """The heads of q and k in chunks of at most `most` query heads: pairs of a chunk of key heads
    and the list of the chunks of query heads that it serves."""
    head_chunks: list[tuple[Chunk, list[Chunk]]] = []
    if group > most:
        for batch in range(batches):
            for source in range(heads // group):
                chunks = []
                for head in range(0, group, most):
                    count = min(most, group - head)
                    chunks.append(Chunk(batch, 1, source * group + head, count, count))
                head_chunks.append((Chunk(batch, 1, source, 1, 1), chunks))
        return head_chunks
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
            head_chunks.append((Chunk(batch, count, source, served, count * served), [chunk]))
    return head_chunks


def packs_of(
    head_chunks: list[tuple[Chunk, list[Chunk]]], batches: int, length: int, depth: int, group: int
) -> list[Chunk]:
    """Chunks over several batch entries for `load_packed`, where the rows of at least two fit 128
    partitions; none where one batch entry makes a pack of its own, or chunks are
    wider already."""
    first = head_chunks[0][0]
    most = nl.tile_size.pmax // max(length, depth)
    packs: list[Chunk] = []
    if group > 1 or most < 2 or batches < 2 or first.batches > 1:
        return packs
    for batch in range(0, batches, most):
        count = min(most, batches - batch)
        for pair in head_chunks:
            chunk = pair[0]
            if chunk.batch == 0:
                packs.append(Chunk(batch, count, chunk.head, chunk.heads, count * chunk.heads))
    return packs


def spans_of(
    head_chunks: list[tuple[Chunk, list[Chunk]]], length: int, depth: int, width: int
) -> list[list[Chunk]]:
    """Chunks of one batch entry that are loaded together; none where a chunk has several entries,
    or queries or keys are more than one tile. Heads of `width` have keys of their own."""
    pmax = nl.tile_size.pmax
    spans: list[list[Chunk]] = []
    if length > pmax or depth > pmax or head_chunks[0][0].batches > 1:
        return spans
    for pair in head_chunks:
        chunk = pair[0]
        fits = False
        if len(spans) > 0:
            first = spans[len(spans) - 1][0]
            heads = chunk.head + chunk.heads - first.head
            fits = first.batch == chunk.batch and heads * width <= _MOST
        if fits:
            spans[len(spans) - 1].append(chunk)
        else:
            spans.append([chunk])
    return spans


def span_of(chunks: list[Chunk]) -> Chunk:
    """All heads of chunks that follow each other in one batch entry."""
    first, last = chunks[0], chunks[len(chunks) - 1]
    heads = last.head + last.heads - first.head
    return Chunk(first.batch, 1, first.head, heads, heads)
