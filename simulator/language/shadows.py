"""Shadows: sets of marked elements of storages, which a check keeps beside the memory."""

from __future__ import annotations

from collections.abc import Iterable

from trnx.simulator.language.hbm_shadow import HbmShadow
from trnx.simulator.language.sbuf_shadow import SbufShadow
from trnx.simulator.memory.storage import Storage

Shadow = HbmShadow | SbufShadow


def new_shadow(storage: Storage) -> Shadow:
    """An empty set of a storage's elements."""
    if storage.is_on_chip:
        return SbufShadow(storage.partitions, storage.pitch * storage.dtype.itemsize)
    return HbmShadow(storage.nbytes, storage.dtype.itemsize)


class Shadows(dict[int, Shadow]):
    """One set for each storage, by its index, made when it is first asked for."""

    def of(self, storage: Storage) -> Shadow:
        """The set of a storage."""
        return self.get(storage.index) or self.make(storage)

    def make(self, storage: Storage) -> Shadow:
        """The set of a storage that has none."""
        made = self[storage.index] = new_shadow(storage)
        return made

    def forget(self, indices: Iterable[int]) -> None:
        """Storages are gone."""
        for index in self.keys() & indices:
            del self[index]
