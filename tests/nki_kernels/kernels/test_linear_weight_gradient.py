"""The gradients of a linear layer's weight and bias as one kernel: chosen in a training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trnx

KERNEL = "linear_weight_gradient"


def gradients(model: nn.Module, x: torch.Tensor, seed: torch.Tensor) -> list[torch.Tensor]:
    """Of x and of the parameters, for the gradient `seed` of the result."""
    given = x.clone().requires_grad_()
    model.zero_grad()
    model(given).backward(seed)
    return [value.grad.clone() for value in (given, *model.parameters()) if value.grad is not None]


def trained_kernels(
    model: nn.Module, x: torch.Tensor, seed: torch.Tensor, **options: Any
) -> list[str | None]:
    """The kernels of a step; gradients are as close to those in float64 as eager's, twice, and the
    rounding of a partial sum for each 128 rows of the batch."""
    torch._dynamo.reset()
    wanted = gradients(model, x, seed)
    with trnx.collect_reports() as reports:
        compiled = torch.compile(model, backend="trnx", options=options)
        found = gradients(compiled, x, seed)  # type: ignore[arg-type]
    dtype = x.dtype
    exact = gradients(model.double(), x.double(), seed.double())
    for have, want, true in zip(found, wanted, exact, strict=True):
        assert (have.dtype, have.shape, have.stride()) == (dtype, want.shape, want.stride())
        assert torch.equal(have.isnan(), want.isnan())
        finite = want.isfinite()
        ours, eagers = (
            (value.double() - true)[finite].abs().max() for value in (have.detach(), want)
        )
        scale = true[finite].abs().max()
        sums = -(-x[..., 0].numel() // 128)
        assert ours <= 2 * eagers + sums * torch.finfo(torch.float32).eps * scale
    return [region.kernel for report in reports for region in report.regions]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(129, 300, 130), (2, 70, 513), (140, 64, 1100)])
def test_one_kernel(sizes: tuple[int, int, int], dtype: torch.dtype, lnc: int) -> None:
    torch.manual_seed(0)
    rows, depth, columns = sizes
    model = nn.Linear(depth, columns).to(dtype)
    x, seed = torch.randn(3, rows, depth).to(dtype), torch.randn(3, rows, columns).to(dtype)
    assert KERNEL in trained_kernels(model, x, seed, lnc=lnc)


def test_without_a_bias_it_is_a_plain_product() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 70, bias=False)
    assert KERNEL not in trained_kernels(model, torch.randn(130, 64), torch.randn(130, 70))


@pytest.mark.parametrize(
    "width", [pytest.param(64, id="TensorE adds up"), pytest.param(1540, id="GpSimd adds up")]
)
def test_a_gradient_that_is_not_finite_stays_in_its_row(width: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(width, 300).bfloat16()
    x, seed = torch.randn(280, width).bfloat16(), torch.randn(280, 300).bfloat16()
    seed[3, 5], seed[150, 290] = torch.nan, torch.inf
    assert KERNEL in trained_kernels(model, x, seed, lnc=2)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("rows", [48, 120, 300, 1290])
def test_float32_sums_lose_less_than_eager(rows: int, target: str) -> None:
    """TensorE adds 128 values one after another, which alone loses twice what torch does."""
    torch.manual_seed(0)
    model = nn.Linear(16, 320)
    x, seed = torch.randn(rows, 16), torch.randn(rows, 320)
    compiled = torch.compile(model, backend="trnx", options={"target": target})
    with trnx.collect_reports() as reports:
        compiled(x).backward(seed)
    assert KERNEL in [region.kernel for report in reports for region in report.regions]
    assert model.bias.grad is not None
    exact = seed.double().sum(0)
    ours, eagers = ((value.double() - exact).norm() for value in (model.bias.grad, seed.sum(0)))
    assert ours <= 0.6 * eagers


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3.4e38])
def test_float32_sums_of_what_has_no_parts(value: float) -> None:
    """Infinity less its first bits is NaN, and the largest numbers round up to infinity."""
    torch.manual_seed(0)
    model = nn.Linear(16, 130)
    x, seed = torch.zeros(200, 16), torch.randn(200, 130)
    seed[3, 5], seed[150, 129] = value, value
    compiled = torch.compile(model, backend="trnx")
    with trnx.collect_reports() as reports:
        compiled(x).backward(seed)
    assert KERNEL in [region.kernel for report in reports for region in report.regions]
    torch.testing.assert_close(model.bias.grad, seed.sum(0), equal_nan=True)


def test_a_batch_that_does_not_fit_is_left_to_others() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1024)
    found = trained_kernels(model, torch.randn(4400, 8), torch.randn(4400, 1024))
    assert KERNEL not in found
