"""The tiles of a region in generated source: their names, shapes and views, where their elements
lie in HBM, and their loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_text import DTYPES, access, call, run_length, times
from trnx.nki_kernels.generator.instruction import Instruction, Tile
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.turned_load import TurnedLoad, in_blocks, transposed

BITS = ".view(nl.int32)"


class TileEmitter:
    """The names, shapes and addresses of one region's tiles; see the module's docstring."""

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
        self.full = self.g.partitions

    def _labels(self) -> list[int]:
        lead = [] if self.g.lead is None else [self.g.lead]
        return list(dict.fromkeys(a.label for a in (*self.g.free, *lead, *self.g.loops)))

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
        name = self.name(tile.value) + (BITS if on_bits else "")
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
        lane = times(fold, row) if in_folds else str(row)
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
            pattern[-1] = (
                f"[1, {run_length(self.count(self.axes(value)[-1], constant=constant), step)}]"
            )
        if words > 1:
            pattern.append("[1, 2]")
        elif len(starts) == len(self.axes(value)):
            pattern.append("[1, 1]")
        offset = self._offset(strides, constant=constant)
        offset += [times(start, strides[label]) for label, start in starts.items()]
        return access(pattern, offset)

    def _offset(self, strides: Mapping[int, int], *, constant: bool) -> list[str]:
        """The terms of the offset of a tile's first element."""
        row = strides.get(self.g.partition, 0)
        terms = [times("r", row)] if row and not constant else []
        for axis in self.g.loops:
            if strides.get(axis.label, 0):
                terms.append(times(f"i{self.position[axis.label]}", strides[axis.label]))
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
            f"[{times(lanes, strides.get(d, 0)) if apart else strides.get(d, 0)}, {count}]"
            for d in self.axes(value)
            for apart in [self.g.interleaved and d == self.g.partition]
            for count in [self.count(d, constant=constant)]
        ]

    # -- loads -----------------------------------------------------------------------------------

    def _dma(self, dst: str, source: str, *, aside: bool = False) -> list[str]:
        """A copy by DMA, with descriptors made before the run where these are few; by the queue of
        stores where it is a load `aside`."""
        mode = ["dge_mode=nisa.dge_mode.none"] if self.region.is_static else []
        if aside:
            mode = ["dge_mode=nisa.dge_mode.hwdge", "engine=nisa.engine.scalar"]
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
            offset += [times("j", step)] if step else []
        source = f"src={self.parameters[value.name]}.ap({access(pattern, offset)})"
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
        shape = ", ".join([rows, *outer, times(last, step)])
        run = f"{':, ' * (len(outer) + 1)}0 : {run_length(last, step)}"
        runs = f"{name.removesuffix('_tile')}_runs"
        source = f"src={self.parameters[value.name]}.ap({where})"
        return [
            f"{runs} = nl.ndarray(({shape}), dtype={DTYPES[value.dtype]}, buffer=nl.sbuf)",
            *self._dma(f"{runs}[{run}]", source, aside=value in self.region.aside),
            f"{name} = {runs}[{run} : {step}]",
        ]

    def _load_by_tensor(
        self, value: Value, turned: TurnedLoad, rows: str, *, constant: bool
    ) -> list[str]:
        """Load what TensorE transposes, with another axis on the partitions (`turned_load.py`)."""
        strides, axes, row = self.region.load_strides[value], self.axes(value), self.g.partition
        counts = {d: self.count(d, constant=constant) for d in axes} | {row: rows}
        kind = DTYPES[value.dtype]
        shape = ", ".join(["wide", *(counts[d] for d in turned.free)])
        pattern = [f"[{strides[turned.label]}, wide]"]
        pattern += [f"[{strides[d]}, {counts[d]}]" for d in turned.free]
        offset = self._offset(strides, constant=constant)
        where = access(pattern, [*offset, times("first", strides[turned.label])])
        lines = [
            f"loaded = nl.ndarray(({shape}), dtype={kind}, buffer=nl.sbuf)",
            *self._dma("loaded", f"src={self.parameters[value.name]}.ap({where})",
                       aside=value in self.region.aside),
            *transposed(turned, self.name(value), kind, value.dtype.itemsize, tuple(axes), counts),
        ]  # fmt: skip
        return in_blocks(counts[turned.label], lines)
