"""Cuts for tensors that lie in several orders: DMA has runs of a useful length in each of them.

A tile that is filled along the last axes of one order has runs of an element in another one. So
blocks grow step by step, each time that axis whose growth saves DMA the most time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trnx.nki_kernels.generator.cuts import cut_along, leads
from trnx.nki_kernels.generator.geometry import PARTITIONS, Axis, Geometry, Strides
from trnx.nki_kernels.generator.ir import Dims


@dataclass(frozen=True)
class Access:
    """How a tensor lies: the bytes of an element, and the strides along the space."""

    itemsize: int
    strides: Strides

    @property
    def inwards(self) -> list[int]:
        """The labels that it varies along, the innermost one first."""
        return sorted(self.strides, key=lambda label: self.strides[label])


@dataclass(frozen=True)
class Space:
    """The space that is cut: its order and sizes, the labels that are `whole` in a tile, and the
    tensors; DMA takes as long for `least_run` bytes as for fewer."""

    order: Dims
    sizes: Mapping[int, int]
    whole: frozenset[int]
    accesses: Sequence[Access]
    least_run: float

    def cuts(self, along: Dims, budget: int, cores: int) -> Iterator[tuple[float, Geometry]]:
        """For each dimension of `along` on the partitions, and each lead beside it, the cut of a
        free size of up to `budget`, and how many times as long as with long runs and full
        partitions DMA takes for it, about."""
        if math.prod(self.sizes[d] for d in self.whole) > budget:
            return
        least = sum(map(self._bytes, self.accesses))
        for partition in along:
            for lead in (None, *leads(partition, along, self.sizes, across=False)):
                blocks = self._blocks(partition, lead, budget)
                filled = 1.0
                if lead is not None:
                    filled = lead.size / (-(-lead.size // lead.block) * lead.block)
                cut = cut_along(
                    partition, lead, self.order, self.sizes, self.whole, budget, cores,
                    blocks=blocks,
                )  # fmt: skip
                yield self._taken(blocks, lead) / (least * filled * cut.filled), cut

    def _blocks(self, partition: int, lead: Axis | None, budget: int) -> dict[int, int]:
        """How many elements of each axis, and rows of the partition, a tile has."""
        most = dict(self.sizes)
        lanes = PARTITIONS if lead is None else PARTITIONS // lead.block
        most[partition] = -(-self.sizes[partition] // lanes)
        if lead is not None:
            most[lead.label] = 1
        blocks = {d: most[d] if d in self.whole else 1 for d in self.order}
        while True:
            larger = [
                {**blocks, d: min(2 * blocks[d], most[d])}
                for d in dict.fromkeys(self._ends(blocks))
                if blocks[d] < most[d]
            ]
            larger = [one for one in larger if math.prod(one.values()) <= budget]
            if not larger:
                return blocks
            blocks = min(larger, key=lambda one: self._taken(one, lead))

    def _ends(self, blocks: Mapping[int, int]) -> Iterator[int]:
        """The axes along which runs could be longer, of each tensor the first one, then others."""
        for access in self.accesses:
            for d in access.inwards:
                if blocks[d] < self.sizes[d]:
                    yield d
                    break
        yield from reversed(self.order)

    def _taken(self, blocks: Mapping[int, int], lead: Axis | None) -> float:
        """Bytes of all tensors, as many more as their short runs cost."""
        total = 0.0
        for access in self.accesses:
            run = 1
            for d in access.inwards:
                if access.strides[d] != run or (lead is not None and d == lead.label):
                    break
                run *= blocks[d]
                if blocks[d] < self.sizes[d]:
                    break
            total += self._bytes(access) * max(1.0, self.least_run / (run * access.itemsize))
        return total

    def _bytes(self, access: Access) -> int:
        return access.itemsize * math.prod(self.sizes[d] for d in access.strides)
