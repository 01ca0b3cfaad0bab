"""What a cut of a region takes, from the loads of engines and DMA: no Program is traced.

The busiest resource decides, and the first tile overlaps with nothing. DMA counts the runs of each
access pattern and the triggers of each queue, VectorE the strides of what it reduces.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from trnx.nki_kernels.generator.across import Across
from trnx.nki_kernels.generator.engines import (
    GPSIMD,
    SCALAR,
    TENSOR,
    VECTOR,
    EngineCosts,
    engine_of,
    table_loads,
)
from trnx.nki_kernels.generator.geometry import Geometry, Strides
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.select_instructions import Instruction
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware

_PARTITIONS_PER_ENGINE = 8  # of DMA: 128 partitions over 16 engines, trainium_inferentia2_arch.rst
_DMA, _LOADS, _STORES = "dma", "load queue", "store queue"
_CHAIN = "chain"  # of instructions that wait for each other
# Latencies of VectorE in which the partitions are combined.
_COMBINE_STEPS = 12

Elements = Callable[[Value], int]


class Estimate:
    """Estimates for one geometry; `elements` are those of a value in a partition of a tile,
    `halved` the reductions that take no strides, `turned` the loads that DMA transposes."""

    def __init__(
        self,
        hw: Hardware,
        geometry: Geometry,
        elements: Elements,
        halved: frozenset[Value],
        turned: frozenset[Value],
    ) -> None:
        self._hw, self._geometry, self._elements = hw, geometry, elements
        self._costs = EngineCosts(hw, elements)
        self._halved, self._turned = halved, turned

    def rows(
        self,
        instructions: Iterable[Instruction],
        loads: Mapping[Value, Strides],
        stores: Iterable[tuple[Value, Strides]],
        *,
        is_staged: bool,
    ) -> float:
        """ns of a core's tiles, each of which runs all instructions; `is_staged` where several are
        in work at a time."""
        moving = self._geometry.moving
        repeated = [i for i in instructions if any(v.axes & moving for v in i.writes())]
        tile = self._tile(repeated, loads, stores, is_staged=is_staged)
        return self._seconds(tile, self._geometry.tiles_of_core)

    def across(
        self,
        across: Across,
        keeps: str,
        loads: Mapping[Value, Strides],
        stores: Iterable[tuple[Value, Strides]],
    ) -> float:
        """ns of all phases, one after another."""
        strides = dict(stores)
        blocks = self._geometry.tiles // across.steps
        total = 0.0
        for phase in across.phases(keeps):
            results = [across.results[n] for n in phase.stores]
            stored = [(v, strides[v]) for v in results if across.varies(v)]
            total += self._seconds(
                self._tile(phase.each, loads, stored, is_staged=False), across.steps
            )
            # Combining is a chain of TensorE and VectorE, and so is what is computed once.
            each = _COMBINE_STEPS if self._geometry.crosses else 1
            steps = len(phase.once) + each * len(phase.combines)
            total += steps * timing(self._hw).vector_latency_cycles * 1e9 / self._hw.vector_clock
        return blocks * total

    def _seconds(self, tile: Counter[str], tiles: int) -> float:
        """The first tile overlaps with nothing."""
        latency = sum(ns for name, ns in tile.items() if name != _CHAIN)
        return (tiles - 1) * max(tile.values(), default=0.0) + latency

    def _tile(
        self,
        instructions: Iterable[Instruction],
        loads: Mapping[Value, Strides],
        stores: Iterable[tuple[Value, Strides]],
        *,
        is_staged: bool,
    ) -> Counter[str]:
        instructions = list(instructions)
        changes = table_loads(instructions)
        # Stages in turns: the last table of a tile is the first one of the next.
        changes = max(0, changes - 1) if is_staged else changes
        tables = changes * timing(self._hw).scalar_table_ns
        total: Counter[str] = Counter({SCALAR: tables})
        issue = timing(self._hw).dma_issue_ns
        for i in instructions:
            if i.dst in self._turned:
                total.update(self._transpose(i.dst))
                continue
            if i.call == "load":
                total.update({_DMA: self._transfer(i.dst, loads[i.dst]), _LOADS: issue})
                continue
            load = self._costs.load(i, engine_of(i))
            factor = 2 if VECTOR in load and self._is_strided(i) else 1
            total.update({name: factor * ns for name, ns in load.items()})
        if not is_staged and _comes_back(instructions):
            total[_CHAIN] = sum(total[engine] for engine in (VECTOR, SCALAR, GPSIMD, TENSOR))
        for value, strides in stores:
            total.update({_DMA: self._transfer(value, strides), _STORES: issue})
        return total

    def _transpose(self, value: Value) -> Mapping[str, float]:
        """ns of a load that DMA transposes, whatever its runs."""
        constants, lead = timing(self._hw), self._geometry.lead
        rate = self._hw.dma_engine_rate / 1e9 * constants.dma_transpose_factor
        size = self._elements(value) * value.dtype.itemsize
        lanes = min(_PARTITIONS_PER_ENGINE, self._geometry.partitions)
        triggers = 1 if lead is None else lead.block
        return {_DMA: lanes * size / rate, _LOADS: triggers * constants.dma_issue_ns}

    def _transfer(self, value: Value, strides: Strides) -> float:
        """ns of the DMA engines, each of which takes the rows of eight partitions."""
        labels = [d for d in self._geometry.free_labels if d in value.axes]
        run = 1
        for label in reversed(labels):
            apart = self._geometry.interleaved and label == self._geometry.partition
            if strides.get(label, 0) != run or apart:
                break
            run *= self._geometry.count(label)
        size = self._elements(value) * value.dtype.itemsize
        full = size / (self._hw.dma_engine_rate / 1e9)
        runs = self._elements(value) / run * timing(self._hw).dma_descriptor_ns
        return min(_PARTITIONS_PER_ENGINE, self._geometry.partitions) * max(full, runs)

    def _is_strided(self, instruction: Instruction) -> bool:
        """Whether a reduction walks in steps, at half the rate."""
        if instruction.call != "tensor_reduce" or instruction.dst in self._halved:
            return False
        labels = [d for d in self._geometry.free_labels if d in instruction.reads()[0].axes]
        return bool(labels) and labels[-1] in instruction.dst.axes


def _comes_back(instructions: Iterable[Instruction]) -> bool:
    """Whether a tile comes back to an engine that it left, which waits for it."""
    engines = [engine_of(i) for i in instructions if i.call != "load"]
    runs = [engine for engine, _ in itertools.groupby(engines)]
    return len(runs) > len(set(runs))
