"""From instructions to NKI source: a module with two functions, readable, in NKI's Python subset.

`_tile` computes one tile; the kernel allocates the results, loads what all tiles share, and loops.
Where tiles are cut into stages, each has a function of its own, which hands its tiles to the next.
Tiles are named after the inputs and the operators that made them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence

import torch

from trnx.nki_kernels.generator.emit_calls import TileCalls, indent
from trnx.nki_kernels.generator.emit_stores import StoreEmitter
from trnx.nki_kernels.generator.emit_text import DTYPES, call
from trnx.nki_kernels.generator.emit_tiles import BITS
from trnx.nki_kernels.generator.engines import next_table, parts_of, table_loads, table_of_call
from trnx.nki_kernels.generator.instruction import Beside, Instruction, Overlap, Tile
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.narrowing import rows_left
from trnx.nki_kernels.generator.overlaps import selecting
from trnx.nki_kernels.generator.warm_up import warm_up_calls


class Emitter(StoreEmitter):
    """The lines of one region's functions; see the module's docstring."""

    @functools.cached_property
    def stages(self) -> int:
        """The number of stages that do anything in every tile."""
        pairs = zip(self.region.instructions, self.region.stages, strict=True)
        computed = [at for instruction, at in pairs if instruction not in self.shared]
        return 1 + max([*computed, *self.region.store_stages()], default=0)

    @functools.cached_property
    def shared(self) -> list[Instruction]:
        """Instructions whose results are the same in every tile."""
        known: set[Value] = set()
        shared = []
        for instruction in self.region.instructions:
            written = instruction.writes()
            fixed = all(not v.axes & self.g.moving for v in written)
            if fixed and known.issuperset(instruction.reads()):
                known.update(written)
                shared.append(instruction)
        return shared

    def _shared_values(self) -> list[Value]:
        """What shared instructions compute; a select writes its tile twice."""
        return list(dict.fromkeys(v for i in self.shared for v in i.writes()))

    # -- instructions ----------------------------------------------------------------------------

    def lines(self, instruction: Instruction, *, rows: str, constant: bool) -> list[str]:
        """The instruction on tiles of so many partitions; where `constant`, sizes are numbers."""
        lines = [
            f"{self.name(v)} = nl.ndarray({self.shape(v, rows, constant=constant)}, "
            f"dtype={DTYPES[v.dtype]}, buffer=nl.sbuf)"
            for v in instruction.writes()
            if v not in self.declared
        ]
        self.declared.update(instruction.writes())
        dst = self.written(instruction)
        if instruction.call == "load" and self.region.load_step(instruction.dst) > 1:
            return self._load_runs(instruction.dst, rows, constant=constant)
        if instruction.call == "load" and self.region.is_turned(instruction.dst):
            return [*lines, *self._load_turned(instruction.dst, rows, constant=constant)]
        if instruction.call == "load" and (turned := self.region.turned_load(instruction.dst)):
            return [*lines, *self._load_by_tensor(instruction.dst, turned, rows, constant=constant)]
        if instruction.call == "load":
            value = instruction.dst
            where = self.address(self.region.load_strides[value], value, rows, constant=constant)
            source = f"src={self.parameters[value.name]}.ap({where})"
            return [*lines, *self._dma(dst, source, aside=value in self.region.aside)]
        if instruction.dst in self.region.halved:
            return [*lines, *self._halves(instruction, rows, constant=constant)]
        if instruction.overlap is not None:
            return [*lines, *self._once(instruction, instruction.overlap, dst, constant=constant)]
        if instruction.by_row is not None:
            return [*lines, *self._by_row(instruction, instruction.by_row, dst, constant=constant)]
        if instruction.beside is None:
            return [*lines, *self._instruction(instruction, dst, constant=constant)]
        return [*lines, *self._in_parts(instruction, instruction.beside, dst, constant=constant)]

    def _once(
        self, instruction: Instruction, overlap: Overlap, dst: str, *, constant: bool
    ) -> list[str]:
        """The selection of what parts of an axis do not share."""
        axes, label = self.axes(instruction.dst), overlap.label
        counts = [self.count(d, constant=constant) for d in axes]
        start = f"i{self.position[label]}" if label in self.looped else "0"
        at = axes.index(label) if label in axes else None
        return selecting(dst, overlap, start, counts, at)

    def _in_parts(
        self, instruction: Instruction, beside: Beside, dst: str, *, constant: bool
    ) -> list[str]:
        """The calls of two engines, each with a part of the tile. A tile with few elements of the
        axis may leave nothing to the second one."""
        size, cut = str(beside.size), str(beside.size - beside.count)
        even = constant or self.g.is_even(beside.label)
        lines: list[str] = []
        if not even:
            size, cut = self.count(beside.label), "cut"
            lines = [f"cut = {size} - {size} * {beside.count} // {beside.size}"]
        at = 1 + self.axes(instruction.dst).index(beside.label)
        first, second = (
            self._instruction(part, dst, constant=constant, window=f"[{':, ' * at}{window}]")
            for (part, _), window in zip(
                parts_of(instruction), (f"0:{cut}", f"{cut}:{size}"), strict=True
            )
        )
        return [*lines, *first, *(second if even else [f"if cut < {size}:", *indent(second)])]

    def _by_row(
        self, instruction: Instruction, label: int, dst: str, *, constant: bool
    ) -> list[str]:
        """A call for each row of a partition."""
        made = self._instruction(
            instruction, dst, constant=constant, window="[:, row]", column="[:, row : row + 1]"
        )
        return [f"for row in range({self.count(label, constant=constant)}):", *indent(made)]

    def _instruction(
        self,
        instruction: Instruction,
        dst: str,
        *,
        constant: bool,
        window: str = "",
        column: str = "",
    ) -> list[str]:
        """The call of an instruction that writes `dst`: a `window` of all its tiles with free
        axes, which have the same ones then, but for those with one value a row where it is called
        by row: of these a `column`."""
        on_bits = instruction.on_bits
        arguments = [f"dst={dst}{BITS if on_bits else ''}{window}"]
        for key, argument in instruction.arguments:
            text = argument
            if isinstance(argument, Tile):
                text = self.view(argument, constant=constant, on_bits=on_bits)
                like = argument.value if argument.like is None else argument.like
                is_column = self.axes(like) == [instruction.by_row]
                text += column if is_column else window if self.axes(like) else ""
            arguments.append(f"{key}={text}")
        if instruction.result is not None:
            arguments.append(f"reduce_res={self.name(instruction.result)}{column}")
        if instruction.engine is not None:
            arguments.append(f"engine=nisa.engine.{instruction.engine}")
        if instruction.call == "tensor_reduce":
            source_tile = instruction.reads()[0]
            arguments[-1] += self._turned(source_tile, instruction.dst)
            arguments.append(f"axis={self._axes_of(source_tile, instruction.dst)}")
        return call(f"nisa.{instruction.call}", arguments)

    def _halves(self, instruction: Instruction, rows: str, *, constant: bool) -> list[str]:
        """A reduction by halves: the second half of the rows is added to the first, again and
        again, so that VectorE walks along what lies side by side."""
        found = self.region.rows_of(instruction)
        assert found is not None
        (source,) = instruction.reads()
        op = dict(instruction.arguments)["op"]
        outer, count, inner = (
            " * ".join(self.count(d, constant=constant) for d in labels) or "1" for labels in found
        )
        dtype = "nl.float32" if op == "nl.add" else DTYPES[source.dtype]

        def add(dst: str, first: str, second: str) -> list[str]:
            return call("nisa.tensor_tensor", [f"dst={dst}", f"data1={first}", f"data2={second}",
                                               f"op={op}"])  # fmt: skip

        lines = [
            f"flat = {self.name(source)}.reshape(({rows}, {outer}, {count}, {inner}))",
            f"goal = {self.name(instruction.dst)}.reshape(({rows}, {outer}, 1, {inner}))",
        ]
        data, last = "flat", math.prod(map(self.g.count, found[1]))
        for left in rows_left(last, math.prod(map(self.g.count, (*found[0], *found[2])))):
            half = last - left
            first, second = f"{data}[:, :, 0:{half}]", f"{data}[:, :, {left}:{last}]"
            if left == 1:
                return lines + add("goal", first, second)
            if data == "flat":
                shape = f"({rows}, {outer}, {left}, {inner})"
                lines.append(f"part = nl.ndarray({shape}, dtype={dtype}, buffer=nl.sbuf)")
            lines += add(f"part[:, :, 0:{half}]", first, second)
            if data == "flat" and left > half:
                middle = f"[:, :, {half}:{left}]"
                lines.append(f"nisa.tensor_copy(dst=part{middle}, src=flat{middle})")
            data, last = "part", left
        return lines + call("nisa.tensor_reduce", [
            f"dst={self.name(instruction.dst)}.reshape(({rows}, {outer}, {inner}))", f"op={op}",
            f"data={data}[:, :, 0:{last}].permute((0, 1, 3, 2))", "axis=(3,)",
        ])  # fmt: skip

    def _axes_of(self, source: Value, reduced: Value) -> str:
        """The axes of `source`, turned, that `reduced` lacks."""
        rank = len(self.axes(source))
        count = sum(d not in reduced.axes for d in self.axes(source))
        # Without free axes a partition has one element.
        axes = [str(i) for i in range(rank - count + 1, rank + 1)] or ["1"]
        return f"({', '.join(axes)},)" if len(axes) == 1 else f"({', '.join(axes)})"

    def _turned(self, source: Value, reduced: Value) -> str:
        """The permutation of a tile whose reduced axes are not the last ones: NKI wants them so."""
        places = list(enumerate(self.axes(source), 1))
        kept = [i for i, d in places if d in reduced.axes]
        order = [0, *kept, *(i for i, d in places if d not in reduced.axes)]
        if order == sorted(order):
            return ""
        return f".permute(({', '.join(map(str, order))}))"

    # -- the module ------------------------------------------------------------------------------

    def functions(self) -> list[str]:
        """The functions of the tiles, and the one that loops over them: the kernel's body."""
        full = str(self.full)
        shared = [line for i in self.shared for line in self.lines(i, rows=full, constant=True)]
        bodies = [self._body(stage) for stage in range(self.stages)]
        lines: list[str] = []
        arguments = [self._stage_parameters(body) for body in bodies]
        for stage, body in enumerate(bodies):
            name, taken = self._stage_name(stage), ", ".join(arguments[stage])
            lines += ["", f"def {name}({taken}):", *indent(body), ""]
        lines += ["", *self.decorators]
        lines.append(f"def {self.kernel}({', '.join(self.parameters.values())}):")
        names = [self._stage_name(i) for i in range(self.stages)]
        alternates = table_loads(self.region.together) > 0
        after = [self._table_after(stage) for stage in range(self.stages)]
        calls = TileCalls(
            self.g, self.position, names, after, alternates=alternates,
            in_turn=min(self.region.in_turn, self.stages),
            turns=self.region.turns[0] if self.region.turns else (),
        )  # fmt: skip
        shares = [calls.lines(share, arguments) for share in self.g.shares]
        before = [*self._table("", self.region.instructions), *shared]
        before[:0] = warm_up_calls(self.region.warm_up, 0)
        return lines + indent(
            [*self._allocations(), *self._on_cores(before, shares), self._return()]
        )

    def _table(self, loaded: str, instructions: Sequence[Instruction]) -> list[str]:
        """Load the first table of functions that ScalarE needs for these, where another one is
        `loaded`, by an activation that waits for nothing: it takes longer than the engine needs
        for thousands of elements."""
        first = next((i for i in instructions if table_of_call(i)), None)
        # A kernel of many parts would do it for each.
        if first is None or table_of_call(first) == loaded or self.prefix:
            return []
        load = f"nisa.activation(dst=unused, op={dict(first.arguments)['op']}, data=one)"
        if loaded:
            return [load]
        tile = "nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)"
        return [f"one = {tile}", "nisa.memset(dst=one, value=1.0)", f"unused = {tile}", load]

    def _table_after(self, stage: int) -> list[str]:
        """Load the table of the stages after this one, where all tiles have run it."""
        later = next_table(self.region.instructions, self.region.stages, stage)
        return [] if later is None else self._table("another", [later])

    def _on_cores(self, shared: list[str], shares: list[list[str]]) -> list[str]:
        """What every program does, and its share of the tiles; a program without does nothing."""
        if self.cores == 1:
            return shared + shares[0]
        first = "if nl.program_id(0) == 0:"
        if len(shares) == 1:
            return [first, *indent(shared + shares[0])]
        return [*shared, first, *indent(shares[0]), "else:", *indent(shares[1])]

    def _stage_name(self, stage: int) -> str:
        return f"{self.prefix}_stage{stage}" if self.stages > 1 else f"{self.prefix}_tile"

    def _body(self, stage: int) -> list[str]:
        """The function of one stage: what it is handed, its instructions, what it hands on."""
        lines: list[str] = []
        for instruction, at in zip(self.region.instructions, self.region.stages, strict=True):
            if at == stage and instruction not in self.shared:
                lines += self.lines(instruction, rows="p", constant=False)
        for index, at in enumerate(self.region.store_stages()):
            if at == stage:
                lines += self.store(index)
        if stage < self.stages - 1:
            lines.append(f"return {self._carried(stage) or '()'}")
        text = "\n".join(lines)
        handed = self._carried(stage - 1) if stage else ""
        before = [f"{handed} = tiles{stage - 1}"] if handed else []
        for name in map(self.name, self._shared_values()):
            if not self.g.even and re.search(rf"\b{name}\b", text):
                before.append(f"{name} = {name}[0:p]")
        return before + lines

    def _carried(self, boundary: int) -> str:
        """The tiles that a stage hands to the next one."""
        shared = self._shared_values()
        carried = self.region.carried()[boundary]
        return ", ".join(self.name(v) for v in carried if v not in shared)

    def _stage_parameters(self, body: list[str]) -> list[str]:
        """What a function of `body` takes, in a fixed order."""
        tiles = [self.name(v) for v in self._shared_values()]
        handed = [f"tiles{stage}" for stage in range(self.stages - 1)]
        results = [f"out{i}" for i in range(len(self.region.outputs))]
        counts = [f"n{self.position[a.label]}" for a in self.g.free]
        starts = [f"i{self.position[a.label]}" for a in self.g.loops]
        tensors = list(self.parameters.values())
        text = "\n".join(body)
        if self.g.lead is not None:
            counts.append(self.lead_count(constant=False))
        every = [*tensors, *tiles, *handed, *results, "r", "p", "m", "k", *counts, *starts]
        return [name for name in every if re.search(rf"\b{name}\b", text)]

    def _allocations(self) -> list[str]:
        lines = []
        for i, output in enumerate(self.region.outputs):
            words = (2,) if output.spec.dtype is torch.int64 else ()
            shape = (*output.returned_shape, *words) or (1,)
            text = f"({shape[0]},)" if len(shape) == 1 else str(shape)
            dtype = DTYPES[output.spec.dtype]
            lines.append(f"out{i} = nl.ndarray({text}, dtype={dtype}, buffer=nl.shared_hbm)")
        return lines

    def _return(self) -> str:
        return f"return {', '.join(f'out{i}' for i in range(len(self.region.outputs)))}"
