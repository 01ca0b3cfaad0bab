"""Operands of a recorded instruction: where they lie, and how they walk memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.memory.views import Shape, last_element


class AccessPattern(NamedTuple):
    """How an operand walks memory, in bytes: within one partition on chip, all of it in HBM.

    `step` leads from one element to its neighbour, `run` is contiguous. In HBM `pitch` is the
    largest stride and `span` what lies between first and end of one step of it.
    """

    step: int
    run: int
    pitch: int
    span: int


@dataclass(frozen=True)
class Operand:
    """One operand: where it lies and how much it moves. Bytes count within a partition on chip.
    The address of a dynamic one depends on a value.
    """

    storage: int
    buffer: MemoryRegion
    dtype: str
    is_write: bool
    start_partition: int
    partitions: int
    free_size: int
    low: int
    high: int
    pattern: AccessPattern
    is_dynamic: bool = False


@functools.lru_cache(maxsize=512)
def access_pattern(shape: Shape, strides: Shape, itemsize: int, is_on_chip: bool) -> AccessPattern:
    """The pattern of a view."""
    if is_on_chip:
        shape, strides = shape[1:], strides[1:]
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n > 1]
    run = 1
    for n, stride in reversed(axes):
        if stride != run:
            break
        run *= n
    step = axes[-1][1] if axes else 1
    if is_on_chip or not axes:
        return AccessPattern(step * itemsize, run * itemsize, 0, 0)
    if len(axes) == 1 and axes[0][1] == 1:
        return AccessPattern(step * itemsize, run * itemsize, 0, 0)
    outer = max(range(len(axes)), key=lambda axis: axes[axis][1])
    inner = axes[:outer] + axes[outer + 1 :]
    span = last_element(tuple(n for n, _ in inner), tuple(stride for _, stride in inner)) + 1
    pitch = axes[outer][1]
    return AccessPattern(
        step * itemsize, run * itemsize, pitch * itemsize, min(span, max(pitch, 1)) * itemsize
    )
