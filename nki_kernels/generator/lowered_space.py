"""`LoweredSpace`: a lowered region and its space. A cut of it becomes tiles that fit into
SBUF, with their instructions, the engines of these and their stages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.across import Phase
from trnx.nki_kernels.generator.geometry import Axis, Geometry, Strides
from trnx.nki_kernels.generator.ir import Dims, Value
from trnx.nki_kernels.generator.lower import Lowered, reachable
from trnx.nki_kernels.generator.permute import in_own_order
from trnx.nki_kernels.generator.select_instructions import InstructionSelector
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.ways_to_run import placed_across, ways_of_phases
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware

# Smaller tiles of phases leave room for what phases keep; these are not worth it.
_LEAST_KEEPING = 128
# Keeping a smaller part of the tiles than that is not worth it.
_LEAST_KEPT = 8


@dataclass(frozen=True)
class LoweredSpace:
    """A lowered graph: `order` and `sizes` are its space, `strides` those of its loads and
    results."""

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

    @property
    def dma_seconds(self) -> float:
        """What reading all operands and writing all results once takes."""
        counts = [
            itemsize * math.prod(self.sizes[d] for d in strides)
            for itemsize, strides in zip(self.itemsizes(), self.accesses(), strict=True)
        ]
        return sum(counts) / self.hw.dma_bytes_per_second

    def accesses(self) -> list[Strides]:
        """The strides of all loads and results along the space."""
        every = (*self.strides[0].values(), *self.strides[1])
        return [{d: s[d] for d in self.order if s.get(d)} for s in every]

    def itemsizes(self) -> list[int]:
        """The bytes of an element of all loads and results."""
        kinds = [value.dtype.itemsize for value in self.strides[0]]
        return kinds + [output.spec.dtype.itemsize for output in self.lowered.outputs]

    def orders(self) -> list[Dims]:
        """The order of the space, and those of tensors along all of it."""
        every = (*self.strides[0].values(), *self.strides[1])
        whole = [s for s in every if all(s.get(d, 0) > 0 for d in self.order)]
        own = (tuple(sorted(self.order, key=lambda d: -s[d])) for s in whole)
        return list(dict.fromkeys((self.order, *own)))

    def orders_of_totals(self) -> list[Dims]:
        """The orders in which results that vary along all that stays lie, where that is not how it
        lies in the space, with the reduced dimensions, which are whole in a tile, inside."""
        stays = tuple(d for d in self.order if d not in self.reduced)
        inner = tuple(d for d in self.order if d in self.reduced)
        whole = [s for s in self.strides[1] if all(s.get(d, 0) > 0 for d in stays)]
        own = dict.fromkeys(tuple(sorted(stays, key=lambda d: -s[d])) for s in whole)
        return [(*order, *inner) for order in own if inner and order != stays]

    def stores_along(self, partition: int, lead: Axis | None) -> bool:
        """Whether no result varies along the lead alone: it would lie in every so many partitions,
        from where DMA does not store."""
        stored = [frozenset(output) & set(self.order) for output in self.strides[1]]
        return lead is None or all(partition in s for s in stored if lead.label in s)

    def phased(self, cut: Callable[[int], Geometry | None], free_size: int) -> list[TiledRegion]:
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
            found = found or [*self._keeping(placed, ("none",)), *self._keeping_some(placed)]
            budget //= 2
        return found

    def _placed_in_phases(self, geometry: Geometry) -> list[TiledRegion]:
        """The region with its instructions and their engines, for each choice of these."""
        ways = [self.selected(geometry, sums) for sums in (True, False)]
        ways.append(self.selected(geometry, in_one_phase=True))
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
                found += self.fitting(ways_of_phases(one.in_phases(keeps=keeps)))
        return found

    def _keeping_some(self, placed: Sequence[TiledRegion]) -> list[TiledRegion]:
        """Those of `placed` that keep what they load of as many tiles as fit, some at least. Stages
        of these tiles and of the others stand side by side."""
        every: list[TiledRegion] = []
        for one in placed:
            assert one.across is not None
            if any(phase.kept for phase in one.across.phases("loads")):
                every += ways_of_phases(one.in_phases(keeps="loads"))
        found = []
        for way in every:
            assert way.across is not None
            steps, room = way.across.steps, self._room - way.in_phases(kept_tiles=1).bytes_in_work()
            tiles = min(steps - 1, 1 + room // way.bytes_kept)
            depths = ([p.depth for p in w.staged_phases] for w in (way, way.without_kept))
            first, second = depths
            if tiles >= max(1, steps // _LEAST_KEPT) and first == second and not way.by_stage:
                found.append(way.in_phases(kept_tiles=tiles))
        return self.fitting(found)

    def reduces_as_floats(self) -> bool:
        """Whether phases can add up all reductions: in float32."""
        values = reachable(tuple(output.value for output in self.lowered.outputs))
        return all(v.dtype.is_floating_point for v in values if v.op == "reduce")

    def selected(
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
        plain = [v for v in region.load_strides if not region.is_turned(v)]
        region = dataclasses.replace(region, turned_loads=frozenset(plain))
        turned = frozenset(filter(region.turned_load, plain))
        region = dataclasses.replace(region, turned_loads=turned)
        halved = (i.dst for i in region.instructions if region.is_faster_in_halves(i))
        return dataclasses.replace(region, halved=frozenset(halved))

    def fitting(self, regions: Sequence[TiledRegion]) -> list[TiledRegion]:
        return [region for region in regions if self._fits(region)]

    def _fits(self, region: TiledRegion) -> bool:
        return region.bytes_in_work() <= self._room

    @property
    def _room(self) -> int:
        """Bytes of SBUF per partition that tiles may have."""
        return self.hw.sbuf_partition_bytes * 7 // 8
