"""Manual allocations that overlap while both are in use.

Tensors with an address may share memory as long as their uses do not mix: writing one of them
invalidates the elements of every other at the same bytes, and reading those before they are written
again is the finding. Tensors that the kernel dropped cannot be read and do not count.
"""

from __future__ import annotations

import weakref

import torch

from trnx.simulator.errors import Location
from trnx.simulator.storage import Storage
from trnx.simulator.tensor import NkiTensor


class ManualMemory:
    """The tensors with an address of one program of the grid."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Storage]] = []

    def add(self, storage: Storage) -> None:
        """Find the older tensors that share bytes with `storage`."""
        self._known = [known for known in self._known if known() is not None]
        for known in self._known:
            other = known()
            if other is not None and _share_bytes(storage, other):
                storage.rivals = (*storage.rivals, known)
                other.rivals = (*other.rivals, weakref.ref(storage))
        self._known.append(weakref.ref(storage))


def invalidate_rivals(tensor: NkiTensor, location: Location | None) -> None:
    """`tensor` is written: what others at its bytes hold is lost."""
    rivals = [rival for known in tensor.storage.rivals if (rival := known()) is not None]
    rivals = [r for r in rivals if not (r.written.is_empty and r.matmul.is_empty)]
    if not rivals:
        return
    columns = _columns(tensor)
    low, high = int(columns[0]), int(columns[-1])
    start = tensor.start_partition
    for rival in rivals:
        base, width = _base(rival), rival.pitch * rival.dtype.itemsize
        first = max(start, rival.start_partition) - rival.start_partition
        last = min(start + tensor.shape[0] - rival.start_partition, rival.partitions)
        if first >= last or high < base or low >= base + width:
            continue
        inside = columns[(columns >= base) & (columns < base + width)] - base
        lost = rival.written.erase_bytes(rival.partitions, first, last, inside)
        rival.matmul.erase_bytes(rival.partitions, first, last, inside)
        if lost:
            rival.lost_to = (tensor.describe(), location)


def _base(storage: Storage) -> int:
    """First byte in a partition."""
    assert storage.allocation is not None
    address = storage.allocation.address
    return address[1] if address is not None else 0


def _share_bytes(a: Storage, b: Storage) -> bool:
    low_a, low_b = _base(a), _base(b)
    return (
        a.buffer is b.buffer
        and low_a < low_b + b.pitch * b.dtype.itemsize
        and low_b < low_a + a.pitch * a.dtype.itemsize
        and a.start_partition < b.start_partition + b.partitions
        and b.start_partition < a.start_partition + a.partitions
    )


def _columns(tensor: NkiTensor) -> torch.Tensor:
    """Bytes of a partition that a view covers, sorted, as addresses of the chip's memory."""
    size = tensor.dtype.itemsize
    if tensor.indirection is not None:
        covered = torch.arange(tensor.pitch * size, device="cpu")
        return covered + _base(tensor.storage)
    offsets = torch.zeros(1, dtype=torch.int64, device="cpu")
    for extent, stride in zip(tensor.shape[1:], tensor.strides[1:], strict=True):
        steps = torch.arange(extent, device="cpu") * stride
        offsets = (offsets[:, None] + steps).view(-1)
    first = tensor.offset % tensor.pitch
    covered = ((offsets + first)[:, None] * size + torch.arange(size, device="cpu")).view(-1)
    distinct: torch.Tensor = torch.unique(covered)
    return distinct + _base(tensor.storage)
