"""What stands around a kernel in a graph of the device: operands as kernels take them, results as
the graph knows them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from trnx.simulator.memory.tensor_spec import TensorSpec, contiguous_strides

aten = torch.ops.aten

# Writes a call into the graph: target, arguments, keyword arguments.
Emit = Callable[..., fx.Node]


def as_operand(emit: Emit, value: fx.Node, spec: TensorSpec, *, is_neg: bool = False) -> fx.Node:
    """A tensor of this spec as the kernel takes it: contiguous, with a dimension, without bool or
    64-bit types."""
    if is_neg:
        value = emit(aten.resolve_neg.default, value)
    if not spec.is_contiguous:
        value = emit(aten.clone.default, value, memory_format=torch.contiguous_format)
    if spec.ndim == 0:
        value = emit(aten.view.default, value, [1])
    if spec.dtype == torch.bool:
        return emit(aten._to_copy.default, value, dtype=torch.uint8)
    if spec.dtype == torch.int64:
        return emit(aten.view.dtype, emit(aten.unsqueeze.default, value, -1), torch.int32)
    return value


def as_result(emit: Emit, value: fx.Node, spec: TensorSpec, device: torch.device) -> fx.Node:
    """What a kernel returned, as the tensor of this spec that the graph was traced with."""
    if spec.dtype == torch.bool:
        value = emit(aten._to_copy.default, value, dtype=torch.bool)
    elif spec.dtype == torch.int64:
        value = emit(aten.squeeze.dim, emit(aten.view.dtype, value, torch.int64), -1)
    if spec.ndim == 0:
        value = emit(aten.view.default, value, [])
    return value if spec.is_contiguous else _restrided(emit, value, spec, device)


def _restrided(emit: Emit, value: fx.Node, spec: TensorSpec, device: torch.device) -> fx.Node:
    """A copy: dense in the order of the strides, seen with the sizes of `spec`."""
    order = sorted(range(spec.ndim), key=lambda d: (-spec.strides[d], d))
    shape = tuple(spec.shape[d] for d in order)
    if tuple(spec.strides[d] for d in order) != contiguous_strides(shape):  # gaps, or strides of 0
        sizes, strides = list(spec.shape), list(spec.strides)
        empty = emit(aten.empty_strided.default, sizes, strides, dtype=spec.dtype, device=device)
        return emit(aten.copy.default, empty, value)
    value = emit(aten.permute.default, value, order)
    value = emit(aten.clone.default, value, memory_format=torch.contiguous_format)
    return emit(aten.permute.default, value, sorted(range(spec.ndim), key=order.__getitem__))
