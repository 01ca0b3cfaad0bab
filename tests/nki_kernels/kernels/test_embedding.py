"""What is special to `embedding`: indices out of range, traffic, refusals."""

from __future__ import annotations

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import OutOfBoundsError, Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

EMBEDDING = registry.kernels()["embedding"]


def bindings(weight: torch.Tensor, indices: torch.Tensor) -> Bindings:
    flags = {"padding_idx": 0, "scale_grad_by_freq": False, "sparse": False}
    return Bindings({"weight": TensorSpec.of(weight), "indices": TensorSpec.of(indices), **flags})


def traced(weight: torch.Tensor, indices: torch.Tensor) -> Program:
    launch = EMBEDDING.launch(bindings(weight, indices), hardware("trn2"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
    assert isinstance(program, Program)
    return program


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("bad", [-1, 10, 2**31 - 1, 2**32, -(2**32) + 3])
def test_an_index_out_of_range_raises(bad: int, dtype: torch.dtype) -> None:
    if dtype is torch.int32 and abs(bad) >= 2**31:
        bad = -9
    weight, indices = torch.randn(10, 4), torch.tensor([0, 9, bad], dtype=dtype)
    program = traced(weight, indices)
    with pytest.raises(OutOfBoundsError):
        program.run((weight, indices))
    good = torch.tensor([0, 9, 3], dtype=dtype)
    (rows,) = program.run((weight, good))
    assert torch.equal(rows, weight[good.long()])


def test_traffic_is_that_of_the_selected_rows() -> None:
    weight, indices = torch.randn(50, 64), torch.zeros(4, 256, dtype=torch.int64)
    program = traced(weight, indices)
    assert program.hbm_bytes == EMBEDDING.cost(bindings(weight, indices)).hbm_bytes
    assert program.instruction_count == 1 + 2 + 8 + 1  # indices, their words, 8 gathers, a store


@pytest.mark.parametrize(
    ("weight", "indices", "reason"),
    [
        (torch.empty(4, 4, dtype=torch.float64), torch.empty(3, dtype=torch.int64), "float64"),
        (torch.empty(4, 4), torch.empty(3, dtype=torch.int16), "int16"),
        (torch.empty(4, 4), torch.empty(0, dtype=torch.int64), "nothing"),
        (torch.empty(4, 0), torch.empty(3, dtype=torch.int64), "nothing"),
    ],
)
def test_refusals(weight: torch.Tensor, indices: torch.Tensor, reason: str) -> None:
    refusal = EMBEDDING.supports(bindings(weight, indices), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
