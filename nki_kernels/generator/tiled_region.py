"""`TiledRegion`: a region cut into tiles, with the instructions of one tile."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.generator import narrowing
from trnx.nki_kernels.generator.across import Across
from trnx.nki_kernels.generator.engines import TENSOR, VECTOR
from trnx.nki_kernels.generator.estimate import Estimate
from trnx.nki_kernels.generator.geometry import Geometry, Strides
from trnx.nki_kernels.generator.instruction import Instruction, Tile
from trnx.nki_kernels.generator.ir import Dims, Value
from trnx.nki_kernels.generator.list_order import Turn
from trnx.nki_kernels.generator.lower import Output
from trnx.nki_kernels.generator.phase_stages import PhaseStages, cut_phase
from trnx.nki_kernels.generator.strided_walks import NEAR_BYTES
from trnx.nki_kernels.generator.turned_load import TurnedLoad, turned_load
from trnx.nki_kernels.generator.turned_store import TurnedStore, turned_store
from trnx.simulator.hardware import Hardware

# Up to this step between elements a load takes all that lie between them: the bytes of a run cost
# less than a descriptor an element.
_LARGEST_STEP = 4
# What one step of halving takes besides its elements: the latency of an instruction that waits.
_HALVING_ELEMENTS = 180
_HALVES = {torch.bfloat16, torch.float16}
_FLOATS = (torch.float32, *_HALVES)
# What DMA transposes: elements of two and four bytes (trainium2_arch.rst), and up to three free
# dimensions of a tile (nisa.dma_transpose).
_TURNED = (*_FLOATS, torch.int32)
_MOST_TURNED = 3


@dataclass(frozen=True)
class TiledRegion:
    """A region cut into tiles, with the instructions of one tile.

    `held` gives for every result the value whose tile holds it, `stages` the stage of every
    instruction; `halved` are the reductions that add halves of their rows, again and again.
    Phases keep what `keeps` says of all tiles, or where it is not 0 of the first `kept_tiles`.
    `layouts` are the free axes of the tiles that lie in an order of their own (`permute.py`).
    Tiles of phases are cut into at most `phase_stages`, `apart` as in `cut_stages`. With `by_stage`
    all tiles run a stage before any runs the next one, and stay in SBUF between them; so do the
    last stages, from `tail` on where it is not 0, which have little of each tile. What
    TensorE transposes for a store (`turned_store.py`) is copied out of PSUM by `copies_on`, in a
    stage of its own where `stores_apart`. The queue of stores has the loads `aside`
    (`loads_aside.py`). Tiles that stay in SBUF run their stages in the order of `turns`, of each
    phase, where that is given (`list_order.py`). TensorE transposes `turned_loads`
    (`turned_load.py`), and has so many products before each phase that `warm_up` it.
    """

    outputs: tuple[Output, ...]
    geometry: Geometry
    instructions: Sequence[Instruction]
    held: Mapping[Value, Value]
    load_strides: Mapping[Value, Strides]
    output_strides: tuple[Strides, ...]
    stages: Sequence[int] = ()
    keeps: str = "none"
    kept_tiles: int = 0
    halved: frozenset[Value] = frozenset()
    layouts: Mapping[Value, Dims] = field(default_factory=dict)
    phase_stages: int = 1
    by_stage: bool = False
    tail: int = 0
    apart: bool = False
    copies_on: str = VECTOR
    stores_apart: bool = False
    aside: frozenset[Value] = frozenset()
    turns: tuple[tuple[Turn, ...], ...] = ()
    turned_loads: frozenset[Value] = frozenset()
    warm_up: tuple[int, ...] = ()

    def labels(self, value: Value) -> Dims:
        """The free axes of a value's tile, in its order."""
        if value in self.layouts:
            return self.layouts[value]
        return tuple(d for d in self.geometry.free_labels if d in value.axes)

    @functools.cached_property
    def across(self) -> Across | None:
        """The region by phases where it is reduced along the partitions."""
        if not self.geometry.in_phases:
            return None
        results = [self.held[output.value] for output in self.outputs]
        return Across(self.instructions, results, self.geometry)

    def in_phases(self, **choices: Any) -> TiledRegion:
        """The region with other choices about how its tiles are run (`keeps`, `phase_stages`,
        `apart`, `by_stage`, `copies_on`, `aside`), which share what is known of the phases."""
        found = dataclasses.replace(self, **choices)
        found.__dict__["across"] = self.across
        return found

    @functools.cached_property
    def staged_phases(self) -> list[PhaseStages]:
        """The phases of a region with some, cut into stages."""
        across = self.across
        assert across is not None
        phases = across.phases(self.keeps)
        turned = {v for v, strides in self.stores if self.turned_store(v, strides)}
        later = turned if self.phase_stages > 1 else set[Value]()
        return [cut_phase(across, p, self.phase_stages, later, apart=self.apart) for p in phases]

    @functools.cached_property
    def without_kept(self) -> TiledRegion:
        """The region as it runs tiles of which phases keep nothing."""
        return self.in_phases(keeps="none", kept_tiles=0)

    @property
    def key(self) -> Hashable:
        """Equal for the ways to cut one region that are the same."""
        # A sum of exponentials in one phase has the same calls, of which one reads more.
        calls = tuple(
            (i.call, i.engine, i.beside is not None, len(i.reads())) for i in self.instructions
        )
        order = tuple(self.layouts.values())
        stages = (tuple(self.stages), self.phase_stages, self.by_stage, self.tail, self.apart,
                  bool(self.turns))  # fmt: skip
        stores = (self.copies_on, self.stores_apart, len(self.aside), len(self.turned_loads),
                  self.warm_up)  # fmt: skip
        return (self.geometry, self.keeps, self.kept_tiles, calls, order, stages, stores)

    @property
    def calls(self) -> int:
        """How many instructions a tile has, each row of those by row counted."""
        by_row = [i.by_row for i in self.instructions]
        return sum(1 if label is None else self.geometry.count(label) for label in by_row)

    @property
    def in_turn(self) -> int:
        """The first stage that all tiles run before any runs the next one; as many as there are
        where stages of several tiles always run beside each other."""
        return 0 if self.by_stage else self.tail or self.depth

    @property
    def depth(self) -> int:
        """How many stages there are."""
        return 1 + max([*self.stages, *self.store_stages()], default=0)

    @property
    def together(self) -> list[Instruction]:
        """The instructions of the stages before."""
        pairs = zip(self.instructions, self.stages, strict=True)
        return [i for i, stage in pairs if stage < self.in_turn]

    def store_stages(self) -> list[int]:
        """The stage that stores each output: the last one that writes its tile, or the next one."""
        last = {
            v: s for i, s in zip(self.instructions, self.stages, strict=True) for v in i.writes()
        }
        return [
            last.get(value, 0)
            + (self.stores_apart and self.turned_store(value, strides) is not None)
            for value, strides in self.stores
        ]

    def carried(self) -> list[list[Value]]:
        """For each stage but the last: the values from it or before that a later one touches."""
        touched = [
            (stage, value)
            for instruction, stage in zip(self.instructions, self.stages, strict=True)
            for value in (*instruction.writes(), *instruction.reads())
        ]
        stores = zip(self.store_stages(), self.outputs, strict=True)
        touched += [(stage, self.held[output.value]) for stage, output in stores]
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for stage, value in touched:
            first[value] = min(stage, first.get(value, stage))
            last[value] = max(stage, last.get(value, stage))
        return [
            [value for value in first if first[value] <= boundary < last[value]]
            for boundary in range(self.depth - 1)
        ]

    def estimated_ns(self, hw: Hardware) -> float:
        """What all tiles take (`estimate.py`)."""
        if self.kept_tiles and self.across is not None:
            ways = (self.in_phases(kept_tiles=0), self.without_kept)
            kept, again = (way.estimated_ns(hw) for way in ways)
            return again - (again - kept) * self.kept_tiles / self.across.steps
        return self._estimate(hw)[1]

    def waits_of_products(self, hw: Hardware) -> list[float]:
        """How long TensorE waits before each phase (`Estimate.waits`)."""
        return self._estimate(hw)[0].waits()

    def in_list_order(self, hw: Hardware) -> TiledRegion:
        """The region, whose tiles run by stage, with its stages in another order."""
        listed = self._estimate(hw)[0].listed()
        return self.in_phases(turns=tuple(map(tuple, listed)))

    def _estimate(self, hw: Hardware) -> tuple[Estimate, float]:
        """The ops of all tiles, and what they take."""
        turned = frozenset(filter(self.is_turned, self.load_strides))
        estimate = Estimate(
            hw, self.geometry, elements, self.labels, self.halved, turned, self.layouts,
            self.turned_store, self.turned_load, self.aside, is_static=self.is_static,
        )  # fmt: skip
        estimate.warm = self.warm_up
        held = [self.held[output.value] for output in self.outputs]
        stores = list(zip(held, self.output_strides, strict=True))
        if self.across is not None:
            return estimate, estimate.across(
                self.across, self.staged_phases, self.load_strides, stores, by_stage=self.by_stage,
                listed=self.turns,
            )  # fmt: skip
        staged = [(*s, stage) for s, stage in zip(stores, self.store_stages(), strict=True)]
        return estimate, estimate.rows(
            self.instructions, self.stages, self.load_strides, staged, in_turn=self.in_turn,
            listed=self.turns[0] if self.turns else (),
        )  # fmt: skip

    @functools.cached_property
    def is_static(self) -> bool:
        """Whether the descriptors of its transfers are few, so that they lie in HBM before the run
        and no transfer waits until DGE has made its own, about 600 ns (nki-dge.rst)."""
        moved = [pair for pair in self.load_strides.items() if not self.is_turned(pair[0])]
        moved += self.stores
        across, tiles = self.across, self.geometry.tiles
        runs = 0.0
        for value, strides in moved:
            # Tiles of a reduction share its result.
            shared = across is not None and value.op != "load" and not across.varies(value)
            many = -(-tiles // across.steps) if across is not None and shared else tiles
            runs += elements(value, self.geometry) / self._run(value, strides) * many
        return runs * self.geometry.partitions <= MOST_DESCRIPTORS

    @property
    def stores(self) -> list[tuple[Value, Strides]]:
        """What is stored, with its strides."""
        pairs = zip(self.outputs, self.output_strides, strict=True)
        return [(self.held[output.value], strides) for output, strides in pairs]

    def turned_load(self, value: Value) -> TurnedLoad | None:
        """How TensorE transposes a load, None where it does not."""
        if value not in self.turned_loads:
            return None
        return turned_load(self.geometry, value, self.labels(value), self.load_strides[value])

    def _run(self, value: Value, strides: Strides) -> int:
        """Elements that lie side by side in memory and in what DMA moves."""
        if by_tensor := self.turned_load(value):
            return by_tensor.run
        turned = None if value.op == "load" else self.turned_store(value, strides)
        return turned.run if turned else self.geometry.run(self.labels(value), strides)

    def turned_store(self, value: Value, strides: Strides) -> TurnedStore | None:
        """How TensorE transposes a result for its store, None where it does not."""
        if value.dtype not in _FLOATS or value in self.layouts:
            return None
        return turned_store(self.geometry, self.labels(value), strides, self.copies_on)

    @property
    def turns_stores(self) -> bool:
        """Whether TensorE transposes a result."""
        return any(self.turned_store(value, strides) for value, strides in self.stores)

    def bytes_in_work(self) -> int:
        """Bytes of SBUF per partition of two tiles, so that loads overlap with work, and of what
        is carried from one stage to the next.
        """
        copies = 2 if self.geometry.tiles > 1 else 1
        if self.across is not None:
            tiles, staged = self.across.steps, self.staged_phases
            if self.kept_tiles:
                staged = [*staged, *self.without_kept.staged_phases]
            kept = self.bytes_kept * (self.kept_tiles or tiles)
            handed = max(self._bytes_handed(phase.carried, tiles) for phase in staged)
            shared = sum(self._bytes(i.dst) for i in self.across.shared())
            return copies * self.bytes_per_partition() + kept + handed + shared
        handed = self._bytes_handed(self.carried(), self.geometry.tiles_of_core)
        return copies * self.bytes_per_partition() + handed

    @property
    def bytes_kept(self) -> int:
        """Bytes of SBUF per partition of what phases keep of a tile."""
        left = dict.fromkeys(v for one in self.staged_phases for v in one.phase.kept)
        return sum(map(self._bytes, left))

    def _bytes_handed(self, carried: Sequence[Sequence[Value]], tiles: int) -> int:
        """Bytes per partition of what stages have handed on and not read yet."""
        sizes = [sum(map(self._bytes, values)) for values in carried]
        if not self.by_stage and not self.tail:
            return sum(sizes)
        # A stage takes what all tiles handed to it and gives what they hand on.
        first = max(0, self.tail - 1)
        late = sizes[first:]
        pairs = zip([0, *late], [*late, 0], strict=True)
        return sum(sizes[:first]) + tiles * max(a + b for a, b in pairs)

    def bytes_per_partition(self) -> int:
        """Bytes of SBUF per partition that one tile needs at once."""
        last: dict[Value, int] = {v: len(self.instructions) for v in self.held.values()}
        for index, instruction in enumerate(self.instructions):
            for value in instruction.reads():
                last[value] = max(index, last.get(value, 0))
        live = peak = 0
        ends: dict[int, int] = {}
        written: set[Value] = set()
        turned = [(v, store) for v, s in self.stores if (store := self.turned_store(v, s))]
        live += sum(v.dtype.itemsize * store.blocks * store.elements for v, store in turned)
        for index, instruction in enumerate(self.instructions):
            for value in instruction.writes():
                # Two instructions may write a tile, each a word of it.
                size = 0 if value in written else self._bytes(value)
                written.add(value)
                live += size
                end = max(index, last.get(value, index))
                ends[end] = ends.get(end, 0) + size
            halves = instruction.dst in self.halved and instruction.engine != TENSOR
            peak = max(peak, live + (self._bytes_of_halves(instruction) if halves else 0))
            live -= ends.get(index, 0)
        return peak

    def _bytes_of_halves(self, instruction: Instruction) -> int:
        """Those of the partial results, half as many as there are rows."""
        (source,) = instruction.reads()
        return (elements(source, self.geometry) // 2 + elements(instruction.dst, self.geometry)) * 4

    def rows_of(self, instruction: Instruction) -> tuple[list[int], list[int], list[int]] | None:
        """The free axes of what a `tensor_reduce` reads: those that stay, the reduced ones, and
        those that stay inside of them; None where they lie in another order."""
        (source,) = instruction.reads()
        labels = [d for d in self.geometry.free_labels if d in source.axes]
        at = [i for i, d in enumerate(labels) if d not in instruction.dst.axes]
        if not at or at != list(range(at[0], at[-1] + 1)):
            return None
        return labels[: at[0]], labels[at[0] : at[-1] + 1], labels[at[-1] + 1 :]

    def is_faster_in_halves(self, instruction: Instruction) -> bool:
        """Whether a reduction walks in steps, at half the rate, and adding up the halves of its
        rows, which lie side by side, takes less: VectorE reads two tiles in one cycle since trn2.
        """
        if instruction.call != "tensor_reduce":
            return False
        data = dict(instruction.arguments)["data"]
        assert isinstance(data, Tile)
        found = self.rows_of(instruction)
        plain = data.word is None and data.seen_as is None and data.value.axes == _like(data).axes
        if found is None or not plain or data.value.dtype not in _FLOATS:
            return False
        if self.load_step(data.value) > 1 or instruction.dst.dtype not in _FLOATS:
            return False
        rows = math.prod(map(self.geometry.count, found[1]))
        inner = math.prod(map(self.geometry.count, found[2])) if found[2] else 0
        steps = rows.bit_length() * _HALVING_ELEMENTS
        far = inner * data.value.dtype.itemsize > NEAR_BYTES
        named = ("op", "nl.multiply") not in instruction.arguments
        size = elements(data.value, self.geometry)
        if self.across is None and {data.value.dtype, instruction.dst.dtype} <= _HALVES:
            # In steps it takes a cycle an element.
            return named and far and rows > 1 and narrowing.cycles(rows, size // rows) < size
        # Rows of all tiles are added up before they are halved.
        saved = size * (self.across.steps - 1) if self.across is not None else size
        return named and far and rows > 1 and saved > steps

    def _bytes(self, value: Value) -> int:
        size = elements(value, self.geometry) * self.load_step(value)
        turned = self.turned_load(value)
        size += turned.blocks * turned.elements if turned else 0
        return value.dtype.itemsize * size

    def load_step(self, value: Value) -> int:
        """How many elements a load takes for each one that it wants: every second to fourth of a
        run is read with its neighbours, because DMA is slow with runs of one element.
        """
        strides = self.load_strides.get(value)
        if strides is None or value.dtype not in _FLOATS or self.across is not None:
            return 1
        if value in self.turned_loads:
            return 1
        if self.geometry.interleaved:
            return 1
        inner = self.labels(value)
        if not inner or self.geometry.count(inner[-1]) == 1:
            return 1
        step = strides[inner[-1]]
        return step if 1 < step <= _LARGEST_STEP else 1

    def is_turned(self, value: Value) -> bool:
        """Whether DMA transposes a tensor on loading: it runs along the partitions in memory."""
        strides = self.load_strides.get(value, {})
        free = [d for d in self.geometry.free_labels if d in value.axes]
        return (
            strides.get(self.geometry.partition) == 1
            and (self.geometry.interleaved or not self.geometry.folded)
            and 1 <= len(free) <= _MOST_TURNED
            and value.dtype in _TURNED
        )


def _like(tile: Tile) -> Value:
    return tile.value if tile.like is None else tile.like


def elements(value: Value, geometry: Geometry) -> int:
    """How many elements of `value` one partition of a tile has."""
    labels = (label for label in geometry.free_labels if label in value.axes)
    return math.prod(geometry.count(label) for label in labels)
