"""What is special to `column_sum`: instruction counts, traffic, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.program.program import Program

COLUMN_SUM = registry.kernels()["column_sum"]


def bindings(x: torch.Tensor, dims: Any) -> Bindings:
    return Bindings({"x": TensorSpec.of(x), "dims": dims, "keepdim": False})


def traced(b: Bindings) -> Program:
    launch = COLUMN_SUM.launch(b, hardware("trn2"))
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", values=False)
    assert isinstance(program, Program)
    return program


def test_traffic_and_flops_are_those_of_the_cost() -> None:
    for shape in ((1000, 768), (129, 3000), (5000, 3)):
        b = bindings(torch.empty(shape), [0])
        program = traced(b)
        assert program.hbm_bytes == COLUMN_SUM.cost(b).hbm_bytes
        assert program.matmul_flops == COLUMN_SUM.cost(b).matmul_flops


def test_narrow_rows_are_summed_side_by_side() -> None:
    counts = traced(bindings(torch.empty(128 * 64, 16), [0])).rows.opcode_counts()
    assert counts["nc_matmul"] == 2  # 32 rows of 16 columns fill a bank
    assert counts["dma_copy"] == 2


@pytest.mark.parametrize(
    ("x", "dims", "reason"),
    [
        (torch.empty(4, 4, dtype=torch.int32), [0], "int32"),
        (torch.empty(4, 4), [1], "leading"),
        (torch.empty(4, 4, 4), [0, 2], "leading"),
        (torch.empty(4, 4), [], "leading"),
        (torch.empty(4, 4), [0, 1], "all dimensions"),
        (torch.empty(0, 4), [0], "empty"),
    ],
)
def test_refusals(x: torch.Tensor, dims: list[int], reason: str) -> None:
    refusal = COLUMN_SUM.supports(bindings(x, dims), hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
