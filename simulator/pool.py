"""Memory of a Program: buffers of dead storages and of scratch are reused, in program order.

A step holds torch views, not storages, so reuse is safe as soon as no tensor refers to a storage:
whatever is recorded later runs later, in the first run and in every replay.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch


class BufferPool:
    """Free byte buffers by size."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._scratch: defaultdict[tuple[int, torch.dtype], list[torch.Tensor]] = defaultdict(list)
        self._held: list[torch.Tensor] | None = None
        self.allocated_bytes = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """A byte buffer of exactly `nbytes`, with arbitrary content."""
        free = self._free[nbytes]
        if free:
            return free.pop()
        self.allocated_bytes += nbytes
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def put(self, buffer: torch.Tensor) -> None:
        """Return a buffer that `take` gave."""
        if self._held is not None:
            self._held.append(buffer)
        else:
            self._free[buffer.numel()].append(buffer)

    def hold(self) -> None:
        """Reuse nothing from now on: a loop's body runs again, and what it read it reads again."""
        self._held = []

    def release(self) -> None:
        """Undo `hold`."""
        held, self._held = self._held or [], None
        for buffer in held:
            self.put(buffer)

    def scratch(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous temporary tensor; `give_back` when the instruction is recorded."""
        size = math.prod(shape)
        free = self._scratch[size, dtype]
        if free:
            flat = free.pop()
        else:
            self.allocated_bytes += size * dtype.itemsize
            flat = torch.empty(size, dtype=dtype, device="cpu")
        return flat.view(shape)

    def give_back(self, tensor: torch.Tensor) -> None:
        """Return a temporary that `scratch` gave."""
        self._scratch[tensor.numel(), tensor.dtype].append(tensor.view(-1))
