"""The ops of a tile as `timeline.py` runs them: loads, stores, and instructions by their engines.

DMA counts the runs of each access pattern and the triggers of each queue, VectorE the strides of
what it reduces.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from trnx.nki_kernels.generator import narrowing
from trnx.nki_kernels.generator.engines import (
    GPSIMD,
    PORT,
    SCALAR,
    TENSOR,
    EngineCosts,
    engine_of,
    parts_of,
    table_of_call,
)
from trnx.nki_kernels.generator.geometry import Geometry, Strides
from trnx.nki_kernels.generator.instruction import Instruction
from trnx.nki_kernels.generator.ir import Dims, Value
from trnx.nki_kernels.generator.joined_parts import Joined
from trnx.nki_kernels.generator.strided_walks import walks_in_steps
from trnx.nki_kernels.generator.timeline import Op, visible_times
from trnx.nki_kernels.generator.turned_load import TurnedLoad
from trnx.nki_kernels.generator.turned_store import TurnedStore
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware

PARTITIONS_PER_ENGINE = 8  # of DMA: 128 partitions over 16 engines, trainium_inferentia2_arch.rst
_LOADS, _STORES = "load queue", "store queue"
# Tiles whose pace counts.
PACE = 4

Elements = Callable[[Value, Geometry], int]
TurnedStores = Callable[[Value, Strides], TurnedStore | None]
_Key = tuple[Hashable, Hashable]


class TileOps:
    """Estimates for one geometry; `elements` are those of a value in a partition of a tile,
    `labels` its free axes in the order of the tile, `halved` the reductions that take no strides,
    `turned` the loads that DMA transposes, `permuted` the values that lie in an order of their own,
    `turned_store` and `turned_load` say how TensorE transposes results and loads; the queue of
    stores has the loads `aside`; `is_static` says that descriptors lie in HBM."""

    def __init__(
        self,
        hw: Hardware,
        geometry: Geometry,
        elements: Elements,
        labels: Callable[[Value], Dims],
        halved: frozenset[Value],
        turned: frozenset[Value],
        permuted: Collection[Value],
        turned_store: TurnedStores,
        turned_load: Callable[[Value], TurnedLoad | None],
        aside: Collection[Value],
        *,
        is_static: bool,
    ) -> None:
        self._hw, self._geometry, self._labels = hw, geometry, labels
        self._elements: Callable[[Value], int] = lambda value: elements(value, geometry)
        self._costs = EngineCosts(
            hw, self._elements, permuted, halved=halved,
            in_steps=lambda instruction: walks_in_steps(instruction, geometry),
        )  # fmt: skip
        self._halved, self._turned, self._turned_store = halved, turned, turned_store
        self._turned_load = turned_load
        self._aside = aside
        constants = timing(hw)
        self._issue = constants.dma_static_issue_ns if is_static else constants.dma_issue_ns
        self._ops: list[Op] = []
        self.turns: list[dict[tuple[int, int], range]] = []
        self._made: dict[_Key, int] = {}
        self._known: dict[tuple[Instruction, float], Op] = {}
        # The op of the other engine where two share a tile.
        self._beside: dict[int, int] = {}
        self._stored: dict[Value, int] = {}
        self._in_columns: frozenset[Value] = frozenset()
        self._turned_total: Instruction | None = None
        self._joined: Joined | None = None
        self._steps = 1
        # Products before each phase, and the index of the first op of each.
        self.warm: tuple[int, ...] = ()
        self._phase_starts: list[int] = []
        self._warming: set[int] = set()
        # Which tiles have what is left of the rows, of a row in each partition.
        self._is_left: Callable[[Hashable], bool] = lambda _: False
        self._left: TileOps | None = None
        rest = geometry.rows[-1]
        rows_loop = geometry.crosses or not geometry.in_phases
        if len(geometry.rows) > 1 and rest.fold < geometry.rows[0].fold and rows_loop:
            few = dataclasses.replace(geometry, rows=(rest,))
            self._left = TileOps(
                hw, few, elements, labels, halved, turned, permuted, turned_store, turned_load,
                aside, is_static=is_static,
            )  # fmt: skip

    def _end(self, last: int | None = None) -> float:
        """When the ops up to `last`, by default all, have ended."""
        ops = self._ops if last is None else self._ops[: last + 1]
        seen = enumerate(visible_times(ops, timing(self._hw)))
        return max((ns for i, ns in seen if i not in self._warming), default=0.0)

    def _pace(self, ends: Sequence[int], apart: int = PACE) -> float:
        """What one more tile takes, by the last `apart`; `ends` are the last ops of tiles."""
        return (self._end(ends[-1]) - self._end(ends[-1 - apart])) / apart

    def _chain(self, engine: str, size: int, after: Sequence[int], table: str = "exp") -> int:
        """An op of `size` cycles of work; ScalarE needs a `table` for it, none where that is ""."""
        constants = timing(self._hw)
        if engine == TENSOR:
            cycles = max(size, constants.matmul_min_columns) * 1e9 / self._hw.pe_clock
            drain = constants.matmul_latency_cycles + self._hw.partitions
            op = Op(engine, cycles, cycles + drain * 1e9 / self._hw.pe_clock, tuple(after))
        elif engine == SCALAR:
            clock = 1e9 / self._hw.scalar_clock
            interval = (size + constants.scalar_issue_cycles) * clock
            latency = (size + constants.scalar_latency_cycles) * clock
            op = Op(engine, interval, latency, tuple(after), table=table)
        else:
            clock = 1e9 / self._hw.vector_clock
            op = Op(
                engine,
                (size + constants.vector_issue_cycles) * clock,
                (size + constants.vector_latency_cycles) * clock,
                tuple(after),
            )
        self._ops.append(op)
        return len(self._ops) - 1

    def _first_table(self, instructions: Iterable[Instruction]) -> None:
        table = next(filter(None, map(table_of_call, instructions)), "")
        if table:
            self._ops.append(Op(SCALAR, 0.0, 0.0, table=table))

    def _found(self, value: Value, tile: Hashable) -> int | None:
        """The op that gave a value: of this tile, of its block, or of all tiles."""
        block = (tile[0], None) if isinstance(tile, tuple) else None
        for key in ((value, tile), (value, block), (value, None)):
            if key in self._made:
                return self._made[key]
        return None

    def _add(
        self,
        instruction: Instruction,
        loads: Mapping[Value, Strides],
        tile: Hashable,
    ) -> None:
        """The op of an instruction in a tile."""
        touched = (*instruction.reads(), *instruction.writes())
        before = [at for v in touched if (at := self._found(v, tile)) is not None]
        after = (*before, *(self._beside[at] for at in before if at in self._beside))
        costs = self._left if self._left is not None and self._is_left(tile) else self
        ops = [costs._op(part, loads, share) for part, share in parts_of(instruction)]
        self._ops += [dataclasses.replace(op, after=after) for op in ops]
        self._made.update({(v, tile): len(self._ops) - len(ops) for v in instruction.writes()})
        if instruction.call == "load" and (by_tensor := self._turned_load(instruction.dst)):
            self._made[instruction.dst, tile] = self._turned_by_tensor(by_tensor, instruction.dst)
        if len(ops) > 1:
            self._beside[len(self._ops) - 2] = len(self._ops) - 1

    def _store(
        self, value: Value, strides: Strides, tile: Hashable, *, waits: bool = False
    ) -> None:
        at = self._found(value, tile)
        constants = timing(self._hw)
        after: tuple[int, ...] = () if at is None else (at,)
        after += (self._beside[at],) if at in self._beside else ()
        turned = self._turned_store(value, strides)
        split = self._geometry.split(self._labels(value), strides) if turned is None else ()
        waits = waits or split is None or not (turned is None or turned.is_rectangle)
        if turned is not None:
            after = self._transposed(turned, value, after)
        if waits and value in self._stored:
            after += (self._stored[value],)
        self._stored[value] = len(self._ops)
        costs = self._left if self._left is not None and self._is_left(tile) else self
        transfer = costs._transfer(value, strides)
        transfers = math.prod(map(self._geometry.count, split or ()))
        if turned is not None:
            transfer, transfers = self._transfer_of(turned, value), turned.blocks
        self._ops.append(
            Op(_STORES, transfers * self._issue, constants.dma_done_ns, after, transfer)
        )

    def _transposed(
        self, turned: TurnedStore, value: Value, after: tuple[int, ...]
    ) -> tuple[int, ...]:
        """What transposes a result and copies it out of PSUM."""
        many = min(turned.transposes, turned.in_a_bank(value.dtype.itemsize))
        columns = self._geometry.partitions * max(1, value.dtype.itemsize // 2)
        copies: list[int] = []
        for _ in range(turned.blocks):
            for first in range(0, turned.transposes, many):
                count = min(many, turned.transposes - first)
                products = [self._chain(TENSOR, columns, after) for _ in range(count)]
                size = count * self._geometry.partitions
                copies.append(self._chain(turned.engine, size, products[-1:], table=""))
        return tuple(copies[-1:])

    def _turned_by_tensor(self, turned: TurnedLoad, value: Value) -> int:
        """What transposes a load, after the last op: the last copy out of PSUM."""
        loaded, many = len(self._ops) - 1, turned.in_a_bank(value.dtype.itemsize)
        columns = turned.wide * max(1, value.dtype.itemsize // 2)
        for _ in range(turned.blocks):
            for first in range(0, turned.products, many):
                count = min(many, turned.products - first)
                products = [self._chain(TENSOR, columns, (loaded,)) for _ in range(count)]
                self._chain(SCALAR, count * turned.wide, products[-1:], table="")
        return len(self._ops) - 1

    def _transfer_of(self, turned: TurnedStore, value: Value) -> float:
        """ns of the DMA engines for a transposed result."""
        each = self._moved(turned.elements, turned.run, value.dtype.itemsize)
        return turned.blocks * min(PARTITIONS_PER_ENGINE, turned.rows) * each

    def _op(
        self, instruction: Instruction, loads: Mapping[Value, Strides], share: float = 1.0
    ) -> Op:
        """The op of an instruction on a `share` of its tile, without what it waits for."""
        key = (instruction, share)
        if key not in self._known:
            if instruction.call == "load":
                self._known[key] = self._load(instruction.dst, loads[instruction.dst])
            else:
                self._known[key] = self._compute(instruction, share)
        return self._known[key]

    def _load(self, value: Value, strides: Strides) -> Op:
        constants, lead = timing(self._hw), self._geometry.lead
        if value in self._turned:
            # DMA transposes it, whatever its runs.
            rate = self._hw.dma_engine_rate / 1e9 * constants.dma_transpose_factor
            lanes = min(PARTITIONS_PER_ENGINE, self._geometry.partitions)
            transfer = lanes * self._elements(value) * value.dtype.itemsize / rate
            issue = constants.dma_issue_ns * (1 if lead is None else lead.block)
            if lead is not None and self._geometry.partitions // lead.block % lanes:
                # The partitions of two transfers share an engine, which takes one after the other.
                transfer *= 2
            # The last transfer is triggered after the others.
            done = issue - constants.dma_issue_ns + constants.dma_done_ns
            return Op(_LOADS, issue, done, transfer=transfer)
        transfer = self._transfer(value, strides)
        if by_tensor := self._turned_load(value):
            each = self._moved(by_tensor.elements, by_tensor.run, value.dtype.itemsize)
            transfer = by_tensor.blocks * min(PARTITIONS_PER_ENGINE, by_tensor.wide) * each
        queue = _STORES if value in self._aside else _LOADS
        return Op(queue, self._issue, constants.dma_done_ns, transfer=transfer)

    def _compute(self, instruction: Instruction, share: float) -> Op:
        constants, engine = timing(self._hw), engine_of(instruction)
        load = self._costs.load_of_part(instruction, engine, share)
        taken = load[engine]
        if engine == TENSOR:
            drain = constants.matmul_latency_cycles + self._hw.partitions
            return Op(engine, taken, taken + drain * 1e9 / self._hw.pe_clock)
        if engine == GPSIMD:
            return Op(engine, taken, taken, port=True)
        if engine == SCALAR:
            more = (constants.scalar_latency_cycles - constants.scalar_issue_cycles) * 1e9
            latency = taken + more / self._hw.scalar_clock
            return Op(engine, taken, latency, table=table_of_call(instruction))
        cycle = 1e9 / self._hw.vector_clock
        if instruction.dst in self._halved:
            (source,) = instruction.reads()
            size, width = self._elements(source), max(1, self._elements(instruction.dst))
            # Tiles of phases are added up as they are.
            cycles = size * share + constants.vector_issue_cycles
            if not self._geometry.in_phases:
                cycles = narrowing.cycles(size // width, width)
            taken = cycles * cycle
        more = constants.vector_latency_cycles - constants.vector_issue_cycles
        return Op(engine, taken, taken + more * cycle, port=PORT in load)

    def _transfer(self, value: Value, strides: Strides) -> float:
        """ns of the DMA engines, each of which takes the rows of eight partitions."""
        run = self._geometry.run(self._labels(value), strides)
        each = self._moved(self._elements(value), run, value.dtype.itemsize)
        return min(PARTITIONS_PER_ENGINE, self._geometry.partitions) * each

    def _moved(self, elements: int, run: int, itemsize: int) -> float:
        """ns of a DMA engine for so many elements of a partition, in runs."""
        full = elements * itemsize / (self._hw.dma_engine_rate / 1e9)
        runs, constants = elements / run, timing(self._hw)
        full += runs * constants.dma_descriptor_extra_ns
        return max(full, runs * constants.dma_descriptor_ns)
