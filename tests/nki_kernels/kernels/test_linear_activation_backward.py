"""The gradient of an activation's output as a product, and that of its input, as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import trnx

KERNEL = "linear_activation_backward"


def gradients(model: nn.Module, given: torch.Tensor, run: Callable[..., Any]) -> list[torch.Tensor]:
    """Those of the input and of all parameters."""
    x = given.clone().requires_grad_()
    run(x).square().mean().backward()
    found = [
        value for value in (x.grad, *(p.grad for p in model.parameters())) if value is not None
    ]
    copies = [value.clone() for value in found]
    model.zero_grad()
    return copies


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("activation", [nn.GELU(), nn.SiLU()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_training_step_is_as_accurate_as_eager(
    dtype: torch.dtype, activation: nn.Module, lnc: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 300), activation, nn.Linear(300, 64)).to(dtype)
    x = torch.randn(3, 47, 64).to(dtype)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="trnx", options={"lnc": lnc})
    with trnx.collect_reports() as reports:
        ours = gradients(model, x, compiled)
    assert KERNEL in [region.kernel for report in reports for region in report.regions]
    theirs = gradients(model, x, model)
    model.double()
    exact = gradients(model, x.double(), model)
    for have, eager, want in zip(ours, theirs, exact, strict=True):
        assert have.dtype == eager.dtype
        assert have.stride() == eager.stride()
        least = torch.finfo(dtype).eps * want.abs().max()
        error, allowed = (have - want).abs().max(), (eager - want).abs().max()
        assert error <= 2 * max(allowed, least)


def test_a_gradient_that_something_else_reads_stays() -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, before: torch.Tensor) -> Any:
        gradient = torch.nn.functional.linear(x, weight)
        return torch.ops.aten.gelu_backward.default(gradient, before), gradient

    torch.manual_seed(0)
    values = (torch.randn(70, 64), torch.randn(130, 64), torch.randn(70, 130))
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        found = torch.compile(function, backend="trnx")(*values)
    assert KERNEL not in [region.kernel for report in reports for region in report.regions]
    for have, want in zip(found, function(*values), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)
