"""What a cut of a region takes: the first tiles as `timeline.py` runs them, the rest at their pace.
No Program is traced.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from trnx.nki_kernels.generator import narrowing
from trnx.nki_kernels.generator.across import BANK, Across
from trnx.nki_kernels.generator.engines import (
    TENSOR,
    VECTOR,
    next_table,
    table_loads,
    table_of_call,
)
from trnx.nki_kernels.generator.geometry import RowTiles, Strides
from trnx.nki_kernels.generator.instruction import EACH_TILE, Instruction
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.joined_parts import Joined, joined_totals
from trnx.nki_kernels.generator.list_order import Turn, list_order
from trnx.nki_kernels.generator.partition_groups import groups_of
from trnx.nki_kernels.generator.phase_stages import PhaseStages
from trnx.nki_kernels.generator.tile_ops import PACE, PARTITIONS_PER_ENGINE, TileOps
from trnx.nki_kernels.generator.timeline import Op, times
from trnx.nki_kernels.generator.turned_totals import turned_total
from trnx.simulator.costs.constants import timing

# Tiles of a loop, and blocks of phases, whose ops are run; an even number, because every other tile
# may run its stages backwards.
_MOST_TILES, _MOST_BLOCKS = 6, 2

Stores = Sequence[tuple[Value, Strides]]


class Estimate(TileOps):
    """Estimates for one geometry. `turns` are the ops of each stage of each tile, of all phases of
    the first block."""

    def listed(self) -> list[list[Turn]]:
        """The order of the stages of tiles, by list scheduling: of all phases of a block."""
        return [list_order(self._ops, turns, timing(self._hw)) for turns in self.turns]

    def _warm_up(self, phase: int) -> None:
        """The products before a phase, of a bank's columns each."""
        if phase == len(self._phase_starts):
            self._phase_starts.append(len(self._ops))
            interval = BANK * 1e9 / self._hw.pe_clock
            count = self.warm[phase] if phase < len(self.warm) else 0
            self._warming.update(range(len(self._ops), len(self._ops) + count))
            self._ops += [Op(TENSOR, interval, interval)] * count

    def waits(self) -> list[float]:
        """ns that TensorE is idle before its first work from each phase on, infinite where it has
        none, at the rate that it has then."""
        starts, seen = times(self._ops, timing(self._hw))
        own = [i for i, op in enumerate(self._ops) if op.queue == TENSOR]
        found = []
        for first in self._phase_starts:
            later = [starts[i] for i in own if i >= first]
            ends = [
                seen[i] - self._ops[i].latency + self._ops[i].interval for i in own if i < first
            ]
            found.append(min(later) - max(ends, default=0.0) if later else math.inf)
        return found

    # -- whole rows ------------------------------------------------------------------------------

    def rows(
        self,
        instructions: Sequence[Instruction],
        stages: Sequence[int],
        loads: Mapping[Value, Strides],
        stores: Sequence[tuple[Value, Strides, int]],
        *,
        in_turn: int,
        listed: Sequence[Turn] = (),
    ) -> float:
        """ns of a core's tiles, each of which runs all instructions; `stores` have their stage.
        From stage `in_turn` on all tiles run a stage before any runs the next one; they are few
        where this is the first one. They run in the order that is `listed` where one is."""
        moving = self._geometry.moving
        self._warm_up(0)
        repeated = [any(v.axes & moving for v in i.writes()) for i in instructions]
        self._first_table(instructions)
        for i, again in zip(instructions, repeated, strict=True):
            if not again:
                self._add(i, loads, None)
        depth = 1 + max([*stages, *(stage for *_, stage in stores)], default=0)
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
        self.turns.append({})
        for s, tile in listed or turns:
            before = len(self._ops)
            for i, stage, again in zip(instructions, stages, repeated, strict=True):
                if stage == s and again:
                    self._add(i, loads, tile)
            # It waits for the tile whose rows it writes once more.
            is_last = tile == count - 1 and self._geometry.overlaps
            for value, strides, stage in stores:
                if stage == s and (value.axes & moving or not tile):
                    self._store(value, strides, tile, waits=is_last)
            self.turns[0][s, tile] = range(before, len(self._ops))
            if s >= first - 1:
                ends.setdefault(s, []).append(len(self._ops) - 1)
            later = next_table(instructions, stages, s)
            if s >= in_turn and tile == count - 1 and later is not None:
                self._first_table([later])
        if tiles == count:
            return self._end()
        # With as many tiles behind them in work as in the middle of many.
        ends[first - 1] = ends[first - 1][: count - first + 1]
        apart = 3 if period == 3 else PACE
        return self._end() + (tiles - count) * sum(self._pace(e, apart) for e in ends.values())

    def _rows_again(self) -> int:
        """After how many tiles the rows begin again, 0 where that is never or too seldom to count:
        the last tile of each turn has what is left of them."""
        share = self._geometry.shares[0] if self._geometry.shares else None
        rows = self._geometry.rows if share is None else share.rows
        period = sum(len(r.starts) for r in rows)
        return period if self._geometry.loops and 1 < period <= PACE else 0

    # -- phases ----------------------------------------------------------------------------------

    def across(
        self,
        across: Across,
        staged: Sequence[PhaseStages],
        loads: Mapping[Value, Strides],
        stores: Stores,
        *,
        by_stage: bool = False,
        listed: Sequence[Sequence[Turn]] = (),
    ) -> float:
        """ns of all phases, one after another. All tiles of one, which are few then, run a stage
        before any runs the next one `by_stage`, or in the order that is `listed`."""
        blocks = max(1, self._geometry.tiles // across.steps)
        phases = [one.phase for one in staged]
        columns = [c for p in phases for c in p.combines if across.in_columns(c)]
        self._in_columns = frozenset(c.reads()[0] for c in columns)
        self._steps = across.steps
        self._turned_total = turned_total(across, phases, dict(stores))
        self._joined = joined_totals(across, phases)
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
                if listed:
                    turns = list(listed[phases.index(phase)])
                if not block:
                    self.turns.append({})
                    self._warm_up(phases.index(phase))
                marks.append(self._phase_tiles(across, one, turns, block, loads, strides))
                later = phases[phases.index(phase) + 1 :]
                following = [i for p in later for i in (*p.once, *p.each)]
                self._first_table(following)
                for i in phase.combines:
                    self._combine(i, block)
                for n in phase.stores:
                    result = across.results[n]
                    if not across.varies(result):
                        self._store_total(result, strides[result], (block, None))
            ends.append(len(self._ops) - 1)
        apart = 3 if len(rows) == 3 else PACE
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
            before = len(self._ops)
            for i, stage in zip(phase.each, staged.of_instructions, strict=True):
                if stage == s:
                    self._add(i, loads, tile)
                for part in i.writes():
                    if staged.of_additions.get(part) == s:
                        self._accumulate(i, part, tile)
            for n in phase.stores:
                if staged.of_stores[n] == s and across.varies(across.results[n]):
                    self._store(across.results[n], stores[across.results[n]], tile)
            if not block:
                self.turns[-1][s, at] = range(before, len(self._ops))
            if s == depth - 1:
                ends.append(len(self._ops) - 1)
        return ends[: len(ends) - depth + 1]

    def _accumulate(self, instruction: Instruction, value: Value, tile: tuple[int, int]) -> None:
        """What adds the `value` that an instruction gave to what tiles before gave."""
        key = (("sum", value), tile[0])
        made = self._made[value, tile]
        adds = self._ops[made].queue != TENSOR and value not in self._halved | self._in_columns
        # One tile alone writes the accumulator.
        adds = adds and not (self._steps == 1 and instruction.dst is value)
        if adds and not (instruction.result is value and EACH_TILE in value.axes):
            before = self._made.get(key)
            made = self._chain(
                VECTOR, self._elements(value), (made, *(() if before is None else (before,)))
            )
        self._made[key] = made

    def _combine(self, combine: Instruction, block: int) -> None:
        """What gives the total of all tiles: a chain."""
        partial, lanes = combine.reads()[0], self._geometry.partitions
        width = self._elements(combine.dst)
        # TensorE transposes float32 numbers at half the rate.
        turned = lanes * (2 if partial.dtype is torch.float32 else 1)
        last = self._made.get((("sum", partial), block))
        after: tuple[int, ...] = () if last is None else (last,)
        if self._joined is not None:
            self._join(combine, self._joined, block, after)
            return
        if len(combine.reads()) > 1:
            # Sums of tiles are scaled by the maximum of all.
            most = combine.reads()[1].args[0]
            after += (self._made[("total", most), block],)
            for _ in range(3):
                after = (self._chain(VECTOR, self._geometry.tiles, after),)
        if last is not None and self._ops[last].queue == TENSOR:
            (source,) = (v for v in partial.args if isinstance(v, Value))
            sums = groups_of(
                lanes, width, self._elements(source) // width, is_between=False,
                is_float32=source.dtype is torch.float32, in_two_banks=True,
            )  # fmt: skip
            engine = combine.engine or VECTOR
            for left in range(0, width, sums.chunk):
                size = sums.most * sums.run * min(sums.chunk, width - left)
                after = (self._chain(engine, size, after, table=""),)
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
            after = self._narrowed(partial, width, after)
            after = (self._chain(VECTOR, lanes, (self._chain(TENSOR, turned, after),)),)
        else:
            after = self._narrowed(partial, width, after)
            chunks = -(-width // lanes)
            wide, most = -(-width // chunks), max(1, BANK // lanes)
            groups = [min(most, chunks - first) for first in range(0, chunks, most)]
            columns = []
            for many in groups:
                there = [self._chain(TENSOR, turned, after) for _ in range(many)]
                columns.append(self._chain(VECTOR, many * lanes, there[-1:]))
            for many, column in zip(groups, columns, strict=True):
                size = turned * wide // lanes
                back = [self._chain(TENSOR, size, (column,)) for _ in range(many)]
                after = (self._chain(VECTOR, many * wide, back[-1:]),)
        if self._geometry.leads_reduced and combine is self._turned_total:
            after = (self._chain(VECTOR, lanes, (self._chain(TENSOR, turned, after),)),)
        elif self._geometry.leads_reduced and self._geometry.lead_in_quadrants:
            for _ in range(3):
                after = (self._chain(VECTOR, width, after),)
        elif self._geometry.leads_reduced:
            line = self._chain(VECTOR, lanes, (self._chain(TENSOR, turned, after),))
            after = (self._chain(TENSOR, turned * width // lanes, (line,)),)
            after = (self._chain(VECTOR, width, after),)
        self._made[combine.dst, (block, None)] = after[0]
        self._made[("total", partial), block] = after[0]

    def _store_total(self, value: Value, strides: Strides, tile: Hashable) -> None:
        """The store of what all tiles share."""
        self._store(value, strides, tile)
        if self._turned_total is not None and self._geometry.leads_reduced:
            # Rows lie side by side, and what stays on the partitions.
            rows = max(r.count for r in self._geometry.rows)
            each = self._moved(rows, rows, value.dtype.itemsize)
            transfer = min(PARTITIONS_PER_ENGINE, self._elements(value)) * each
            self._ops[-1] = replace(self._ops[-1], transfer=transfer)

    def _join(
        self, combine: Instruction, joined: Joined, block: int, after: tuple[int, ...]
    ) -> None:
        """What joins the parts of rows in a line: the sums, where `combine` adds them up, with the
        weights of the maxima."""
        lanes, steps = self._geometry.partitions, self._steps
        scaled = self._chain(VECTOR, steps, after)
        if combine is joined.total:
            scaled = self._chain(VECTOR, steps, (scaled,))
        line = self._chain(TENSOR, 2 * lanes, (scaled,))
        after = (line,)
        if combine is joined.total:
            weights = self._made["weights", block]
            after = (self._chain(VECTOR, lanes, (line, weights)),)
        at = self._chain(VECTOR, lanes, after)
        back = self._chain(TENSOR, 2 * lanes, (at,))
        done = self._chain(VECTOR, 1, (back,))
        if combine is joined.most:
            weights = self._chain(VECTOR, lanes, (self._chain(VECTOR, lanes, (at,)),))
            self._made["weights", block] = weights
        self._made[combine.dst, (block, None)] = done
        self._made[("total", combine.reads()[0]), block] = done

    def _total_of_columns(self, combine: Instruction, after: tuple[int, ...]) -> tuple[int, ...]:
        """What adds up the columns that tiles leave, and the partitions where these are reduced."""
        crosses, lanes = self._geometry.crosses, self._geometry.partitions
        if crosses and ("op", "nl.add") in combine.arguments:
            after = (self._chain(TENSOR, 2 * self._steps, after),)
        after = (self._chain(VECTOR, self._steps, after),)
        if not crosses or ("op", "nl.add") in combine.arguments:
            return after
        turned = lanes * (2 if combine.reads()[0].dtype is torch.float32 else 1)
        return (self._chain(VECTOR, lanes, (self._chain(TENSOR, turned, after),)),)

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
