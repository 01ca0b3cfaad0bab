"""A product with its activation, both of which a training step keeps, as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnx

KERNEL = "linear_activation"


class Activated(nn.Module):
    """A product and its activation, or both."""

    def __init__(
        self, depth: int, columns: int, activation: Callable[..., Any], both: bool = True
    ) -> None:
        super().__init__()
        self.product, self.activation, self.both = nn.Linear(depth, columns), activation, both

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = self.product(x)
        after = self.activation(before)
        return (after, before) if self.both else (after,)


def compiled_kernels(model: nn.Module, x: torch.Tensor, **options: Any) -> list[str | None]:
    """The kernels of the plan; results are compared with eager's."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options=options)(x)
        wanted = model(x)
    # Terms of a product add up to about 6 in magnitude, and eager's sum is off by as many roundings
    # as ours; which of them cancel depends on the CPU.
    rounding = 16 * torch.finfo(x.dtype).eps
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            have, want, rtol=rounding, atol=rounding, check_stride=True, equal_nan=True
        )
    return [region.kernel for report in reports for region in report.regions]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("rows", [1, 127, 129, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_are_one_kernel(rows: int, dtype: torch.dtype, lnc: int) -> None:
    torch.manual_seed(0)
    model = Activated(256, 1030, F.gelu).to(dtype)
    assert compiled_kernels(model, torch.randn(1, rows, 256).to(dtype), lnc=lnc) == [KERNEL]


@pytest.mark.parametrize("activation", [F.gelu, partial(F.gelu, approximate="tanh"), F.silu])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_every_activation_that_has_a_gradient(activation: Any, target: str) -> None:
    torch.manual_seed(0)
    model = Activated(70, 130, activation)
    assert compiled_kernels(model, torch.randn(3, 90, 70), target=target) == [KERNEL]


def test_a_product_that_nobody_else_reads_is_not_stored() -> None:
    torch.manual_seed(0)
    model = Activated(70, 130, F.gelu, both=False)
    assert compiled_kernels(model, torch.randn(140, 70)) == ["linear"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_training_step(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 300), nn.GELU(), nn.Linear(300, 64)).to(dtype)
    x = torch.randn(140, 64).to(dtype)
    gradients = []
    with trnx.collect_reports() as reports:
        torch._dynamo.reset()
        for function in (model, torch.compile(model, backend="trnx")):
            given = x.clone().requires_grad_()
            function(given).square().mean().backward()
            found = [given.grad, *(p.grad for p in model.parameters())]
            gradients.append([value.clone() for value in found if value is not None])
            model.zero_grad()
    kernels = {region.kernel for report in reports for region in report.regions}
    assert {KERNEL, f"{KERNEL}_backward"} <= kernels
    for want, have in zip(*gradients, strict=True):
        scale = want.float().abs().max().item()
        rounding = 8 * torch.finfo(dtype).eps
        torch.testing.assert_close(have, want, rtol=rounding, atol=rounding * scale)
