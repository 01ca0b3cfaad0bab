"""The body of a generated kernel: loops over the tiles, and the calls that compute them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.geometry import Geometry, RowTiles, Share
from trnx.nki_kernels.generator.list_order import Turn


@dataclass(frozen=True)
class TileCalls:
    """Calls of the functions `names`, one a stage, for all tiles of a geometry. `position` are the
    numbers of axes in the names of their counts (`n0`) and starts (`i0`). Where it `alternates`,
    every other step runs its stages in reverse, so that one table of functions serves the last
    stage of a step and the first one of the next. From stage `in_turn` on all tiles run a stage
    before any runs the next one, and the lines `after` it stand between them; where `turns` are
    given, stages and tiles run in that order.
    """

    g: Geometry
    position: Mapping[int, int]
    names: list[str]
    after: Sequence[list[str]]
    alternates: bool
    in_turn: int
    turns: Sequence[Turn] = ()

    def lines(self, share: Share, arguments: list[list[str]]) -> list[str]:
        """The loops of a core; `arguments` are the names of the parameters of each function."""
        loops, depth = self._loops(share)
        lead = self.g.lead
        fixed = {
            f"n{self.position[a.label]}": str(a.size)
            for a in (*self.g.free, *([] if lead is None else [lead]))
            if a.block == a.size
        }
        rows = [(rows, fixed | self._counts(rows)) for rows in share.rows]
        lines: list[str] = []
        if self.turns:
            return self._in_order(self._tiles(share, rows), arguments)
        if self.in_turn > 1 and self.g.loops:
            lines += self._turns(share, rows, arguments)
        elif self.in_turn:
            lines += self._handed_on(self.in_turn - 1)
            lines += [*loops, *(depth + line for line in self._row_calls(rows, arguments))]
        for stage in range(self.in_turn, len(self.names)):
            lines += self._handed_on(stage)
            lines += ["at = 0", *loops] if stage else loops
            for group, values in rows:
                calls = self._calls_of_stage(stage, group, values, arguments[stage])
                lines += [depth + line for line in calls]
            lines += self.after[stage]
        return lines

    def _tiles(
        self, share: Share, groups: Sequence[tuple[RowTiles, Mapping[str, str]]]
    ) -> list[Mapping[str, str]]:
        """The numbers that names stand for in each tile of a core."""
        ways: list[list[dict[str, str]]] = []
        for axis, turns in zip(self.g.loops, self._ranges(share), strict=True):
            i = self.position[axis.label]
            counts = [min(axis.block, axis.size - start) for start in turns]
            ways.append(
                [{f"i{i}": str(a), f"n{i}": str(n)} for a, n in zip(turns, counts, strict=True)]
            )
        found: list[Mapping[str, str]] = []
        for way in itertools.product(*ways):
            looped = {name: number for values in way for name, number in values.items()}
            for rows, values in groups:
                here = {**values, **looped}
                if (lead := self.g.lead) is not None:
                    here["p"] = str(int(here[f"n{self.position[lead.label]}"]) * rows.count)
                found += [{**here, "r": str(start)} for start in rows.starts]
        return found

    def _in_order(
        self, tiles: Sequence[Mapping[str, str]], arguments: list[list[str]]
    ) -> list[str]:
        """The calls of all stages of all tiles, one by one."""
        lines = [line for stage in range(len(self.names)) for line in self._handed_on(stage)]
        for stage, at in self.turns:
            if stage >= len(self.names) or at >= len(tiles):
                continue
            values = {**tiles[at], f"tiles{stage - 1}": f"tiles{stage - 1}[{at}]"}
            taken = ", ".join(values.get(x, x) for x in arguments[stage])
            call = f"{self.names[stage]}({taken})"
            is_last = stage == len(self.names) - 1
            lines.append(call if is_last else f"tiles{stage}.append({call})")
            lines += self.after[stage] if at == len(tiles) - 1 else []
        return lines

    def _turns(
        self,
        share: Share,
        groups: Sequence[tuple[RowTiles, Mapping[str, str]]],
        arguments: list[list[str]],
    ) -> list[str]:
        """The tiles of all loops: in step t stage s computes tile t - s, of which `turns` tells
        where it lies."""
        loops, depth = self._loops(share)
        numbers = [self.position[axis.label] for axis in self.g.loops]
        names = [*"rpmk", *(f"i{n}" for n in numbers), *(f"n{n}" for n in numbers)]
        fixed = set.intersection(*(set(values) for _, values in groups)) - {*"pmk"}
        taken = {x for stage in arguments[: self.in_turn] for x in stage}
        moving = [x for x in names if x in taken and x not in fixed]
        lines = ["turns = []", *loops]
        for rows, values in groups:
            where = _tuple([values.get(x, x) for x in moving])
            starts = rows.starts
            lines += [
                f"{depth}for r in range({starts.start}, {starts.stop}, {starts.step}):",
                f"{depth}    turns.append({where})",
            ]
        for stage in range(self.in_turn):
            lines += self._handed_on(stage)
        tiles = sum(len(rows.starts) for rows, _ in groups) * self._loop_turns(share)
        constant = {x: groups[0][1][x] for x in fixed}
        lines.append(f"for step in range({tiles + self.in_turn - 1}):")
        calls = [
            self._bounded_call(stage, tiles, moving, constant, arguments[stage])
            for stage in range(self.in_turn)
        ]
        forwards = [line for call in calls for line in call]
        if not self.alternates:
            return [*lines, *indent(forwards)]
        backwards = [line for call in calls[::-1] for line in call]
        by_parity = [f"if step % 2 == {self.in_turn % 2}:", *indent(backwards), "else:"]
        return [*lines, *indent([*by_parity, *indent(forwards)])]

    def _loop_turns(self, share: Share) -> int:
        """How many turns the loops of a core have."""
        return math.prod(map(len, self._ranges(share)))

    def _ranges(self, share: Share) -> list[range]:
        """The turns of the loops of a core."""
        turns = [range(0, axis.size, axis.block) for axis in self.g.loops]
        return turns if share.outer is None else [share.outer, *turns[1:]]

    def _bounded_call(
        self, stage: int, tiles: int, moving: list[str], values: Mapping[str, str], taken: list[str]
    ) -> list[str]:
        """The call of a stage in a step that has a tile for it."""
        at = f"step - {stage}" if stage else "step"
        handed = {f"tiles{stage - 1}": f"tiles{stage - 1}[{at}]"}
        call = f"{self.names[stage]}({', '.join({**values, **handed}.get(x, x) for x in taken)})"
        if stage < len(self.names) - 1:
            call = f"tiles{stage}.append({call})"
        used = any(x in moving for x in taken)
        lines = [f"{_tuple(moving)} = turns[{at}]"] if used else []
        bounds = [f"step >= {stage}"] if stage else []
        bounds += [f"step < {tiles + stage}"] if stage < self.in_turn - 1 else []
        return [f"if {' and '.join(bounds)}:", *indent([*lines, call])]

    def _handed_on(self, stage: int) -> list[str]:
        """The list of what all tiles hand to the stage after `stage`, where there is one."""
        return [f"tiles{stage} = []"] if stage < len(self.names) - 1 else []

    def _calls_of_stage(
        self, stage: int, rows: RowTiles, values: Mapping[str, str], taken: list[str]
    ) -> list[str]:
        """The calls of a stage for all tiles of a group: what the one before gave is in a list."""
        given = {**values, f"tiles{stage - 1}": f"tiles{stage - 1}[at]"}
        call = f"{self.names[stage]}({', '.join(given.get(x, x) for x in taken)})"
        body = [f"tiles{stage}.append({call})" if stage < len(self.names) - 1 else call]
        body += ["at = at + 1"] if stage else []
        starts = rows.starts
        loop = f"for r in range({starts.start}, {starts.stop}, {starts.step}):"
        return [loop, *indent(body)]

    def _loops(self, share: Share) -> tuple[list[str], str]:
        """The loops around the rows of a core, and the indentation of what is inside them."""
        lines: list[str] = []
        depth = ""
        for number, axis in enumerate(self.g.loops):
            i = self.position[axis.label]
            turns = range(0, axis.size, axis.block)
            if number == 0 and share.outer is not None:
                turns = share.outer
            lines.append(f"{depth}for i{i} in range({turns.start}, {turns.stop}, {turns.step}):")
            depth += "    "
            if axis.block > 1:
                left = f"{axis.size} - i{i}"
                exact = axis.size % axis.block == 0
                lines.append(
                    f"{depth}n{i} = {axis.block}"
                    if exact
                    else f"{depth}n{i} = min({axis.block}, {left})"
                )
        return lines, depth

    def _counts(self, rows: RowTiles) -> dict[str, str]:
        """The numbers that names of counts stand for in tiles of these rows."""
        values = {"p": str(rows.count), "m": str(rows.count), "k": str(rows.fold)}
        lead = self.g.lead
        if lead is not None:
            even = lead.size % lead.block == 0
            ragged = f"n{self.position[lead.label]} * {rows.count}"
            values["p"] = str(lead.block * rows.count) if even else ragged
        return values

    def _row_calls(
        self, groups: Sequence[tuple[RowTiles, Mapping[str, str]]], arguments: list[list[str]]
    ) -> list[str]:
        """The tiles, one after another: in step t stage s computes tile t - s."""
        tiles = [_Row(start, rows, values) for rows, values in groups for start in rows.starts]
        depth = self.in_turn
        lines: list[str] = []
        step = 0
        while step < len(tiles) + depth - 1:
            at = [step - s for s in range(depth)]
            found = [tiles[t] if 0 <= t < len(tiles) else None for t in at]
            alike = self._alike(tiles, step)
            period = 2 if self.alternates else 1
            if alike >= 2 * period:
                turns = alike // period
                lines += self._loop(found, turns, period, step, arguments)
                step += turns * period
                continue
            rows = [None if x is None else str(x.start) for x in found]
            lines += self._step(rows, found, step, arguments)
            step += 1
        return lines

    def _alike(self, tiles: Sequence[_Row], step: int) -> int:
        """How many steps from `step` on have all stages in tiles of one group."""
        first = step - self.in_turn + 1
        if first < 0 or step >= len(tiles):
            return 0
        group = tiles[first].rows
        last = next((i for i in range(first, len(tiles)) if tiles[i].rows is not group), len(tiles))
        return max(0, last - step)

    def _loop(
        self,
        found: Sequence[_Row | None],
        turns: int,
        period: int,
        step: int,
        arguments: list[list[str]],
    ) -> list[str]:
        """`turns` times as many steps as there are in a period, in tiles of one group."""
        assert found[0] is not None
        first, apart = found[0].start, found[0].rows.starts.step
        body: list[str] = []
        for i in range(period):
            offsets = [(i - s) * apart for s in range(self.in_turn)]
            rows: list[str | None] = [_moved("r", offset) for offset in offsets]
            body += self._step(rows, found, step + i, arguments)
        end = first + turns * period * apart
        return [f"for r in range({first}, {end}, {period * apart}):", *indent(body)]

    def _step(
        self,
        rows: Sequence[str | None],
        tiles: Sequence[_Row | None],
        step: int,
        arguments: list[list[str]],
    ) -> list[str]:
        """The stages that have a row to start at, first ones first; what one hands on is kept
        apart until the next stage, which still has the tile before, is done.
        """
        lines: list[str] = []
        turned: list[str] = []
        stages = [stage for stage, row in enumerate(rows) if row is not None]
        # Forwards when the pipeline is first full: the fill ends with the first stage's functions.
        backwards = self.alternates and (step - self.in_turn) % 2 == 0
        for stage in reversed(stages) if backwards else stages:
            tile, row = tiles[stage], rows[stage]
            assert tile is not None
            assert row is not None
            taken = ", ".join({**tile.values, "r": row}.get(x, x) for x in arguments[stage])
            call = f"{self.names[stage]}({taken})"
            if stage < self.in_turn - 1:
                busy = stage + 1 in stages
                call = f"{'next' if busy else 'tiles'}{stage} = {call}"
                turned += [f"tiles{stage} = next{stage}"] if busy else []
            elif self.in_turn < len(self.names):
                call = f"tiles{stage}.append({call})"
            lines.append(call)
        return lines + turned


@dataclass(frozen=True)
class _Row:
    """A tile: the row where it starts, the group of tiles like it, the numbers of its counts."""

    start: int
    rows: RowTiles
    values: Mapping[str, str]


def _tuple(names: Sequence[str]) -> str:
    return f"({', '.join(names)}{',' * (len(names) == 1)})"


def _moved(name: str, offset: int) -> str:
    return f"{name} {'-' if offset < 0 else '+'} {abs(offset)}" if offset else name


def indent(lines: list[str]) -> list[str]:
    """`lines` one level deeper."""
    return [f"    {line}" for line in lines]
