"""What is special to `column_sum`: instruction counts, traffic, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trnx
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
        for dtype in (torch.float32, torch.bfloat16):
            b = bindings(torch.empty(shape, dtype=dtype), [0])
            program = traced(b)
            assert program.hbm_bytes == COLUMN_SUM.cost(b).hbm_bytes
            if dtype is torch.bfloat16:  # of float32 most are not products
                assert program.matmul_flops == COLUMN_SUM.cost(b).matmul_flops


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("rows", [48, 128, 1027, 9000])
def test_float32_loses_less_than_eager(rows: int, target: str) -> None:
    x = torch.randn(rows, 257, generator=torch.Generator().manual_seed(0))
    ours, eagers = (
        (found.double() - x.double().sum(0)).norm() for found in (summed(x, target), x.sum(0))
    )
    assert ours <= 0.8 * eagers


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3.4e38])
@pytest.mark.parametrize("rows", [1300, 4000])
def test_float32_of_what_has_no_parts(rows: int, value: float) -> None:
    """Infinity less its first bits is NaN, and the largest numbers round up to infinity."""
    x = torch.randn(rows, 600, generator=torch.Generator().manual_seed(0))
    x[1, 5], x[-1, 599] = value, value
    exact = x.double().sum(0).float()
    torch.testing.assert_close(summed(x, "trn2"), exact, equal_nan=True)


def summed(x: torch.Tensor, target: str) -> torch.Tensor:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sum(0), backend="trnx", options={"target": target})
    with trnx.collect_reports() as reports:
        found = compiled(x)
    assert [one.kernel for report in reports for one in report.regions] == ["column_sum"]
    return found


def test_narrow_rows_are_summed_side_by_side() -> None:
    x = torch.empty(128 * 64, 16, dtype=torch.bfloat16)
    counts = traced(bindings(x, [0])).rows.opcode_counts()
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


def test_what_lies_along_the_reduced_dimension_is_left_to_generated_kernels() -> None:
    """They add along rows as they lie in memory; this kernel would copy x first."""
    x = torch.randn(8, 5, 300)
    chip = hardware("trn2")
    for turned, dims in ((x.permute(2, 0, 1), [0]), (x.permute(2, 1, 0), [0, 1])):
        assert isinstance(COLUMN_SUM.supports(bindings(turned, dims), chip), Reject)
        torch.compiler.reset()
        options = {"select": "legal", "fallback": "error"}
        found = torch.compile(lambda y, dims=dims: y.sum(dims), backend="trnx", options=options)
        torch.testing.assert_close(found(turned), turned.sum(dims))
    for kept, dims in ((x, [0]), (x.permute(1, 0, 2), [0]), (x[:, :, :1], [0, 1])):
        assert COLUMN_SUM.supports(bindings(kept, dims), chip) is None
