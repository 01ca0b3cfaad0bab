"""Geometry: how an iteration space is cut into tiles of 128 partitions and a free size.

One dimension of the space runs along the partitions, `fold` of its elements in each; other
dimensions lie in the free size as far as they fit, the rest is looped over. Neighbouring
dimensions are one where every tensor runs through them with one stride; neighbours are those of
the memory, so that a dense tensor is flat in any order of its dims (channels_last). Reduced
dimensions lie innermost and whole in a tile; if all dimensions are reduced, the space is cut into
equal parts, one a partition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.ir import Dims

PARTITIONS = 128
# The label of the partition dimension where the space has none (a region of single elements).
NOTHING = -1

# From this many contiguous elements on DMA is efficient (512 bytes of float32).
_EFFICIENT_RUN = 128
# With fewer rows than this in a partition, one value a row is a better operand unfolded.
_LEAST_FOLD = 4

Strides = Mapping[int, int]  # label -> elements; absent: the tensor does not vary


@dataclass(frozen=True)
class Axis:
    """A dimension in the free size: `block` of its `size` elements in a tile."""

    label: int
    size: int
    block: int


@dataclass(frozen=True)
class RowTiles:
    """Tiles along the partition dimension: their starts, and `count` partitions of `fold` rows."""

    starts: range
    count: int
    fold: int


@dataclass(frozen=True)
class Geometry:
    """How a space is cut into tiles. `free` are a tile's axes without the fold, which stands before
    `free[fold_at]`; `loops` are the axes looped over."""

    partition: int
    folded: bool
    rows: tuple[RowTiles, ...]
    free: tuple[Axis, ...]
    loops: tuple[Axis, ...]
    reduced: frozenset[int]
    fold_at: int = 0

    @property
    def free_labels(self) -> Dims:
        """Labels of a tile's free axes, in the order of the space: a DMA runs along the last."""
        labels = [a.label for a in self.free]
        if self.folded:
            labels.insert(self.fold_at, self.partition)
        return tuple(labels)

    def count(self, label: int) -> int:
        """The largest number of elements of `label` in one partition of a tile."""
        if label == self.partition:
            return max(r.fold for r in self.rows)
        return next((a.block for a in self.free if a.label == label), 1)

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        rows = sum(len(r.starts) for r in self.rows)
        return rows * math.prod(-(-a.size // a.block) for a in self.loops)


def memory_order(order: Dims, accesses: Sequence[tuple[Strides, int]]) -> Dims:
    """The labels of `order` as most bytes lie in memory, outermost first; `order` where as many do.

    `accesses` are the strides of the tensors and the bytes of one of their elements; a tensor that
    does not vary along all labels has no say.
    """
    votes = {order: 0}
    for strides, itemsize in accesses:
        if all(strides.get(label, 0) > 0 for label in order):
            lies = tuple(sorted(order, key=lambda label: -strides[label]))  # stable
            votes[lies] = votes.get(lies, 0) + itemsize
    return max(votes, key=lambda lies: votes[lies])


def merge(
    order: Dims,
    sizes: Mapping[int, int],
    accesses: Sequence[Strides],
    groups: Sequence[frozenset[int]],
) -> tuple[Dims, dict[int, int]]:
    """Merge neighbours of `order`; the result has the label of the innermost dimension.

    `accesses` are the strides of all tensors; `groups` are sets of labels: a merge
    is of labels inside one, or of labels outside. Returns the remaining labels and their sizes.
    """
    kept: list[int] = []
    merged = {label: sizes[label] for label in order}
    for label in order:
        while kept and _mergeable(kept[-1], label, merged, accesses, groups):
            merged[label] *= merged.pop(kept.pop())
        kept.append(label)
    return tuple(kept), merged


def _mergeable(
    outer: int,
    inner: int,
    sizes: Mapping[int, int],
    accesses: Sequence[Strides],
    groups: Sequence[frozenset[int]],
) -> bool:
    if any((outer in group) != (inner in group) for group in groups):
        return False
    return all(s.get(outer, 0) == s.get(inner, 0) * sizes[inner] for s in accesses)


def cut(
    order: Dims, sizes: Mapping[int, int], reduced: frozenset[int], budget: int
) -> Geometry | None:
    """The cut with the fewest tiles whose free size is at most `budget`; None where none is."""
    outer = tuple(d for d in order if d not in reduced)
    inner = tuple(d for d in order if d in reduced)
    if not outer:
        return _cut_whole(inner, sizes, reduced, budget)
    if math.prod(sizes[d] for d in inner) > budget:
        return None
    candidates = [_cut_along(p, outer, inner, sizes, budget) for p in outer]
    # Of equal cuts the outermost partition dimension comes first.
    return min(candidates, key=lambda g: g.tiles * _dma_penalty(g, order[-1]))


def _dma_penalty(geometry: Geometry, innermost: int) -> float:
    """How much longer DMA takes because its runs along the `innermost` dimension are short."""
    return max(1.0, _EFFICIENT_RUN / geometry.count(innermost))


def _cut_whole(
    inner: Dims, sizes: Mapping[int, int], reduced: frozenset[int], budget: int
) -> Geometry | None:
    if not inner:
        rows = (RowTiles(range(1), 1, 1),)
        return Geometry(NOTHING, False, rows, (), (), reduced)
    if len(inner) > 1:
        return None
    total = sizes[inner[0]]
    parts = next(p for p in range(PARTITIONS, 0, -1) if total % p == 0)
    if total // parts > budget:
        return None
    rows = (RowTiles(range(0, total, total), parts, total // parts),)
    return Geometry(inner[0], True, rows, (), (), reduced)


def _cut_along(
    partition: int, outer: Dims, inner: Dims, sizes: Mapping[int, int], budget: int
) -> Geometry:
    room = budget
    blocks: dict[int, int] = {}
    for label in reversed([d for d in outer if d != partition] + list(inner)):
        blocks[label] = _even(sizes[label], max(1, min(sizes[label], room)))
        room //= blocks[label]
    fold = max(1, min(room, -(-sizes[partition] // PARTITIONS)))
    if inner and fold < _LEAST_FOLD:
        fold = 1
    axes = [Axis(d, sizes[d], blocks[d]) for d in (*outer, *inner) if d != partition]
    free = tuple(a for a in axes if a.block > 1)
    before = outer[: outer.index(partition)]
    rows = cut_rows(sizes[partition], fold)
    return Geometry(
        partition,
        any(r.fold > 1 for r in rows),
        rows,
        free,
        tuple(a for a in axes if a.block < a.size),
        frozenset(inner),
        fold_at=sum(a.label in before for a in free),
    )


def _even(size: int, block: int) -> int:
    """The block for as many blocks of nearly equal size."""
    return -(-size // -(-size // block))


def cut_rows(size: int, fold: int) -> tuple[RowTiles, ...]:
    """`size` elements along the partitions, at most `fold` in each."""
    rows: list[RowTiles] = []
    start = 0
    while start < size:
        left = size - start
        each = _even(-(-left // PARTITIONS), min(fold, -(-left // PARTITIONS)))
        count = min(PARTITIONS, left // each)
        step = count * each
        tiles = left // step
        rows.append(RowTiles(range(start, start + tiles * step, step), count, each))
        start += tiles * step
    return tuple(rows)
