"""`RegionCuts`: the ways to cut a lowered region into tiles that fit into SBUF, each with its
instructions, their engines and their stages."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.across import (
    Phase,
    cut_across,
    cut_in_steps,
    cut_interleaved,
    cut_led_in_steps,
)
from trnx.nki_kernels.generator.geometry import (
    PARTITIONS,
    Axis,
    Geometry,
    Strides,
    cut,
    cut_along,
    laid_out,
    leads,
    mixed_order,
    runs_across,
)
from trnx.nki_kernels.generator.ir import Dims, Value
from trnx.nki_kernels.generator.lower import Lowered, reachable
from trnx.nki_kernels.generator.permute import in_own_order
from trnx.nki_kernels.generator.select_instructions import InstructionSelector
from trnx.nki_kernels.generator.split import (
    equal_parts,
    filled_by,
    run_beside,
    split_dimension,
    ways_to_split,
)
from trnx.nki_kernels.generator.stages import FEW_STAGES, LEAST_TILES, MOST_STAGES
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.ways_to_run import placed_across, ways_of_phases, ways_of_rows
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware

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
# Smaller tiles of phases leave room for what phases keep; these are not worth it.
_LEAST_KEEPING = 128


@dataclass(frozen=True)
class RegionCuts:
    """The ways to cut a lowered graph into tiles: `order` and `sizes` are its space, `strides`
    those of its loads and results."""

    lowered: Lowered
    order: tuple[int, ...]
    sizes: Mapping[int, int]
    strides: tuple[Mapping[Value, Strides], tuple[Strides, ...]]
    hw: Hardware

    @property
    def reduced(self) -> frozenset[int]:
        """The labels that are reduced."""
        return frozenset(d for d in self.order if d in self.lowered.reduced)

    @property
    def efficient_run(self) -> int:
        """Elements that DMA moves in the time of one descriptor."""
        itemsize = max((v.dtype.itemsize for v in self.strides[0]), default=4)
        nbytes = timing(self.hw).least_descriptor_ns * self.hw.dma_engine_rate / 1e9
        return math.ceil(nbytes / itemsize)

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
        orders = self._orders()
        found: list[TiledRegion] = []
        for order in orders if len(orders) > 1 else ():
            outer = tuple(d for d in order if d not in self.reduced)
            for partition in outer:
                if self.reduced and PARTITIONS // 2 < self.sizes[partition] <= PARTITIONS:
                    found += self._permuted_in_steps(partition, order, free_size)
                for lead in (None, *leads(partition, outer, self.sizes, across=False)):
                    for region in self._in_order(partition, lead, order, free_size):
                        if region.layouts:
                            found += self._fitting(ways_of_rows(region, self.hw, MOST_STAGES))
        return found

    def _in_order(
        self, partition: int, lead: Axis | None, order: Dims, free_size: int
    ) -> list[TiledRegion]:
        """The region in tiles of whole rows whose axes lie in `order`, long along its last ones, or
        along the last ones of all orders."""
        if not self._stores_along(partition, lead):
            return []
        row = math.prod(self.sizes[d] for d in self.reduced)
        filled = dict.fromkeys((order, mixed_order(self._orders())))
        cuts = (
            cut_along(
                partition, lead, first, self.sizes, self.reduced, max(row, free_size),
                self.hw.cores,
            )
            for first in filled
        )  # fmt: skip
        return [self._selected(cut) for cut in dict.fromkeys(laid_out(cut, order) for cut in cuts)]

    def _permuted_in_steps(self, partition: int, order: Dims, free_size: int) -> list[TiledRegion]:
        if not self.reduces_as_floats():
            return []
        cut = functools.partial(
            cut_led_in_steps, partition, None, order, self.sizes, self.reduced, whole=True
        )
        return [region for region in self._phased(cut, free_size) if region.layouts]

    @property
    def dma_seconds(self) -> float:
        """What reading all operands and writing all results once takes."""
        accesses = [(v.dtype.itemsize, s) for v, s in self.strides[0].items()]
        kinds = [output.spec.dtype.itemsize for output in self.lowered.outputs]
        accesses += zip(kinds, self.strides[1], strict=True)
        counts = [
            itemsize * math.prod(self.sizes[d] for d in self.order if strides.get(d))
            for itemsize, strides in accesses
        ]
        return sum(counts) / self.hw.dma_bytes_per_second

    def split(self, filled: float, *, in_steps: bool) -> Iterator[TiledRegion]:
        """The region with a part of another dimension on the partitions that one leaves empty, of
        which other cuts have `filled` that share (`split.py`). Tiles have whole rows; where that is
        said they are also `in_steps` along a reduced dimension."""
        kept = {d: self.sizes[d] for d in self.order if d not in self.reduced}
        ways = sorted(ways_to_split(kept, filled), key=self._seconds_of_way)
        for partition, d, count in ways[:_MOST_SPLITS]:
            inner, step = equal_parts(self.sizes[d], count)
            lowered, strides, outer = split_dimension(self.lowered, self.strides, d, step)
            at = self.order.index(d)
            order = (*self.order[:at], outer, *self.order[at:])
            sizes = {**self.sizes, d: inner, outer: count}
            cuts = RegionCuts(lowered, order, sizes, strides, self.hw)
            lead = Axis(outer, count, count)
            for free_size in _SPLIT_SIZES:
                yield from cuts.led(partition, lead, free_size)
            if in_steps:
                yield from _of_sizes(functools.partial(cuts.led_in_steps, partition, lead))

    def _seconds_of_way(self, way: tuple[int, int, int]) -> float:
        """How many times as long as with full partitions and long runs DMA takes, about."""
        partition, d, count = way
        runs = (run_beside(self.sizes, s, way) for s in self._accesses() if s)
        slower = [max(1.0, self.efficient_run / run) for run in runs]
        return sum(slower) / filled_by(self.sizes[partition], self.sizes[d], count)

    def _accesses(self) -> list[Strides]:
        """The strides of all loads and results along the space."""
        every = (*self.strides[0].values(), *self.strides[1])
        return [{d: s[d] for d in self.order if s.get(d)} for s in every]

    def led(self, partition: int, lead: Axis, free_size: int) -> list[TiledRegion]:
        """The region in tiles of whole rows of `partition` and `lead`, for each order in which
        tensors lie."""
        return [
            found
            for order in self._orders()
            for region in self._in_order(partition, lead, order, free_size)
            for found in self._fitting(ways_of_rows(region, self.hw, MOST_STAGES))
        ]

    def led_in_steps(self, partition: int, lead: Axis, free_size: int) -> list[TiledRegion]:
        """The same with steps along a reduced dimension, in the order of the space."""
        if not self._stores_along(partition, lead):
            return []
        cut = functools.partial(
            cut_led_in_steps, partition, lead, self.order, self.sizes, self.reduced
        )
        return self._phased(cut, free_size)

    def _orders(self) -> list[Dims]:
        """The order of the space, and those of tensors along all of it."""
        every = (*self.strides[0].values(), *self.strides[1])
        whole = [s for s in every if all(s.get(d, 0) > 0 for d in self.order)]
        own = (tuple(sorted(self.order, key=lambda d: -s[d])) for s in whole)
        return list(dict.fromkeys((self.order, *own)))

    def _stores_along(self, partition: int, lead: Axis | None) -> bool:
        """Whether no result varies along the lead alone: it would lie in every so many partitions,
        from where DMA does not store."""
        stored = [frozenset(output) & set(self.order) for output in self.strides[1]]
        return lead is None or all(partition in s for s in stored if lead.label in s)

    def turned(self, free_size: int) -> list[TiledRegion]:
        """The region with a dimension along the partitions that runs in the memory of a tensor,
        which has short runs otherwise: DMA transposes it."""
        row = math.prod(self.sizes[d] for d in self.reduced)
        found = []
        for partition in self._runs():
            order = (partition, *(d for d in self.order if d != partition))
            others = [d for d in order if (d in self.reduced) == (partition in self.reduced)]
            for lead in (None, *leads(partition, tuple(others), self.sizes, across=False)):
                cut = functools.partial(
                    cut_interleaved, partition, lead, order, self.sizes, self.reduced
                )
                if partition in self.reduced:
                    found += self._phased(cut, free_size) if self.reduces_as_floats() else []
                    continue
                if self.reduced and self.reduces_as_floats():
                    found += self._phased(cut, free_size)
                geometry = cut(max(row, free_size), whole=True)
                assert geometry is not None
                found += self._fitting(ways_of_rows(self._selected(geometry), self.hw, MOST_STAGES))
        loads = self.strides[0]
        return [region for region in found if any(map(region.is_turned, loads))]

    def _runs(self) -> list[int]:
        """Dimensions along which a tensor runs in memory, and tiles of other cuts do not."""
        long = [s for s in self.strides[0].values() if sum(s.get(d, 0) > 0 for d in self.order) > 1]
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
            if found := self._fitting(ways_of_rows(self._selected(geometry), self.hw, most)):
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
            found += self._phased(cut, free_size)
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
        return self._phased(cut, free_size)

    def _phased(self, cut: Callable[[int], Geometry | None], free_size: int) -> list[TiledRegion]:
        """The region in phases, in the largest tiles of which two fit beside what phases keep.
        Where they would keep nothing, smaller ones that leave room for something are tried too."""
        budget, found = free_size, list[TiledRegion]()
        while budget and not (found and budget < _LEAST_KEEPING):
            geometry = cut(budget)
            if geometry is None:
                return found
            placed = self._placed_in_phases(geometry)
            for choice in (("all",), ("computed", "loads", "first")):
                if keeping := self._keeping(placed, choice):
                    return [*found, *keeping]
            found = found or self._keeping(placed, ("none",))
            budget //= 2
        return found

    def _placed_in_phases(self, geometry: Geometry) -> list[TiledRegion]:
        """The region with its instructions and their engines, for each choice of these."""
        ways = [self._selected(geometry, sums) for sums in (True, False)]
        ways.append(self._selected(geometry, in_one_phase=True))
        different = {way.key: way for way in ways}.values()
        return [one for way in different for one in placed_across(way, self.hw)]

    def _keeping(self, placed: Sequence[TiledRegion], choice: Sequence[str]) -> list[TiledRegion]:
        """Those of `placed` that fit, and keep something where that is the choice, for each
        `choice` of what phases keep that differs."""
        found: list[TiledRegion] = []
        anyway = ("all", "none")
        for one in placed:
            assert one.across is not None
            different: list[list[Phase]] = []
            for keeps in choice:
                phases = one.across.phases(keeps)
                if phases in different or not (keeps in anyway or any(p.kept for p in phases)):
                    continue
                different.append(phases)
                found += self._fitting(ways_of_phases(one.in_phases(keeps=keeps)))
        return found

    def reduces_as_floats(self) -> bool:
        """Whether phases can add up all reductions: in float32."""
        values = reachable(tuple(output.value for output in self.lowered.outputs))
        return all(v.dtype.is_floating_point for v in values if v.op == "reduce")

    def _selected(
        self, geometry: Geometry, sums_in_activations: bool = True, *, in_one_phase: bool = False
    ) -> TiledRegion:
        outputs = self.lowered.outputs
        roots = tuple(dict.fromkeys(o.value for o in outputs))
        selector = InstructionSelector(
            roots,
            geometry,
            scalar_bias=self.hw.generation > 2,
            sums_in_activations=sums_in_activations,
            in_one_phase=in_one_phase,
        )
        region = TiledRegion(outputs, geometry, *selector.run(), *self.strides)
        region = dataclasses.replace(region, stages=[0] * len(region.instructions))
        region = in_own_order(region)
        if self.hw.generation == 2:
            return region
        halved = (i.dst for i in region.instructions if region.is_faster_in_halves(i))
        return dataclasses.replace(region, halved=frozenset(halved))

    def _fitting(self, regions: Sequence[TiledRegion]) -> list[TiledRegion]:
        return [region for region in regions if self._fits(region)]

    def _fits(self, region: TiledRegion) -> bool:
        return region.bytes_in_work() <= self.hw.sbuf_partition_bytes * 7 // 8


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
