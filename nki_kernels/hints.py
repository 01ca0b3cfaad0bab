"""Numbers in place of symbolic ones, for guards, costs and predictions; nothing here adds a guard.

A hint is the number that was seen when the graph was captured; one that depends on data has none,
and gets `UNKNOWN_SIZE`, 1.0 or True.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import optimization_hint

from trnx.simulator.memory.tensor_spec import TensorSpec

# What a size that depends on data is taken for when work is predicted.
UNKNOWN_SIZE = 128


def hint_int(value: int | torch.SymInt) -> int:
    """The number that `value` had at capture."""
    if isinstance(value, torch.SymInt):
        known = optimization_hint(value, UNKNOWN_SIZE)
        # The ragged size of a nested tensor stands for many numbers: no int() of it.
        return UNKNOWN_SIZE if isinstance(known, torch.SymInt) else int(known)
    return int(value)


def hint(value: Any) -> Any:
    """`value` with symbolic numbers replaced by their hints; anything else as it is."""
    if isinstance(value, torch.SymInt):
        return hint_int(value)
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        known = value.node.hint
        return (1.0 if isinstance(value, torch.SymFloat) else True) if known is None else known
    if isinstance(value, (list, tuple)):
        return type(value)(hint(item) for item in value)
    return value


def hinted(value: Any) -> Any:
    """The spec of a fake tensor, dense where it has no strides; the hint of anything else."""
    if not isinstance(value, torch.Tensor):
        return hint(value)
    shape = tuple(map(hint_int, value.shape))
    if value.layout is not torch.strided:
        return TensorSpec.dense(shape, value.dtype)
    return TensorSpec(shape, value.dtype, tuple(map(hint_int, value.stride())))


def product(sizes: Iterable[int | torch.SymInt]) -> int:
    """Number of elements."""
    return math.prod(map(hint_int, sizes))
