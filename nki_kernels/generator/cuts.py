"""The cuts of an iteration space into tiles (`geometry.py`), and which of them is the fastest: the
one that takes the least time by the length of its DMA runs, its padding and its number of tiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trnx.nki_kernels.generator.geometry import NOTHING, PARTITIONS, Axis, Geometry, RowTiles, Share
from trnx.nki_kernels.generator.ir import Dims

# From this many contiguous elements on DMA is efficient, where a caller does not say.
EFFICIENT_RUN = 128
# With fewer rows than this in a partition, one value a row is a better operand unfolded.
_LEAST_FOLD = 4
# Tiles that are all alike may have so much more rows in a partition.
_LONGER = 4
# What a tile costs besides its elements, in elements of one partition: the fixed parts of its
# instructions and transfers, about 200 ns.
_TILE_OVERHEAD = 200
# With a smaller free size these fixed parts count.
_LEAST_FREE_SIZE = 2048


def cut(
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    stored: Sequence[frozenset[int]] = (),
    cores: int = 1,
    *,
    overlap: bool = False,
    along: Dims = (),
    efficient: int = EFFICIENT_RUN,
) -> Geometry | None:
    """The cut that takes the least time, of free sizes up to `budget`; None where none is. Its
    tiles are shared by `cores`; one of the dimensions `along` lies on the partitions, where some
    are given; DMA is `efficient` from so many contiguous elements on.

    `stored` are the labels along which each result varies: one that varied along the lead alone
    would lie in every so many partitions, from where DMA does not store.
    """
    outer = tuple(d for d in order if d not in reduced)
    inner = tuple(d for d in order if d in reduced)
    if not order:
        rows = (RowTiles(range(1), 1, 1),)
        return Geometry(NOTHING, False, rows, (), (), reduced, shares=(Share(rows),))
    if not outer:
        return None
    row = math.prod(sizes[d] for d in inner)
    if row > budget:
        return None
    # Where DMA does not run along a reduced dimension, its runs grow with the free size.
    budgets = [budget]
    while runs_across(order, reduced) and budgets[-1] // 2 >= max(row, _LEAST_FREE_SIZE):
        budgets.append(budgets[-1] // 2)
    candidates = [
        cut_along(partition, lead, order, sizes, reduced, room, cores, overlap=overlap)
        for room in budgets
        for partition in along or outer
        for lead in (None, *leads(partition, outer, sizes, runs_across(order, reduced)))
        if lead is None or all(partition in s for s in stored if lead.label in s)
    ]
    # Of equal cuts the outermost partition dimension comes first.
    return min(candidates, key=lambda g: seconds_of(g, order, sizes, efficient))


def runs_across(order: Dims, reduced: frozenset[int]) -> bool:
    """True where something is reduced, but not the innermost dimension."""
    return bool(reduced) and order[-1] not in reduced


def leads(partition: int, outer: Dims, sizes: Mapping[int, int], across: bool) -> list[Axis]:
    """Blocks of other dimensions that may share the partitions with `partition`: where it leaves
    some empty, or where runs `across` a reduced dimension are the longer, the fewer it takes.
    """
    blocks = {PARTITIONS // sizes[partition]}
    if across and sizes[partition] > PARTITIONS // 2:
        blocks = {2, 4, 8, 16, 32}
    return [
        Axis(d, sizes[d], block)
        for d in outer
        if d != partition
        for block in sorted({min(block, sizes[d]) for block in blocks})
        if block > 1
    ]


def seconds_of(geometry: Geometry, order: Dims, sizes: Mapping[int, int], efficient: int) -> float:
    """The time of a cut, in elements of one partition; one tile more, because the load of the
    first and the store of the last overlap with nothing.
    """
    run = 1
    for label in reversed(order):
        run *= geometry.count(label)
        if geometry.count(label) < sizes[label]:
            break
    elements = math.prod(geometry.count(label) for label in geometry.free_labels)
    slower = max(1.0, efficient / run)
    return (geometry.tiles_of_core + 1) * (elements * slower + _TILE_OVERHEAD)


def cut_along(
    partition: int,
    lead: Axis | None,
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    cores: int = 1,
    *,
    overlap: bool = False,
    blocks: Mapping[int, int] | None = None,
) -> Geometry:
    """The cut along `partition`. Cores share what is looped over where there is one tile of rows,
    else the rows. The last tile of a core may `overlap` the one before. `blocks` are the elements
    of each axis in a tile where they are not those of the longest run in the space."""
    each = functools.partial(
        _cut_for_one, partition, lead, order, sizes, reduced, budget, overlap=overlap, blocks=blocks
    )
    whole = each(sizes[partition])
    if cores == 1:
        return replace(whole, shares=(Share(whole.rows),))
    if whole.loops and sum(len(rows.starts) for rows in whole.rows) == 1:
        return replace(whole, shares=_loop_shares(whole, cores))
    total = sizes[partition]
    part = -(-total // cores)
    cut = each(part)
    lanes = PARTITIONS if lead is None else PARTITIONS // lead.block
    fold = max(rows.fold for rows in cut.rows)
    row = math.prod(a.block for a in cut.free)
    shares = tuple(
        Share(cut_rows(min(part, total - first), fold, lanes, first, row, overlap=overlap))
        for first in range(0, total, part)
    )
    rows = tuple(rows for share in shares for rows in share.rows)
    return replace(cut, rows=rows, folded=any(r.fold > 1 for r in rows), shares=shares)


def _loop_shares(geometry: Geometry, cores: int) -> tuple[Share, ...]:
    """The outermost loop, in blocks, by cores."""
    axis = geometry.loops[0]
    blocks = math.ceil(axis.size / axis.block)
    each = math.ceil(blocks / cores) * axis.block
    return tuple(
        Share(geometry.rows, range(first, min(axis.size, first + each), axis.block))
        for first in range(0, axis.size, each)
    )


def _cut_for_one(
    partition: int,
    lead: Axis | None,
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    length: int,
    *,
    overlap: bool,
    blocks: Mapping[int, int] | None,
) -> Geometry:
    """The cut along the first `length` elements of `partition`."""
    on_partitions = {partition} if lead is None else {partition, lead.label}
    rest = [d for d in order if d not in on_partitions]
    lanes = PARTITIONS if lead is None else PARTITIONS // lead.block
    each = -(-length // lanes)
    if blocks is None:
        blocks = _longest_run(partition, rest, order, sizes, reduced, budget, each)
    fold = min(each, blocks[partition])
    axes = [Axis(d, sizes[d], _even(sizes[d], blocks[d])) for d in rest]
    free = tuple(a for a in axes if a.block > 1)
    before = order[: order.index(partition)]
    row = math.prod(a.block for a in free)
    rows = cut_rows(length, fold, lanes, row=row, overlap=overlap)
    looped = [*axes] if lead is None else [lead, *axes]
    return Geometry(
        partition,
        any(r.fold > 1 for r in rows),
        rows,
        free,
        tuple(a for a in looped if a.block < a.size),
        reduced,
        fold_at=sum(a.label in before for a in free),
        lead=lead,
    )


def _longest_run(
    partition: int,
    rest: Sequence[int],
    order: Dims,
    sizes: Mapping[int, int],
    reduced: frozenset[int],
    budget: int,
    each: int,
) -> dict[int, int]:
    """The elements of each axis in a tile, and the rows of `partition` of the `each` that a lane
    has: innermost ones first, the fold in its place."""
    inner = [d for d in order if d in reduced]
    room = budget // math.prod(sizes[d] for d in inner)
    blocks = {d: sizes[d] for d in inner}
    fold = 1
    for label in reversed([d for d in order if d not in inner]):
        if label == partition and label == order[-1]:
            fold = max(1, min(room, each))
            room //= fold
        elif label in rest:
            blocks[label] = _even(sizes[label], max(1, min(sizes[label], room)))
            room //= blocks[label]
    if partition != order[-1]:
        fold = max(1, min(room, each))
    if inner and not runs_across(order, reduced) and fold < _LEAST_FOLD:
        fold = 1
    return {**blocks, partition: fold}


def _even(size: int, block: int) -> int:
    """The block for as many blocks of nearly equal size."""
    return -(-size // -(-size // block))


def cut_rows(
    size: int,
    fold: int,
    partitions: int = PARTITIONS,
    start: int = 0,
    row: int = 1,
    *,
    overlap: bool = False,
) -> tuple[RowTiles, ...]:
    """`size` rows of `row` elements from `start` along that many `partitions`, at most `fold` in
    each: tiles all alike where these leave few partitions empty, also of a few more rows, or where
    the last one may `overlap` the one before, whose rows it computes once more; else tiles of all
    partitions, which differ by one row in each at the most, and one of what is left, a row in each.
    """
    tiles = max(1, -(-size // (fold * partitions)))
    each, left = divmod(size, tiles * partitions)
    wide, rest = divmod(left, partitions)
    groups = [(wide, partitions, each + 1), (tiles - wide, partitions, each), (1, rest, 1)]
    groups = [group for group in groups if all(group)]
    alike = [
        [(count, lanes, size // (count * lanes))]
        for count in range(tiles, tiles + tiles // 8 + 1)
        for lanes in range(min(partitions, size), partitions // 2, -1)
        if size % (count * lanes) == 0 and size // (count * lanes) <= fold + fold // _LONGER
    ]
    ways = [*alike, groups]
    if overlap and tiles > 1:
        length = -(-size // (tiles * partitions))
        lanes = -(-size // (tiles * length))
        ways.append([(tiles, lanes, length)])
    # Of equal ones the first.
    best = min(ways, key=lambda g: sum(n * (f * row + _TILE_OVERHEAD) for n, _, f in g))
    rows: list[RowTiles] = []
    end = start + size
    for count, lanes, length in best:
        step = lanes * length
        whole = min(count, (end - start) // step)
        rows += [RowTiles(range(start, start + whole * step, step), lanes, length)] if whole else []
        start += whole * step
        if whole < count:
            rows.append(RowTiles(range(end - step, end, step), lanes, length))
    return tuple(rows)
