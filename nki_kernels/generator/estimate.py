"""What a cut of a region takes: the first tiles as `timeline.py` runs them, the rest at their pace.

DMA counts the runs of each access pattern and the triggers of each queue, VectorE the strides of
what it reduces. No Program is traced.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from trnx.nki_kernels.generator import narrowing
from trnx.nki_kernels.generator.across import BANK, Across
from trnx.nki_kernels.generator.engines import (
    GPSIMD,
    PORT,
    SCALAR,
    TENSOR,
    VECTOR,
    EngineCosts,
    engine_of,
    next_table,
    parts_of,
    table_loads,
    table_of_call,
)
from trnx.nki_kernels.generator.geometry import Geometry, RowTiles, Strides
from trnx.nki_kernels.generator.ir import Dims, Value
from trnx.nki_kernels.generator.phase_stages import PhaseStages
from trnx.nki_kernels.generator.select_instructions import EACH_TILE, Instruction
from trnx.nki_kernels.generator.timeline import Op, visible_times
from trnx.nki_kernels.generator.turned_store import TurnedStore
from trnx.nki_kernels.generator.turned_totals import turned_total
from trnx.simulator.costs.constants import timing
from trnx.simulator.hardware import Hardware

_PARTITIONS_PER_ENGINE = 8  # of DMA: 128 partitions over 16 engines, trainium_inferentia2_arch.rst
_LOADS, _STORES = "load queue", "store queue"
# Tiles of a loop, and blocks of phases, whose ops are run; an even number, because every other tile
# may run its stages backwards.
_MOST_TILES, _MOST_BLOCKS, _PACE = 6, 2, 4

Elements = Callable[[Value, Geometry], int]
Stores = Sequence[tuple[Value, Strides]]
TurnedStores = Callable[[Value, Strides], TurnedStore | None]
_Key = tuple[Hashable, Hashable]


class Estimate:
    """Estimates for one geometry; `elements` are those of a value in a partition of a tile,
    `labels` its free axes in the order of the tile, `halved` the reductions that take no strides,
    `turned` the loads that DMA transposes, `permuted` the values that lie in an order of their own,
    `turned_store` says how TensorE transposes a result for its store; the queue of stores has the
    loads `aside`;
    `is_static` says that descriptors lie in HBM."""

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
        aside: Collection[Value],
        *,
        is_static: bool,
    ) -> None:
        self._hw, self._geometry, self._labels = hw, geometry, labels
        self._elements: Callable[[Value], int] = lambda value: elements(value, geometry)
        self._costs = EngineCosts(hw, self._elements, permuted)
        self._halved, self._turned, self._turned_store = halved, turned, turned_store
        self._aside = aside
        constants = timing(hw)
        self._issue = constants.dma_static_issue_ns if is_static else constants.dma_issue_ns
        self._ops: list[Op] = []
        self._made: dict[_Key, int] = {}
        self._known: dict[tuple[Instruction, float], Op] = {}
        # The op of the other engine where two share a tile.
        self._beside: dict[int, int] = {}
        self._stored: dict[Value, int] = {}
        self._in_columns: frozenset[Value] = frozenset()
        self._turned_total: Instruction | None = None
        self._steps = 1
        # Which tiles have what is left of the rows, of a row in each partition.
        self._is_left: Callable[[Hashable], bool] = lambda _: False
        self._left: Estimate | None = None
        rest = geometry.rows[-1]
        rows_loop = geometry.crosses or not geometry.in_phases
        if len(geometry.rows) > 1 and rest.fold < geometry.rows[0].fold and rows_loop:
            few = dataclasses.replace(geometry, rows=(rest,))
            self._left = Estimate(
                hw, few, elements, labels, halved, turned, permuted, turned_store, aside,
                is_static=is_static,
            )  # fmt: skip

    # -- whole rows ------------------------------------------------------------------------------

    def rows(
        self,
        instructions: Sequence[Instruction],
        stages: Sequence[int],
        loads: Mapping[Value, Strides],
        stores: Sequence[tuple[Value, Strides, int]],
        *,
        in_turn: int,
    ) -> float:
        """ns of a core's tiles, each of which runs all instructions; `stores` have their stage.
        From stage `in_turn` on all tiles run a stage before any runs the next one; they are few
        where this is the first one."""
        moving = self._geometry.moving
        repeated = [any(v.axes & moving for v in i.writes()) for i in instructions]
        self._first_table(instructions)
        for i, again in zip(instructions, repeated, strict=True):
            if not again:
                self._add(i, loads, None)
        depth = max(stages, default=0) + 1
        together = [i for i, s in zip(instructions, stages, strict=True) if s < in_turn]
        alternates = table_loads(together) > 0
        tiles = self._geometry.tiles_of_core
        count = min(tiles, _MOST_TILES + depth) if in_turn else tiles
        period = self._rows_again()
        self._is_left = lambda tile: count > 1 and tile == count - 1
        if period:
            self._is_left = lambda tile: isinstance(tile, int) and (tile + 1) % period == 0
        ends: dict[int, list[int]] = {}
        first = min(depth, in_turn)
        orders = [range(first), range(first)]
        if alternates:
            orders[first % 2] = range(first)[::-1]
        turns = list(_turns(count, first, orders, by_stage=False)) if first else []
        turns += ((s, tile) for s in range(first, depth) for tile in range(count))
        for s, tile in turns:
            for i, stage, again in zip(instructions, stages, repeated, strict=True):
                if stage == s and again:
                    self._add(i, loads, tile)
            # It waits for the tile whose rows it writes once more.
            is_last = tile == count - 1 and self._geometry.overlaps
            for value, strides, stage in stores:
                if stage == s and (value.axes & moving or not tile):
                    self._store(value, strides, tile, waits=is_last)
            if s >= first - 1:
                ends.setdefault(s, []).append(len(self._ops) - 1)
            later = next_table(instructions, stages, s)
            if s >= in_turn and tile == count - 1 and later is not None:
                self._first_table([later])
        if tiles == count:
            return self._end()
        # With as many tiles behind them in work as in the middle of many.
        ends[first - 1] = ends[first - 1][: count - first + 1]
        apart = 3 if period == 3 else _PACE
        return self._end() + (tiles - count) * sum(self._pace(e, apart) for e in ends.values())

    def _rows_again(self) -> int:
        """After how many tiles the rows begin again, 0 where that is never or too seldom to count:
        the last tile of each turn has what is left of them."""
        share = self._geometry.shares[0] if self._geometry.shares else None
        rows = self._geometry.rows if share is None else share.rows
        period = sum(len(r.starts) for r in rows)
        return period if self._geometry.loops and 1 < period <= _PACE else 0

    def _end(self, last: int | None = None) -> float:
        """When the ops up to `last`, by default all, have ended."""
        ops = self._ops if last is None else self._ops[: last + 1]
        return max(visible_times(ops, timing(self._hw)), default=0.0)

    def _pace(self, ends: Sequence[int], apart: int = _PACE) -> float:
        """What one more tile takes, by the last `apart`; `ends` are the last ops of tiles."""
        return (self._end(ends[-1]) - self._end(ends[-1 - apart])) / apart

    # -- phases ----------------------------------------------------------------------------------

    def across(
        self,
        across: Across,
        staged: Sequence[PhaseStages],
        loads: Mapping[Value, Strides],
        stores: Stores,
        *,
        by_stage: bool = False,
    ) -> float:
        """ns of all phases, one after another. All tiles of one, which are few then, run a stage
        before any runs the next one `by_stage`."""
        blocks = max(1, self._geometry.tiles // across.steps)
        phases = [one.phase for one in staged]
        columns = [c for p in phases for c in p.combines if across.in_columns(c)]
        self._in_columns = frozenset(c.reads()[0] for c in columns)
        self._steps = across.steps
        self._turned_total = turned_total(across, phases)
        most = across.steps if by_stage else _MOST_TILES
        counts = [min(across.steps, most + one.depth - 1) for one in staged]
        rows = [r for r in across.rows for _ in r.starts] if self._geometry.crosses else []
        self._is_left = lambda tile: bool(rows) and self._has_rest(rows, tile)
        self._first_table([i for p in phases for i in (*p.once, *p.each)])
        strides = dict(stores)
        marks: list[list[int]] = []
        ends: list[int] = []
        for block in range(min(blocks, _MOST_BLOCKS)):
            for one, count in zip(staged, counts, strict=True):
                phase = one.phase
                for i in phase.once:
                    self._add(i, loads, (block, None))
                if any(map(table_of_call, phase.once)):
                    self._first_table(phase.each)
                turns = list(_turns(count, one.depth, one.orders(), by_stage=by_stage))
                marks.append(self._phase_tiles(across, one, turns, block, loads, strides))
                later = phases[phases.index(phase) + 1 :]
                following = [i for p in later for i in (*p.once, *p.each)]
                self._first_table(following)
                for i in phase.combines:
                    self._combine(i, block)
                for n in phase.stores:
                    if not across.varies(across.results[n]):
                        self._store(across.results[n], strides[across.results[n]], (block, None))
            ends.append(len(self._ops) - 1)
        apart = 3 if len(rows) == 3 else _PACE
        more = [
            (across.steps - count) * self._pace(mark, apart)
            if across.steps > count and mark
            else 0.0
            for mark, count in zip(marks, counts * min(blocks, _MOST_BLOCKS), strict=True)
        ]
        total = self._end() + sum(more)
        if blocks > len(ends):
            another = self._end() - self._end(ends[-2]) + sum(more[-len(phases) :])
            total += (blocks - len(ends)) * another
        return total

    def _has_rest(self, rows: Sequence[RowTiles], tile: Hashable) -> bool:
        """Whether a `tile` of a phase, (block, tile), has what is left of `rows`, which all loops
        run through."""
        at = tile[1] if isinstance(tile, tuple) else None
        return at is not None and rows[at % len(rows)] is self._geometry.rows[-1]

    def _phase_tiles(
        self,
        across: Across,
        staged: PhaseStages,
        turns: Sequence[tuple[int, int]],
        block: int,
        loads: Mapping[Value, Strides],
        stores: Mapping[Value, Strides],
    ) -> list[int]:
        """The ops of a phase's tiles, in `turns` of (stage, tile); the last op of each, without
        those of tiles that fewer than in the middle follow."""
        phase, depth = staged.phase, staged.depth
        ends: list[int] = []
        for s, at in turns if phase.each else ():
            tile = (block, at)
            for i, stage in zip(phase.each, staged.of_instructions, strict=True):
                if stage == s:
                    self._add(i, loads, tile)
                for part in i.writes():
                    if staged.of_additions.get(part) == s:
                        self._accumulate(i, part, tile)
            for n in phase.stores:
                if staged.of_stores[n] == s and across.varies(across.results[n]):
                    self._store(across.results[n], stores[across.results[n]], tile)
            if s == depth - 1:
                ends.append(len(self._ops) - 1)
        return ends[: len(ends) - depth + 1]

    def _combine(self, combine: Instruction, block: int) -> None:
        """What gives the total of all tiles: a chain."""
        partial = combine.reads()[0]
        width = self._elements(combine.dst)
        last = self._made.get((("sum", partial), block))
        after: tuple[int, ...] = () if last is None else (last,)
        if len(combine.reads()) > 1:
            # Sums of tiles are scaled by the maximum of all.
            most = combine.reads()[1].args[0]
            after += (self._made[("total", most), block],)
            for _ in range(3):
                after = (self._chain(VECTOR, self._geometry.tiles, after),)
        if last is not None and self._ops[last].queue == TENSOR:
            (source,) = (v for v in partial.args if isinstance(v, Value))
            runs = max(1, min(BANK // width, self._elements(source) // width))
            for left in range(0, width, BANK):
                after = (self._chain(VECTOR, runs * min(BANK, width - left), after),)
        elif partial in self._in_columns:
            after = self._total_of_columns(combine, after)
        elif not self._geometry.crosses and partial in self._halved:
            after = self._narrowed(partial, width, after)
        elif not self._geometry.crosses:
            after = (self._chain(VECTOR, width, after),)
        elif ("op", "nl.add") in combine.arguments:
            after = self._narrowed(partial, width, after)
            for left in range(0, width, BANK):
                product = self._chain(TENSOR, 2 * min(BANK, width - left), after)
                after = (self._chain(VECTOR, min(BANK, width - left), (product,)),)
        elif combine is self._turned_total or width == 1:
            lanes, after = self._geometry.partitions, self._narrowed(partial, width, after)
            after = (self._chain(VECTOR, lanes, (self._chain(TENSOR, 2 * lanes, after),)),)
        else:
            lanes, after = self._geometry.partitions, self._narrowed(partial, width, after)
            chunks = -(-width // lanes)
            wide, most = -(-width // chunks), max(1, BANK // lanes)
            summed = after
            for first in range(0, chunks, most):
                many = min(most, chunks - first)
                turned = [self._chain(TENSOR, 2 * lanes, summed) for _ in range(many)]
                column = self._chain(VECTOR, many * lanes, turned[-1:])
                back = [self._chain(TENSOR, 2 * wide, (column,)) for _ in range(many)]
                after = (self._chain(VECTOR, many * wide, back[-1:]),)
        self._made[combine.dst, (block, None)] = after[0]
        self._made[("total", partial), block] = after[0]

    def _total_of_columns(self, combine: Instruction, after: tuple[int, ...]) -> tuple[int, ...]:
        """What adds up the columns that tiles leave, and the partitions where these are reduced."""
        crosses, lanes = self._geometry.crosses, self._geometry.partitions
        if crosses and ("op", "nl.add") in combine.arguments:
            after = (self._chain(TENSOR, 2 * self._steps, after),)
        after = (self._chain(VECTOR, self._steps, after),)
        if not crosses or ("op", "nl.add") in combine.arguments:
            return after
        return (self._chain(VECTOR, lanes, (self._chain(TENSOR, 2 * lanes, after),)),)

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

    # -- instructions ----------------------------------------------------------------------------

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
        if len(ops) > 1:
            self._beside[len(self._ops) - 2] = len(self._ops) - 1

    def _accumulate(self, instruction: Instruction, value: Value, tile: tuple[int, int]) -> None:
        """What adds the `value` that an instruction gave to what tiles before gave."""
        key = (("sum", value), tile[0])
        made = self._made[value, tile]
        adds = self._ops[made].queue != TENSOR and value not in self._halved | self._in_columns
        if adds and not (instruction.result is value and EACH_TILE in value.axes):
            before = self._made.get(key)
            made = self._chain(
                VECTOR, self._elements(value), (made, *(() if before is None else (before,)))
            )
        self._made[key] = made

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

    def _transfer_of(self, turned: TurnedStore, value: Value) -> float:
        """ns of the DMA engines for a transposed result."""
        each = self._moved(turned.elements, turned.run, value.dtype.itemsize)
        return turned.blocks * min(_PARTITIONS_PER_ENGINE, turned.rows) * each

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
            lanes = min(_PARTITIONS_PER_ENGINE, self._geometry.partitions)
            transfer = lanes * self._elements(value) * value.dtype.itemsize / rate
            issue = constants.dma_issue_ns * (1 if lead is None else lead.block)
            if lead is not None and self._geometry.partitions // lead.block % lanes:
                # The partitions of two transfers share an engine, which takes one after the other.
                transfer *= 2
            # The last transfer is triggered after the others.
            done = issue - constants.dma_issue_ns + constants.dma_done_ns
            return Op(_LOADS, issue, done, transfer=transfer)
        transfer = self._transfer(value, strides)
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
        if self._is_strided(instruction):
            taken += taken - constants.vector_issue_cycles * cycle
        if instruction.dst in self._halved:
            (source,) = instruction.reads()
            size, width = self._elements(source), max(1, self._elements(instruction.dst))
            # Tiles of phases are added up as they are.
            cycles = size + constants.vector_issue_cycles
            if not self._geometry.in_phases:
                cycles = narrowing.cycles(size // width, width)
            taken = cycles * cycle
        more = constants.vector_latency_cycles - constants.vector_issue_cycles
        shares = PORT in load and instruction.dst not in self._halved
        return Op(engine, taken, taken + more * cycle, port=shares)

    def _narrowed(self, partial: Value, width: int, after: tuple[int, ...]) -> tuple[int, ...]:
        """What adds up the rows of a wide accumulator, in halves."""
        if partial not in self._halved:
            return after
        (source,) = (v for v in partial.args if isinstance(v, Value))
        last = self._elements(source) // max(1, width)
        for left in narrowing.rows_left(last, width):
            after = (self._chain(VECTOR, (last - left) * width, after),)
            last = left
        return after if last == 1 else (self._chain(VECTOR, 2 * last * width, after),)

    def _transfer(self, value: Value, strides: Strides) -> float:
        """ns of the DMA engines, each of which takes the rows of eight partitions."""
        run = self._geometry.run(self._labels(value), strides)
        each = self._moved(self._elements(value), run, value.dtype.itemsize)
        return min(_PARTITIONS_PER_ENGINE, self._geometry.partitions) * each

    def _moved(self, elements: int, run: int, itemsize: int) -> float:
        """ns of a DMA engine for so many elements of a partition, in runs."""
        full = elements * itemsize / (self._hw.dma_engine_rate / 1e9)
        runs, constants = elements / run, timing(self._hw)
        full += runs * constants.dma_descriptor_extra_ns
        return max(full, runs * constants.dma_descriptor_ns)

    def _is_strided(self, instruction: Instruction) -> bool:
        """Whether a reduction walks in steps, at half the rate."""
        if instruction.call != "tensor_reduce" or instruction.dst in self._halved:
            return False
        labels = [d for d in self._geometry.free_labels if d in instruction.reads()[0].axes]
        return bool(labels) and labels[-1] in instruction.dst.axes


def _turns(
    count: int, depth: int, orders: Sequence[Sequence[int]], *, by_stage: bool
) -> Iterator[tuple[int, int]]:
    """The stages of `count` tiles in the order in which they run, as (stage, tile): in that of
    `orders` in even and in odd steps, or all tiles `by_stage`."""
    if by_stage:
        yield from ((s, tile) for s in range(depth) for tile in range(count))
        return
    for step in range(count + depth - 1):
        yield from ((s, step - s) for s in orders[step % 2] if 0 <= step - s < count)
