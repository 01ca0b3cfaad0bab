"""From a region's nodes to its form as one tile: lower, cut, select instructions, engines and
stages, until it fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from trnx.nki_kernels.generator.engines import EngineCosts, assign_engines
from trnx.nki_kernels.generator.geometry import (
    Geometry,
    Strides,
    cut,
    memory_order,
    merge,
    runs_across,
)
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.lower import Lowered, Output, lower, reachable
from trnx.nki_kernels.generator.select_instructions import Instruction, InstructionSelector
from trnx.nki_kernels.generator.stages import FEW_STAGES, LEAST_TILES, MOST_STAGES, cut_stages
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

# Elements of one partition in a tile: long enough to hide the fixed cost of an instruction and of a
# DMA (2 KiB a partition), short enough that the temporaries of a long chain fit.
_FREE_SIZE = 2048
# Where a reduced dimension is not the innermost one, so that its length shortens the runs of DMA.
_ACROSS_FREE_SIZE = 16384


@dataclass(frozen=True)
class TiledRegion:
    """A region cut into tiles, with the instructions of one tile.

    `held` gives for every result the value whose tile holds it, `stages` the stage of every
    instruction.
    """

    outputs: tuple[Output, ...]
    geometry: Geometry
    instructions: Sequence[Instruction]
    held: Mapping[Value, Value]
    load_strides: Mapping[Value, Strides]
    output_strides: tuple[Strides, ...]
    stages: Sequence[int] = ()

    def store_stages(self) -> list[int]:
        """The stage that stores each output: the last one that writes its tile."""
        last = {
            v: s for i, s in zip(self.instructions, self.stages, strict=True) for v in i.writes()
        }
        return [last.get(self.held[o.value], 0) for o in self.outputs]

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
            for boundary in range(max(self.stages, default=0))
        ]

    def bytes_in_work(self) -> int:
        """Bytes of SBUF per partition of two tiles, so that loads overlap with work, and of what
        is carried from one stage to the next.
        """
        copies = 2 if self.geometry.tiles > 1 else 1
        carried = sum(self._bytes(value) for values in self.carried() for value in values)
        return copies * self.bytes_per_partition() + carried

    def bytes_per_partition(self) -> int:
        """Bytes of SBUF per partition that one tile needs at once."""
        last: dict[Value, int] = {v: len(self.instructions) for v in self.held.values()}
        for index, instruction in enumerate(self.instructions):
            for value in instruction.reads():
                last[value] = max(index, last.get(value, 0))
        live = peak = 0
        ends: dict[int, int] = {}
        written: set[Value] = set()
        for index, instruction in enumerate(self.instructions):
            for value in instruction.writes():
                # Two instructions may write a tile, each a word of it.
                size = 0 if value in written else self._bytes(value)
                written.add(value)
                live += size
                end = max(index, last.get(value, index))
                ends[end] = ends.get(end, 0) + size
            peak = max(peak, live)
            live -= ends.get(index, 0)
        return peak

    def _bytes(self, value: Value) -> int:
        return value.dtype.itemsize * elements(value, self.geometry)


def elements(value: Value, geometry: Geometry) -> int:
    """How many elements of `value` one partition of a tile has."""
    labels = (label for label in geometry.free_labels if label in value.axes)
    return math.prod(geometry.count(label) for label in labels)


def tile_region(
    nodes: Sequence[fx.Node], outputs: Sequence[fx.Node], specs: Mapping[fx.Node, Any], hw: Hardware
) -> TiledRegion | Reject:
    """The region of `nodes`, in topological order, cut so that it fits into SBUF."""
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
    return _fit(lowered, (order, sizes), strides, hw, nodes[-1])


def _as_in_memory(lowered: Lowered, specs: Mapping[fx.Node, Any]) -> Lowered:
    """`lowered` with the order of the space, and of the results, that most tensors have."""
    loads, results = _strides(lowered, specs)
    accesses = [(strides, value.dtype.itemsize) for value, strides in loads.items()]
    kinds = [output.spec.dtype.itemsize for output in lowered.outputs]
    order = memory_order(lowered.order, [*accesses, *zip(results, kinds, strict=True)])
    outputs = tuple(output.along(order) for output in lowered.outputs)
    return dataclasses.replace(lowered, order=order, outputs=outputs)


def _fit(
    lowered: Lowered,
    space: tuple[tuple[int, ...], dict[int, int]],
    strides: tuple[Mapping[Value, Strides], tuple[Strides, ...]],
    hw: Hardware,
    node: fx.Node,
) -> TiledRegion | Reject:
    """The region in the largest tiles of which two fit, so that loads overlap with work."""
    roots = tuple(dict.fromkeys(o.value for o in lowered.outputs))
    order, sizes = space
    reduced = frozenset(d for d in order if d in lowered.reduced)
    row = _row(order, sizes, reduced)
    budget = max(_FREE_SIZE, row)
    if runs_across(order, reduced):
        budget = max(row, _ACROSS_FREE_SIZE)
    stored = [frozenset(output) & set(order) for output in strides[1]]
    tries = [(budget, MOST_STAGES), (budget // 2, MOST_STAGES)]
    tries += [(budget >> i, FEW_STAGES) for i in range(budget.bit_length())]
    for free_size, most in tries:
        geometry = cut(order, sizes, reduced, free_size, stored) if free_size else None
        if geometry is None:
            continue
        selector = InstructionSelector(roots, geometry, scalar_bias=hw.generation > 2)
        whole = TiledRegion(lowered.outputs, geometry, *selector.run(), *strides)
        region = _staged(whole, hw, most)
        if region.bytes_in_work() <= hw.sbuf_partition_bytes * 7 // 8:
            return region
    return Reject("a reduced row and its temporaries do not fit in SBUF", node)


def _staged(region: TiledRegion, hw: Hardware, most: int) -> TiledRegion:
    """`region` with engines and at most `most` stages, where tiles are many."""
    if region.geometry.tiles < LEAST_TILES:
        return dataclasses.replace(region, stages=[0] * len(region.instructions))
    geometry = region.geometry

    def repeated(value: Value) -> int:
        return elements(value, geometry) if value.axes & geometry.moving else 0

    costs = EngineCosts(hw, repeated)
    stored = [region.held[output.value] for output in region.outputs]
    placed = assign_engines(region.instructions, costs, stored)
    across = any(i.call == "all_partitions" for i in placed)
    starts = max(len(rows.starts) for rows in region.geometry.rows)
    stages = [0] * len(placed)
    if starts >= LEAST_TILES and not across:
        stages = cut_stages(placed, min(most, starts - 1), lambda v: bool(v.axes & geometry.moving))
    return dataclasses.replace(region, instructions=placed, stages=stages)


def _row(order: tuple[int, ...], sizes: Mapping[int, int], reduced: frozenset[int]) -> int:
    """Elements that one partition must hold because a reduction needs them."""
    total = 1
    for label in order:
        total *= sizes[label] if label in reduced else 1
    if len(reduced) == len(order) and order:
        parts = next(p for p in range(128, 0, -1) if total % p == 0)
        return total // parts
    return total


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
