"""Heads with their depth outermost as rows of a product: chosen by torch.compile, and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

SPEC = registry.kernels()["heads_linear"]


def project(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As decode of several requests projects: [128, B, H, S] -> [B, S, N]."""
    return x.permute(1, 3, 2, 0).flatten(2) @ w


def kernels_of(function: Any, *args: torch.Tensor, **options: Any) -> list[str | None]:
    """The kernels of the plan; the result is compared with eager's."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(function, backend="trnx", options=options)(*args)
        wanted = function(*args)
    # Sums of as many terms as w has rows, in another order.
    terms = math.sqrt(args[1].shape[0]) if wanted.dtype is torch.float32 else 0.0
    rounding = (8 + terms) * torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(found, wanted, rtol=rounding, atol=rounding, check_stride=True)
    return [region.kernel for report in reports for region in report.regions]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("batch", "length"), [(1, 2), (16, 1), (127, 1), (64, 2)])
def test_the_copy_is_part_of_the_product(
    batch: int, length: int, dtype: torch.dtype, lnc: int
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(128, batch, 4, length), torch.randn(512, 300) / 512**0.5
    names = kernels_of(project, x.to(dtype), w.to(dtype), lnc=lnc)
    # Heads lie between the two dimensions of the rows where both are more than one.
    assert (names == ["heads_linear"]) is (batch == 1 or length == 1)


def test_what_it_refuses_runs_as_before() -> None:
    torch.manual_seed(0)
    many = kernels_of(project, torch.randn(128, 129, 4, 1), torch.randn(512, 64) / 20)
    narrow = kernels_of(project, torch.randn(64, 8, 4, 1), torch.randn(256, 64) / 20)
    assert "linear" in many
    assert "linear" in narrow


def test_a_copy_that_something_else_reads_stays() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.permute(1, 3, 2, 0).flatten(2)
        return rows @ w, rows

    torch.manual_seed(0)
    x, w = torch.randn(128, 8, 4, 1), torch.randn(512, 64) / 20
    compiled = torch.compile(function, backend="trnx")
    for have, want in zip(compiled(x, w), function(x, w), strict=True):
        torch.testing.assert_close(have, want, check_stride=True, rtol=1e-5, atol=1e-5)


def test_refusals_name_the_limit() -> None:
    def refused(x: torch.Tensor, shape: list[int], bias: int | None = None) -> str:
        spec = TensorSpec.of(x)
        weight = TensorSpec.dense((64, shape[-1]), x.dtype)
        added = None if bias is None else TensorSpec.dense((bias,), x.dtype)
        b = Bindings({"x": spec, "shape": shape, "weight": weight, "bias": added})
        found = SPEC.supports(b, hardware("trn2"))
        assert isinstance(found, Reject)
        return found.reason

    dense = torch.empty(128, 5, 4)
    assert "128" in refused(torch.empty(64, 5, 4).permute(1, 2, 0), [5, 256])
    assert "dense" in refused(torch.empty(5, 4, 128), [5, 512])
    assert "dense" in refused(torch.empty(128, 5, 8)[..., ::2].permute(1, 2, 0), [5, 512])
    assert "rows" in refused(torch.empty(128, 129, 4).permute(1, 2, 0), [129, 512])
    assert "heads" in refused(dense.permute(1, 2, 0), [10, 256])
    assert "bias" in refused(dense.permute(1, 2, 0), [5, 512], bias=1)
    assert "no rows" in refused(dense.permute(2, 1, 0)[0], [512])
