"""From a region's nodes to its form as one tile: lower, cut, select instructions, engines and
stages, until it fits."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from trnx.nki_kernels.generator.across import (
    Phase,
    cut_across,
    cut_in_steps,
    cut_interleaved,
    cut_led_in_steps,
)
from trnx.nki_kernels.generator.engines import (
    SCALAR,
    TENSOR,
    EngineCosts,
    assign_engines,
    share_in_step,
    table_loads,
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
    memory_order,
    merge,
    mixed_order,
    runs_across,
)
from trnx.nki_kernels.generator.ir import Dims, Value
from trnx.nki_kernels.generator.lower import Lowered, lower, reachable
from trnx.nki_kernels.generator.permute import in_own_order
from trnx.nki_kernels.generator.select_instructions import Instruction, InstructionSelector
from trnx.nki_kernels.generator.split import equal_parts, split_dimension, ways_to_split
from trnx.nki_kernels.generator.stages import FEW_STAGES, LEAST_TILES, MOST_STAGES, cut_stages
from trnx.nki_kernels.generator.tiled_region import TiledRegion, elements
from trnx.simulator.costs.constants import timing
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

# Elements of one partition in a tile: long enough to hide the fixed cost of an instruction and of a
# DMA (2 KiB a partition), short enough that the temporaries of a long chain fit.
_FREE_SIZE = 2048
_SIZES = (_FREE_SIZE, _FREE_SIZE // 4, _FREE_SIZE // 2, 2 * _FREE_SIZE, 4 * _FREE_SIZE)
# For phases of a few tiles, where what the last one leaves to do after its load counts.
_SMALL_SIZES = (*_SIZES, _FREE_SIZE // 8)
# Where a reduced dimension is not the innermost one, so that its length shortens the runs of DMA.
_ACROSS_FREE_SIZE = 16384
# Dimensions are split where no cut comes so close to the time of the region's bytes, closer where
# the best one leaves more partitions empty than `_FILLED`, and how many.
_FAR, _FAR_WITH_EMPTY, _FILLED = 1.5, 1.1, 0.85
_MOST_SPLITS = 4
_SPLIT_SIZES = (_FREE_SIZE, _FREE_SIZE // 4, 4 * _FREE_SIZE)
# Tiles that all run a stage before any runs the next one: they stay in SBUF.
_MOST_BY_STAGE = 12
# Smaller tiles of phases leave room for what phases keep; these are not worth it.
_LEAST_KEEPING = 128
# How many tilings are scheduled, and how much slower than the best one they are by estimate.
MOST_TILINGS = 8
_WORTH_A_TRY = 1.15


def tile_region(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> TiledRegion | Reject:
    """The region of `nodes`, in topological order, cut so that it fits into SBUF."""
    found = tilings(nodes, outputs, specs, hw)
    return found if isinstance(found, Reject) else found[0][0]


def refuse_region(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> Reject | None:
    """Why the region of `nodes` cannot be cut, None where one way is found."""
    cuts = _cuts(nodes, outputs, specs, hw)
    if isinstance(cuts, Reject):
        return cuts
    return None if next(iter(cuts[0].all()), None) else _too_long(nodes)


def tilings(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> list[list[TiledRegion]] | Reject:
    """The ways to cut the region that may be the fastest, at most MOST_TILINGS, and of each the
    ways to share its work between the engines: the best one by estimate first."""
    cuts = _cuts(nodes, outputs, specs, hw)
    if isinstance(cuts, Reject):
        return cuts
    merged, whole = cuts
    found = list(merged.all())
    if found and len(merged.order) < len(whole.order) and _leaves_empty(found, merged.reduced):
        # A dimension of its own may lie on the partitions that others leave empty.
        found += whole.all()
    if not found:
        return _too_long(nodes)
    estimates = _estimates(found, hw)
    least, best = min(estimates, key=lambda pair: pair[0])
    is_filled = best.geometry.filled >= _FILLED
    far = _FAR if is_filled else _FAR_WITH_EMPTY
    if least > far * 1e9 * (merged.dma_seconds + hw.region_seconds):
        in_steps = bool(merged.reduced) and not is_filled and merged.reduces_as_floats()
        estimates += _estimates(list(merged.split(best.geometry.filled, in_steps=in_steps)), hw)
        least = min(ns for ns, _ in estimates)
    by_cut: dict[Hashable, list[TiledRegion]] = {}
    for ns, region in sorted(estimates, key=lambda pair: pair[0]):
        if ns <= _WORTH_A_TRY * least:
            by_cut.setdefault((region.geometry, region.keeps), []).append(region)
    return list(by_cut.values())[:MOST_TILINGS]


def _estimates(regions: Sequence[TiledRegion], hw: Hardware) -> list[tuple[float, TiledRegion]]:
    """Those that differ, with what they take."""
    different = {region.key: region for region in regions}
    return [(region.estimated_ns(hw), region) for region in different.values()]


def _too_long(nodes: Sequence[fx.Node]) -> Reject:
    return Reject("a reduced row and its temporaries do not fit in SBUF", nodes[-1])


def _cuts(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> tuple[_Cuts, _Cuts] | Reject:
    """The ways to cut the region with neighbouring dimensions merged, and those without."""
    lowered = lower(nodes, outputs, specs)
    if isinstance(lowered, Reject):
        return lowered
    lowered = _as_in_memory(lowered, specs)
    strides = _strides(lowered, specs)
    values = reachable(tuple(o.value for o in lowered.outputs))
    long = frozenset(lowered.order)
    groups = [v.axes & long for v in values] + [lowered.reduced]
    accesses = [*strides[0].values(), *strides[1]]
    order, sizes = merge(lowered.order, lowered.sizes, accesses, groups)
    merged = _Cuts(lowered, order, sizes, strides, hw)
    return merged, _Cuts(lowered, lowered.order, lowered.sizes, strides, hw)


def _leaves_empty(regions: Sequence[TiledRegion], reduced: frozenset[int]) -> bool:
    return bool(reduced) and max(r.geometry.partitions for r in regions) <= PARTITIONS * 3 // 4


def _as_in_memory(lowered: Lowered, specs: Mapping[fx.Node, Any]) -> Lowered:
    """`lowered` with the order of the space, and of the results, that most tensors have."""
    loads, results = _strides(lowered, specs)
    accesses = [(strides, value.dtype.itemsize) for value, strides in loads.items()]
    kinds = [output.spec.dtype.itemsize for output in lowered.outputs]
    order = memory_order(lowered.order, [*accesses, *zip(results, kinds, strict=True)])
    outputs = tuple(output.along(order) for output in lowered.outputs)
    return dataclasses.replace(lowered, order=order, outputs=outputs)


@dataclass(frozen=True)
class _Cuts:
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
                            found += self._fitting(_staged(region, self.hw, MOST_STAGES))
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
        for partition, d, count in ways_to_split(kept, filled)[:_MOST_SPLITS]:
            inner, step = equal_parts(self.sizes[d], count)
            lowered, strides, outer = split_dimension(self.lowered, self.strides, d, step)
            at = self.order.index(d)
            order = (*self.order[:at], outer, *self.order[at:])
            sizes = {**self.sizes, d: inner, outer: count}
            cuts = _Cuts(lowered, order, sizes, strides, self.hw)
            lead = Axis(outer, count, count)
            for free_size in _SPLIT_SIZES:
                yield from cuts.led(partition, lead, free_size)
            if in_steps:
                yield from _of_sizes(functools.partial(cuts.led_in_steps, partition, lead))

    def led(self, partition: int, lead: Axis, free_size: int) -> list[TiledRegion]:
        """The region in tiles of whole rows of `partition` and `lead`, for each order in which
        tensors lie."""
        return [
            found
            for order in self._orders()
            for region in self._in_order(partition, lead, order, free_size)
            for found in self._fitting(_staged(region, self.hw, MOST_STAGES))
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
                found += self._fitting(_staged(self._selected(geometry), self.hw, MOST_STAGES))
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
            if found := self._fitting(_staged(self._selected(geometry), self.hw, most)):
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
        return [one for way in different for one in _placed_across(way, self.hw)]

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
                found += self._fitting(_in_stages(one.in_phases(keeps=keeps)))
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


def _placed(region: TiledRegion, hw: Hardware, *, shared: bool = False) -> TiledRegion:
    """`region` with the engines of its instructions; two may have one `shared`."""
    geometry, across = region.geometry, region.across

    def repeated(value: Value) -> int:
        return elements(value, geometry) if value.axes & geometry.moving else 0

    # Phases load a table once; in stages the last one of a tile is the first one of the next.
    tables = 0 if across else max(0, table_loads(region.instructions) - 1)
    costs = EngineCosts(hw, repeated, region.layouts)
    fixed: frozenset[Value] = across.once() if across else frozenset()
    if shared:
        instructions = share_in_step(
            region.instructions,
            costs,
            lambda value: geometry.cut_along(region.labels(value)),
            fixed,
        )
        region = dataclasses.replace(region, instructions=instructions)
        costs = dataclasses.replace(costs, to=(SCALAR,))
    placed: dict[int, list[Instruction]] = {}
    for part, stored in _apart_in_time(region):
        found = assign_engines(part, costs, stored, fixed, tables)
        placed.update(zip(map(id, part), found, strict=True))
    every = [one for i in region.instructions for one in placed.get(id(i), [i])]
    return dataclasses.replace(region, instructions=every, stages=[0] * len(every))


def _apart_in_time(region: TiledRegion) -> list[tuple[Sequence[Instruction], list[Value]]]:
    """The instructions of tiles that may run beside each other, with the values that are stored
    then: those of each phase, or all. A phase waits for all tiles of the one before, and where
    these are all that there are, an engine that is idle in one has no work of another to do."""
    stored = [region.held[output.value] for output in region.outputs]
    if region.across is None or region.geometry.tiles > region.across.steps:
        return [(region.instructions, stored)]
    phases = region.across.phases("all")
    return [(phase.each, [stored[n] for n in phase.stores]) for phase in phases]


def _placings(region: TiledRegion, hw: Hardware) -> list[TiledRegion]:
    """`region` with its engines, and where two of them share instructions, so too."""
    alone, shared = _placed(region, hw), _placed(region, hw, shared=True)
    is_shared = any(i.beside is not None for i in shared.instructions)
    return [alone, shared] if is_shared else [alone]


def _placed_across(region: TiledRegion, hw: Hardware) -> list[TiledRegion]:
    """`region` with its engines: TensorE adds up what it can, or VectorE does."""
    across = region.across
    assert across is not None
    on_tensor = [
        dataclasses.replace(i, engine=TENSOR) if across.sums_on_tensor(i) else i
        for i in region.instructions
    ]
    every = [dataclasses.replace(region, instructions=on_tensor)]
    if on_tensor != list(region.instructions):
        every.append(region)
    return [one for way in every for one in (*_placings(way, hw), way)]


def _staged(region: TiledRegion, hw: Hardware, most: int) -> list[TiledRegion]:
    """The ways to run the instructions of `region`: one tile after another, and where tiles are
    many, or two where ScalarE changes its table of functions, in at most `most` stages, on the
    engines that balance the work or on those that are the default; few tiles also stage by stage,
    so that ScalarE loads each table once."""
    geometry = region.geometry
    least = 2 if table_loads(region.instructions) else LEAST_TILES
    starts = max(sum(len(rows.starts) for rows in share.rows) for share in geometry.shares)
    placed = [region, *_placings(region, hw)] if geometry.tiles > 1 else [region]

    def cut(one: TiledRegion, most: int, *, apart: bool = False) -> TiledRegion:
        stages = cut_stages(
            one.instructions, most, lambda v: bool(v.axes & geometry.moving), apart=apart
        )
        return dataclasses.replace(one, stages=stages)

    if 1 < geometry.tiles_of_core <= _MOST_BY_STAGE and table_loads(region.instructions):
        in_turn = [cut(one, MOST_STAGES) for one in placed]
        placed += [dataclasses.replace(one, by_stage=True) for one in in_turn if max(one.stages)]
    if starts < least:
        return placed
    staged = [
        cut(one, min(most, starts - 1), apart=apart)
        for apart in (False, True)
        for one in placed
        if not one.by_stage
    ]
    return [*staged, *placed]


def _in_stages(region: TiledRegion) -> list[TiledRegion]:
    """`region` with the tiles of its phases one after another, in stages where some overlap, and
    where ScalarE changes its table of functions within a phase of few tiles stage by stage."""
    assert region.across is not None
    steps = region.across.steps
    staged = region.in_phases(phase_stages=MOST_STAGES)
    if steps < 2 or not any(phase.depth > 1 for phase in staged.staged_phases):
        return [region] if steps < LEAST_TILES else [region, *_apart(staged)]
    found = [region] if steps < LEAST_TILES else [region, staged, *_apart(staged)]
    tables = any(table_loads(one.phase.each) for one in staged.staged_phases)
    if tables and steps <= _MOST_BY_STAGE:
        found.append(staged.in_phases(by_stage=True))
    return found


def _apart(staged: TiledRegion) -> list[TiledRegion]:
    """The region with the instructions of an engine that wait for each other apart, if any do."""
    apart = staged.in_phases(apart=True)
    depths = ([one.depth for one in way.staged_phases] for way in (staged, apart))
    before, after = depths
    return [apart] if before != after else []


def _strides(
    lowered: Lowered, specs: Mapping[fx.Node, Any]
) -> tuple[Mapping[Value, Strides], tuple[Strides, ...]]:
    by_name = {node.name: spec for node, spec in specs.items()}
    loads: dict[Value, Strides] = {}
    for value in reachable(tuple(o.value for o in lowered.outputs)):
        if value.op == "load":
            loads[value] = _by_label(value.attribute, by_name[value.name])
    return loads, tuple(_by_label(o.dims, o.spec) for o in lowered.outputs)


def _by_label(dims: Sequence[int], spec: TensorSpec) -> Strides:
    entries = zip(dims, spec.shape, spec.strides, strict=True)
    return {label: stride for label, size, stride in entries if size != 1}
