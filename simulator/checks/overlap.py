"""Manual allocations that overlap while both are in use.

Tensors with an address may share memory as long as their uses do not mix: writing one of them
invalidates the elements of every other at the same bytes, and reading those before they are written
again is the finding. Tensors that the kernel dropped cannot be read and do not count.

Kernels that allocate by turns have hundreds of tensors at few places, of which all but the last
were overwritten as a whole. A `Place` knows those that still hold something, so a write costs what
it overwrites. Tensors of one place share the memory of the simulator as well.
"""

from __future__ import annotations

import weakref

from trnx.simulator.chip_coverage import ChipCoverage, byte_mask
from trnx.simulator.context import kernel_location
from trnx.simulator.pool import Buffer, BufferPool
from trnx.simulator.storage import MemoryRegion, Storage
from trnx.simulator.tensor import NkiTensor


class Place:
    """A manual address with a size: bytes `low` to `high` of the partitions `first` to `last`
    (exclusive).
    """

    __slots__ = ("_memory", "_overlapping", "_tensors", "buffer", "holders", "span")

    def __init__(self, buffer: MemoryRegion, span: tuple[int, int, int, int]) -> None:
        self.buffer = buffer
        self.span = span
        # Tensors at this place or at one that overlaps it, by their index, that hold something.
        self.holders: dict[int, weakref.ref[Storage]] = {}
        self._overlapping: list[Place] = [self]
        self._memory: Buffer | None = None
        self._tensors = 0

    def meet(self, other: Place) -> None:
        """Note where two places share bytes."""
        if self.buffer is other.buffer and _do_overlap(self.span, other.span):
            self._overlapping.append(other)
            other._overlapping.append(self)
            self.holders.update(
                (index, holder)
                for index, holder in other.holders.items()
                if (storage := holder()) is not None and storage.place is other
            )

    def enter(self, pool: BufferPool) -> tuple[Buffer, bool]:
        """One more tensor: its memory, and whether it is fresh."""
        memory, is_fresh = self._memory, self._memory is None
        if memory is None:
            low, high, first, last = self.span
            memory = self._memory = pool.take((high - low) * (last - first))
        self._tensors += 1
        return memory, is_fresh

    def leave(self, index: int) -> bool:
        """A tensor is gone; True for the last one, which gives the memory back."""
        self.forget(index)
        self._tensors -= 1
        if not self._tensors:
            self._memory = None
        return not self._tensors

    def hold(self, storage: Storage) -> None:
        """A tensor of this place holds something from now on."""
        if storage.index not in self.holders:
            holder = weakref.ref(storage)
            for place in self._overlapping:
                place.holders[storage.index] = holder

    def forget(self, index: int) -> None:
        """A tensor of this place holds nothing any more."""
        if index in self.holders:
            for place in self._overlapping:
                place.holders.pop(index, None)


class ManualMemory:
    """The places of the tensors with an address of one program of the grid."""

    def __init__(self) -> None:
        self._places: dict[tuple[MemoryRegion, tuple[int, int, int, int]], Place] = {}

    def place(
        self, buffer: MemoryRegion, address: tuple[int, int], partitions: int, nbytes: int
    ) -> Place:
        """The place of a tensor; `nbytes` counts within a partition."""
        start, low = address
        span = (low, low + nbytes, start, start + partitions)
        found = self._places.get((buffer, span))
        if found is None:
            found = Place(buffer, span)
            for other in self._places.values():
                found.meet(other)
            self._places[buffer, span] = found
        return found


def overwrite(tensor: NkiTensor) -> None:
    """`tensor`, which has an address, is written: what others hold at its bytes is lost."""
    storage = tensor.storage
    place = storage.place
    assert place is not None
    place.hold(storage)
    if len(place.holders) == 1:
        return
    gone = (1 << place.span[1] - place.span[0]) - 1 if tensor.indirection else byte_mask(tensor)
    first = tensor.start_partition
    last = first + tensor.shape[0]
    for index, holder in list(place.holders.items()):
        rival = holder()
        if index == storage.index or rival is None:
            continue
        theirs = rival.place
        assert theirs is not None
        low, _, start, end = theirs.span
        if first < end and start < last:
            shift = place.span[0] - low
            bits = gone << shift if shift >= 0 else gone >> -shift
            _lose(rival, tensor, max(first, start) - start, min(last, end) - start, bits)
        if rival.written.is_empty and rival.matmul.is_empty:
            theirs.forget(index)


def _lose(rival: Storage, tensor: NkiTensor, first: int, last: int, gone: int) -> None:
    written, products = rival.written, rival.matmul
    assert isinstance(written, ChipCoverage)
    assert isinstance(products, ChipCoverage)
    # They share memory, so copies of what it held are out of date.
    rival.writes += 1
    products.erase_bytes(first, last, gone)
    if written.erase_bytes(first, last, gone):
        rival.lost_to = (tensor.describe(), kernel_location())


def _do_overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
