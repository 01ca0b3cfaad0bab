"""The totals of a phase's reductions, from what its tiles left in each partition.

Where partitions are reduced, products with ones add them up; TensorE transposes anything else,
VectorE reduces it, and TensorE transposes it back.

TensorE adds the partitions of a product one after another. So groups of them have a product each
where that is possible, side by side in the array, and VectorE adds up the groups: the sum of 128
equal terms is a quarter as far off.
"""

from __future__ import annotations

import functools
import math

from trnx.nki_kernels.generator.across import BANK
from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_reductions import ReductionEmitter
from trnx.nki_kernels.generator.emit_text import DTYPES, call
from trnx.nki_kernels.generator.engines import table_of_call
from trnx.nki_kernels.generator.instruction import Instruction
from trnx.nki_kernels.generator.ir import Value
from trnx.nki_kernels.generator.joined_parts import Joined, joined_lines, joined_totals
from trnx.nki_kernels.generator.narrowing import rows_left
from trnx.nki_kernels.generator.partition_groups import (
    GROUP,
    GROUP_OF,
    products_of_groups,
    sums_of,
)
from trnx.nki_kernels.generator.totals_in_psum import step_of
from trnx.nki_kernels.generator.turned_totals import turned_total


class TotalEmitter(ReductionEmitter):
    """See the module's docstring."""

    @functools.cached_property
    def turned(self) -> Instruction | None:
        """What combines the total that stays on the partitions."""
        return turned_total(self.across, self.phases, dict(self.region.stores))

    @functools.cached_property
    def joined(self) -> Joined | None:
        """Totals of parts that are joined in a line (`joined_parts.py`)."""
        return joined_totals(self.across, self.phases)

    @functools.cached_property
    def _on_partitions(self) -> frozenset[Value]:
        """That total, and what is computed of it: one value a partition, or one for each row."""
        if self.turned is None:
            return frozenset()
        return frozenset([self.turned.dst, *(v for i in self.phases[-1].once for v in i.writes())])

    def axes(self, value: Value) -> list[int]:
        """The free axes of a value's tile."""
        return [] if value in self._on_partitions else super().axes(value)

    def shape(self, value: Value, rows: str, *, constant: bool = False) -> str:
        """The shape of a value's tile."""
        if value in self._on_partitions and self.g.leads_reduced:
            return f"({rows}, m)"
        return super().shape(value, rows, constant=constant)

    def _width_of(self, combine: Instruction) -> str:
        """How many values of a total stay."""
        return self._product(self.region.labels(combine.dst))

    def _combined(self, combine: Instruction) -> list[str]:
        """The total, alike in all partitions where those were reduced."""
        if combine is self.turned:
            return self._combined_on_partitions(combine)
        if self.joined is not None:
            most, total = self.joined
            rows, parts = self._lanes(self.rows, constant=False), self.lead_count(constant=False)
            stems = self._stem(most), self._stem(total)
            readers = [i for i in self.phases[-1].once if total.dst in i.reads()]
            in_psum = all(map(table_of_call, readers))
            lines = joined_lines(*stems, self.across.steps, rows, parts, in_psum=in_psum)
            return lines if combine is total else []
        if self._by_ones(combine):
            return self._total_of_products(combine, self.full)
        if self.g.leads_reduced:
            return self._combined_of_parts(combine)
        width = self._product(self.axes(combine.dst))
        lines = self._total(combine, self.rows)
        if self.across.in_columns(combine):
            lines += self._column_total(combine)
            if not self.g.crosses or self._op(combine) == "nl.add":
                return lines
            return lines + self._turned_and_reduced(combine, width)
        if self._is_wide(combine) and not self.g.crosses:
            return lines + self._narrowed(combine, width, "total")
        lines += self._parts(combine, width)
        if not self.g.crosses:
            return [*lines, "nisa.tensor_copy(dst=total, src=parts)"]
        if self._op(combine) == "nl.add":
            return lines + self._summed(width)
        return lines + self._turned_and_reduced(combine, width)

    def _total(self, combine: Instruction, rows: str) -> list[str]:
        """The tile of a total, also as a row of each partition."""
        stem, dst = self._stem(combine), combine.dst
        shape = f"{self.shape(dst, rows)}, dtype={DTYPES[dst.dtype]}, buffer=nl.sbuf"
        return [
            f"{stem}_tile = nl.ndarray({shape})",
            f"total = {stem}_tile.reshape(({rows}, {self._product(self.axes(dst))}))",
        ]

    def _combined_on_partitions(self, combine: Instruction) -> list[str]:
        """The total, a value that stays on each partition."""
        stem, dst, width = self._stem(combine), combine.dst, self._width_of(combine)
        kind, data, axis = self._kind_of_parts(combine), "turned", 1
        count = "p" if self.g.leads_reduced else str(self.full)
        if self.g.leads_reduced:
            view = f"turned.reshape(({width}, {self.lead_count(constant=False)}, m))"
            data, axis = f"{view}.permute((0, 2, 1))", 2
        shape = self.shape(dst, width) if self.g.leads_reduced else f"({width}, 1)"
        arguments = f"op={self._op(combine)}, data={data}, axis=({axis},)"
        return [
            *self._parts(combine, width),
            f"turned = nl.ndarray(({width}, {count}), dtype={kind}, buffer=nl.psum)",
            "nisa.nc_transpose(dst=turned, data=parts)",
            f"{stem}_tile = nl.ndarray({shape}, dtype={DTYPES[dst.dtype]}, buffer=nl.sbuf)",
            f"nisa.tensor_reduce(dst={stem}_tile, {arguments})",
        ]

    def _needs_one(self, n: int) -> bool:
        """Whether one partition has all that is computed after phase `n`."""
        return bool(self._in_one(n))

    def _in_one(self, n: int) -> list[Value]:
        """What is reduced in phase `n` and one partition has."""
        return [i.dst for i in self.phases[n].combines if i.dst in self.in_one]

    def _combined_in_one(self, combine: Instruction) -> list[str]:
        """The total in the first partition."""
        stem, op = self._stem(combine), self._op(combine)
        if self._by_ones(combine):
            return self._total_of_products(combine, 1)
        if self.across.in_columns(combine):
            return self._columns_in_one(combine)
        lines, kind = self._parts(combine, "1"), self._kind_of_parts(combine)
        one = f"{stem}_tile = nl.ndarray((1, 1), dtype={DTYPES[combine.dst.dtype]}, buffer=nl.sbuf)"
        if op == "nl.add":
            # The weights are one column; those of a product that all partitions get are as many as
            # there are partitions, and take longer to load than the product.
            return [
                *lines,
                *self._added("turned", ("1", "1"), "parts", "ones_float32[:, 0:1]", "moving"),
                one,
                f"nisa.tensor_reduce(dst={stem}_tile, op={op}, data=turned, axis=(1, 2))",
            ]
        return [
            *lines,
            f"turned = nl.ndarray((1, {self.full}), dtype={kind}, buffer=nl.psum)",
            "nisa.nc_transpose(dst=turned, data=parts)",
            one,
            f"nisa.tensor_reduce(dst={stem}_tile, op={op}, data=turned, axis=(1,))",
        ]

    def _columns_in_one(self, combine: Instruction) -> list[str]:
        """The total of the columns that tiles left, in the first partition."""
        stem, op, steps = self._stem(combine), self._op(combine), self.across.steps
        columns = f"{stem}_parts"
        kind = DTYPES[combine.dst.dtype]
        one = f"{stem}_tile = nl.ndarray((1, 1), dtype={kind}, buffer=nl.sbuf)"
        if op == "nl.add":
            return [
                *self._added("every", ("1", steps), "ones_float32[:, 0:1]", columns),
                one,
                f"nisa.tensor_reduce(dst={stem}_tile, op={op}, data=every, axis=(1, 2))",
            ]
        kind = self._kind_of_parts(combine)
        lines = [f"turned = nl.ndarray((1, {self.full}), dtype={kind}, buffer=nl.psum)"]
        parts = columns
        if steps > 1:
            lines.append(f"parts = nl.ndarray(({self.full}, 1), dtype={kind}, buffer=nl.sbuf)")
            lines += self._reduced("parts", op, columns)
            parts = "parts"
        return [
            *lines,
            f"nisa.nc_transpose(dst=turned, data={parts})",
            one,
            f"nisa.tensor_reduce(dst={stem}_tile, op={op}, data=turned, axis=(1,))",
        ]

    def _parts(self, combine: Instruction, width: str) -> list[str]:
        """`parts`: what each partition has of a total."""
        if pair := self.across.in_one_phase(combine):
            return self._scaled(combine, pair[1])
        if self._is_wide(combine):
            return [
                f"parts = nl.ndarray(({self.rows}, {width}), dtype={self._kind_of_parts(combine)},"
                " buffer=nl.sbuf)",
                *self._narrowed(combine, width, "parts"),
            ]
        return [f"parts = {self._stem(combine)}_acc.reshape(({self.rows}, {width}))"]

    def _column_total(self, combine: Instruction) -> list[str]:
        """The total of the columns that tiles left, or `parts` where other partitions have some of
        it and TensorE does not add these up at once."""
        columns, steps = f"{self._stem(combine)}_parts", self.across.steps
        goal, lines = "total", list[str]()
        if self.g.crosses and self._op(combine) == "nl.add":
            return [
                *self._added("every", (self.full, steps), "ones_float32", columns),
                "nisa.tensor_reduce(dst=total, op=nl.add, data=every, axis=(1, 2))",
            ]
        if self.g.crosses:
            kind = self._kind_of_parts(combine)
            lines = [f"parts = nl.ndarray(({self.rows}, 1), dtype={kind}, buffer=nl.sbuf)"]
            goal = "parts"
        return [*lines, *self._reduced(goal, self._op(combine), columns)]

    def _reduced(self, goal: str, op: str, columns: str) -> list[str]:
        """Instructions that reduce the `columns` of tiles to the one of `goal`."""
        if self.across.steps == 1:
            return [f"nisa.tensor_copy(dst={goal}, src={columns})"]
        return [f"nisa.tensor_reduce(dst={goal}, op={op}, data={columns}, axis=(1,))"]

    def _scaled(self, combine: Instruction, most: Value) -> list[str]:
        """`parts`: the sums of all tiles, each times exp(its maximum - that of all): a power of
        VectorE, so that ScalarE has the table of what follows by then. The error of the base is
        that of a weight w times its exponent, less than an ulp of the largest weight."""
        stem, rows = self._stem(combine), self.rows
        scaled = ["dst=scales", f"data={stem}_below", "op0=nl.add"]
        scaled += [f"operand0={self.name(most)}", "op1=nl.power", f"operand1={math.exp(-1)!r}"]
        return [
            f"scales = nl.ndarray(({rows}, {self.across.steps}), dtype=nl.float32, buffer=nl.sbuf)",
            *call("nisa.tensor_scalar", [*scaled, "reverse1=True"]),
            f"nisa.tensor_tensor(dst=scales, data1=scales, data2={stem}_sums, op=nl.multiply)",
            f"parts = nl.ndarray(({rows}, 1), dtype=nl.float32, buffer=nl.sbuf)",
            "nisa.tensor_reduce(dst=parts, op=nl.add, data=scales, axis=(1,))",
        ]

    def _narrowed(self, combine: Instruction, width: str, goal: str) -> list[str]:
        """The rows of a wide accumulator added up into `goal`, of as many partitions and `width`
        elements."""
        acc, op = f"{self._stem(combine)}_acc", self._op(combine)
        reduced, kept = self.across.free(self._source(combine))
        rows = self.across.size(reduced)
        into = f"{goal}.reshape(({self.rows}, 1, {width}))"
        lines, last = [], rows
        for left in rows_left(rows, self.across.size(kept)):
            first, second = f"{acc}[:, 0:{last - left}]", f"{acc}[:, {left}:{last}]"
            dst = into if left == 1 else first
            lines += call("nisa.tensor_tensor", [f"dst={dst}", f"data1={first}",
                                                 f"data2={second}", f"op={op}"])  # fmt: skip
            last = left
        if last == 1:
            return lines
        data = f"{acc}[:, 0:{last}].permute((0, 2, 1))"
        return lines + call(
            "nisa.tensor_reduce", [f"dst={goal}", f"op={op}", f"data={data}", "axis=(2,)"]
        )

    def _total_of_products(self, combine: Instruction, rows: int) -> list[str]:
        """The total of so many partitions, out of PSUM."""
        groups, stem = self._groups_of(combine), self._stem(combine)
        chunk, kept = groups.chunk, self._product(self.across.free(self._source(combine))[1])
        lines = [
            *self._total(combine, str(rows)),
            *groups.lines,
            f"for bank in range(len({stem}_sums)):",
            f"    wide = min({chunk}, {kept} - bank * {chunk})",
            f"    goal = total[:, bank * {chunk} : bank * {chunk} + wide]",
        ]
        bank = f"{stem}_sums[bank]"
        if groups.most == groups.run == 1:
            return lines + indent(self._taken_out(combine, f"{bank}[0:{rows}, 0]"))
        assert not step_of(combine)
        view = sums_of(bank, groups, rows)
        data = f"    data = {view}.permute((0, 2, 1, 3))"
        return [*lines, data, "    nisa.tensor_reduce(dst=goal, op=nl.add, data=data, axis=(2, 3))"]

    def _taken_out(self, combine: Instruction, bank: str) -> list[str]:
        """What takes the totals of a `bank` out of PSUM."""
        engine = [] if combine.engine is None else [f"engine=nisa.engine.{combine.engine}"]
        step = [f"{key}={argument}" for key, argument in step_of(combine)]
        if not step:
            return call("nisa.tensor_copy", ["dst=goal", f"src={bank}", *engine])
        return call("nisa.tensor_scalar", ["dst=goal", f"data={bank}", *step, *engine])

    def _summed(self, width: str) -> list[str]:
        moving = "parts[:, left : left + wide]"
        return [
            f"for left in range(0, {width}, {BANK // self._groups}):",
            f"    wide = min({BANK // self._groups}, {width} - left)",
            *indent(self._added("bank", (self.full, "wide"), "ones_float32", moving)),
            "    goal = total[:, left : left + wide]",
            "    nisa.tensor_reduce(dst=goal, op=nl.add, data=bank, axis=(2,))",
        ]

    @property
    def _groups(self) -> int:
        """How many groups of partitions have a product of their own, at the most."""
        return -(-self.full // GROUP)

    def _added(
        self,
        name: str,
        shape: tuple[object, object],
        stationary: str,
        moving: str,
        onezero: str = "stationary",
    ) -> list[str]:
        """`name[rows, columns, groups]` in PSUM: a product for each group of partitions of
        `stationary` and `moving`, of which `onezero` has the ones."""
        rows, columns = shape
        kind = "dtype=nl.float32, buffer=nl.psum"
        if self._groups == 1 or (isinstance(columns, int) and columns * self._groups > BANK):
            return [
                f"{name} = nl.ndarray(({rows}, {columns}, 1), {kind})",
                "nisa.nc_matmul(",
                f"    dst={name}[:, :, 0], stationary={stationary}, moving={moving},",
                f"    is_{onezero}_onezero=True,",
                ")",
            ]
        groups = f"({self.full} + group - 1) // group"
        goal = f"{name}[:, :, start // group]"
        return [
            f"group = {GROUP_OF}",
            f"{name} = nl.ndarray(({rows}, {columns}, {groups}), {kind})",
            *products_of_groups(goal, stationary, moving, self.full, "group", onezero),
        ]

    def _combined_of_parts(self, combine: Instruction) -> list[str]:
        """The total of rows whose parts lie on several partitions: each of these gets it."""
        op, width = self._op(combine), self._product(self.axes(combine.dst))
        kind = self._kind_of_parts(combine)
        lines, rows = self._total(combine, self.rows), self._lanes(self.rows, constant=False)
        if self.across.in_columns(combine):
            lines.append(f"parts = nl.ndarray((p, 1), dtype={kind}, buffer=nl.sbuf)")
            lines += self._reduced("parts", op, f"{self._stem(combine)}_parts")
        else:
            lines += self._parts(combine, width)
        if each := self.g.lead_in_quadrants:
            return lines + self._moved_together(op, kind, each, width)
        count = self.lead_count(constant=False)
        view = f"turned.reshape(({width}, {count}, {rows})).permute((0, 2, 1))"
        return [
            *lines,
            f"turned = nl.ndarray(({width}, p), dtype={kind}, buffer=nl.psum)",
            "nisa.nc_transpose(dst=turned, data=parts)",
            f"line = nl.ndarray(({width}, {rows}), dtype={kind}, buffer=nl.sbuf)",
            f"nisa.tensor_reduce(dst=line, op={op}, data={view}, axis=(2,))",
            f"back = nl.ndarray((p, {width}), dtype={kind}, buffer=nl.psum)",
            f"nisa.nc_transpose(dst=back, data=line.expand_dim(1).broadcast(1, {count}))",
            "nisa.tensor_copy(dst=total, src=back)",
        ]

    def _moved_together(self, op: str, kind: str, each: int, width: str) -> list[str]:
        """The total of parts that lie on `each` so many partitions: they are copied to the first
        ones, and the total back to all."""
        assert self.g.lead is not None
        starts = range(0, self.g.lead.block * each, each)
        shape = f"({each}, {width}, {len(starts)})"
        return [
            f"moved = nl.ndarray({shape}, dtype={kind}, buffer=nl.sbuf)",
            *(
                f"nisa.tensor_copy(dst=moved[:, :, {at}], src=parts[{start} : {start + each}])"
                for at, start in enumerate(starts)
            ),
            f"nisa.tensor_reduce(dst=total[0:{each}], op={op}, data=moved, axis=(2,))",
            *(
                f"nisa.tensor_copy(dst=total[{start} : {start + each}], src=total[0:{each}])"
                for start in starts[1:]
            ),
        ]

    def _turned_and_reduced(self, combine: Instruction, width: str) -> list[str]:
        full, op, kind = self.full, self._op(combine), self._kind_of_parts(combine)
        kept = self.across.size(self.axes(combine.dst))
        if kept == 1:
            # Every partition gets what all have, so that each finds the extremum.
            return [
                f"turned = nl.ndarray(({full}, {full}), dtype={kind}, buffer=nl.psum)",
                f"nisa.nc_transpose(dst=turned, data=parts.broadcast(1, {full}))",
                f"nisa.tensor_reduce(dst=total, op={op}, data=turned, axis=(1,))",
            ]
        if kept <= full:
            return [
                f"turned = nl.ndarray(({width}, {full}), dtype={kind}, buffer=nl.psum)",
                "nisa.nc_transpose(dst=turned, data=parts)",
                f"column = nl.ndarray(({width}, 1), dtype={kind}, buffer=nl.sbuf)",
                f"nisa.tensor_reduce(dst=column, op={op}, data=turned, axis=(1,))",
                f"back = nl.ndarray(({full}, {width}), dtype={kind}, buffer=nl.psum)",
                f"nisa.nc_transpose(dst=back, data=column.broadcast(1, {full}))",
                "nisa.tensor_copy(dst=total, src=back)",
            ]
        return self._turned_in_chunks(width, op, kind)

    def _turned_in_chunks(self, width: str, op: str, kind: str) -> list[str]:
        """The totals of more columns than there are partitions. TensorE transposes all of them
        before the first ones go back, so that it does not wait for VectorE."""
        full, most = self.full, BANK // self.full
        group = f"for first in range(0, chunks, {most}):"
        many = f"    many = min({most}, chunks - first)"
        # The last chunk may overlap the one before, so that all are equal: TensorE transposes as
        # many as fit in a bank before VectorE reduces them.
        left = f"left = min((first + i) * wide, {width} - wide)"
        return [
            f"chunks = ({width} + {full - 1}) // {full}",
            f"wide = ({width} + chunks - 1) // chunks",
            "columns = []",
            group,
            many,
            f"    turned = nl.ndarray((wide, many, {full}), dtype={kind}, buffer=nl.psum)",
            "    for i in range(many):",
            f"        {left}",
            "        nisa.nc_transpose(dst=turned[:, i], data=parts[:, left : left + wide])",
            f"    column = nl.ndarray((wide, many), dtype={kind}, buffer=nl.sbuf)",
            f"    nisa.tensor_reduce(dst=column, op={op}, data=turned, axis=(2,))",
            "    columns.append(column)",
            group,
            many,
            f"    back = nl.ndarray(({full}, many, wide), dtype={kind}, buffer=nl.psum)",
            "    for i in range(many):",
            f"        line = columns[first // {most}][:, i : i + 1].broadcast(1, {full})",
            "        nisa.nc_transpose(dst=back[:, i], data=line)",
            f"    if (first + many) * wide <= {width}:",
            "        goal = total[:, first * wide : (first + many) * wide]",
            f"        nisa.tensor_copy(dst=goal, src=back.reshape(({full}, many * wide)))",
            "    else:",
            "        for i in range(many):",
            f"            {left}",
            "            nisa.tensor_copy(dst=total[:, left : left + wide], src=back[:, i])",
        ]

    def _kind_of_parts(self, combine: Instruction) -> str:
        """The dtype of what each partition has: an extremum of numbers in half precision is one of
        them, and TensorE transposes those at four times the rate."""
        return DTYPES[combine.reads()[0].dtype]

    def _next_table(self, n: int) -> list[str]:
        """Load the table of the phase after `n` while the partitions are combined."""
        before = [i for phase in self.phases[: n + 1] for i in (*phase.once, *phase.each)]
        used = [table for table in map(table_of_call, before) if table]
        after = [i for phase in self.phases[n + 1 :] for i in (*phase.once, *phase.each)]
        return self._table(used[-1] if used else "", after) if used else []
