"""Operands of a recorded instruction: where they lie, and how they walk memory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.memory.views import Shape, last_element


class AccessPattern(NamedTuple):
    """How an operand walks memory, in bytes: within one partition on chip, all of it in HBM.

    `step` leads from one element to its neighbour, `run` is contiguous. `pitch` is the largest
    stride and `span` what lies between first and end of one step of it; both are 0 where the
    elements are contiguous, or where a value decides the columns.
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
def access_pattern(
    shape: Shape, strides: Shape, itemsize: int, is_on_chip: bool, dynamic_step: int | None = None
) -> AccessPattern:
    """The pattern of a view. A value moves it by multiples of `dynamic_step` elements: then it has
    a pitch in HBM alone, and where these are multiples of it.
    """
    if is_on_chip:
        shape, strides = shape[1:], strides[1:]
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n > 1]
    run = 1
    for n, stride in reversed(axes):
        if stride != run:
            break
        run *= n
    step = axes[-1][1] if axes else 1
    axes = _joined(axes)
    dense = AccessPattern(step * itemsize, run * itemsize, 0, 0)
    if not axes or (len(axes) == 1 and axes[0][1] == 1):
        return dense
    outer = max(range(len(axes)), key=lambda axis: axes[axis][1])
    inner = axes[:outer] + axes[outer + 1 :]
    span = last_element(tuple(n for n, _ in inner), tuple(stride for _, stride in inner)) + 1
    pitch = axes[outer][1]
    if dynamic_step is not None and (is_on_chip or not pitch or dynamic_step % pitch):
        return dense
    return AccessPattern(
        step * itemsize, run * itemsize, pitch * itemsize, min(span, max(pitch, 1)) * itemsize
    )


def _joined(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sizes and strides without broadcasts, with axes that continue each other as one axis.

    The order in which they are walked says nothing about which bytes they reach.
    """
    joined: list[tuple[int, int]] = []
    for n, stride in sorted(axes, key=lambda axis: -axis[1]):
        if joined and joined[-1][1] == n * stride:
            joined[-1] = (joined[-1][0] * n, stride)
        elif stride:
            joined.append((n, stride))
    return joined
