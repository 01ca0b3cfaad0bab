"""Products of groups: through torch.compile, and what one group has that others must not get."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.nki_kernels import canonical_ops  # noqa: F401  registers torch.ops.trnx


def test_a_grouped_product_is_one_kernel_and_eagers() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(130, 64, generator=generator).bfloat16()
    w = torch.randn(3, 64, 48, generator=generator).bfloat16()
    offsets = torch.tensor([5, 5, 130], dtype=torch.int32)
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        actual = torch.compile(F.grouped_mm, backend="trnx", options={"select": "legal"})(
            x, w, offs=offsets
        )
    expected = F.grouped_mm(x, w, offs=offsets)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2, check_stride=True)
    assert [region.kernel for region in reports[-1].regions] == ["grouped_mm"]
    assert reports.flops_on_nki == 1.0


def check_gradients(product: Any, is_turned: bool, dtype: torch.dtype, error: float) -> None:
    """Forward and backward of `product` by two kernels, with the values and strides of eager's."""
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([5, 5, 128], dtype=torch.int32)
    values = torch.randn(128, 64, generator=generator).to(dtype)
    shape = (3, 48, 64) if is_turned else (3, 64, 48)
    weights = torch.randn(shape, generator=generator).to(dtype)
    grad = torch.randn(128, 48, generator=generator).to(dtype)

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return product(x, w.mT if is_turned else w, offsets)

    def gradients(run: Any) -> list[torch.Tensor]:
        x, w = (t.clone().requires_grad_() for t in (values, weights))
        return list(torch.autograd.grad(run(x, w), (x, w), grad))

    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        actual = gradients(torch.compile(forward, backend="trnx", options={"select": "legal"}))
    for one, other in zip(actual, gradients(forward), strict=True):
        torch.testing.assert_close(one, other, rtol=error, atol=10 * error, check_stride=True)
    kernels = [str(region.kernel) for region in reports[-1].regions]
    assert sorted(kernels) == ["grouped_mm", "grouped_mm_weight_gradient"]
    assert reports.flops_on_nki == 1.0


@pytest.mark.parametrize("is_turned", [False, True])
def test_gradients_of_a_grouped_product(is_turned: bool) -> None:
    check_gradients(lambda x, w, o: F.grouped_mm(x, w, offs=o), is_turned, torch.bfloat16, 2e-2)


@pytest.mark.parametrize("is_turned", [False, True])
def test_gradients_of_the_product_of_transformers(is_turned: bool) -> None:
    pytest.importorskip("transformers.integrations.moe", reason="needs transformers")
    product = torch.ops.transformers.grouped_mm_fallback
    check_gradients(product, is_turned, torch.float32, 1e-5)


def test_nan_stays_in_its_group() -> None:
    x, w = torch.ones(6, 4), torch.ones(2, 4, 3)
    w[0] = math.nan
    x[5] = math.inf
    offsets = torch.tensor([2, 6])
    torch._dynamo.reset()
    compiled = torch.compile(torch.ops.trnx.grouped_mm, backend="trnx", options={"select": "legal"})
    actual = compiled(x, w, offsets)
    assert actual[:2].isnan().all()
    assert torch.equal(actual[2:5], torch.full((3, 3), 4.0))
    assert actual[5].isinf().all()


def test_nan_stays_in_the_gradient_of_its_group() -> None:
    x, grad = torch.ones(6, 4), torch.ones(6, 3)
    x[0], grad[1] = math.nan, math.inf
    offsets = torch.tensor([2, 6])
    torch._dynamo.reset()
    gradient = torch.ops.trnx.grouped_mm_weight_gradient
    compiled = torch.compile(gradient, backend="trnx", options={"select": "legal"})
    actual = compiled(x, grad, offsets)
    assert actual[0].isnan().all()
    assert torch.equal(actual[1], torch.full((4, 3), 4.0))
