"""The stores of results: as their tiles lie, in several transfers, or transposed by TensorE."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.emit_text import DTYPES, access, times
from trnx.nki_kernels.generator.emit_tiles import TileEmitter
from trnx.nki_kernels.generator.geometry import Axis
from trnx.nki_kernels.generator.turned_store import TurnedStore, in_blocks, transposed


class StoreEmitter(TileEmitter):
    """See the module's docstring."""

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
        row = times("p", step) if turned.label == self.g.partition else str(step)
        pattern = [f"[{row}, wide]", *(free[d] for d in turned.others), "[1, p]"]
        offset = [*self._offset(strides, constant=False), f"first * {row}"]
        made = transposed(
            turned, self.name(held), DTYPES[held.dtype], held.dtype.itemsize, tuple(axes), counts
        )
        where = access(pattern, offset)
        return in_blocks(
            counts[turned.label], [*made, *self._dma(f"out{index}.ap({where})", "src=turned")]
        )

    def _store_from_partitions(self, index: int, labels: Sequence[int]) -> list[str]:
        """The transfer of a result of which each partition has one value, or one for each row."""
        held = self.region.held[self.region.outputs[index].value]
        strides = self.region.output_strides[index]
        pattern = [f"[{strides.get(d, 0)}, {self.count(d)}]" for d in labels]
        rows = f"[{strides.get(self.g.partition, 0)}, m]" if self.g.leads_reduced else "[1, 1]"
        where = access([*pattern, rows], self._offset(strides, constant=False))
        return self._dma(f"out{index}.ap({where})", f"src={self.name(held)}")

    def _many_rows(self) -> bool:
        return sum(len(rows.starts) for rows in self.g.rows) > 1
