"""Buffers of intermediates: one block for each frame, planned by liveness, reused between calls.

A frame holds the tensors of one running call. Frames of a specialisation are pooled, so that calls
may overlap (threads, reentrance) and a single caller allocates once.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from trnx.simulator.memory.tensor_spec import TensorSpec

ALIGNMENT = 64
# Frames kept for reuse; more are made while more calls overlap, and dropped afterwards.
_POOLED_FRAMES = 4

Frame = list[torch.Tensor]


@dataclass(frozen=True)
class Buffer:
    """An intermediate that lives from item `start` to item `end`, both included."""

    spec: TensorSpec
    start: int
    end: int

    @cached_property
    def nbytes(self) -> int:
        """Bytes of storage that the strides span."""
        if self.spec.numel == 0:
            return 0
        spans = zip(self.spec.shape, self.spec.strides, strict=True)
        return (1 + sum((n - 1) * step for n, step in spans)) * self.spec.dtype.itemsize


def assign_offsets(buffers: Sequence[Buffer]) -> tuple[list[int], int]:
    """Byte offsets such that buffers alive together do not overlap, and the bytes of the block.

    Largest first, each at the lowest place that is free over its lifetime. The block is a whole
    number of elements of every dtype, as PyTorch expects of a storage that tensors share.
    """
    offsets = [0] * len(buffers)
    # (offset, end of its bytes, first item, last item) of what is placed, by offset.
    placed: list[tuple[int, int, int, int]] = []
    for index in sorted(range(len(buffers)), key=lambda i: -buffers[i].nbytes):
        one = buffers[index]
        first, last, nbytes, offset = one.start, one.end, one.nbytes, 0
        for low, high, start, end in placed:
            if start <= last and first <= end:
                if offset + nbytes <= low:
                    break
                offset = max(offset, _aligned(high))
        offsets[index] = offset
        insort(placed, (offset, offset + nbytes, first, last))
    total = max((o + b.nbytes for o, b in zip(offsets, buffers, strict=True)), default=0)
    return offsets, _aligned(total)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


class FramePool:
    """Makes frames for the planned buffers, and keeps idle ones."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = tuple(buffers)
        self._offsets, self.nbytes = assign_offsets(self._buffers)
        self._idle: deque[Frame] = deque(maxlen=_POOLED_FRAMES)
        # Tells that the call which took a frame has ended.
        self.give_back: Callable[[Frame], None] = self._idle.append

    def take(self) -> Frame:
        """An idle frame, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._new()

    def _new(self) -> Frame:
        # Each buffer is a storage of its own, a part of the block: `as_strided` and its scatter
        # count from the start of the storage, which is where a fresh tensor starts.
        block = torch.empty(self.nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
        frame = []
        for buffer, offset in zip(self._buffers, self._offsets, strict=True):
            part = block[offset : offset + buffer.nbytes]
            tensor = torch.empty(0, dtype=buffer.spec.dtype, device="cpu")
            frame.append(tensor.set_(part, 0, buffer.spec.shape, buffer.spec.strides))
        return frame
