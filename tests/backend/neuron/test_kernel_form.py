"""Operands as kernels take them, and results as the graph knows them, for every form there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from trnx.backend.neuron.kernel_form import as_operand, as_result
from trnx.simulator.memory.tensor_spec import TensorSpec

CPU = torch.device("cpu")

TENSORS = {
    "dense": torch.arange(12.0).view(3, 4),
    "one element": torch.ones(1, 1),
    "empty": torch.ones(0, 4),
    "bfloat16": torch.arange(12.0).view(3, 4).to(torch.bfloat16),
    "a number": torch.tensor(2.5),
    "transposed": torch.arange(12.0).view(3, 4).t(),
    "three dimensions permuted": torch.arange(24.0).view(2, 3, 4).permute(1, 2, 0),
    "gaps": torch.arange(24.0).view(4, 6)[:, ::2],
    "expanded": torch.arange(4.0).expand(3, 4),
    "bool": torch.arange(12).view(3, 4) % 3 == 0,
    "a bool": torch.tensor(True),
    "int64": torch.tensor([[1, -1, 2**40], [-(2**40), 0, 2**31]]),
    "an int64": torch.tensor(-(2**40)),
    "int64 transposed": torch.arange(12).view(3, 4).t(),
    "int32": torch.arange(12, dtype=torch.int32).view(3, 4),
}


def _run(write: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """What a graph of one input computes."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(write(lambda target, *a, **k: graph.call_function(target, a, k), x))
    found: torch.Tensor = fx.GraphModule(torch.nn.Module(), graph)(*inputs)
    return found


@pytest.mark.parametrize("name", list(TENSORS))
def test_there_and_back(name: str) -> None:
    tensor = TENSORS[name]
    spec = TensorSpec.of(tensor)
    operand = _run(lambda emit, x: as_operand(emit, x, spec), tensor)
    # NKI has no bool, no 64-bit types and no tensors without dimensions, and memory has no strides.
    assert operand.dtype not in (torch.bool, torch.int64)
    assert operand.ndim >= 1
    assert operand.is_contiguous()
    if tensor.dtype == torch.int64:
        assert operand.shape[-1] == 2
        low, high = operand.long().unbind(-1)
        assert torch.equal(((high << 32) | (low & 0xFFFFFFFF)).flatten(), tensor.flatten())
    back = _run(lambda emit, x: as_result(emit, x, spec, CPU), operand)
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)
    if name != "expanded":  # a kernel has no result whose elements share memory
        assert back.stride() == tensor.stride()


def test_a_negative_view_is_resolved() -> None:
    tensor = torch._neg_view(torch.arange(3.0))
    spec = TensorSpec.of(tensor)
    operand = _run(lambda emit, x: as_operand(emit, x, spec, is_neg=True), tensor)
    assert not operand.is_neg()
    assert torch.equal(operand, tensor)
