"""Stores of results that run along the partitions in memory: TensorE transposes their tiles.

DMA takes a descriptor for each run. A tile whose rows are interleaved has runs of one element along
its free axes there, so one of them goes to the partitions, and what was along the partitions to the
free axes: DMA writes runs as long as there are partitions, or longer where a partition has several
rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.geometry import PARTITIONS, Geometry, Strides
from trnx.nki_kernels.generator.ir import Dims

# Bytes of a partition in a bank of PSUM.
_BANK_BYTES = 2048
# With fewer elements of the axis than this, products and copies are of few elements.
_LEAST = 4


@dataclass(frozen=True)
class TurnedStore:
    """`label` goes to the partitions; `others` are the other free axes, the innermost one in memory
    last; `run` are the elements that lie side by side then; `engine` copies out of PSUM."""

    label: int
    others: Dims
    geometry: Geometry
    run: int
    engine: str

    @property
    def blocks(self) -> int:
        """Tiles of the transposed result."""
        return -(-self.geometry.count(self.label) // PARTITIONS)

    @property
    def rows(self) -> int:
        """Partitions of the transposed result."""
        return min(PARTITIONS, self.geometry.count(self.label))

    @property
    def transposes(self) -> int:
        """Products with which TensorE transposes a block."""
        return math.prod(map(self.geometry.count, self.others))

    @property
    def elements(self) -> int:
        """Elements of a partition of a block."""
        return self.transposes * self.geometry.partitions

    @property
    def is_rectangle(self) -> bool:
        """Whether rows of one length are written, so that stores of tiles are seen not to
        overlap."""
        return self.run == self.elements

    def in_a_bank(self, itemsize: int) -> int:
        """Transposes whose results one copy takes out of PSUM, of the innermost axis."""
        return max(1, _BANK_BYTES // (self.geometry.partitions * itemsize))


def turned_store(
    geometry: Geometry, labels: Dims, strides: Strides, engine: str
) -> TurnedStore | None:
    """How a tile with the free axes `labels` is transposed for its store, and copied by `engine`;
    None where it is stored as it lies."""
    partition = geometry.partition
    if not geometry.interleaved or geometry.lead is not None or strides.get(partition) != 1:
        return None
    label = max(labels, key=geometry.count, default=None)
    if label is None or geometry.count(label) < _LEAST:
        return None
    others = sorted((d for d in labels if d != label), key=lambda d: -strides.get(d, 0))
    run = geometry.partitions
    for d in reversed(others):
        if strides.get(d, 0) * (geometry.partitions if d == partition else 1) != run:
            break
        run *= geometry.count(d)
    return TurnedStore(label, tuple(others), geometry, run, engine)


def transposed(
    store: TurnedStore, tile: str, kind: str, itemsize: int, labels: Dims, counts: Mapping[int, str]
) -> list[str]:
    """The lines that make `turned`, of `wide` elements of the label from `first` on in its
    partitions, of a `tile` whose free axes are `labels`."""
    at = {d: f"s{i}" for i, d in enumerate(store.others)}
    at[store.label] = "first : first + wide"
    many, engine = store.in_a_bank(itemsize), f"engine=nisa.engine.{store.engine}"
    source = ", ".join([":", *(at[d] for d in labels)])
    shape = ", ".join(["wide", *(counts[d] for d in store.others), "p"])
    lines = [f"turned = nl.ndarray(({shape}), dtype={kind}, buffer=nl.sbuf)"]
    if not store.others:
        return [
            *lines,
            f"bank = nl.ndarray((wide, p), dtype={kind}, buffer=nl.psum)",
            f"nisa.nc_transpose(dst=bank, data={tile}[{source}])",
            f"nisa.tensor_copy(dst=turned, src=bank, {engine})",
        ]
    *outer, inner = store.others
    goal = ", ".join([":", *(at[d] for d in outer), "left : left + many"])
    body = [
        f"for left in range(0, {counts[inner]}, {many}):",
        f"    many = min({many}, {counts[inner]} - left)",
        f"    bank = nl.ndarray((wide, many, p), dtype={kind}, buffer=nl.psum)",
        "    for i in range(many):",
        f"        {at[inner]} = left + i",
        f"        nisa.nc_transpose(dst=bank[:, i], data={tile}[{source}])",
        f"    nisa.tensor_copy(dst=turned[{goal}], src=bank, {engine})",
    ]
    for d in reversed(outer):
        body = [f"for {at[d]} in range({counts[d]}):", *(f"    {line}" for line in body)]
    return [*lines, *body]


def in_blocks(count: str, lines: Sequence[str]) -> list[str]:
    """The loop over the blocks of the label, of which there are `count` elements."""
    head = f"for first in range(0, {count}, {PARTITIONS}):"
    return [head, f"    wide = min({PARTITIONS}, {count} - first)", *(f"    {x}" for x in lines)]
