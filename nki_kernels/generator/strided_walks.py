"""Reductions that VectorE walks in large steps."""

from __future__ import annotations

import math

from trnx.nki_kernels.generator.geometry import Geometry
from trnx.nki_kernels.generator.instruction import Instruction

# VectorE walks in larger steps at half its rate (trainium_inferentia2_arch.rst).
NEAR_BYTES = 16


def walks_in_steps(instruction: Instruction, geometry: Geometry) -> bool:
    """Whether a reduction reads elements that lie far apart one after another: the innermost axes
    of its tile stay."""
    if instruction.call != "tensor_reduce":
        return False
    (source,) = instruction.reads()
    labels = [d for d in geometry.free_labels if d in source.axes]
    step = source.dtype.itemsize
    while labels and labels[-1] in instruction.dst.axes:
        step *= geometry.count(labels.pop())
    reads = math.prod(map(geometry.count, labels))
    return reads > 1 and step > NEAR_BYTES
