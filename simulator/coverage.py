"""Which elements of a storage in HBM are marked (have been written), by element, while tracing.

Addresses are static, so this needs no values. The common cases cost a set look-up: a storage that
was written as a whole, or a region that was seen before; only the rest touches a byte map, which is
made when the first partial write comes.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trnx.simulator.tensor import NkiTensor


class Covered(Enum):
    """How much of a region is marked."""

    NONE = 0
    SOME = 1
    ALL = 2


class Coverage:
    """A set of marked elements of one storage."""

    __slots__ = ("_granule", "_map", "_nbytes", "_regions", "full")

    def __init__(self, nbytes: int, granule: int, full: bool = False) -> None:
        self.full = full
        self._nbytes = nbytes
        self._granule = granule
        self._map: torch.Tensor | None = None
        self._regions: set[tuple[object, ...]] = set()

    def covers(self, tensor: NkiTensor) -> bool:
        """True where every element of the view is marked."""
        if self.full or tensor.region_key() in self._regions:
            return True
        if self._map is None:
            return False
        if not bool(self._map_view(tensor).amin()):
            return False
        self._remember(tensor)
        return True

    def state(self, tensor: NkiTensor) -> Covered:
        """Whether none, some or all elements of the view are marked."""
        if self.covers(tensor):
            return Covered.ALL
        if self._map is None or not bool(self._map_view(tensor).amax()):
            return Covered.NONE
        return Covered.SOME

    def mark(self, tensor: NkiTensor) -> None:
        """Mark every element of the view."""
        if self.full:
            return
        if self._is_whole(tensor):
            self.mark_everything()
        elif tensor.region_key() not in self._regions:
            self._map_view(tensor).fill_(1)
            self._regions.add(tensor.region_key())

    def mark_everything(self) -> None:
        """Mark the whole storage: what is written depends on values."""
        self.full = True
        self._map = None
        self._regions.clear()

    @property
    def is_empty(self) -> bool:
        """True where nothing was ever marked."""
        return not self.full and self._map is None and not self._regions

    def erase(self, tensor: NkiTensor) -> None:
        """Unmark every element of the view."""
        if not self.is_empty:
            self._materialise()
            self._map_view(tensor).zero_()

    def unmark(self, tensor: NkiTensor, chosen: torch.Tensor) -> None:
        """Unmark those elements of the view where `chosen`, in the view's shape, is True."""
        self._materialise()
        view = self._map_view(tensor)
        # Strides of 0 were cut to one element.
        for axis, (have, want) in enumerate(zip(view.shape, chosen.shape, strict=False)):
            if have != want:
                chosen = chosen.any(axis, keepdim=True)
        view[chosen] = 0

    def _materialise(self) -> None:
        """Hold the marks in the byte map alone, where they can be taken away."""
        if self.full:
            self._map = torch.ones(self._nbytes // self._granule, dtype=torch.uint8, device="cpu")
        self.full = False
        self._regions.clear()

    def mask(self, tensor: NkiTensor) -> torch.Tensor:
        """A copy of the map over the view (1 where marked), in the view's shape."""
        view = self._map_view(tensor)
        return view.amin(-1) if view.ndim > tensor.ndim else view.clone()

    def _is_whole(self, tensor: NkiTensor) -> bool:
        form = tensor.geometry()
        return form.is_gapless and form.size * tensor.dtype.itemsize == self._nbytes

    def _remember(self, tensor: NkiTensor) -> None:
        if self._is_whole(tensor):
            self.mark_everything()
        else:
            self._regions.add(tensor.region_key())

    def _map_view(self, tensor: NkiTensor) -> torch.Tensor:
        itemsize = tensor.dtype.itemsize
        if self._map is None:
            self._map = torch.zeros(self._nbytes // self._granule, dtype=torch.uint8, device="cpu")
        if itemsize < self._granule:
            self._map = self._map.repeat_interleave(self._granule // itemsize)
            self._granule = itemsize
        ratio = itemsize // self._granule
        # A repeated location needs no second look.
        shape = [1 if s == 0 else n for n, s in zip(tensor.shape, tensor.strides, strict=True)]
        if ratio == 1:
            return self._map.as_strided(shape, tensor.strides, tensor.offset)
        strides = [stride * ratio for stride in tensor.strides]
        return self._map.as_strided([*shape, ratio], [*strides, 1], tensor.offset * ratio)
