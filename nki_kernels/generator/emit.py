"""From instructions to NKI source: a module with two functions, readable, in NKI's Python subset.

`_tile` computes one tile; the kernel allocates the results, loads what all tiles share, and loops.
Where tiles are cut into stages, each has a function of its own, which hands its tiles to the next.
Tiles are named after the inputs and the operators that made them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from trnx.nki_kernels.generator.emit_calls import TileCalls, indent
from trnx.nki_kernels.generator.engines import (
    next_table,
    parts_of,
    table_loads,
    table_of_call,
)
from trnx.nki_kernels.generator.geometry import Axis
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.narrowing import rows_left
from trnx.nki_kernels.generator.select_instructions import Beside, Instruction, Tile
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.turned_store import TurnedStore, in_blocks, transposed

DTYPES = {
    torch.float32: "nl.float32",
    torch.bfloat16: "nl.bfloat16",
    torch.float16: "nl.float16",
    torch.int32: "nl.int32",
    torch.bool: "nl.uint8",
    torch.int64: "nl.int32",  # two words, in a last dimension
}
_BITS = ".view(nl.int32)"
DECORATOR = "@nki.jit"
_LINE = 92  # before the indentation of the function's body


def emit_calls(name: str, count: int, calls: Sequence[PartCall]) -> list[str]:
    """The lines of a kernel of `count` inputs that calls a function for each part of it."""
    results = sum(len(call.results) for call in calls)
    lines = ["", DECORATOR, f"def {name}({', '.join(f'x{i}' for i in range(count))}):"]
    for call in calls:
        taken = ", ".join(f"x{i}" for i in call.inputs)
        given = ", ".join(f"out{i}" for i in call.results)
        lines += indent([f"{given} = {call.function}({taken})"])
    return [*lines, *indent([f"return {', '.join(f'out{i}' for i in range(results))}"])]


def module_text(summary: str, functions: Sequence[str]) -> str:
    """A module of these functions."""
    head = [
        f'"""{summary}"""',
        "",
        "import nki",
        "import nki.isa as nisa",
        "import nki.language as nl",
    ]
    every = "\n".join(functions)
    constants = [
        f'{name} = float("{name.lower()}")'
        for name in ("INF", "NAN")
        if re.search(rf"\b{name}\b", every)
    ]
    if constants:
        head += ["", *constants]
    return "\n".join([*head, "", *functions]) + "\n"


@dataclass(frozen=True)
class PartCall:
    """The call of a part's function, with the indices of the kernel's inputs and results."""

    function: str
    inputs: Sequence[int]
    results: Sequence[int]


class Emitter:
    """The lines of one region's functions; see the module's docstring."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, str],
        region: TiledRegion,
        decorators: Sequence[str],
        cores: int,
        prefix: str = "",
    ) -> None:
        self.kernel, self.parameters = name, parameters
        self.decorators, self.cores, self.prefix = decorators, cores, prefix
        self.region = region
        self.g = region.geometry
        self.names: dict[Value, str] = {}
        self.declared: set[Value] = set()
        self.looped = frozenset(a.label for a in self.g.loops)
        self.position = {label: i for i, label in enumerate(self._labels())}
        self.shared = self._shared()
        self.full = self.g.partitions
        self.stages = 1 + self._last_stage()

    def _last_stage(self) -> int:
        """The last stage that does anything in every tile."""
        pairs = zip(self.region.instructions, self.region.stages, strict=True)
        computed = [at for instruction, at in pairs if instruction not in self.shared]
        return max([*computed, *self.region.store_stages()], default=0)

    def _labels(self) -> list[int]:
        lead = [] if self.g.lead is None else [self.g.lead]
        return list(dict.fromkeys(a.label for a in (*self.g.free, *lead, *self.g.loops)))

    def _shared(self) -> list[Instruction]:
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

    # -- names and shapes ------------------------------------------------------------------------

    def name(self, value: Value) -> str:
        if value not in self.names:
            stem = self.parameters[value.name] if value.op == "load" else value.name or value.op
            taken = set(self.names.values())
            name, number = f"{stem}_tile", 1
            while name in taken:
                number += 1
                name = f"{stem}{number}_tile"
            self.names[value] = name
        return self.names[value]

    def axes(self, value: Value) -> list[int]:
        return list(self.region.labels(value))

    def count(self, label: int, *, constant: bool = False) -> str:
        if label == self.g.partition:
            return str(self.g.count(label)) if constant else "k"
        return str(self.g.count(label)) if constant else f"n{self.position[label]}"

    def lead_count(self, *, constant: bool) -> str:
        """The number of elements of the lead in a tile."""
        assert self.g.lead is not None
        if constant:
            return str(self.g.lead.block)
        return f"n{self.position[self.g.lead.label]}"

    def shape(self, value: Value, rows: str, *, constant: bool = False) -> str:
        counts = [self.count(label, constant=constant) for label in self.axes(value)] or ["1"]
        words = ["2"] if value.dtype is torch.int64 else []
        return f"({', '.join([rows, *counts, *words])})"

    def written(self, instruction: Instruction) -> str:
        """The tile that an instruction writes, or the word of it."""
        name = self.name(instruction.dst)
        return (
            name
            if instruction.word is None
            else name + self._word(instruction.dst, instruction.word)
        )

    def _word(self, value: Value, word: int) -> str:
        free = max(1, len(self.axes(value)))
        return f"[{':, ' * (free + 1)}{word}]"

    def view(self, tile: Tile, *, constant: bool, on_bits: bool) -> str:
        """The tile, spread over the axes of `like`."""
        name = self.name(tile.value) + (_BITS if on_bits else "")
        if tile.seen_as is not None and not on_bits:
            name += f".view({DTYPES[tile.seen_as]})"
        if tile.word is not None:
            name += self._word(tile.value, tile.word)
        have = self.axes(tile.value)
        want = self.axes(tile.like) if tile.like is not None else have
        if have == want:
            return name
        chain = name
        order = [label for label in want if label in have]
        if order != have:
            places = [0, *(have.index(label) + 1 for label in order)]
            chain += f".permute(({', '.join(map(str, places))}))"
        # A tile without free axes has a single element there, which stands for the last axis.
        present = set(have) if have else {want[-1]}
        for i, label in enumerate(want, 1):
            if label not in present:
                chain += f".expand_dim({i})"
        for i, label in enumerate(want, 1):
            if label not in have:
                chain += f".broadcast({i}, {self.count(label, constant=constant)})"
        return chain

    # -- addresses -------------------------------------------------------------------------------

    def address(
        self,
        strides: Mapping[int, int],
        value: Value,
        rows: str,
        *,
        constant: bool,
        led: bool = True,
        step: int = 1,
        starts: Mapping[int, str] | None = None,
    ) -> str:
        """`pattern=..., offset=...` of the tile's elements in HBM; where not `led`, of those of the
        first element of the lead; with a `step`, of the runs that hold them; at the `starts` of
        some axes alone.
        """
        words = 2 if value.dtype is torch.int64 else 1
        strides = {label: stride * words for label, stride in strides.items()}
        row = strides.get(self.g.partition, 0)
        fold = "k" if not constant else str(self.g.count(self.g.partition))
        in_folds = self.g.folded and row and not self.g.interleaved
        lane = _times(fold, row) if in_folds else str(row)
        pattern = [f"[{lane}, {rows}]"]
        lead = self.g.lead
        if lead is not None and led:
            count = self.lead_count(constant=constant)
            lanes = self._lanes(rows, constant=constant)
            pattern = [f"[{strides.get(lead.label, 0)}, {count}]", f"[{lane}, {lanes}]"]
        starts = starts or {}
        free = zip(
            self.axes(value),
            self._free_pattern(strides, value, rows, constant=constant),
            strict=True,
        )
        pattern += [text for label, text in free if label not in starts]
        if step > 1:
            pattern[-1] = f"[1, {_run(self.count(self.axes(value)[-1], constant=constant), step)}]"
        if words > 1:
            pattern.append("[1, 2]")
        elif len(starts) == len(self.axes(value)):
            pattern.append("[1, 1]")
        offset = self._offset(strides, constant=constant)
        offset += [_times(start, strides[label]) for label, start in starts.items()]
        return _pattern(pattern, offset)

    def _offset(self, strides: Mapping[int, int], *, constant: bool) -> list[str]:
        """The terms of the offset of a tile's first element."""
        row = strides.get(self.g.partition, 0)
        terms = [_times("r", row)] if row and not constant else []
        for axis in self.g.loops:
            if strides.get(axis.label, 0):
                terms.append(_times(f"i{self.position[axis.label]}", strides[axis.label]))
        return terms

    def _lanes(self, rows: str, *, constant: bool) -> str:
        """The partitions of each element of the lead, or all."""
        if self.g.lead is None:
            return rows
        return str(self.full // self.g.lead.block) if constant else "m"

    def _free_pattern(
        self, strides: Mapping[int, int], value: Value, rows: str, *, constant: bool
    ) -> list[str]:
        lanes = self._lanes(rows, constant=constant)
        return [
            f"[{_times(lanes, strides.get(d, 0)) if apart else strides.get(d, 0)}, {count}]"
            for d in self.axes(value)
            for apart in [self.g.interleaved and d == self.g.partition]
            for count in [self.count(d, constant=constant)]
        ]

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
        if instruction.call == "load":
            value = instruction.dst
            where = self.address(self.region.load_strides[value], value, rows, constant=constant)
            source = f"src={self.parameters[value.name]}.ap({where})"
            return [*lines, *self._dma(dst, source)]
        if instruction.dst in self.region.halved:
            return [*lines, *self._halves(instruction, rows, constant=constant)]
        if instruction.beside is None:
            return [*lines, *self._instruction(instruction, dst, constant=constant)]
        return [*lines, *self._in_parts(instruction, instruction.beside, dst, constant=constant)]

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

    def _instruction(
        self, instruction: Instruction, dst: str, *, constant: bool, window: str = ""
    ) -> list[str]:
        """The call of an instruction that writes `dst`: a `window` of all its tiles with free
        axes, which have the same ones then."""
        on_bits = instruction.on_bits
        arguments = [f"dst={dst}{_BITS if on_bits else ''}{window}"]
        for key, argument in instruction.arguments:
            text = argument
            if isinstance(argument, Tile):
                text = self.view(argument, constant=constant, on_bits=on_bits)
                like = argument.value if argument.like is None else argument.like
                text += window if self.axes(like) else ""
            arguments.append(f"{key}={text}")
        if instruction.result is not None:
            arguments.append(f"reduce_res={self.name(instruction.result)}")
        if instruction.engine is not None:
            arguments.append(f"engine=nisa.engine.{instruction.engine}")
        if instruction.call == "tensor_reduce":
            source_tile = instruction.reads()[0]
            arguments[-1] += self._turned(source_tile, instruction.dst)
            arguments.append(f"axis={self._axes_of(source_tile, instruction.dst)}")
        return call(f"nisa.{instruction.call}", arguments)

    def _dma(self, dst: str, source: str) -> list[str]:
        """A copy by DMA, with descriptors made before the run where these are few."""
        mode = ["dge_mode=nisa.dge_mode.none"] if self.region.is_static else []
        return call("nisa.dma_copy", [f"dst={dst}", source, *mode])

    def _load_turned(self, value: Value, rows: str, *, constant: bool) -> list[str]:
        """Load what runs along the partitions in memory: DMA transposes it, for each element of the
        lead."""
        strides, name = self.region.load_strides[value], self.name(value)
        first, *others = self._free_pattern(strides, value, rows, constant=constant)
        # The dimensions of the tile, reversed; of four the middle ones stay (nisa.dma_transpose).
        middle = others[:-1] if len(others) == 2 else []
        outer = [*others[-1:], first, *middle] if others else [first]
        axes = ("(1, 0)", "(2, 1, 0)", "(3, 1, 2, 0)")[len(others)]
        lanes = self._lanes(rows, constant=constant)
        pattern, offset = [*outer, f"[1, {lanes}]"], self._offset(strides, constant=constant)
        lead = self.g.lead
        if lead is not None:
            name += f"[j * {lanes} : (j + 1) * {lanes}]"
            step = strides.get(lead.label, 0)  # 0 where each element has the same tile
            offset += [_times("j", step)] if step else []
        source = f"src={self.parameters[value.name]}.ap({_pattern(pattern, offset)})"
        lines = call("nisa.dma_transpose", [f"dst={name}", source, f"axes={axes}"])
        if lead is None:
            return lines
        return [f"for j in range({self.lead_count(constant=constant)}):", *indent(lines)]

    def _load_runs(self, value: Value, rows: str, *, constant: bool) -> list[str]:
        """Load the runs that hold every so many elements; the tile is a view of these."""
        name, step = self.name(value), self.region.load_step(value)
        *outer, last = [self.count(label, constant=constant) for label in self.axes(value)]
        strides = self.region.load_strides[value]
        where = self.address(strides, value, rows, constant=constant, step=step)
        shape = ", ".join([rows, *outer, _times(last, step)])
        run = f"{':, ' * (len(outer) + 1)}0 : {_run(last, step)}"
        runs = f"{name.removesuffix('_tile')}_runs"
        source = f"src={self.parameters[value.name]}.ap({where})"
        return [
            f"{runs} = nl.ndarray(({shape}), dtype={DTYPES[value.dtype]}, buffer=nl.sbuf)",
            *self._dma(f"{runs}[{run}]", source),
            f"{name} = {runs}[{run} : {step}]",
        ]

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

    def store(
        self,
        index: int,
        *,
        loops: Sequence[Axis] | None = None,
        rows: bool = True,
        on_partitions: Sequence[int] = (),
    ) -> list[str]:
        """The store of a result inside `loops`, by default all, and the loop over the rows; its
        free axes lie `on_partitions`, in this order, where some are given."""
        output = self.region.outputs[index]
        held = self.region.held[output.value]
        inside = self.g.loops if loops is None else loops
        once = [f"i{self.position[a.label]} == 0" for a in inside if a.label not in held.axes]
        whole = self.g.partition in held.axes
        if not whole and rows and self._many_rows():
            once.insert(0, "r == 0")
        led = self.g.lead is not None and self.g.lead.label in held.axes
        lanes = "1" if not whole else "p" if led or self.g.lead is None else "m"
        source = self.name(held) if lanes == "p" else f"{self.name(held)}[0:{lanes}]"
        lines = self._stores(index, source, lanes, led=led)
        if on_partitions:
            lines = self._store_from_partitions(index, on_partitions)
        return [f"if {' and '.join(once)}:", *indent(lines)] if once else lines

    def _stores(self, index: int, source: str, lanes: str, *, led: bool) -> list[str]:
        """The transfers of a result's tile, one for each element of the axes that it is split in
        (`Geometry.split`)."""
        held = self.region.held[self.region.outputs[index].value]
        strides = self.region.output_strides[index]
        if turned := self.region.turned_store(held, strides):
            return self._store_turned(index, turned)
        split = self.g.split(tuple(self.axes(held)), strides) or ()
        if not split or held.dtype is torch.int64:
            where = self.address(strides, held, lanes, constant=False, led=led)
            return self._dma(f"out{index}.ap({where})", f"src={source}")
        whole = [f"0:{lanes}", *(f"0:{self.count(d)}" for d in self.axes(held))]
        starts = {d: f"s{self.position[d]}" for d in split}
        part = [
            *whole[:1],
            *(starts.get(d, x) for d, x in zip(self.axes(held), whole[1:], strict=True)),
        ]
        where = self.address(strides, held, lanes, constant=False, led=led, starts=starts)
        lines = self._dma(f"out{index}.ap({where})", f"src={self.name(held)}[{', '.join(part)}]")
        for label, start in reversed(starts.items()):
            lines = [f"for {start} in range({self.count(label)}):", *indent(lines)]
        return lines

    def _store_turned(self, index: int, turned: TurnedStore) -> list[str]:
        """The transfers of a result that TensorE transposes (`turned_store.py`)."""
        held = self.region.held[self.region.outputs[index].value]
        strides, axes = self.region.output_strides[index], self.axes(held)
        counts = {d: self.count(d) for d in axes}
        free = dict(zip(axes, self._free_pattern(strides, held, "p", constant=False), strict=True))
        step = strides.get(turned.label, 0)
        row = _times("p", step) if turned.label == self.g.partition else str(step)
        pattern = [f"[{row}, wide]", *(free[d] for d in turned.others), "[1, p]"]
        offset = [*self._offset(strides, constant=False), f"first * {row}"]
        made = transposed(
            turned, self.name(held), DTYPES[held.dtype], held.dtype.itemsize, tuple(axes), counts
        )
        where = _pattern(pattern, offset)
        return in_blocks(
            counts[turned.label], [*made, *self._dma(f"out{index}.ap({where})", "src=turned")]
        )

    def _store_from_partitions(self, index: int, labels: Sequence[int]) -> list[str]:
        """The transfer of a result of which each partition has one value."""
        held = self.region.held[self.region.outputs[index].value]
        strides = self.region.output_strides[index]
        pattern = [f"[{strides.get(d, 0)}, {self.count(d)}]" for d in labels]
        where = _pattern([*pattern, "[1, 1]"], self._offset(strides, constant=False))
        return self._dma(f"out{index}.ap({where})", f"src={self.name(held)}")

    def _many_rows(self) -> bool:
        return sum(len(rows.starts) for rows in self.g.rows) > 1

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
        )  # fmt: skip
        shares = [calls.lines(share, arguments) for share in self.g.shares]
        before = [*self._table("", self.region.instructions), *shared]
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


def call(name: str, arguments: list[str]) -> list[str]:
    """A call, one argument a line where one line would be long."""
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _LINE:
        return [line]
    return [f"{name}(", *(f"    {argument}," for argument in arguments), ")"]


def _pattern(pattern: Sequence[str], offset: Sequence[str]) -> str:
    """The arguments of an access pattern."""
    start = f", offset={' + '.join(offset)}" if offset else ""
    return f"pattern=[{', '.join(pattern)}]{start}"


def _run(count: str, step: int) -> str:
    """The length of the run from the first to the last of `count` elements, `step` apart."""
    return f"{_times(count, step)} - {step - 1}"


def _times(factor: str, number: int) -> str:
    return factor if number == 1 else f"{factor} * {number}"
