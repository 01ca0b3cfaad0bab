"""The source of a kernel whose reductions run along the partitions: a function for the tile of each
phase (`across.py`), and the kernel, which loops over the tiles of one phase after the other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_phase import PhaseEmitter
from trnx.nki_kernels.generator.engines import next_table, table_of_call
from trnx.nki_kernels.generator.geometry import Axis, RowTiles
from trnx.nki_kernels.generator.instruction import Instruction
from trnx.nki_kernels.generator.warm_up import warm_up_calls


class AcrossEmitter(PhaseEmitter):
    """See the module's docstring."""

    def functions(self) -> list[str]:
        """The functions of the tiles, and the kernel."""
        lines = self._tile_functions(0)
        if self.again is not None:
            lines += self.again._tile_functions(1)
        arguments = self._arguments
        lines += ["", *self.decorators]
        lines.append(f"def {self.kernel}({', '.join(self.parameters.values())}):")
        first = [i for phase in self.phases for i in (*phase.once, *phase.each)]
        body = [*warm_up_calls(self.region.warm_up, 0), *self._table("", first)]
        body += [*self._ones(), *self._hoisted()]
        depth = ""
        for axis in self.across.loops(reduced=False):
            body += [depth + line for line in self._loop(axis)]
            depth += "    "
        for rows in self._rows_of_phases():
            inner = depth
            if rows is not None:
                body += [depth + line for line in self._row_loop(rows)]
                inner += "    "
            for n in range(len(self.phases)):
                body += [inner + line for line in self._phase(n, arguments[n])]
        counts = [
            f"{name} = {count}"
            for name, count in self._counts().items()
            if re.search(rf"\b{name}\b", "\n".join(body))
        ]
        # Phases wait for all tiles, so one core has them.
        work = self._on_cores([], [[*counts, *body]])
        return lines + indent([*self._allocations(), *work, self._return()])

    def _tile_functions(self, first: int) -> list[str]:
        """The functions of the tiles of the phases from `first` on."""
        lines: list[str] = []
        for n in range(len(self.phases)):
            bodies = self._phase_bodies(n)
            self._arguments.append([self._phase_parameters(body) for body in bodies])
            for s, body in enumerate(bodies if self.phases[n].each and n >= first else []):
                taken = ", ".join(self._arguments[n][s])
                lines += ["", f"def {self._phase_name(n, s)}({taken}):", *indent(body), ""]
        return lines

    @functools.cached_property
    def _arguments(self) -> list[list[list[str]]]:
        """The parameters of the functions of each phase."""
        return []

    @functools.cached_property
    def again(self) -> AcrossEmitter | None:
        """The functions of tiles of which phases keep nothing, where they keep some of others."""
        if not self.region.kept_tiles:
            return None
        found = AcrossEmitter(
            self.kernel, self.parameters, self.region.without_kept, (), self.cores, self.prefix
        )
        found.names, found.is_again = self.names, True
        return found

    def _kept_or_again(self, n: int, at: str, kept: str, again: str) -> list[str]:
        """The call for tile `at` of phase `n`: that where it reads what phases before `kept`, or
        the one that computes it `again`."""
        if self.again is None or not self.phases[n].held:
            return [kept]
        return [f"if {at} < {self.region.kept_tiles}:", f"    {kept}", "else:", f"    {again}"]

    def _rows_of_phases(self) -> Sequence[RowTiles | None]:
        """The rows that run through all phases together; tiles of a phase run through them where a
        reduced dimension lies along the partitions."""
        return [None] if self.g.crosses else self.g.rows

    def _row_loop(self, rows: RowTiles) -> list[str]:
        starts, lead = rows.starts, self.g.lead
        many = "" if lead is None else f"{self.lead_count(constant=False)} * "
        counts = [f"k = {rows.fold}", f"m = {rows.count}", f"p = {many}{rows.count}"]
        return [f"for r in range({starts.start}, {starts.stop}, {starts.step}):", *indent(counts)]

    def _phase(self, n: int, arguments: list[list[str]]) -> list[str]:
        phase = self.phases[n]
        hoisted = set(self._hoistable())
        self.declared = {v for i in hoisted for v in i.writes()}
        lines: list[str] = []
        rows = self.rows
        if n and self._needs_one(n - 1):
            rows = "1"
            read = dict.fromkeys(v for i in phase.once for v in i.reads())
            made = {v for i in phase.once for v in i.writes()} | set(self._in_one(n - 1))
            lines += [f"{self.name(v)} = {self.name(v)}[0:1]" for v in read if v not in made]
        if self.joined is not None and n == len(self.phases) - 1:
            rows = self._lanes(self.rows, constant=False)
            made = {v for i in phase.once for v in i.writes()} | {i.dst for i in self.joined}
            read = dict.fromkeys(v for i in phase.once for v in i.reads() if v not in made)
            lines += [f"{self.name(v)} = {self.name(v)}[0:{rows}]" for v in read]
        on_partitions: Sequence[int] = ()
        if self.turned is not None and n == len(self.phases) - 1:
            rows, on_partitions = self._width_of(self.turned), self.region.labels(self.turned.dst)
        computed = [i for i in phase.once if i not in hoisted]
        for i in computed:
            lines += self.lines(i, rows=rows, constant=False)
        lines = [*self._counts_of_tile(computed, lines), *lines]
        used = [table for i in phase.once if i not in hoisted and (table := table_of_call(i))]
        lines += self._table(used[-1], phase.each) if used else []
        lines += [line for i in phase.combines for line in self._accumulator(i)]
        if phase.kept:
            lines.append(f"kept{n} = []")
        lines += warm_up_calls(self.region.warm_up, n) if n else []
        if phase.each:
            lines += self._tiles(n, arguments)
        if phase.combines:
            lines += self._next_table(n)
        for i in phase.combines:
            is_one = i.dst in self._in_one(n)
            lines += self._combined_in_one(i) if is_one else self._combined(i)
        for index in phase.stores:
            if not self.across.varies(self.region.held[self.region.outputs[index].value]):
                loops = self.across.loops(reduced=False)
                lines += self.store(
                    index, loops=loops, rows=not self.g.crosses, on_partitions=on_partitions
                )
        return lines

    def _counts_of_tile(self, computed: Sequence[Instruction], lines: list[str]) -> list[str]:
        """The names of counts in what all tiles share, where those of tiles tell them."""
        if not self.g.crosses or not any(self.across.varies(i.dst) for i in computed):
            return []
        rows, lead = max(self.across.rows, key=lambda rows: rows.count), self.g.lead
        values = {"r": rows.starts.start, "m": rows.count, "k": rows.fold}
        if lead is not None and lead.block < lead.size:
            values[self.lead_count(constant=False)] = lead.block
        text = "\n".join(lines)
        return [f"{x} = {n}" for x, n in values.items() if re.search(rf"\b{x}\b", text)]

    def _hoisted(self) -> list[str]:
        self.declared = set()
        return [
            line
            for i in self._hoistable()
            for line in self.lines(i, rows=str(self.full), constant=True)
        ]

    def _loop(self, axis: Axis) -> list[str]:
        i = self.position[axis.label]
        lines = [f"for i{i} in range(0, {axis.size}, {axis.block}):"]
        if axis.block > 1:
            exact = axis.size % axis.block == 0
            count = axis.block if exact else f"min({axis.block}, {axis.size} - i{i})"
            lines.append(f"    n{i} = {count}")
        return lines

    def _tiles(self, n: int, arguments: list[list[str]]) -> list[str]:
        """Calls of the phase's functions for all tiles of a reduction."""
        phase, depth = self.phases[n], ""
        is_staged = len(arguments) > 1
        counted = any(v in p.kept for v in phase.held for p in self.phases)
        columns = (*map(self.across.in_one_phase, phase.combines),
                   *map(self.across.in_columns, phase.combines))  # fmt: skip
        counted = not is_staged and (counted or any(columns))
        others = [] if self.again is None else self.again._arguments[n]
        moving = self._moving_names([*arguments, *others])
        lines = ["at = 0"] if counted else ["turns = []"] if is_staged else []
        for axis in self.across.loops(reduced=True):
            lines += [depth + line for line in self._loop(axis)]
            depth += "    "

        def tile(values: Mapping[str, str]) -> list[str]:
            if is_staged:
                return [f"turns.append(({', '.join(values.get(x, x) for x in moving)}))"]
            return self._call(n, values, counted)

        if not self.g.crosses:
            lines += [depth + line for line in tile(self._counts())]
        for rows in self.across.rows if self.g.crosses else ():
            values = self._counts() | {"k": str(rows.fold), "m": str(rows.count)}
            values["p"] = str(rows.count)
            lead = self.g.lead
            if lead is not None:
                many = self.lead_count(constant=False)
                values["p"] = f"{values.get(many, many)} * {rows.count}"
            starts = rows.starts
            lines.append(f"{depth}for r in range({starts.start}, {starts.stop}, {starts.step}):")
            lines += [depth + line for line in indent(tile(values))]
        return [*lines, *self._staged_calls(n, moving, arguments)] if is_staged else lines

    def _moving_names(self, arguments: list[list[str]]) -> list[str]:
        """The parameters of a phase's functions that differ between its tiles."""
        names = [*"rpmk"] if self.g.crosses else []
        for axis in self.across.loops(reduced=True):
            i = self.position[axis.label]
            names += [f"i{i}", f"n{i}"] if axis.block > 1 else [f"i{i}"]
        return [x for x in names if any(x in taken for taken in arguments)]

    def _staged_calls(self, n: int, moving: list[str], arguments: list[list[str]]) -> list[str]:
        """In step t stage s computes tile t - s, or all tiles run a stage before the next one."""
        staged, steps = self.staged[n], self.across.steps
        lines = [f"handed{s} = []" for s in range(staged.depth - 1)]
        if self.region.turns:
            return [*lines, *self._in_order(n, moving, arguments)]
        if self.region.by_stage:
            for s, taken in enumerate(arguments):
                call = self._stage_call(n, s, moving, taken, at="at")
                lines += [f"for at in range(0, {steps}):", *indent(call)]
                later = next_table(self.phases[n].each, staged.of_instructions, s)
                lines += [] if later is None else self._table("another", [later])
            return lines
        lines.append(f"for step in range(0, {steps + staged.depth - 1}):")
        calls = [self._bounded_call(n, s, moving, taken) for s, taken in enumerate(arguments)]
        even, odd = ([line for s in order for line in calls[s]] for order in staged.orders())
        if even == odd:
            return [*lines, *indent(even)]
        by_parity = ["if step % 2 == 0:", *indent(even), "else:", *indent(odd)]
        return [*lines, *indent(by_parity)]

    def _in_order(self, n: int, moving: list[str], arguments: list[list[str]]) -> list[str]:
        """The calls of a phase's stages in the order that the region says."""
        staged, steps, lines = self.staged[n], self.across.steps, list[str]()
        for s, at in self.region.turns[n]:
            lines += self._stage_call(n, s, moving, arguments[s], at=str(at))
            later = next_table(self.phases[n].each, staged.of_instructions, s)
            lines += [] if later is None or at < steps - 1 else self._table("another", [later])
        return lines

    def _bounded_call(self, n: int, s: int, moving: list[str], taken: list[str]) -> list[str]:
        """The call of a stage in a step that has a tile for it."""
        steps, last = self.across.steps, self.staged[n].depth - 1
        lines = self._stage_call(n, s, moving, taken, at=f"step - {s}" if s else "step")
        bounds = [f"step >= {s}"] if s else []
        bounds += [f"step < {steps + s}"] if s < last else []
        return [f"if {' and '.join(bounds)}:", *indent(lines)]

    def _stage_call(
        self, n: int, s: int, moving: list[str], taken: list[str], *, at: str
    ) -> list[str]:
        """The call of a stage for tile `at`."""
        last = self.staged[n].depth - 1
        values = self._counts() | {"at": at, "handed": f"handed{s - 1}[{at}]"}
        others = [] if self.again is None else self.again._arguments[n][s]
        used = [x for x in moving if x in (*taken, *others)]
        # All names are bound, so that a tuple of any length is taken apart.
        lines = [f"{', '.join(moving)} = turns[{at}]"] if used else []
        call = f"{self._phase_name(n, s)}({', '.join(values.get(x, x) for x in taken)})"
        again = self._again_call(n, s, values)
        if s < last:
            call, again = f"handed{s}.append({call})", f"handed{s}.append({again})"
        elif self.phases[n].kept:
            call = f"kept{n}.append({call})"
            again = f"kept{n}.append({again})"
        return [*lines, *self._kept_or_again(n, at, call, again)]

    def _call(self, n: int, values: Mapping[str, str], counted: bool) -> list[str]:
        taken = ", ".join(values.get(x, x) for x in self._arguments[n][0])
        call, again = f"{self._phase_name(n, 0)}({taken})", self._again_call(n, 0, values)
        if self.phases[n].kept:
            call, again = f"kept{n}.append({call})", f"kept{n}.append({again})"
        lines = self._kept_or_again(n, "at", call, again)
        return [*lines, "at = at + 1"] if counted else lines

    def _again_call(self, n: int, s: int, values: Mapping[str, str]) -> str:
        """The call of a stage for a tile of which phases keep nothing, where there is one."""
        if self.again is None:
            return ""
        taken = ", ".join(values.get(x, x) for x in self.again._arguments[n][s])
        return f"{self.again._phase_name(n, s)}({taken})"

    def _counts(self) -> dict[str, str]:
        """Names of counts that are the same in all tiles."""
        axes = [*self.g.free, *([] if self.g.lead is None else [self.g.lead])]
        return {f"n{self.position[a.label]}": str(a.size) for a in axes if a.block == a.size}
