"""Shadows: sets of marked elements of storages, which a check keeps beside the memory."""

from __future__ import annotations

from collections.abc import Collection

from trnx.simulator.language.hbm_shadow import HbmShadow
from trnx.simulator.language.sbuf_shadow import SbufShadow
from trnx.simulator.language.tensor_view import TensorView
from trnx.simulator.memory.storage import Storage

Shadow = HbmShadow | SbufShadow


class Shadows(dict[int, Shadow]):
    """One set for each storage, by its index, made when it is first asked for. Storages that were
    marked as a whole at once, as most tiles are, are known by their index alone until then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._whole: set[int] = set()

    def of(self, storage: Storage) -> Shadow:
        """The set of a storage."""
        return self.get(storage.index) or self._make(storage)

    def _make(self, storage: Storage) -> Shadow:
        made: Shadow
        if storage.is_on_chip:
            made = SbufShadow(storage.partitions, storage.pitch * storage.dtype.itemsize)
        else:
            made = HbmShadow(storage.nbytes)
        made.full = storage.index in self._whole
        self._whole.discard(storage.index)
        self[storage.index] = made
        return made

    def covers(self, tensor: TensorView) -> bool:
        """True where every element of the view is marked."""
        index = tensor.storage.index
        found = self.get(index)
        if found is None:
            return index in self._whole
        return found.full or found.covers(tensor)

    def mark(self, tensor: TensorView) -> None:
        """Mark every element of the view, of the whole storage where values decide which."""
        storage, form = tensor.storage, tensor.form
        found = self.get(storage.index)
        if found is not None:
            if tensor.indirection is None:
                found.mark(tensor)
            else:
                found.mark_everything()
        elif storage.index not in self._whole:
            is_whole = form.is_gapless and form.size * tensor.dtype.itemsize == storage.nbytes
            if is_whole or tensor.indirection is not None:
                self._whole.add(storage.index)
            else:
                self._make(storage).mark(tensor)

    def forget(self, indices: Collection[int]) -> None:
        """Storages are gone."""
        self._whole.difference_update(indices)
        for index in self.keys() & indices:
            del self[index]
