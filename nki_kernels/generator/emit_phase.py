"""The functions of a phase's tiles, one a stage (`phase_stages.py`)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trnx.nki_kernels.generator.across import Phase
from trnx.nki_kernels.generator.emit_totals import TotalEmitter
from trnx.nki_kernels.generator.instruction import EACH_TILE, Instruction
from trnx.nki_kernels.generator.ir import Value


class PhaseEmitter(TotalEmitter):
    """See the module's docstring. `is_again`: of tiles of which phases keep nothing, where they
    keep some of others."""

    is_again = False

    def _phase_name(self, n: int, s: int) -> str:
        name = f"{self.prefix}_phase{n}" if len(self.phases) > 1 else f"{self.prefix}_tile"
        name += "_again" if self.is_again else ""
        return f"{name}_stage{s}" if self.staged[n].depth > 1 else name

    def _phase_bodies(self, n: int) -> list[list[str]]:
        """The functions of a phase's stages: each takes what the one before hands on."""
        phase, staged = self.phases[n], self.staged[n]
        self.declared = set()
        in_columns = self._name_columns(phase)
        bodies = []
        for s in range(staged.depth):
            lines = self._stage_lines(n, s, in_columns)
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

    def _stage_lines(self, n: int, s: int, in_columns: set[Value]) -> list[str]:
        """What stage `s` of a tile of phase `n` computes and stores."""
        phase, staged = self.phases[n], self.staged[n]
        combined = {i.reads()[0] for i in phase.combines}
        lines: list[str] = []
        for i, stage in zip(phase.each, staged.of_instructions, strict=True):
            in_place = i.dst in combined - in_columns and EACH_TILE not in i.dst.axes
            if stage == s:
                lines += self._partial(i) if in_place else self.lines(i, rows="p", constant=False)
            for part in () if in_place else i.writes():
                if part in combined - in_columns and staged.of_additions[part] == s:
                    lines += self._add(self._combine_of(part), self.name(part))
        for index in phase.stores:
            varies = self.across.varies(self.region.held[self.region.outputs[index].value])
            if varies and staged.of_stores[index] == s:
                lines += self.store(index)
        return lines

    def _name_columns(self, phase: Phase) -> set[Value]:
        """What leaves columns of tiles of their own of each tile: reductions to one value a
        partition, and sums in one phase."""
        found: set[Value] = set()
        # A later phase that computes one again, on its way, has a tile of its own for it.
        for combine in (i for other in self.phases for i in other.combines):
            if self.across.in_columns(combine):
                self.names.pop(combine.reads()[0], None)
        for combine in phase.combines:
            stem = self._stem(combine)
            columns: dict[Value, str] = {}
            if self.across.in_columns(combine):
                columns = {combine.reads()[0]: f"{stem}_parts"}
            elif pair := self.across.in_one_phase(combine):
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
        endings = ("acc", "parts", "sums", "below")
        sums = [f"{self._stem(i)}_{ending}" for i in combines for ending in endings]
        results = [f"out{i}" for i in range(len(self.region.outputs))]
        axes = [*self.g.free, *([] if self.g.lead is None else [self.g.lead])]
        counts = [f"n{self.position[a.label]}" for a in axes]
        starts = [f"i{self.position[a.label]}" for a in self.g.loops]
        names = [*self.parameters.values(), *tiles, *held, *sums, *self._ones_names(), *results]
        text = "\n".join(body)
        every = dict.fromkeys([*names, "handed", "at", "r", "p", "m", "k", *counts, *starts])
        return [name for name in every if re.search(rf"\b{name}\b", text)]

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
