"""Manual addresses: tensors of one place share the memory of the simulator."""

from __future__ import annotations

from trnx.simulator.memory.pool import Buffer, BufferPool
from trnx.simulator.memory.storage import MemoryRegion


class AddressRange:
    """A manual address with a size: bytes `low` to `high` of the partitions `first` to `last`
    (exclusive). `overlapping` are the places that share bytes with it, itself among them.
    """

    __slots__ = ("_memory", "_tensors", "buffer", "overlapping", "span")

    def __init__(self, buffer: MemoryRegion, span: tuple[int, int, int, int]) -> None:
        self.buffer = buffer
        self.span = span
        self.overlapping: list[AddressRange] = [self]
        self._memory: Buffer | None = None
        self._tensors = 0

    def meet(self, other: AddressRange) -> None:
        """Note where two places share bytes."""
        if self.buffer is other.buffer and _do_overlap(self.span, other.span):
            self.overlapping.append(other)
            other.overlapping.append(self)

    def enter(self, pool: BufferPool) -> tuple[Buffer, bool]:
        """One more tensor: its memory, and whether it is fresh."""
        memory, is_fresh = self._memory, self._memory is None
        if memory is None:
            low, high, first, last = self.span
            memory = self._memory = pool.take((high - low) * (last - first))
        self._tensors += 1
        return memory, is_fresh

    def leave(self) -> bool:
        """A tensor is gone; True for the last one, which gives the memory back."""
        self._tensors -= 1
        if not self._tensors:
            self._memory = None
        return not self._tensors


class ManualMemory:
    """The places of the tensors with an address of one program of the grid."""

    def __init__(self) -> None:
        self._places: dict[tuple[MemoryRegion, tuple[int, int, int, int]], AddressRange] = {}

    def place(
        self, buffer: MemoryRegion, address: tuple[int, int], partitions: int, nbytes: int
    ) -> AddressRange:
        """The place of a tensor; `nbytes` counts within a partition."""
        start, low = address
        span = (low, low + nbytes, start, start + partitions)
        found = self._places.get((buffer, span))
        if found is None:
            found = AddressRange(buffer, span)
            for other in self._places.values():
                found.meet(other)
            self._places[buffer, span] = found
        return found


def _do_overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
