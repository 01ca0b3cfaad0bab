"""Loads that TensorE transposes: a tensor whose runs are short in a tile, and long with another of
its axes on the partitions.

DMA takes a descriptor for each run. So it loads such a tensor with the outermost of its free axes
on the partitions, in the order of its memory. TensorE transposes that axis and the rows of the
tile, for each element of the others, and ScalarE copies what it gives out of PSUM. DMA's own
transposition needs neighbours in memory on neighbouring partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trnx.nki_kernels.generator.emit_calls import indent
from trnx.nki_kernels.generator.geometry import PARTITIONS, Geometry, Strides
from trnx.nki_kernels.generator.ir import Dims, Value

# Bytes of a partition in a bank of PSUM.
_BANK_BYTES = 2048
# Runs of so many bytes take DMA much longer than their bytes; they must become so much longer.
_SHORT_RUN, _LONGER = 64, 8
# With fewer elements of the axis than this, products and copies are of few elements.
_LEAST = 32
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Of the elements of the other axes.
_NAMES = "abcd"


@dataclass(frozen=True)
class TurnedLoad:
    """`label` is loaded on the partitions, with the `free` axes in the order of the memory, that of
    the tile's rows among them; `run` are the elements that lie side by side then."""

    label: int
    free: Dims
    geometry: Geometry
    run: int

    @property
    def blocks(self) -> int:
        """Loads of a tile."""
        return -(-self.geometry.count(self.label) // PARTITIONS)

    @property
    def others(self) -> Dims:
        """The free axes besides the rows, of each of whose elements there is a product."""
        return tuple(d for d in self.free if d != self.geometry.partition)

    @property
    def products(self) -> int:
        """Products with which TensorE transposes a block."""
        return math.prod(map(self.geometry.count, self.others))

    @property
    def elements(self) -> int:
        """Elements of a partition of a block."""
        return self.products * self.geometry.partitions

    @property
    def wide(self) -> int:
        """Elements of the label in a block."""
        return min(PARTITIONS, self.geometry.count(self.label))

    def in_a_bank(self, itemsize: int) -> int:
        """Products whose results one copy takes out of PSUM, of the innermost axis."""
        return max(1, _BANK_BYTES // (self.wide * itemsize))


def turned_load(
    geometry: Geometry, value: Value, labels: Dims, strides: Strides
) -> TurnedLoad | None:
    """How TensorE transposes a load whose tile has the free axes `labels`; None where DMA loads it
    as it lies."""
    partition = geometry.partition
    plain = geometry.lead is None and not geometry.folded and not geometry.interleaved
    if not plain or value.dtype not in _FLOATS or not strides.get(partition):
        return None
    varying = [d for d in labels if strides.get(d)]
    label = max(varying, key=lambda d: strides[d], default=None)
    before = geometry.run(labels, strides)
    if label is None or len(varying) < len(labels) or geometry.count(label) < _LEAST:
        return None
    if before * value.dtype.itemsize > _SHORT_RUN or geometry.partitions < _LEAST:
        return None
    free = sorted({partition, *labels} - {label}, key=lambda d: -strides[d])
    run = 1
    for d in reversed(free):
        if strides[d] != run:
            break
        run *= geometry.partitions if d == partition else geometry.count(d)
    found = TurnedLoad(label, tuple(free), geometry, run)
    is_longer = run >= _LONGER * before and run * value.dtype.itemsize > _SHORT_RUN
    return found if is_longer and len(found.others) <= len(_NAMES) else None


def transposed(
    load: TurnedLoad, tile: str, kind: str, itemsize: int, labels: Dims, counts: Mapping[int, str]
) -> list[str]:
    """The lines that transpose `loaded`, which has `wide` elements of the label from `first` on,
    into a `tile` whose free axes are `labels`; `counts` are those of all axes, and of its rows."""
    rows = counts[load.geometry.partition]
    at = dict(zip(load.others, _NAMES, strict=False))
    source = ", ".join([":", *(at.get(d, ":") for d in load.free)])
    if not load.others:
        goal = f"{tile}[:, first : first + wide]"
        return [
            f"bank = nl.ndarray(({rows}, wide), dtype={kind}, buffer=nl.psum)",
            f"nisa.nc_transpose(dst=bank, data=loaded[{source}])",
            f"nisa.tensor_copy(dst={goal}, src=bank, engine=nisa.engine.scalar)",
        ]
    *outer, inner = load.others
    many = load.in_a_bank(itemsize)
    where = {**at, load.label: "first : first + wide", inner: "left : left + many"}
    view = f"{tile}[{', '.join([':', *(where[d] for d in labels)])}]"
    if labels.index(load.label) < labels.index(inner):
        view += ".permute((0, 2, 1))"
    body = [
        f"for left in range(0, {counts[inner]}, {many}):",
        f"    many = min({many}, {counts[inner]} - left)",
        f"    bank = nl.ndarray(({rows}, many, wide), dtype={kind}, buffer=nl.psum)",
        "    for i in range(many):",
        f"        {at[inner]} = left + i",
        f"        nisa.nc_transpose(dst=bank[:, i], data=loaded[{source}])",
        f"    nisa.tensor_copy(dst={view}, src=bank, engine=nisa.engine.scalar)",
    ]
    for d in reversed(outer):
        body = [f"for {at[d]} in range({counts[d]}):", *indent(body)]
    return body


def in_blocks(count: str, lines: list[str]) -> list[str]:
    """The loop over the blocks of the label, of which there are `count` elements."""
    head = f"for first in range(0, {count}, {PARTITIONS}):"
    return [head, *indent([f"wide = min({PARTITIONS}, {count} - first)", *lines])]
