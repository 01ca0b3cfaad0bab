"""Tiles that two predicated copies fill: one where a predicate holds, the other where it does not.

Values decide what a predicated copy writes, so its destination lacks afterwards what it lacked
before. A second copy by the opposite of the same predicate writes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnx.simulator.language.tensor import NkiTensor

# A view without its storage, which would live longer by it: storage, offset, shape, strides.
_View = tuple[int, int, tuple[int, ...], tuple[int, ...]]
# Destination, predicate, and whether that is reversed.
_Half = tuple[_View, _View, bool]


class PredicatedHalves:
    """The latest predicated copy to each storage, as long as nothing else writes what it used."""

    def __init__(self) -> None:
        self._halves: dict[int, _Half] = {}
        self._latest: _Half | None = None

    def completes(self, target: NkiTensor, predicate: NkiTensor, is_reversed: bool) -> bool:
        """True where the latest copy had the opposite predicate; one that had not is remembered."""
        views = _view(target), _view(predicate)
        if target.indirection is not None or predicate.indirection is not None:
            return False
        if self._halves.get(target.storage.index) == (*views, not is_reversed):
            return True
        self._latest = (*views, is_reversed)
        return False

    def overwrite(self, tensor: NkiTensor) -> None:
        """An instruction writes a tensor: the copy that was remembered just now, or another."""
        written = tensor.storage.index
        for index, (target, predicate, _) in list(self._halves.items()):
            if written in (target[0], predicate[0]):
                del self._halves[index]
        if self._latest is not None and self._latest[0][0] == written:
            self._halves[written] = self._latest
        self._latest = None

    def forget(self, indices: Sequence[int]) -> None:
        """These storages are gone."""
        for index in self._halves.keys() & indices:
            del self._halves[index]


def _view(tensor: NkiTensor) -> _View:
    return tensor.storage.index, tensor.offset, tensor.shape, tensor.strides
