"""A product, a residual and a layer norm as one kernel: chosen by torch.compile, both kinds of
blocks, training, and values that are odd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import trnx


class PostNorm(nn.Module):
    """The end of a block of BERT."""

    def __init__(self, depth: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.product, self.norm = nn.Linear(depth, hidden, bias=bias), nn.LayerNorm(hidden)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.norm(self.product(x) + residual),)


class PreNorm(PostNorm):
    """Between two halves of a block of GPT-2: the sum is the next residual too."""

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = residual + self.product(x)
        return total, self.norm(total)


def compiled_kernels(model: nn.Module, *given: torch.Tensor, **options: Any) -> list[str | None]:
    """The kernels of the plan; results are compared with eager's."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options=options)(*given)
        wanted = model(*given)
        exact = copy.deepcopy(model).double()(*(t.double() for t in given))
    for have, want, true in zip(found, wanted, exact, strict=True):
        assert (have.dtype, have.shape, have.stride()) == (want.dtype, want.shape, want.stride())
        rows = want.isfinite().all(-1)
        assert torch.equal(have.isnan(), want.isnan())
        ours, eagers = ((value.double() - true)[rows].abs().max() for value in (have, want))
        assert ours <= 2 * eagers + torch.finfo(have.dtype).eps
    return [region.kernel for report in reports for region in report.regions]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [129, 600])
def test_one_kernel(kind: type[PostNorm], rows: int, dtype: torch.dtype, lnc: int) -> None:
    torch.manual_seed(0)
    model = kind(256, 768).to(dtype)
    given = torch.randn(1, rows, 256).to(dtype), torch.randn(1, rows, 768).to(dtype)
    assert compiled_kernels(model, *given, lnc=lnc) == ["linear_layer_norm"]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
def test_ragged_sizes(kind: type[PostNorm], target: str) -> None:
    torch.manual_seed(0)
    model = kind(70, 130, bias=False)
    found = compiled_kernels(model, torch.randn(3, 90, 70), torch.randn(3, 90, 130), target=target)
    assert found == ["linear_layer_norm"]


def test_rows_that_are_not_finite_stay_apart() -> None:
    torch.manual_seed(0)
    model = PreNorm(128, 256).bfloat16()
    x, residual = torch.randn(300, 128).bfloat16(), torch.randn(300, 256).bfloat16()
    x[3, 5], residual[290, 0], residual[17] = torch.nan, torch.inf, 1e38
    assert compiled_kernels(model, x, residual, lnc=2) == ["linear_layer_norm"]


def test_a_large_mean_and_a_constant_row() -> None:
    torch.manual_seed(0)
    model = PostNorm(64, 600)
    x, residual = torch.randn(140, 64), torch.randn(140, 600) + 100.0
    x[5] = 0.0
    residual[5] = 2.0 - model.product.bias.detach()
    assert compiled_kernels(model, x, residual) == ["linear_layer_norm"]


@pytest.mark.parametrize("kind", [PostNorm, PreNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_saves_statistics_and_sum(kind: type[PostNorm], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = kind(128, 256).to(dtype)
    given = torch.randn(200, 128).to(dtype), torch.randn(200, 256).to(dtype)
    gradients = []
    with trnx.collect_reports() as reports:
        torch._dynamo.reset()
        for function in (model, torch.compile(model, backend="trnx")):
            inputs = [value.clone().requires_grad_() for value in given]
            sum((out * 1.5).square().sum() for out in function(*inputs)).backward()
            found = [*inputs, *model.parameters()]
            gradients.append([value.grad.clone() for value in found])
            model.zero_grad()
    kernels = [region.kernel for report in reports for region in report.regions]
    assert "linear_layer_norm" in kernels
    for want, have in zip(*gradients, strict=True):
        scale = want.float().abs().max().item()
        rounding = 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(have, want, rtol=rounding, atol=rounding * scale)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mean", [1.0, 512.0, 8192.0])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_rows_far_from_zero(dtype: torch.dtype, mean: float, scale: float) -> None:
    """Rows whose elements differ by one unit in the last place: what data * rstd - mean * rstd
    loses in float32 is at most what eager loses."""
    torch.manual_seed(0)
    model = PostNorm(64, 768).to(dtype)
    with torch.no_grad():
        model.product.weight.mul_(scale)
        model.product.bias.mul_(scale)
    unit = mean * torch.finfo(dtype).eps
    steps = torch.rand(130, 768) < torch.linspace(0.01, 0.9, 130)[:, None]
    residual = (mean + unit * steps).to(dtype)
    x = torch.randn(130, 64).to(dtype)
    assert compiled_kernels(model, x, residual, lnc=2, select="legal") == ["linear_layer_norm"]
