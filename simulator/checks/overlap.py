"""Manual allocations that overlap while both are in use.

Tensors with an address may share memory as long as their uses do not mix: writing one of them
invalidates the elements of every other at the same bytes, and reading those before they are written
again is the finding. Tensors that the kernel dropped cannot be read and do not count.

Kernels that allocate by turns have hundreds of tensors at few places, of which all but the last
were overwritten as a whole. Of each place those are known that still hold something, so a write
costs what it overwrites.
"""

from __future__ import annotations

import functools
import weakref

from trnx.simulator.errors import Location
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.language.sbuf_shadow import SbufShadow, byte_mask
from trnx.simulator.language.shadows import Shadows
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.placed import AddressRange
from trnx.simulator.memory.storage import Storage

_Holders = dict[int, weakref.ref[Storage]]


class ManualOverlap:
    """Takes marks away from `written` and `products`; `lost` has, by the index of a storage, the
    tensor that was written over it last, and where.
    """

    def __init__(self, written: Shadows, products: Shadows) -> None:
        self._written = written
        self._products = products
        self.lost: dict[int, tuple[str, Location | None]] = {}
        # Of each place the tensors there, or at one that overlaps it, that hold something.
        self._holders: dict[AddressRange, _Holders] = {}

    def holders(self, place: AddressRange) -> _Holders:
        """Tensors that hold something at bytes of a place, by the index of their storage."""
        found = self._holders.get(place)
        if found is None:
            found = self._holders[place] = {}
            for other in place.overlapping:
                for index, holder in self._holders.get(other, {}).items():
                    if (storage := holder()) is not None and storage.place is other:
                        found[index] = holder
        return found

    def overwrite(self, tensor: NkiTensor) -> None:
        """`tensor`, which has an address, is written: what others hold at its bytes is lost."""
        storage = tensor.storage
        place = storage.place
        assert place is not None
        holders = self.holders(place)
        if storage.index not in holders:
            gone = functools.partial(self._gone, place, storage.index)
            holder = weakref.ref(storage, gone)
            for other in place.overlapping:
                self.holders(other)[storage.index] = holder
        if len(holders) > 1:
            self._invalidate(tensor, place, holders)

    def _invalidate(self, tensor: NkiTensor, place: AddressRange, holders: _Holders) -> None:
        gone = (1 << place.span[1] - place.span[0]) - 1 if tensor.indirection else byte_mask(tensor)
        first = tensor.start_partition
        last = first + tensor.shape[0]
        for index, holder in list(holders.items()):
            rival = holder()
            if rival is None or rival is tensor.storage:
                continue
            theirs = rival.place
            assert theirs is not None
            low, _, start, end = theirs.span
            if first < end and start < last:
                shift = place.span[0] - low
                bits = gone << shift if shift >= 0 else gone >> -shift
                self._lose(rival, tensor, max(first, start) - start, min(last, end) - start, bits)
            if self._written.of(rival).is_empty and self._products.of(rival).is_empty:
                self._drop(theirs, index)

    def _lose(self, rival: Storage, tensor: NkiTensor, first: int, last: int, gone: int) -> None:
        written, products = self._written.of(rival), self._products.of(rival)
        assert isinstance(written, SbufShadow)
        assert isinstance(products, SbufShadow)
        # They share memory, so copies of what it held are out of date.
        rival.writes += 1
        products.erase_bytes(first, last, gone)
        if written.erase_bytes(first, last, gone):
            self.lost[rival.index] = (tensor.describe(), kernel_location())

    def _gone(self, place: AddressRange, index: int, _: weakref.ref[Storage]) -> None:
        """A storage is gone."""
        self._drop(place, index)
        self.lost.pop(index, None)

    def _drop(self, place: AddressRange, index: int) -> None:
        """A tensor of a place holds nothing any more."""
        for other in place.overlapping:
            self.holders(other).pop(index, None)
