"""How a new tensor lies in its buffer, and what a shape must be for that.

A kernel allocates few different tensors, again and again: `TileLayouts` checks each once a trace.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from trnx.simulator.errors import IllegalInstructionError, shortened
from trnx.simulator.hardware import Hardware
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import HBM, MemoryRegion
from trnx.simulator.memory.tensor_spec import contiguous_strides
from trnx.simulator.memory.views import Shape


@dataclass(frozen=True, slots=True, eq=False)
class TileLayout:
    """A dense tensor: its numbers as integers, and what its storage gets. HBM is one partition;
    `pitch` counts the elements of a partition, `row_bytes` their bytes. Compared by identity: that
    of another dtype or buffer is another.
    """

    shape: Shape
    strides: Shape
    partitions: int
    pitch: int
    row_bytes: int


class TileLayouts:
    """The layouts of one trace."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._known: dict[tuple[Sequence[int], DType, MemoryRegion], TileLayout] = {}

    def layout(self, shape: Sequence[int], dtype: DType, buffer: MemoryRegion) -> TileLayout:
        """Raises IllegalInstructionError for a shape that the buffer does not take."""
        if type(shape) is list and all(type(size) is int for size in shape):
            shape = tuple(shape)
        if type(shape) is not tuple:
            return self._layout(shape, dtype, buffer)
        key = (shape, dtype, buffer)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._layout(shape, dtype, buffer)
        return found

    def _layout(self, shape: Sequence[int], dtype: DType, buffer: MemoryRegion) -> TileLayout:
        given = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
        if not given or not all(hasattr(size, "__index__") and size > 0 for size in given):
            _refuse(f"shape {shortened(shape)} must be positive integers")
        sizes = tuple(operator.index(size) for size in given)
        partitions = 1 if buffer in HBM else sizes[0]
        pitch = math.prod(sizes) // partitions
        layout = TileLayout(
            sizes, contiguous_strides(sizes), partitions, pitch, pitch * dtype.itemsize
        )
        if buffer not in HBM:
            self._check_size(layout, buffer)
        return layout

    def _check_size(self, layout: TileLayout, buffer: MemoryRegion) -> None:
        hardware, where = self._hardware, f"in {buffer.value}"
        if layout.partitions > hardware.partitions:
            _refuse(f"{layout.partitions} partitions {where}; the maximum is {hardware.partitions}")
        limit = (
            hardware.psum_partition_bytes
            if buffer is MemoryRegion.psum
            else hardware.sbuf_partition_bytes
        )
        if layout.row_bytes > limit:
            _refuse(f"{layout.row_bytes} bytes per partition {where}, which has {limit}")


def _refuse(message: str) -> None:
    raise IllegalInstructionError("legality", f"ndarray: {message}", kernel_location())
