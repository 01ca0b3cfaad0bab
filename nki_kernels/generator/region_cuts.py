"""`RegionCuts`: the ways to cut a lowered region into tiles that fit into SBUF."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.across import (
    cut_across,
    cut_in_steps,
    cut_interleaved,
    cut_led_in_steps,
    reducing,
)
from trnx.nki_kernels.generator.cuts import (
    cut,
    cut_along,
    leads,
    runs_across,
)
from trnx.nki_kernels.generator.engines import SCALAR
from trnx.nki_kernels.generator.geometry import (
    PARTITIONS,
    Axis,
    Geometry,
    laid_out,
    mixed_order,
)
from trnx.nki_kernels.generator.instruction import Overlap
from trnx.nki_kernels.generator.ir import Dims
from trnx.nki_kernels.generator.long_runs import Access, Space
from trnx.nki_kernels.generator.lowered_space import LoweredSpace
from trnx.nki_kernels.generator.overlaps import added_once, may_overlap
from trnx.nki_kernels.generator.split import (
    equal_parts,
    filled_by,
    run_beside,
    split_dimension,
    ways_to_split,
    ways_to_split_rows,
)
from trnx.nki_kernels.generator.stages import FEW_STAGES, LEAST_TILES, MOST_STAGES
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.ways_to_run import ways_of_rows
from trnx.simulator.costs.constants import timing

# Elements of one partition in a tile: long enough to hide the fixed cost of an instruction and of a
# DMA (2 KiB a partition), short enough that the temporaries of a long chain fit.
_FREE_SIZE = 2048
_SIZES = (_FREE_SIZE, _FREE_SIZE // 4, _FREE_SIZE // 2, 2 * _FREE_SIZE, 4 * _FREE_SIZE)
# For phases of a few tiles, where what the last one leaves to do after its load counts.
_SMALL_SIZES = (*_SIZES, _FREE_SIZE // 8)
# Where a reduced dimension is not the innermost one, so that its length shortens the runs of DMA.
_ACROSS_FREE_SIZE = 16384
# How many ways to split dimensions are tried.
_MOST_SPLITS = 4
_SPLIT_SIZES = (_FREE_SIZE, _FREE_SIZE // 4, 4 * _FREE_SIZE)
# Runs with which DMA takes so many times as long are too short.
_MOST_SLOWED = 4.0


@dataclass(frozen=True)
class RegionCuts(LoweredSpace):
    """The ways to cut a lowered graph into tiles."""

    def all(self) -> Iterator[TiledRegion]:
        """The cuts with whole rows and those with reduced dimensions along the partitions."""
        found = []
        outer = tuple(d for d in self.order if d not in self.reduced)
        for along in self._along_partitions(outer):
            for region in _of_sizes(functools.partial(self.with_whole_rows, along=along)):
                found.append(region)
                yield region
        if any(len(region.geometry.rows) > 1 for region in found):
            yield from _of_sizes(functools.partial(self.with_whole_rows, overlap=True))
        is_across = runs_across(self.order, self.reduced)
        is_full = not is_across and any(map(_is_full, found))
        lengths = math.prod(self.sizes[d] for d in self.order) // PARTITIONS
        sizes = _SMALL_SIZES if lengths <= 2 * _FREE_SIZE else _SIZES
        if self.reduced and self.reduces_as_floats() and not is_full:
            for whole in (False, True):
                yield from _of_sizes(functools.partial(self.across, whole=whole), sizes)
            yield from _of_sizes(self.in_steps, sizes)
        yield from _of_sizes(self.turned)
        yield from self.permuted_in_all_sizes()

    def permuted_in_all_sizes(self) -> Iterator[TiledRegion]:
        """`permuted`, in tiles of several sizes."""
        yield from _of_sizes(self.permuted)

    def permuted(self, free_size: int) -> list[TiledRegion]:
        """The region in tiles of whole rows that some tensor has in another order than they are
        computed in, for each order in which tensors lie: `cut` looks at one order alone. In these
        orders also in steps along a reduced dimension."""
        orders = self.orders()
        found: list[TiledRegion] = []
        for order in orders if len(orders) > 1 or self.orders_of_totals() else ():
            outer = tuple(d for d in order if d not in self.reduced)
            for partition in outer:
                if self.reduced and PARTITIONS // 2 < self.sizes[partition] <= PARTITIONS:
                    found += self._permuted_in_steps(partition, order, free_size)
                for lead in (None, *leads(partition, outer, self.sizes, across=False)):
                    for region in self._in_order(partition, lead, order, free_size):
                        if region.layouts:
                            found += self.fitting(ways_of_rows(region, self.hw, MOST_STAGES))
        return found

    def with_long_runs(self) -> Iterator[TiledRegion]:
        """The region in tiles with runs of a useful length in all tensors, which lie in several
        orders: tiles of whole rows, and those with a reduced dimension along the partitions."""
        orders = self.orders()
        for order in orders if len(orders) > 1 else ():
            for region in _of_sizes(functools.partial(self._with_long_runs, order)):
                if region.layouts:
                    yield region

    def _with_long_runs(self, order: Dims, free_size: int) -> list[TiledRegion]:
        found: list[TiledRegion] = []
        if cut := self._new_cut(free_size, across=False):
            region = self.selected(laid_out(cut, order))
            found += self.fitting(ways_of_rows(region, self.hw, MOST_STAGES))
        is_float = bool(self.reduced) and self.reduces_as_floats()
        if is_float and self._new_cut(free_size, across=True):

            def across(budget: int) -> Geometry | None:
                cut = self._cut_with_long_runs(budget, across=True)
                return cut and laid_out(reducing(cut, self.reduced), order)

            found += self.phased(across, free_size)
        return found

    def _new_cut(self, free_size: int, *, across: bool) -> Geometry | None:
        """The same as the next, None where a size that is tried before gives that cut."""
        cut = self._cut_with_long_runs(free_size, across=across)
        before = _SIZES[: _SIZES.index(free_size)]
        is_new = cut not in [self._cut_with_long_runs(size, across=across) for size in before]
        return cut if is_new else None

    def _cut_with_long_runs(self, free_size: int, *, across: bool) -> Geometry | None:
        """The cut for which DMA takes the least time (`long_runs.py`), with a dimension along the
        partitions that is reduced or one that stays."""
        known = self._cuts_with_long_runs
        if (free_size, across) not in known:
            whole = frozenset[int]() if across else self.reduced
            along = tuple(d for d in self.order if (d in self.reduced) == across)
            least = timing(self.hw).least_descriptor_ns * self.hw.dma_engine_rate / 1e9
            accesses = [Access(*a) for a in zip(self.itemsizes(), self.accesses(), strict=True)]
            space = Space(self.order, self.sizes, whole, accesses, least)
            cuts = [
                (slowed, cut)
                for slowed, cut in space.cuts(along, free_size, 1 if across else self.hw.cores)
                if slowed < _MOST_SLOWED and self.stores_along(cut.partition, cut.lead)
            ]
            best = min(cuts, key=lambda pair: pair[0], default=None)
            known[free_size, across] = best and best[1]
        return known[free_size, across]

    @functools.cached_property
    def _cuts_with_long_runs(self) -> dict[tuple[int, bool], Geometry | None]:
        return {}

    def _in_order(
        self, partition: int, lead: Axis | None, order: Dims, free_size: int
    ) -> list[TiledRegion]:
        """The region in tiles of whole rows whose axes lie in `order`, long along its last ones, or
        along the last ones of all orders."""
        if not self.stores_along(partition, lead):
            return []
        row = math.prod(self.sizes[d] for d in self.reduced)
        filled = dict.fromkeys((order, mixed_order(self.orders()), *self.orders_of_totals()))
        cuts = (
            cut_along(
                partition, lead, first, self.sizes, self.reduced, max(row, free_size),
                self.hw.cores,
            )
            for first in filled
        )  # fmt: skip
        return [self.selected(cut) for cut in dict.fromkeys(laid_out(cut, order) for cut in cuts)]

    def _permuted_in_steps(self, partition: int, order: Dims, free_size: int) -> list[TiledRegion]:
        if not self.reduces_as_floats():
            return []
        cut = functools.partial(
            cut_led_in_steps, partition, None, order, self.sizes, self.reduced, whole=True
        )
        return [region for region in self.phased(cut, free_size) if region.layouts]

    def split(self, filled: float, *, in_steps: bool) -> Iterator[TiledRegion]:
        """The region with a part of another dimension on the partitions that one leaves empty, of
        which other cuts have `filled` that share (`split.py`). Tiles have whole rows; where that is
        said they are also `in_steps` along a reduced dimension, and with a part of a reduced one
        beside another, or beside one that stays."""
        kept = {d: self.sizes[d] for d in self.order if d not in self.reduced}
        for partition, cuts, lead in self._splits(ways_to_split(kept, filled)):
            for free_size in _SPLIT_SIZES:
                yield from cuts.led(partition, lead, free_size)
            if in_steps:
                yield from _of_sizes(functools.partial(cuts.led_in_steps, partition, lead))
        if in_steps:
            across = {d: self.sizes[d] for d in self.order if d in self.reduced}
            # What parts that overlap have in common is added up once; extrema take it twice.
            overlap = may_overlap(self.lowered)
            ways = [
                (partition, d, count)
                for partition, d, count in ways_to_split(across, filled)
                if overlap or across[d] % count == 0
            ]
            for partition, cuts, lead in self._splits(ways):
                yield from _of_sizes(functools.partial(cuts.led_in_steps, partition, lead))
            ways = ways_to_split_rows(kept, across, overlap=overlap)
            for partition, cuts, lead in self._splits(ways):
                yield from _of_sizes(functools.partial(cuts.led_by_reduced, partition, lead))

    def _splits(
        self, ways: Sequence[tuple[int, int, int]]
    ) -> Iterator[tuple[int, RegionCuts, Axis]]:
        """The best of the `ways` to split a dimension, each as the dimension on the partitions, the
        space with the other one in parts, and the axis of these."""
        for partition, d, count in sorted(ways, key=self._seconds_of_way)[:_MOST_SPLITS]:
            inner, step = equal_parts(self.sizes[d], count)
            lowered, strides, outer = split_dimension(self.lowered, self.strides, d, step)
            if inner > step:
                lowered = added_once(lowered, Overlap(d, step, count), outer)
            at = self.order.index(d)
            order = (*self.order[:at], outer, *self.order[at:])
            sizes = {**self.sizes, d: inner, outer: count}
            cuts = RegionCuts(lowered, order, sizes, strides, self.hw)
            yield partition, cuts, Axis(outer, count, count)

    def _seconds_of_way(self, way: tuple[int, int, int]) -> float:
        """How many times as long as with full partitions and long runs DMA takes, about."""
        partition, d, count = way
        runs = (run_beside(self.sizes, s, way) for s in self.accesses() if s)
        slower = [max(1.0, self.efficient_run / run) for run in runs]
        return sum(slower) / filled_by(self.sizes[partition], self.sizes[d], count)

    def led(self, partition: int, lead: Axis, free_size: int) -> list[TiledRegion]:
        """The region in tiles of whole rows of `partition` and `lead`, for each order in which
        tensors lie."""
        return [
            found
            for order in self.orders()
            for region in self._in_order(partition, lead, order, free_size)
            for found in self.fitting(ways_of_rows(region, self.hw, MOST_STAGES))
        ]

    def led_in_steps(self, partition: int, lead: Axis, free_size: int) -> list[TiledRegion]:
        """The same with steps along a reduced dimension, in the order of the space."""
        if not self.stores_along(partition, lead):
            return []
        cut = functools.partial(
            cut_led_in_steps, partition, lead, self.order, self.sizes, self.reduced
        )
        return self.phased(cut, free_size)

    def led_by_reduced(self, partition: int, lead: Axis, free_size: int) -> list[TiledRegion]:
        """The same with the parts of a reduced dimension, `lead`, beside one that stays, where
        TensorE transposes all that a reduction leaves at once."""
        if self.sizes[partition] * lead.size > PARTITIONS:
            return []
        found = self.led_in_steps(partition, lead, free_size)
        return [
            region for region in found if region.across and region.across.most_kept <= PARTITIONS
        ]

    def turned(self, free_size: int) -> list[TiledRegion]:
        """The region with a dimension along the partitions that runs in the memory of a tensor,
        which has short runs otherwise: DMA transposes it."""
        row = math.prod(self.sizes[d] for d in self.reduced)
        found = []
        for partition, order in self._turned_orders():
            others = [d for d in order if (d in self.reduced) == (partition in self.reduced)]
            for lead in (None, *leads(partition, tuple(others), self.sizes, across=False)):
                cut = functools.partial(
                    cut_interleaved, partition, lead, order, self.sizes, self.reduced
                )
                if partition in self.reduced:
                    found += self.phased(cut, free_size) if self.reduces_as_floats() else []
                    continue
                if self.reduced and self.reduces_as_floats():
                    found += self.phased(cut, free_size)
                geometry = cut(max(row, free_size), whole=True)
                assert geometry is not None
                found += self.fitting(ways_of_rows(self.selected(geometry), self.hw, MOST_STAGES))
        loads = self.strides[0]
        found = [r for r in found if r.turns_stores or any(map(r.is_turned, loads))]
        if self.hw.generation > 2:  # ScalarE copies since trn2
            found += [region.in_phases(copies_on=SCALAR) for region in found if region.turns_stores]
        return found

    def _turned_orders(self) -> Iterator[tuple[int, Dims]]:
        """The dimensions of `_runs`, each with the order of the tile's axes behind it: that of the
        space, and where DMA transposes all that is loaded, which may lie in any order then, that
        with reduced ones side by side: VectorE walks along them."""
        for partition in self._runs():
            rest = [d for d in self.order if d != partition]
            yield partition, (partition, *rest)
            inner = sorted(rest, key=lambda d: d in self.reduced)  # stable
            wide = [s for s in self.strides[0].values() if self.reduced & s.keys()]
            if inner != rest and all(s.get(partition) == 1 for s in wide):
                yield partition, (partition, *inner)

    def _runs(self) -> list[int]:
        """Dimensions along which a tensor runs in memory, and tiles of other cuts do not."""
        every = (*self.strides[0].values(), *self.strides[1])
        long = [s for s in every if sum(s.get(d, 0) > 0 for d in self.order) > 1]
        inner = [d for d in self.order if any(s.get(d) == 1 for s in long)]
        # One alone, the last one, is where tiles of other cuts run, unless rows are reduced.
        return inner if len(inner) > 1 or runs_across(self.order, self.reduced) else []

    def with_whole_rows(
        self, free_size: int, *, overlap: bool = False, along: Dims = ()
    ) -> list[TiledRegion]:
        """The region in the largest tiles of which two fit, so that loads overlap with work, with
        one of the dimensions `along` on the partitions, where some are given. The last one may
        `overlap` the one before, and has as many rows then."""
        row = math.prod(self.sizes[d] for d in self.reduced)
        is_across = runs_across(self.order, self.reduced)
        # Where it runs across, long tiles make long runs, and small ones overlap.
        long = is_across and free_size == _FREE_SIZE
        budget = max(row, _ACROSS_FREE_SIZE if long else free_size)
        stored = [frozenset(output) & set(self.order) for output in self.strides[1]]
        tries = [(budget, MOST_STAGES), (budget // 2, MOST_STAGES)]
        tries += [(budget >> i, FEW_STAGES) for i in range(budget.bit_length())]
        for room, most in tries:
            if not room:
                continue
            geometry = cut(
                self.order, self.sizes, self.reduced, room, stored, self.hw.cores,
                overlap=overlap, along=along, efficient=self.efficient_run,
            )  # fmt: skip
            if geometry is None:
                continue
            if found := self.fitting(ways_of_rows(self.selected(geometry), self.hw, most)):
                return found
        return []

    def across(self, free_size: int, *, whole: bool) -> list[TiledRegion]:
        """The region in the largest tiles of which two fit beside what phases keep, for each choice
        of engines."""
        if whole and len(self.reduced) == len(self.order):
            return []  # the same as the other one
        found = []
        inner = tuple(d for d in self.order if d in self.reduced)
        for along in self._along_partitions(inner):
            cut = functools.partial(
                cut_across, self.order, self.sizes, self.reduced, whole=whole, along=along,
                efficient=self.efficient_run,
            )  # fmt: skip
            found += self.phased(cut, free_size)
        return found

    def _along_partitions(self, dims: Dims) -> list[Dims]:
        """The dimensions among which the cut chooses that of the partitions: all `dims`, or one
        after another where operands lack some: these are copied to all partitions there."""
        lacking = any(set(dims) - strides.keys() for strides in self.strides[0].values())
        return [(d,) for d in dims] if lacking and len(dims) > 1 else [dims]

    def in_steps(self, free_size: int) -> list[TiledRegion]:
        """The same with steps along a reduced dimension, and no reduction across partitions."""
        cut = functools.partial(
            cut_in_steps, self.order, self.sizes, self.reduced, efficient=self.efficient_run
        )
        return self.phased(cut, free_size)


def _is_full(region: TiledRegion) -> bool:
    """Whether whole rows fill the partitions of so many tiles that no other cut can be better."""
    geometry = region.geometry
    is_last = not geometry.free or geometry.free[-1].label in geometry.reduced
    return geometry.tiles >= LEAST_TILES and geometry.partitions == PARTITIONS and is_last


def _of_sizes(
    make: Callable[[int], list[TiledRegion]], sizes: Sequence[int] = _SIZES
) -> Iterator[TiledRegion]:
    """The region in tiles of the usual size, and of others: small ones overlap better, large ones
    have fewer instructions and load tables of functions less often.
    """
    for size in sizes:
        yield from make(size)
