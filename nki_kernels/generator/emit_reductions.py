"""What the tiles of a phase leave of its reductions: accumulators, and what a tile adds to them.

TensorE adds up sums of floats in PSUM, by products with ones; VectorE adds up anything else in
SBUF, in each partition.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch

from trnx.nki_kernels.generator.across import Across, Phase
from trnx.nki_kernels.generator.emit import Emitter
from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_text import DTYPES, call
from trnx.nki_kernels.generator.engines import TENSOR
from trnx.nki_kernels.generator.instruction import EACH_TILE, Beside, Instruction, Tile
from trnx.nki_kernels.generator.interleaved import interleaved_products
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.partition_groups import (
    GROUP,
    Groups,
    groups_of,
    products_of_groups,
    sums_of,
)
from trnx.nki_kernels.generator.phase_stages import PhaseStages

# Sums of which each may have two of the eight banks of PSUM and leaves room for transposes.
_MOST_IN_TWO_BANKS = 2
_IDENTITY = {"add": "0.0", "multiply": "1.0", "maximum": "-INF", "minimum": "INF"}


class ReductionEmitter(Emitter):
    """See the module's docstring."""

    @functools.cached_property
    def shared(self) -> list[Instruction]:
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

    @property
    def rows(self) -> str:
        """The partitions of what is computed between phases."""
        return str(self.full) if self.g.crosses else "p"

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
            if self._op(combine) == "nl.add" and self.g.crosses:
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
        if self.across.in_columns(combine):
            kind = DTYPES[combine.reads()[0].dtype]
            shape = f"({self.rows}, {self.across.steps})"
            return [
                f"{stem}_parts = nl.ndarray({shape}, dtype={kind}, buffer=nl.sbuf)",
                f"nisa.memset(dst={stem}_parts, value={_IDENTITY[self._op(combine)[3:]]})",
            ]
        if self._by_ones(combine):
            kept = self._product(self.across.free(self._source(combine))[1])
            groups, rows = self._groups_of(combine), self._rows_of_total(combine)
            return [
                *groups.lines,
                f"{stem}_sums = []",
                f"for left in range(0, {kept}, {groups.chunk}):",
                f"    width = min({groups.chunk}, {kept} - left)",
                f"    bank = nl.ndarray({groups.shape(rows, 'width')}, dtype=nl.float32,"
                " buffer=nl.psum)",
                f"    {stem}_sums.append(bank)",
            ]
        shape, kind = self.shape(combine.reads()[0], self.rows), DTYPES[combine.reads()[0].dtype]
        if self._is_wide(combine):
            reduced, stays = self.across.free(self._source(combine))
            shape = self._flat_shape(self.rows, str(self.across.size(reduced)), stays)
        lines = [f"{stem}_acc = nl.ndarray({shape}, dtype={kind}, buffer=nl.sbuf)"]
        if self._has_one_tile(combine):
            return lines
        return [*lines, f"nisa.memset(dst={stem}_acc, value={_IDENTITY[self._op(combine)[3:]]})"]

    def _has_one_tile(self, combine: Instruction) -> bool:
        """Whether one tile has all that is reduced, and writes the accumulator in place of adding
        to it."""
        partial = self._partial_of(combine)
        in_place = partial.dst is combine.reads()[0] and EACH_TILE not in partial.dst.axes
        return self.across.steps == 1 and in_place and not self._is_wide(combine)

    def _groups_of(self, combine: Instruction) -> Groups:
        """How TensorE adds up the partitions. Where all of these get the total, the ones, a column
        for each, load in the time of half a bank of columns, which a product should have then."""
        source = self._source(combine)
        reduced, kept = self.across.free(source)
        sums = sum(self._by_ones(i) for phase in self.phases for i in phase.combines)
        return groups_of(
            self.full, self.across.size(kept), self.across.size(reduced),
            is_float32=source.dtype is torch.float32, is_between=self.across.is_between(source),
            in_two_banks=combine.dst not in self.in_one and sums <= _MOST_IN_TWO_BANKS,
        )  # fmt: skip

    def _rows_of_total(self, combine: Instruction) -> int:
        """The partitions that a product gives its sums to. Where one has the total it is as many as
        load fast: a product with a single column adds term by term to what PSUM has."""
        return min(GROUP, self.full) if combine.dst in self.in_one else self.full

    def _ones_of(self, combine: Instruction, partitions: str) -> str:
        """The ones of a product in `partitions`, a column for each of those with its sums."""
        ones = f"ones_{str(self._source(combine).dtype)[6:]}"
        return f"{ones}[{partitions}, 0:{self._rows_of_total(combine)}]"

    @functools.cached_property
    def in_one(self) -> frozenset[Value]:
        """What is reduced before a last phase without tiles and one partition has: it need not go
        back to all."""
        if len(self.phases) < 2 or self.phases[-1].each or not self.g.crosses:
            return frozenset()
        found = self.phases[-2].combines
        # All partitions need the maximum by which sums are scaled.
        scaled_by = [pair[1] for i in found if (pair := self.across.in_one_phase(i))]
        return frozenset(
            i.dst
            for i in found
            if i.dst not in scaled_by and self._by_ones(i) == bool(self.region.labels(i.dst))
        )

    def _partial(self, instruction: Instruction) -> list[str]:
        """What a tile adds to its accumulator."""
        combine = self._combine_of(instruction.dst)
        stem, source = self._stem(combine), instruction.reads()[0]
        if self._by_ones(combine):
            return self._products(combine, stem, source)
        data = dict(instruction.arguments)["data"]
        assert isinstance(data, Tile)
        if self._is_wide(combine):
            return self._in_rows(combine, data, instruction.beside)
        return self._in_place(combine, data)

    def _in_rows(self, combine: Instruction, data: Tile, beside: Beside | None) -> list[str]:
        """What adds the rows of a tile to those of a wide accumulator; another engine may have the
        last ones."""
        name = self.view(data, constant=False, on_bits=False)
        flat, acc = self._wide_views(combine, name)

        def add(rows: str, *engine: str) -> list[str]:
            arguments = [f"dst={acc}{rows}", f"data1={acc}{rows}", f"data2={flat}{rows}"]
            return call("nisa.tensor_tensor", [*arguments, f"op={self._op(combine)}", *engine])

        if beside is None:
            return add("")
        count = self.count(beside.label)
        return [
            f"cut = {count} - {count} * {beside.count} // {beside.size}",
            *add("[:, 0:cut]"),
            f"if cut < {count}:",
            *indent(add(f"[:, cut:{count}]", f"engine=nisa.engine.{beside.instruction.engine}")),
        ]

    def _add(self, combine: Instruction, data: str) -> list[str]:
        """What adds `data` to the accumulator of a tile's partitions."""
        acc = f"{self._stem(combine)}_acc[0:p]"
        arguments = [f"dst={acc}", f"data1={acc}", f"data2={data}", f"op={self._op(combine)}"]
        return call("nisa.tensor_tensor", arguments)

    def _products(self, combine: Instruction, stem: str, source: Value) -> list[str]:
        reduced, kept = self.across.free(source)
        count, width = self._product(reduced), self._product(kept)
        groups, rows = self._groups_of(combine), self._rows_of_total(combine)
        name, run, side = self.name(source), groups.run, groups.side
        lines = list(groups.lines)
        if self.across.is_between(source):
            counts = [self._product(labels) for labels in self.across.groups(source)]
            product = self._product_of(combine, kept_first=False)
            bank = f"{stem}_sums[0][:, :, 0 : {width} * {side}]"
            return lines + interleaved_products(name, bank, rows, side, run, counts, product)
        kept_first = bool(kept) and self.axes(source) != reduced + kept
        shape = f"(p, {width}, {count})" if kept_first else f"(p, {count}, {width})"
        lines.append(f"flat = {name}.reshape({shape})")
        lines.append(f"for first in range(0, {count}, {run}):")
        lines.append(f"    many = min({run}, {count} - first)")
        lines.append(f"    for bank in range(len({stem}_sums)):")
        lines.append(f"        left = bank * {groups.chunk}")
        lines.append(f"        wide = min({groups.chunk}, {width} - left)")
        # What VectorE adds up lies side by side.
        view = sums_of(f"{stem}_sums[bank]", groups, rows)
        if kept_first:
            moving = "flat[:, left : left + wide, first : first + many]"
        else:
            view += ".permute((0, 1, 3, 2))"
            moving = "flat[:, first : first + many, left : left + wide]"
        lines += [f"        goal = {view}", f"        moving = {moving}"]
        return [*lines, *indent(indent(self._product_of(combine, kept_first=kept_first)))]

    def _wide_views(self, combine: Instruction, tile: str) -> tuple[str, str]:
        """A tile and its part of a wide accumulator, whose rows lie outside of all that stays."""
        source, acc = self._source(combine), f"{self._stem(combine)}_acc"
        reduced, kept = self.across.free(source)
        groups = self._product(reduced)
        outer = list(itertools.takewhile(lambda d: d in kept, self.axes(source)))
        if not outer:
            flat = f"{tile}.reshape({self._flat_shape('p', groups, kept)})"
            return flat, f"{acc}[0:p, 0:{groups}]"
        outside, inside = self._product(outer), self._product(kept[len(outer) :])
        flat = f"{tile}.reshape((p, {outside}, {groups}, {inside})).permute((0, 2, 1, 3))"
        shape = f"({self.rows}, {self.across.size(reduced)}, {outside}, {inside})"
        return flat, f"{acc}.reshape({shape})[0:p, 0:{groups}]"

    def _product_of(self, combine: Instruction, *, kept_first: bool) -> list[str]:
        """The product of `moving` with ones, or one for each group of its partitions."""
        groups = self._groups_of(combine)
        bank, place = "0", "0"
        if groups.most > 1:
            bank, place = "start // group // beside", f"start // group % beside * {groups.run}"
        columns = f"{place} : {place} + many"
        goal = f"goal[:, {bank}, :, {columns}]" if kept_first else f"goal[:, {bank}, {columns}]"
        if groups.most > 1:
            return products_of_groups(goal, self._ones_of(combine, ":"), "moving", "p", "group")
        stationary = self._ones_of(combine, "0:p")
        operands = [f"stationary={stationary}", "moving=moving", "is_stationary_onezero=True"]
        return call("nisa.nc_matmul", [f"dst={goal}", *operands])

    def _in_place(self, combine: Instruction, data: Tile) -> list[str]:
        source = data.value
        reduced, _ = self.across.free(source)
        name = self.view(data, constant=False, on_bits=False)
        is_single = self._has_one_tile(combine)
        goal = f"{self._stem(combine)}_acc[0:p]"
        if not reduced:
            copy = [f"nisa.tensor_copy(dst={goal}, src={name})"]
            return copy if is_single else self._add(combine, name)
        partial = f"{self._stem(combine)}_part"
        (old,) = combine.reads()
        axes = self._axes_of(source, old)
        view = name + self._turned(source, old)
        arguments = f"op={self._op(combine)}, data={view}, axis={axes}"
        if is_single:
            return [f"nisa.tensor_reduce(dst={goal}, {arguments})"]
        return [
            f"{partial} = nl.ndarray({self.shape(old, 'p')}, dtype={DTYPES[old.dtype]},"
            " buffer=nl.sbuf)",
            f"nisa.tensor_reduce(dst={partial}, {arguments})",
            *self._add(combine, partial),
        ]
