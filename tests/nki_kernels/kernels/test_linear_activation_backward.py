"""The gradient of an activation's output as a product, and that of its input, as one kernel; for
a training step see `test_linear_activation.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trnx

KERNEL = "linear_activation_backward"
aten = torch.ops.aten


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("name", ["gelu", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_as_accurate_as_eager(dtype: torch.dtype, name: str, lnc: int) -> None:
    backward = getattr(aten, f"{name}_backward").default

    def function(x: torch.Tensor, weight: torch.Tensor, before: torch.Tensor) -> Any:
        return backward(torch.nn.functional.linear(x, weight), before)

    torch.manual_seed(0)
    sizes = ((3, 47, 64), (300, 64), (3, 47, 300))
    values = [torch.randn(size).to(dtype) for size in sizes]
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        ours = torch.compile(function, backend="trnx", options={"lnc": lnc})(*values)
    assert [region.kernel for report in reports for region in report.regions] == [KERNEL]
    eager = function(*values)
    exact = function(*(value.double() for value in values))
    assert ours.dtype == eager.dtype
    assert ours.stride() == eager.stride()
    least = torch.finfo(dtype).eps * exact.abs().max()
    error, allowed = (ours - exact).abs().max(), (eager - exact).abs().max()
    assert error <= 2 * max(allowed, least)


def test_a_gradient_that_something_else_reads_stays() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, before: torch.Tensor) -> Any:
        gradient = torch.nn.functional.linear(x, weight)
        return aten.gelu_backward.default(gradient, before), gradient

    torch.manual_seed(0)
    values = (torch.randn(70, 64), torch.randn(130, 64), torch.randn(70, 130))
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        found = torch.compile(function, backend="trnx")(*values)
    assert KERNEL not in [region.kernel for report in reports for region in report.regions]
    for have, want in zip(found, function(*values), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)
