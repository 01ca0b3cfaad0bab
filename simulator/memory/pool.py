"""Memory of a Program: buffers of dead storages and of scratch are reused, in program order.

A step holds torch views, not storages, so reuse is safe as soon as no tensor refers to a storage:
whatever is recorded later runs later, in the first run and in every replay.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from trnx.simulator.memory.views import Shape

# Most bytes of copies that a trace keeps (see `Storage.kept_copy`): beyond, they leave the caches.
_KEPT_BYTES = 16 << 20


class Buffer:
    """Bytes of one storage after the other, and the views into them.

    The storages of a kernel's loop get the same buffers turn by turn and ask for the same views:
    steps share the objects.
    """

    __slots__ = ("_views", "nbytes", "raw")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.raw = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        self._views: dict[tuple[torch.dtype, Shape, Shape, int], torch.Tensor] = {}

    def view(self, dtype: torch.dtype, shape: Shape, strides: Shape, offset: int) -> torch.Tensor:
        """A strided view; offset and strides in elements of `dtype`."""
        key = (dtype, shape, strides, offset)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = self.raw.view(dtype).as_strided(shape, strides, offset)
        return found


class BufferPool:
    """Free byte buffers by size."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._scratch: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._held: list[Buffer] = []
        self._holds = 0
        # Of the only loop that is open: buffers that its body took, and those of them that are free
        # for the rest of it. How many loops are open inside.
        self._of_body: set[int] | None = None
        self._spare: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._inner = 0
        self._kept_bytes = 0
        # All that were made: none is freed before the trace ends, so addresses tell them apart.
        self._buffers: list[Buffer] = []
        self._with_content: set[int] = set()
        self.allocated_bytes = 0

    def take(self, nbytes: int) -> Buffer:
        """A buffer of exactly `nbytes`, with arbitrary content."""
        free = self._spare[nbytes] or self._free[nbytes]
        buffer = free.pop() if free else self._made(nbytes)
        if self._of_body is not None and not self._inner:
            self._of_body.add(id(buffer))
        return buffer

    def _made(self, nbytes: int) -> Buffer:
        self.allocated_bytes += nbytes
        made = Buffer(nbytes)
        self._buffers.append(made)
        return made

    def note_content(self, buffer: Buffer) -> None:
        """Something else than steps writes there, once."""
        self._with_content.add(buffer.raw.data_ptr())

    def blank(self) -> dict[int, int]:
        """What steps write before they read: address -> bytes."""
        places = {one.raw.data_ptr(): one.nbytes for one in self._buffers if one.nbytes}
        return {at: size for at, size in places.items() if at not in self._with_content}

    def put(self, buffer: Buffer) -> None:
        """Return a buffer that `take` gave."""
        if not self._holds:
            self._free[buffer.nbytes].append(buffer)
        elif not self._inner and self._of_body is not None and id(buffer) in self._of_body:
            self._spare[buffer.nbytes].append(buffer)
        else:
            self._held.append(buffer)

    def hold(self) -> None:
        """A loop begins: its body runs again, and what it read it reads again. So nothing is reused
        but, within the body, what the body itself took: each turn writes that anew.
        """
        self._holds += 1
        if self._holds == 1:
            self._of_body = set()
        else:
            self.share()

    def share(self) -> None:
        """Other programs record while loops are open, and all run turn by turn: nothing is reused
        until the loops have ended, what the bodies took neither."""
        self._of_body = None
        for buffers in self._spare.values():
            self._held += buffers
        self._spare.clear()

    def nest(self) -> None:
        """A loop begins in another one: what it frees, its next turn may read."""
        self._inner += 1

    def end_nested(self) -> None:
        """Undo one `nest`."""
        self._inner -= 1

    def release(self) -> None:
        """Undo one `hold`."""
        self._holds -= 1
        if self._holds:
            return
        self.share()
        held, self._held = self._held, []
        for buffer in held:
            self.put(buffer)

    def can_keep(self, nbytes: int) -> bool:
        """False where there are enough copies."""
        return self._kept_bytes + nbytes <= _KEPT_BYTES

    def take_kept(self, nbytes: int) -> Buffer | None:
        """A buffer for a copy that is kept; None where there are enough of them."""
        if not self.can_keep(nbytes):
            return None
        self._kept_bytes += nbytes
        return self.take(nbytes)

    def put_kept(self, buffer: Buffer) -> None:
        """Return a buffer that `take_kept` gave."""
        self._kept_bytes -= buffer.nbytes
        self.put(buffer)

    def take_scratch(self, nbytes: int) -> Buffer:
        """A buffer for a temporary; `give_back` when the instruction is recorded."""
        free = self._scratch[nbytes]
        if free:
            return free.pop()
        return self._made(nbytes)

    def has_free_scratch(self, buffers: list[Buffer]) -> bool:
        """True where `take_scratch` would give these, the last one first; all are of one size."""
        return self._scratch[buffers[0].nbytes][-len(buffers) :] == buffers

    def reorder_scratch(self, buffers: list[Buffer]) -> None:
        """These were taken, and given back in this order."""
        self._scratch[buffers[0].nbytes][-len(buffers) :] = buffers

    def take_own(self, nbytes: int) -> Buffer:
        """A buffer for a temporary that is never given back, and that nobody had before."""
        return self._made(nbytes)

    def give_back(self, buffer: Buffer) -> None:
        """Return a buffer that `take_scratch` gave."""
        self._scratch[buffer.nbytes].append(buffer)
