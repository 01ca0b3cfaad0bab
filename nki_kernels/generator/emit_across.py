"""The source of a kernel whose reductions run along the partitions: a function for the tile of each
phase (`across.py`), and the kernel, which loops over the tiles of one phase after the other.

A sum of floats is a product with ones on TensorE, which adds up all tiles in PSUM and leaves the
total in every partition. Any other reduction runs in each partition on VectorE, tile by tile; then
TensorE transposes the partial results, VectorE reduces them, and TensorE transposes them back.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

import torch

from trnx.nki_kernels.generator.across import BANK, Across, Phase
from trnx.nki_kernels.generator.emit import DTYPES, Emitter, call
from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.engines import TENSOR, table_of_call
from trnx.nki_kernels.generator.geometry import Axis, RowTiles
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.phase_stages import PhaseStages
from trnx.nki_kernels.generator.select_instructions import EACH_TILE, Instruction, Tile

_IDENTITY = {"add": "0.0", "multiply": "1.0", "maximum": "-INF", "minimum": "INF"}


class AcrossEmitter(Emitter):
    """See the module's docstring."""

    def _shared(self) -> list[Instruction]:
        """Nothing: what all tiles share is computed in the phase that needs it."""
        return []

    @functools.cached_property
    def across(self) -> Across:
        """The region by phases."""
        assert self.region.across is not None
        return self.region.across

    @functools.cached_property
    def phases(self) -> list[Phase]:
        """Its phases, with what the region keeps between them."""
        return self.across.phases(self.region.keeps)

    @functools.cached_property
    def staged(self) -> list[PhaseStages]:
        """The phases, cut into stages."""
        return self.region.staged_phases

    @functools.cached_property
    def once(self) -> list[Value]:
        """What is computed between phases, or combined."""
        computed = [v for p in self.phases for i in p.once for v in i.writes()]
        return computed + [i.dst for p in self.phases for i in p.combines]

    def functions(self) -> list[str]:
        """The functions of the tiles, and the kernel."""
        bodies = [self._phase_bodies(n) for n in range(len(self.phases))]
        arguments = [[self._phase_parameters(body) for body in stages] for stages in bodies]
        lines: list[str] = []
        for n, stages in enumerate(bodies):
            for s, body in enumerate(stages if self.phases[n].each else []):
                lines += ["", f"def {self._phase_name(n, s)}({', '.join(arguments[n][s])}):"]
                lines += [*indent(body), ""]
        lines += ["", *self.decorators]
        lines.append(f"def {self.kernel}({', '.join(self.parameters.values())}):")
        first = [i for phase in self.phases for i in (*phase.once, *phase.each)]
        body = [*self._table("", first), *self._ones(), *self._hoisted()]
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

    # -- the kernel ------------------------------------------------------------------------------

    def _rows_of_phases(self) -> Sequence[RowTiles | None]:
        """The rows that run through all phases together; tiles of a phase run through them where a
        reduced dimension lies along the partitions."""
        return [None] if self.g.crosses else self.g.rows

    def _row_loop(self, rows: RowTiles) -> list[str]:
        starts, lead = rows.starts, self.g.lead
        many = "" if lead is None else f"{self.lead_count(constant=False)} * "
        counts = [f"k = {rows.fold}", f"m = {rows.count}", f"p = {many}{rows.count}"]
        return [f"for r in range({starts.start}, {starts.stop}, {starts.step}):", *indent(counts)]

    @property
    def rows(self) -> str:
        """The partitions of what is computed between phases."""
        return str(self.full) if self.g.crosses else "p"

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
        for i in phase.once:
            if i not in hoisted:
                lines += self.lines(i, rows=rows, constant=False)
        lines += [line for i in phase.combines for line in self._accumulator(i)]
        if phase.kept:
            lines.append(f"kept{n} = []")
        if phase.each:
            lines += self._tiles(n, arguments)
        if phase.combines and not any(map(self.across.in_one_phase, phase.combines)):
            lines += self._next_table(n)
        for i in phase.combines:
            is_one = i.dst in self._in_one(n)
            lines += self._combined_in_one(i) if is_one else self._combined(i)
        for index in phase.stores:
            if not self.across.varies(self.region.held[self.region.outputs[index].value]):
                loops = self.across.loops(reduced=False)
                lines += self.store(index, loops=loops, rows=not self.g.crosses)
        return lines

    def _next_table(self, n: int) -> list[str]:
        """Load the table of the phase after `n` while the partitions are combined."""
        before = [i for phase in self.phases[: n + 1] for i in (*phase.once, *phase.each)]
        used = [table for table in map(table_of_call, before) if table]
        after = [i for phase in self.phases[n + 1 :] for i in (*phase.once, *phase.each)]
        return self._table(used[-1] if used else "", after) if used else []

    def _hoistable(self) -> list[Instruction]:
        """What is computed once for all: it varies over no loop."""
        known: set[Value] = set()
        found: list[Instruction] = []
        moving = self.looped if self.g.crosses else self.looped | {self.g.partition}
        if not self.g.crosses and not self.g.even:
            return found
        for i in self.phases[0].once:
            fixed = not any(v.axes & moving for v in i.writes())
            if fixed and known.issuperset(i.reads()):
                known.update(i.writes())
                found.append(i)
        return found

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
        counted = not is_staged and (counted or any(map(self.across.in_one_phase, phase.combines)))
        moving = self._moving_names(arguments)
        lines = ["at = 0"] if counted else ["turns = []"] if is_staged else []
        for axis in self.across.loops(reduced=True):
            lines += [depth + line for line in self._loop(axis)]
            depth += "    "

        def tile(values: Mapping[str, str]) -> list[str]:
            if is_staged:
                return [f"turns.append(({', '.join(values.get(x, x) for x in moving)}))"]
            return self._call(n, ", ".join(values.get(x, x) for x in arguments[0]), counted)

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
        """In step t stage s computes tile t - s."""
        staged, steps = self.staged[n], self.across.steps
        lines = [f"handed{s} = []" for s in range(staged.depth - 1)]
        lines.append(f"for step in range(0, {steps + staged.depth - 1}):")
        calls = [self._stage_call(n, s, moving, taken) for s, taken in enumerate(arguments)]
        even, odd = ([line for s in order for line in calls[s]] for order in staged.orders())
        if even == odd:
            return [*lines, *indent(even)]
        by_parity = ["if step % 2 == 0:", *indent(even), "else:", *indent(odd)]
        return [*lines, *indent(by_parity)]

    def _stage_call(self, n: int, s: int, moving: list[str], taken: list[str]) -> list[str]:
        """The call of a stage in a step that has a tile for it."""
        steps, last = self.across.steps, self.staged[n].depth - 1
        at = f"step - {s}" if s else "step"
        values = self._counts() | {"at": at, "handed": f"handed{s - 1}[{at}]"}
        used = [x for x in moving if x in taken]
        # All names are bound, so that a tuple of any length is taken apart.
        lines = [f"{', '.join(moving)} = turns[{at}]"] if used else []
        call = f"{self._phase_name(n, s)}({', '.join(values.get(x, x) for x in taken)})"
        if s < last:
            call = f"handed{s}.append({call})"
        elif self.phases[n].kept:
            call = f"kept{n}.append({call})"
        bounds = [f"step >= {s}"] if s else []
        bounds += [f"step < {steps + s}"] if s < last else []
        return [f"if {' and '.join(bounds)}:", *indent([*lines, call])]

    def _call(self, n: int, taken: str, counted: bool) -> list[str]:
        call = f"{self._phase_name(n, 0)}({taken})"
        lines = [f"kept{n}.append({call})" if self.phases[n].kept else call]
        return [*lines, "at = at + 1"] if counted else lines

    def _counts(self) -> dict[str, str]:
        """Names of counts that are the same in all tiles."""
        axes = [*self.g.free, *([] if self.g.lead is None else [self.g.lead])]
        return {f"n{self.position[a.label]}": str(a.size) for a in axes if a.block == a.size}

    # -- the function of a tile ------------------------------------------------------------------

    def _phase_name(self, n: int, s: int) -> str:
        name = f"{self.prefix}_phase{n}" if len(self.phases) > 1 else f"{self.prefix}_tile"
        return f"{name}_stage{s}" if self.staged[n].depth > 1 else name

    def _phase_bodies(self, n: int) -> list[list[str]]:
        """The functions of a phase's stages: each takes what the one before hands on."""
        phase, staged = self.phases[n], self.staged[n]
        self.declared = set()
        scaled = self._name_columns(phase)
        bodies = []
        for s in range(staged.depth):
            lines = self._stage_lines(n, s, scaled)
            given = phase.kept if s == staged.depth - 1 else staged.carried[s]
            if given or s < staged.depth - 1:
                lines.append(f"return {', '.join(map(self.name, given)) or '0'}")
            taken = staged.carried[s - 1] if s else []
            bodies.append([*self._taken(n, taken, lines), *lines])
        return bodies

    def _taken(self, n: int, carried: Sequence[Value], lines: list[str]) -> list[str]:
        """What `lines` read of values between phases, of the stage before and of phases before."""
        text, taken = "\n".join(lines), []
        if not self.g.even:
            once = dict.fromkeys(map(self.name, self.once))
            used = [name for name in once if re.search(rf"\b{name}\b", text)]
            taken += [f"{name} = {name}[0:p]" for name in used]
        if carried:
            taken.append(f"{', '.join(map(self.name, carried))} = handed")
        for source in range(n):
            values = self.phases[source].kept
            names = [self.name(v) for v in values if v in self.phases[n].held]
            if any(re.search(rf"\b{name}\b", text) for name in names):
                taken.append(f"{', '.join(map(self.name, values))} = kept{source}[at]")
        return taken

    def _stage_lines(self, n: int, s: int, scaled: set[Value]) -> list[str]:
        """What stage `s` of a tile of phase `n` computes and stores."""
        phase, staged = self.phases[n], self.staged[n]
        combined = {i.reads()[0] for i in phase.combines}
        lines: list[str] = []
        for i, stage in zip(phase.each, staged.of_instructions, strict=True):
            in_place = i.dst in combined and EACH_TILE not in i.dst.axes
            if stage == s:
                lines += self._partial(i) if in_place else self.lines(i, rows="p", constant=False)
            for part in () if in_place else i.writes():
                if part in combined - scaled and staged.of_additions[part] == s:
                    lines += self._add(self._combine_of(part), self.name(part))
        for index in phase.stores:
            varies = self.across.varies(self.region.held[self.region.outputs[index].value])
            if varies and staged.of_stores[index] == s:
                lines += self.store(index)
        return lines

    def _name_columns(self, phase: Phase) -> set[Value]:
        """What sums in one phase leave of each tile: columns of tiles of their own."""
        found: set[Value] = set()
        for combine in phase.combines:
            if pair := self.across.in_one_phase(combine):
                stem = self._stem(combine)
                columns = {combine.reads()[0]: f"{stem}_sums", pair[0]: f"{stem}_below"}
                for value, name in columns.items():
                    self.names[value] = f"{name}[0:p, at : at + 1]"
                found |= set(columns)
        self.declared |= found
        return found

    def _phase_parameters(self, body: list[str]) -> list[str]:
        """What a function of `body` takes, in a fixed order."""
        combines = [i for phase in self.phases for i in phase.combines]
        once = [*self.once, *(v for i in self._hoistable() for v in i.writes())]
        tiles = list(dict.fromkeys(map(self.name, once)))
        held = [x for n in range(len(self.phases)) for x in (f"kept{n}",)]
        endings = ("acc", "sums", "below")
        sums = [f"{self._stem(i)}_{ending}" for i in combines for ending in endings]
        results = [f"out{i}" for i in range(len(self.region.outputs))]
        axes = [*self.g.free, *([] if self.g.lead is None else [self.g.lead])]
        counts = [f"n{self.position[a.label]}" for a in axes]
        starts = [f"i{self.position[a.label]}" for a in self.g.loops]
        names = [*self.parameters.values(), *tiles, *held, *sums, *self._ones_names(), *results]
        text = "\n".join(body)
        every = dict.fromkeys([*names, "handed", "at", "r", "p", "m", "k", *counts, *starts])
        return [name for name in every if re.search(rf"\b{name}\b", text)]

    # -- reductions ------------------------------------------------------------------------------

    def _stem(self, combine: Instruction) -> str:
        return self.name(combine.dst).removesuffix("_tile")

    def _product(self, labels: Sequence[int]) -> str:
        return " * ".join(self.count(d) for d in labels) or "1"

    def _partial_of(self, combine: Instruction) -> Instruction:
        partial = combine.reads()[0]
        return next(i for p in self.phases for i in p.each if partial in i.writes())

    def _combine_of(self, partial: Value) -> Instruction:
        return next(i for p in self.phases for i in p.combines if i.reads()[0] is partial)

    def _source(self, combine: Instruction) -> Value:
        """What is reduced."""
        return self._partial_of(combine).reads()[0]

    def _by_ones(self, combine: Instruction) -> bool:
        return self._partial_of(combine).engine == TENSOR

    def _is_wide(self, combine: Instruction) -> bool:
        """Whether tiles are added as they are, and their rows after the last one: VectorE walks
        along what lies side by side."""
        partial = self._partial_of(combine)
        return partial.dst in self.region.halved and partial.engine != TENSOR

    def _flat_shape(self, rows: str, groups: str, kept: Sequence[int]) -> str:
        return f"({rows}, {groups}, {self._product(kept)})"

    def _op(self, combine: Instruction) -> str:
        op = dict(combine.arguments)["op"]
        assert isinstance(op, str)
        return op

    def _ones_names(self) -> list[str]:
        return [f"ones_{str(dtype)[6:]}" for dtype in self._ones_dtypes()]

    def _ones_dtypes(self) -> list[torch.dtype]:
        kinds: dict[torch.dtype, None] = {}
        for combine in (i for phase in self.phases for i in phase.combines):
            if self._op(combine) == "nl.add":
                by_ones = self._by_ones(combine)
                kinds[self._source(combine).dtype if by_ones else torch.float32] = None
        return list(kinds)

    def _ones(self) -> list[str]:
        lines = []
        for dtype, name in zip(self._ones_dtypes(), self._ones_names(), strict=True):
            shape = f"({self.full}, {self.full})"
            lines.append(f"{name} = nl.ndarray({shape}, dtype={DTYPES[dtype]}, buffer=nl.sbuf)")
            lines.append(f"nisa.memset(dst={name}, value=1.0)")
        return lines

    def _accumulator(self, combine: Instruction) -> list[str]:
        """What the tiles of a phase add to."""
        stem = self._stem(combine)
        if self.across.in_one_phase(combine):
            shape = f"({self.rows}, {self.across.steps})"
            lowest = torch.finfo(torch.float32).min
            return [
                line
                for name, value in ((f"{stem}_sums", 0.0), (f"{stem}_below", -lowest))
                for line in (
                    f"{name} = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)",
                    f"nisa.memset(dst={name}, value={value!r})",
                )
            ]
        if self._by_ones(combine):
            kept = self._product(self.across.free(self._source(combine))[1])
            run = self._run(combine)
            return [
                f"{stem}_sums = []",
                f"for left in range(0, {kept}, {BANK}):",
                f"    width = min({BANK}, {kept} - left)",
                f"    bank = nl.ndarray(({self.full}, {run} * width), dtype=nl.float32,"
                " buffer=nl.psum)",
                f"    {stem}_sums.append(bank)",
            ]
        shape = self.shape(combine.dst, self.rows)
        if self._is_wide(combine):
            reduced, stays = self.across.free(self._source(combine))
            shape = self._flat_shape(self.rows, str(self.across.size(reduced)), stays)
        return [
            f"{stem}_acc = nl.ndarray({shape}, dtype=nl.float32, buffer=nl.sbuf)",
            f"nisa.memset(dst={stem}_acc, value={_IDENTITY[self._op(combine)[3:]]})",
        ]

    def _run(self, combine: Instruction) -> int:
        """How many groups of kept elements lie side by side in a bank."""
        reduced, kept = self.across.free(self._source(combine))
        return max(1, min(BANK // self.across.size(kept), self.across.size(reduced)))

    def _partial(self, instruction: Instruction) -> list[str]:
        """What a tile adds to its accumulator."""
        combine = self._combine_of(instruction.dst)
        stem, source = self._stem(combine), instruction.reads()[0]
        if self._by_ones(combine):
            return self._products(combine, stem, source)
        data = dict(instruction.arguments)["data"]
        assert isinstance(data, Tile)
        return self._in_place(combine, data)

    def _add(self, combine: Instruction, data: str) -> list[str]:
        """What adds `data` to the accumulator of a tile's partitions."""
        acc = f"{self._stem(combine)}_acc[0:p]"
        arguments = [f"dst={acc}", f"data1={acc}", f"data2={data}", f"op={self._op(combine)}"]
        return call("nisa.tensor_tensor", arguments)

    def _products(self, combine: Instruction, stem: str, source: Value) -> list[str]:
        reduced, kept = self.across.free(source)
        ones = f"ones_{str(source.dtype)[6:]}"
        groups, width, run = self._product(reduced), self._product(kept), self._run(combine)
        name = self.name(source)
        kept_first = bool(kept) and self.axes(source) != reduced + kept
        shape = f"(p, {width}, {groups})" if kept_first else f"(p, {groups}, {width})"
        lines = [f"flat = {name}.reshape({shape})"]
        lines.append(f"for first in range(0, {groups}, {run}):")
        lines.append(f"    many = min({run}, {groups} - first)")
        lines.append(f"    for bank in range(len({stem}_sums)):")
        lines.append(f"        left = bank * {BANK}")
        lines.append(f"        wide = {stem}_sums[bank].shape[1] // {run}")
        if kept_first:
            lines.append(f"        goal = {stem}_sums[bank].reshape(({self.full}, wide, {run}))")
            lines += [
                "        goal = goal[:, :, 0:many]",
                "        moving = flat[:, left : left + wide, first : first + many]",
            ]
        else:
            lines.append(f"        goal = {stem}_sums[bank].reshape(({self.full}, {run}, wide))")
            lines += [
                "        goal = goal[:, 0:many]",
                "        moving = flat[:, first : first + many, left : left + wide]",
            ]
        arguments = ["dst=goal", f"stationary={ones}[0:p]", "moving=moving"]
        product = call("nisa.nc_matmul", [*arguments, "is_stationary_onezero=True"])
        return [*lines, *indent(indent(product))]

    def _in_place(self, combine: Instruction, data: Tile) -> list[str]:
        source = data.value
        reduced, kept = self.across.free(source)
        name = self.view(data, constant=False, on_bits=False)
        if not reduced:
            return self._add(combine, name)
        if self._is_wide(combine):
            groups = self._product(reduced)
            flat = f"{name}.reshape({self._flat_shape('p', groups, kept)})"
            acc = f"{self._stem(combine)}_acc[0:p, 0:{groups}]"
            return call("nisa.tensor_tensor", [f"dst={acc}", f"data1={acc}", f"data2={flat}",
                                               f"op={self._op(combine)}"])  # fmt: skip
        partial = f"{self._stem(combine)}_part"
        (old,) = combine.reads()
        axes = self._axes_of(source, old)
        view = name + self._turned(source, old)
        return [
            f"{partial} = nl.ndarray({self.shape(old, 'p')}, dtype={DTYPES[old.dtype]},"
            " buffer=nl.sbuf)",
            f"nisa.tensor_reduce(dst={partial}, op={self._op(combine)}, data={view}, axis={axes})",
            *self._add(combine, partial),
        ]

    def _combined(self, combine: Instruction) -> list[str]:
        """The total, alike in all partitions where those were reduced."""
        stem, dst = self._stem(combine), combine.dst
        width = self._product(self.axes(dst))
        shape = self.shape(dst, self.rows)
        lines = [
            f"{stem}_tile = nl.ndarray({shape}, dtype={DTYPES[dst.dtype]}, buffer=nl.sbuf)",
            f"total = {stem}_tile.reshape(({self.rows}, {width}))",
        ]
        if self._by_ones(combine):
            return lines + self._out_of_psum(combine, stem)
        lines += self._parts(combine, width)
        if not self.g.crosses:
            return [*lines, "nisa.tensor_copy(dst=total, src=parts)"]
        if self._op(combine) == "nl.add":
            return lines + self._summed(width)
        return lines + self._turned_and_reduced(combine, width)

    def _needs_one(self, n: int) -> bool:
        """Whether one partition has all that is computed after phase `n`."""
        return bool(self._in_one(n))

    def _in_one(self, n: int) -> list[Value]:
        """What is reduced in phase `n` and one partition has: it need not go back to all."""
        after = self.phases[n + 1 :]
        if len(after) != 1 or after[0].each or not self.g.crosses:
            return []
        found = self.phases[n].combines
        # All partitions need the maximum by which sums are scaled.
        scaled_by = [pair[1] for i in found if (pair := self.across.in_one_phase(i))]
        return [
            i.dst
            for i in found
            if not self._by_ones(i) and not self.axes(i.dst) and i.dst not in scaled_by
        ]

    def _combined_in_one(self, combine: Instruction) -> list[str]:
        """The total of one element in the first partition."""
        stem, op = self._stem(combine), self._op(combine)
        lines = self._parts(combine, "1")
        one = f"{stem}_tile = nl.ndarray((1, 1), dtype={DTYPES[combine.dst.dtype]}, buffer=nl.sbuf)"
        if op == "nl.add":
            # The weights are one column; those of a product that all partitions get are as many as
            # there are partitions, and take longer to load than the product.
            return [
                *lines,
                "turned = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.psum)",
                "nisa.nc_matmul(",
                "    dst=turned, stationary=parts, moving=ones_float32[:, 0:1],",
                "    is_moving_onezero=True,",
                ")",
                one,
                f"nisa.tensor_copy(dst={stem}_tile, src=turned)",
            ]
        return [
            *lines,
            f"turned = nl.ndarray((1, {self.full}), dtype=nl.float32, buffer=nl.psum)",
            "nisa.nc_transpose(dst=turned, data=parts)",
            one,
            f"nisa.tensor_reduce(dst={stem}_tile, op={op}, data=turned, axis=(1,))",
        ]

    def _parts(self, combine: Instruction, width: str) -> list[str]:
        """`parts`: what each partition has of a total."""
        if pair := self.across.in_one_phase(combine):
            return self._scaled(combine, pair[1])
        if self._is_wide(combine):
            return self._narrowed(combine, width)
        return [f"parts = {self._stem(combine)}_acc.reshape(({self.rows}, {width}))"]

    def _scaled(self, combine: Instruction, most: Value) -> list[str]:
        """`parts`: the sums of all tiles, each times exp(its maximum - that of all)."""
        stem, rows = self._stem(combine), self.rows
        n = next(n for n, phase in enumerate(self.phases) if combine in phase.combines)
        return [
            f"shift = nl.ndarray(({rows}, 1), dtype=nl.float32, buffer=nl.sbuf)",
            "nisa.tensor_scalar(",
            f"    dst=shift, data={self.name(most)}, op0=nl.multiply, operand0=-1.0,",
            ")",
            f"scales = nl.ndarray(({rows}, {self.across.steps}), dtype=nl.float32, buffer=nl.sbuf)",
            f"nisa.activation(dst=scales, op=nl.exp, data={stem}_below, scale=-1.0, bias=shift)",
            *self._next_table(n),
            f"nisa.tensor_tensor(dst=scales, data1=scales, data2={stem}_sums, op=nl.multiply)",
            f"parts = nl.ndarray(({rows}, 1), dtype=nl.float32, buffer=nl.sbuf)",
            "nisa.tensor_reduce(dst=parts, op=nl.add, data=scales, axis=(1,))",
        ]

    def _narrowed(self, combine: Instruction, width: str) -> list[str]:
        """`parts`: the rows of a wide accumulator added up, the second half of them to the first,
        again and again."""
        acc, op = f"{self._stem(combine)}_acc", self._op(combine)
        left = self.across.size(self.across.free(self._source(combine))[0])
        lines = []
        while left > 1:
            half = left // 2
            first, second = f"{acc}[:, 0:{half}]", f"{acc}[:, {left - half}:{left}]"
            lines += call("nisa.tensor_tensor", [f"dst={first}", f"data1={first}",
                                                 f"data2={second}", f"op={op}"])  # fmt: skip
            left -= half
        return [*lines, f"parts = {acc}[:, 0].reshape(({self.rows}, {width}))"]

    def _out_of_psum(self, combine: Instruction, stem: str) -> list[str]:
        source, run = self._source(combine), self._run(combine)
        reduced, kept = self.across.free(source)
        kept_first = bool(kept) and self.axes(source) != reduced + kept
        full = self.full
        lines = [f"for bank in range(len({stem}_sums)):"]
        lines.append(f"    wide = {stem}_sums[bank].shape[1] // {run}")
        lines.append(f"    goal = total[:, bank * {BANK} : bank * {BANK} + wide]")
        if run == 1:
            return [*lines, f"    nisa.tensor_copy(dst=goal, src={stem}_sums[bank])"]
        if kept_first:
            view = f"{stem}_sums[bank].reshape(({full}, wide, {run}))"
        else:
            view = f"{stem}_sums[bank].reshape(({full}, {run}, wide)).permute((0, 2, 1))"
        return [*lines, f"    nisa.tensor_reduce(dst=goal, op=nl.add, data={view}, axis=(2,))"]

    def _summed(self, width: str) -> list[str]:
        return [
            f"for left in range(0, {width}, {BANK}):",
            f"    wide = min({BANK}, {width} - left)",
            f"    bank = nl.ndarray(({self.full}, wide), dtype=nl.float32, buffer=nl.psum)",
            "    nisa.nc_matmul(",
            "        dst=bank, stationary=ones_float32, moving=parts[:, left : left + wide],",
            "        is_stationary_onezero=True,",
            "    )",
            "    nisa.tensor_copy(dst=total[:, left : left + wide], src=bank)",
        ]

    def _turned_and_reduced(self, combine: Instruction, width: str) -> list[str]:
        full, op = self.full, self._op(combine)
        return [
            f"for left in range(0, {width}, {full}):",
            f"    wide = min({full}, {width} - left)",
            f"    turned = nl.ndarray((wide, {full}), dtype=nl.float32, buffer=nl.psum)",
            "    nisa.nc_transpose(dst=turned, data=parts[:, left : left + wide])",
            f"    line = nl.ndarray((wide, {full}), dtype=nl.float32, buffer=nl.sbuf)",
            "    column = nl.ndarray((wide, 1), dtype=nl.float32, buffer=nl.sbuf)",
            f"    nisa.tensor_reduce(dst=column, op={op}, data=turned, axis=(1,))",
            f"    nisa.tensor_copy(dst=line, src=column.broadcast(1, {full}))",
            f"    back = nl.ndarray(({full}, wide), dtype=nl.float32, buffer=nl.psum)",
            "    nisa.nc_transpose(dst=back, data=line)",
            "    nisa.tensor_copy(dst=total[:, left : left + wide], src=back)",
        ]
