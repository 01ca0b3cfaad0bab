"""Geometry: how an iteration space is cut into tiles of 128 partitions and a free size.

One dimension of the space runs along the partitions, `fold` of its elements in each; where it
leaves partitions empty, or would be cut into short runs, several elements of another one, the
`lead`, lie on them too. Other dimensions lie in the free size as far as they fit, the rest is
looped over. Neighbouring dimensions are one where every tensor runs through them with one stride;
neighbours are those of the memory, so that a dense tensor is flat in any order of its dims.
Reduced dimensions are whole in a tile; `across.py` cuts them too. `cuts.py` chooses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trnx.nki_kernels.generator.ir import Dims

PARTITIONS = 128
# Engines begin with every so many partitions.
QUADRANT = 32
# The label of the partition dimension where the space has none (a region of single elements).
NOTHING = -1

# The most transfers of one store.
_MOST_TRANSFERS = 8

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
class Share:
    """The tiles of one physical core: its rows, and where it has not the whole outermost loop, its
    part of that."""

    rows: tuple[RowTiles, ...]
    outer: range | None = None


# An axis is cut where it has so many elements: a third is about what the slower engine takes.
_LEAST_CUT = 3
# Of so many elements an eighth is one at least; of so many tiles that differ are cut alike, about.
_FINE_CUT, _LONG_CUT = 8, 16


@dataclass(frozen=True)
class Geometry:
    """How a space is cut into tiles. `free` are a tile's axes without the fold, which stands before
    `free[fold_at]`; `loops` are the axes looped over. `lead.block` elements of the axis `lead` lie
    on the partitions, outside of the rows; it is looped over where it is longer. `shares` are the
    tiles of each core that has some. Where rows are `interleaved`, those of a partition lie as many
    apart as there are partitions: neighbours in memory lie on neighbouring partitions."""

    partition: int
    folded: bool
    rows: tuple[RowTiles, ...]
    free: tuple[Axis, ...]
    loops: tuple[Axis, ...]
    reduced: frozenset[int]
    fold_at: int = 0
    lead: Axis | None = None
    shares: tuple[Share, ...] = ()
    interleaved: bool = False

    @property
    def crosses(self) -> bool:
        """Whether a reduced dimension lies along the partitions."""
        return self.partition in self.reduced

    @property
    def leads_reduced(self) -> bool:
        """Whether rows that stay lie on the partitions in several parts, which are reduced."""
        return not self.crosses and self.lead is not None and self.lead.label in self.reduced

    @property
    def lead_in_quadrants(self) -> int:
        """The partitions of each element of the lead where these begin with a quadrant, in all
        tiles: engines read and write those at different ones. 0 where they do not."""
        counts = {rows.count for rows in self.rows}
        if self.lead is None or self.lead.block < self.lead.size or len(counts) > 1:
            return 0
        (count,) = counts
        return 0 if count % QUADRANT else count

    @property
    def in_phases(self) -> bool:
        """Whether a reduction is complete after several tiles, or partitions."""
        looped = any(axis.label in self.reduced for axis in self.loops)
        return self.crosses or self.leads_reduced or looped

    @property
    def moving(self) -> frozenset[int]:
        """Labels of the axes along which tiles differ: what varies over none is the same in all."""
        labels = {axis.label for axis in self.loops}
        if sum(len(r.starts) for r in self.rows) > 1 or not labels:
            labels.add(self.partition)
        if self.lead is not None:
            labels.add(self.lead.label)
        return frozenset(labels)

    @property
    def partitions(self) -> int:
        """The largest number of partitions of a tile."""
        each = max(r.count for r in self.rows)
        return each * (1 if self.lead is None else self.lead.block)

    @property
    def filled(self) -> float:
        """The share of the partitions of all tiles that has elements, by how many each has."""
        sizes = [(r.fold * len(r.starts), r.count) for r in self.rows]
        block = 1 if self.lead is None else self.lead.block
        full = PARTITIONS * sum(size for size, _ in sizes)
        return sum(size * count * block for size, count in sizes) / full

    @property
    def even(self) -> bool:
        """True where all tiles have as many partitions."""
        counts = {r.count for r in self.rows}
        return len(counts) == 1 and (self.lead is None or self.lead.size % self.lead.block == 0)

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

    def cut_along(self, labels: Dims) -> tuple[int, int] | None:
        """That of the free axes `labels` along which a tile is cut in two, and how many elements
        most tiles have of it: the outermost one, along which parts lie apart, where it is long;
        else one that all tiles have alike, because short ones are cut elsewhere or not at all. None
        where all are too short to cut."""
        sizes = [(label, n) for label in labels if (n := self.count(label)) > 1]
        even = [pair for pair in sizes if self.is_even(pair[0])]
        long = [pair for pair in sizes[:1] if pair[1] >= _LONG_CUT]
        fine = [pair for pair in even if pair[1] >= _FINE_CUT]
        longest = sorted(even, key=lambda pair: -pair[1])  # stable
        ways = (*long, *fine, *longest, *sizes[:1])
        return next((pair for pair in ways if pair[1] >= _LEAST_CUT), None)

    def is_even(self, label: int) -> bool:
        """Whether all tiles have as many elements of a free axis in a partition."""
        if label == self.partition:
            return len({rows.fold for rows in self.rows}) == 1
        return all(a.size % a.block == 0 for a in self.free if a.label == label)

    def run(self, labels: Dims, strides: Strides) -> int:
        """Elements that lie side by side in memory and in a tile whose free axes are `labels`."""
        run = 1
        for label in reversed(labels):
            apart = self.interleaved and label == self.partition
            if strides.get(label, 0) != run or apart:
                break
            run *= self.count(label)
        return run

    def split(self, labels: Dims, strides: Strides) -> Dims | None:
        """The free axes, of `labels`, along which a store is several transfers, so that each writes
        a rectangle of rows and columns, and those of tiles are seen not to overlap; None where
        these are too many."""
        steps = [strides[a.label] * a.block for a in self.loops if strides.get(a.label)]
        row = strides.get(self.partition, 0)
        if row and sum(len(r.starts) for r in self.rows) > 1:
            steps.append(row * max(r.starts.step for r in self.rows))
        if not steps:
            return ()
        fold = 1 if self.interleaved else self.count(self.partition)
        on_partitions = [row * fold]
        if self.lead is not None:
            on_partitions.append(strides.get(self.lead.label, 0))
        pinned = sum(stride > min(steps) for stride in on_partitions)
        far = [d for d in labels if strides.get(d, 0) > min(steps) and d != self.partition]
        if pinned > 1:
            return None
        if not pinned and far:
            far.remove(max(far, key=self.count))  # rows of the rectangle
        return tuple(far) if math.prod(map(self.count, far)) <= _MOST_TRANSFERS else None

    @property
    def overlaps(self) -> bool:
        """Whether the last tile of rows of a core computes some of the one before once more."""
        pairs = [share.rows[-2:] for share in self.shares if len(share.rows) > 1]
        return any(before.starts.stop > last.starts.start for before, last in pairs)

    @property
    def tiles(self) -> int:
        """How many tiles there are."""
        rows = sum(len(r.starts) for r in self.rows)
        return rows * math.prod(-(-a.size // a.block) for a in self.loops)

    @property
    def tiles_of_core(self) -> int:
        """How many of them a core has at the most."""
        return -(-self.tiles // max(1, len(self.shares)))


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


def mixed_order(orders: Sequence[Dims]) -> Dims:
    """The labels with those first, from the innermost one outwards, that are the innermost ones of
    some of `orders`: a cut that fills tiles in this order has long runs in all of them."""
    inwards = dict.fromkeys(d for level in zip(*map(reversed, orders), strict=True) for d in level)
    return tuple(inwards)[::-1]


def laid_out(geometry: Geometry, order: Dims) -> Geometry:
    """`geometry` with the free axes of its tiles in that order."""
    free = tuple(sorted(geometry.free, key=lambda axis: order.index(axis.label)))
    before = order[: order.index(geometry.partition)]
    return replace(geometry, free=free, fold_at=sum(a.label in before for a in free))


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
