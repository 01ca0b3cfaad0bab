"""Storage: one allocation in SBUF, PSUM or HBM, backed by memory of this process.

SBUF and PSUM storages are partition-major: for kernels and checks, element (p, f) lies at
`p * pitch + f`; in this process's memory, rows may be further apart (`_padding`). Memory of SBUF,
PSUM and private HBM comes from the trace's pool and returns to it when the last tensor is gone.
Arguments and shared HBM are `Slot`s: their views are retargeted to the caller's tensors without
copying. A borrowed one is copied when an instruction first writes there.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.host_memory import MemoryReadError, span_bytes, unreadable
from trnx.simulator.memory.pool import Buffer, BufferPool
from trnx.simulator.memory.views import Shape, last_element

if TYPE_CHECKING:
    from trnx.simulator.memory.placed import AddressRange
    from trnx.simulator.memory.tile_layouts import TileLayout

# Rows of as many bytes, a multiple of 2 KiB, are padded by a cache line: a column of dense ones
# would fall into few cache sets, and products read them slowly. Shorter rows stay dense, as
# element-wise steps go through a dense tile in one loop.
_PADDED_FROM = 16384
_PADDING = 64

_CPU = torch.device("cpu")

# What a Program calls, one after the other, to run: most are torch functions of storages' views.
Step = Callable[[], Any]

# Fresh memory: NaN in every float type; as an integer, a recognisable value far out of any range.
_POISON_FLOAT = 0xFF
_POISON_INTEGER = 0x5A


@functools.cache
def _nothing(dtype: torch.dtype) -> torch.Tensor:
    """What the views of a released slot look like."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=dtype, device="cpu")


# A result of one kernel lies at one address or, where the caller keeps the last one, turns between
# two or three. Slots with few views keep views that lie at these: pointing a view there again costs
# a fifth of making it anew.
_KEPT_ADDRESSES = 4
_MOST_KEPT_VIEWS = 4


# Few: what is kept for addresses of one call alone lies between the memory of others, which the
# allocator then cannot give back.
@functools.lru_cache(maxsize=128)
def _memory_at(address: int, nbytes: int) -> torch.UntypedStorage:
    """Memory of somebody else as a storage that does not own it."""
    if not nbytes:
        return _nothing(torch.uint8).untyped_storage()
    memory = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


def _same_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of the tensor, which may be any: the memory between is copied too."""
    if tensor.numel() == 0:
        return tensor.clone()
    span = last_element(tuple(tensor.shape), tensor.stride()) + 1
    memory = tensor.as_strided((span,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)


class MemoryRegion(Enum):
    """Memory regions, as kernels name them: `nl.sbuf`, `nl.psum`, `nl.private_hbm`,
    `nl.shared_hbm`.
    """

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    # Members are singletons; Enum's own hash runs Python code at every look-up.
    __hash__ = object.__hash__


ON_CHIP = (MemoryRegion.sbuf, MemoryRegion.psum)
SBUF = (MemoryRegion.sbuf,)
PSUM = (MemoryRegion.psum,)
HBM = (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)
DMA_REACHABLE = (MemoryRegion.sbuf, *HBM)
ANYWHERE = (*ON_CHIP, *HBM)


class Slot:
    """Memory that a caller provides: the torch views into it, retargeted by `bind`.

    `holder` is the caller's tensor while a kernel is recorded, `address` where a replay was bound.
    """

    __slots__ = (
        "_by_address",
        "_nbytes",
        "_views",
        "address",
        "holder",
        "is_borrowed",
        "is_written",
    )

    def __init__(self, holder: torch.Tensor, is_borrowed: bool = False) -> None:
        self.holder: torch.Tensor | None = holder
        self._nbytes = span_bytes(holder) if holder.numel() else 0
        # True where the caller's memory is to stay as it is.
        self.is_borrowed = is_borrowed
        self.address = -1
        self.is_written = False
        # By dtype, shape and strides, of which there are few, then by offset.
        self._views: dict[tuple[torch.dtype, Shape, Shape], dict[int, torch.Tensor]] = {}
        # By address, the oldest first, of the last ones: nothing where it was bound to once, else
        # what the views look like there, in their order.
        self._by_address: dict[int, list[torch.Tensor] | None] = {}

    @classmethod
    def unbound(cls, nbytes: int, is_written: bool) -> Slot:
        """A slot of a Program that was not recorded here."""
        slot = cls(_nothing(torch.uint8))
        slot.holder, slot._nbytes, slot.is_written = None, nbytes, is_written
        return slot

    @property
    def nbytes(self) -> int:
        """From the first element to the end of the farthest."""
        return self._nbytes

    def view(self, dtype: torch.dtype, shape: Shape, strides: Shape, offset: int) -> torch.Tensor:
        """The one view object of this region; offset in elements of `dtype` from the start."""
        form = (dtype, shape, strides)
        same = self._views.get(form)
        if same is None:
            same = self._views[form] = {}
        found = same.get(offset)
        if found is None:
            found = torch.empty(0, dtype=dtype, device=_CPU)
            same[offset] = found
            self._by_address.clear()
            if self.holder is not None:
                base = self.holder.storage_offset() * self.holder.element_size()
                storage = self.holder.untyped_storage()
                found.set_(storage, base // dtype.itemsize + offset, shape, strides)
        return found

    def views(self) -> Iterator[tuple[tuple[torch.dtype, Shape, Shape, int], torch.Tensor]]:
        """The views with what they were asked for: (dtype, shape, strides, offset)."""
        for form, same in self._views.items():
            for offset, view in same.items():
                yield (*form, offset), view

    @property
    def view_count(self) -> int:
        """How many views there are."""
        return sum(map(len, self._views.values()))

    def keep_views(self, used: Collection[int]) -> None:
        """Forget the views whose ids are not among these."""
        self._by_address.clear()
        for form, same in list(self._views.items()):
            left = {offset: view for offset, view in same.items() if id(view) in used}
            self._views[form] = left
            if not left:
                del self._views[form]

    def begin_writing(self) -> None:
        """Call before the first step that writes there can run."""
        if not self.is_written:
            self.is_written = True
            if self.is_borrowed and self.holder is not None:
                copy = _same_copy(self.holder)
                self.bind(copy)
                self.holder = copy

    def bind(self, tensor: torch.Tensor) -> None:
        """Point every view into the memory of `tensor`, unless it is there already. Its owner keeps
        that memory while steps run; the views do not, so nobody need take them back afterwards.
        Raises MemoryReadError where it lies elsewhere than last time and its storage does not reach
        as far, whatever checked it before.
        """
        address = tensor.data_ptr()
        if self.address == address:
            return
        base = tensor.storage_offset() * tensor.element_size()
        held = tensor.untyped_storage().nbytes()
        if self._nbytes and (not address or held < base + self._nbytes):
            raise MemoryReadError(f"a tensor of the kernel cannot be bound: {unreadable(tensor)}")
        # An interrupt may leave some views there and some here.
        self.address = -1
        kept = self._by_address.get(address)
        if kept is None:
            self._point_to(address)
        else:
            for view, there in zip(self._all_views(), kept):  # noqa: B905  equally many
                view.data = there
        self.holder = None
        self.address = address

    def _point_to(self, address: int) -> None:
        memory = _memory_at(address, self._nbytes)
        for (_, shape, strides), same in self._views.items():
            for offset, view in same.items():
                view.set_(memory, offset, shape, strides)
        if self.view_count > _MOST_KEPT_VIEWS:
            return
        if address in self._by_address:
            self._by_address[address] = [view.data for view in self._all_views()]
            return
        if len(self._by_address) == _KEPT_ADDRESSES:
            del self._by_address[next(iter(self._by_address))]
        self._by_address[address] = None

    def _all_views(self) -> Iterator[torch.Tensor]:
        return itertools.chain.from_iterable(map(dict.values, self._views.values()))

    def release(self) -> None:
        """Drop the caller's memory: every view becomes empty."""
        for (dtype, _, _), same in self._views.items():
            nothing = _nothing(dtype)
            for view in same.values():
                view.data = nothing
        self.holder = None
        self.address = -1


def poison(memory: torch.Tensor, is_float: bool) -> None:
    """Fill a tensor's bytes with NaN, or with a recognisable integer."""
    memory.view(torch.uint8).fill_(_POISON_FLOAT if is_float else _POISON_INTEGER)


class Storage:
    """The memory of one allocation, made with `dtype`, `partitions` and `pitch` (elements per
    partition).

    For HBM, `partitions` is 1 and `pitch` the number of elements from the first to the last.
    """

    __slots__ = (
        "__weakref__",
        "_copies",
        "_freed",
        "_is_fresh",
        "_padding",
        "_pool",
        "buffer",
        "constant",
        "dtype",
        "index",
        "is_on_chip",
        "layout",
        "memory",
        "name",
        "partitions",
        "pitch",
        "place",
        "region",
        "slot",
        "start_partition",
        "writes",
    )

    def __init__(
        self,
        index: int,
        buffer: MemoryRegion,
        dtype: DType,
        partitions: int,
        pitch: int,
        name: str = "",
        pool: BufferPool | None = None,
        slot: Slot | None = None,
        place: AddressRange | None = None,
        freed: list[int] | None = None,
        layout: TileLayout | None = None,
    ) -> None:
        # What `__del__` looks at.
        self._pool = pool
        # Where its index goes in the end.
        self._freed = freed
        self.memory: Buffer | None = None
        # What it was made with, on chip.
        self.layout = layout
        self.index = index
        self.buffer = buffer
        # What the kernel is told. A caller's tensor is in shared HBM, and can be a result, but to
        # a kernel of one program it is in `nl.hbm` (guide nki_simulator.rst, Execution).
        self.region = buffer
        self.is_on_chip = buffer in ON_CHIP
        self.dtype = dtype
        self.partitions = partitions
        self.pitch = pitch
        self.name = name
        self.slot = slot
        # Where the kernel put it, if it did.
        self.place = place
        self.start_partition = 0 if place is None else place.span[2]
        self.constant = False
        # How often it was written, and copies of regions with the count at which they were made.
        self.writes = 0
        self._copies: dict[tuple[Any, ...], tuple[int, Buffer]] = {}
        self._is_fresh = True
        # Bytes from the end of a row to the next one; tensors of one address share their memory.
        self._padding = 0
        if pool is not None and place is not None:
            self.memory, self._is_fresh = place.enter(pool)
        elif pool is not None:
            row = pitch * dtype.itemsize
            if row >= _PADDED_FROM and row % 2048 == 0 and self.is_on_chip:
                self._padding = _PADDING
            self.memory = pool.take((row + self._padding) * partitions)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole allocation."""
        return self.partitions * self.pitch * self.dtype.itemsize

    @property
    def address(self) -> int:
        """Where its memory, or what the caller's tensor is a view of, begins in this process."""
        if self.slot is None:
            assert self.memory is not None
            return self.memory.raw.data_ptr()
        return 0 if self.slot.holder is None else self.slot.holder.untyped_storage().data_ptr()

    def view(self, dtype: DType, shape: Shape, strides: Shape, offset: int) -> torch.Tensor:
        """A torch view; offset and strides in elements of `dtype`. It `has_view`."""
        if self.slot is not None:
            return self.slot.view(dtype.torch, shape, strides, offset)
        assert self.memory is not None
        if self._padding:
            pitch = self.pitch * self.dtype.itemsize // dtype.itemsize
            gap = self._padding // dtype.itemsize
            # A stride of a row and more leads to other partitions.
            strides = tuple(stride + stride // pitch * gap for stride in strides)
            offset += offset // pitch * gap
        return self.memory.view(dtype.torch, shape, strides, offset)

    def has_view(self, dtype: DType, shape: Shape, strides: Shape) -> bool:
        """False where padding lies between elements that a stride takes for neighbours."""
        if not self._padding:
            return True
        pitch = self.pitch * self.dtype.itemsize // dtype.itemsize
        axes = zip(shape, strides, strict=True)
        return sum((size - 1) * stride for size, stride in axes if stride < pitch) < pitch

    def kept_copy(self, region: tuple[Any, ...], nbytes: int) -> tuple[Buffer, bool] | None:
        """Memory for a copy of a region, which is up to date (True) while nothing is written here;
        None where there is no room for one.
        """
        writes, memory = self._copies.get(region, (-1, None))
        if memory is None and self._pool is not None:
            memory = self._pool.take_kept(nbytes)
        if memory is None:
            return None
        self._copies[region] = (self.writes, memory)
        return memory, writes == self.writes

    def has_copy(self, region: tuple[Any, ...], nbytes: int) -> bool | None:
        """Whether `kept_copy` would find one that is up to date; None where it would give none."""
        writes, memory = self._copies.get(region, (-1, None))
        if memory is None and (self._pool is None or not self._pool.can_keep(nbytes)):
            return None
        return writes == self.writes

    def poison(self) -> None:
        """Fill fresh memory with NaN or a recognisable integer."""
        if self.memory is not None and self._is_fresh:
            poison(self.memory.raw, self.dtype.is_float)

    def keep(self) -> None:
        """Make it a constant: its memory is never reused, and no instruction may write it."""
        self.constant = True
        if self._pool is not None and self.memory is not None:
            self._pool.note_content(self.memory)
        self._pool = None

    def __del__(self) -> None:
        if self._freed is not None:
            self._freed.append(self.index)
        pool, memory = self._pool, self.memory
        if pool is not None and memory is not None:
            if self.place is None or self.place.leave():
                pool.put(memory)
            for _, copy in self._copies.values():
                pool.put_kept(copy)
