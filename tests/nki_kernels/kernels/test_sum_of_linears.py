"""Backward of query, key and value of one input: their products are summed up in one kernel, and
their weights' gradients are one kernel."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import trnx


class Projected(nn.Module):
    """Three products of one input, and a residual."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (product(x) for product in self.products)
        return x + q * k.sigmoid() + v.tanh()


def gradients(model: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """Of the input and of all parameters."""
    leaf = x.detach().clone().requires_grad_()
    out = model(leaf)
    return list(torch.autograd.grad(out, [leaf, *model.parameters()], grad.to(out.dtype)))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(2, 128, 256), (3, 43, 384)])
def test_backward_of_three_products(
    sizes: tuple[int, int, int], dtype: torch.dtype, lnc: int
) -> None:
    """Errors against float64 are at most twice those of eager. The gradient of a bias is a product
    with ones, whose 128 terms some CPUs add one by one, where eager's sum has vectors of them: each
    partial sum is rounded, with a mean square of a twelfth of its unit, and they grow evenly.
    """
    torch.manual_seed(0)
    model = Projected(sizes[-1]).to(dtype)
    x, grad = (torch.randn(sizes).to(dtype) for _ in range(2))
    torch._dynamo.reset()
    options = {"lnc": lnc, "select": "legal"}
    with trnx.collect_reports() as reports:
        found = gradients(torch.compile(model, backend="trnx", options=options), x, grad)
    kernels = [region.kernel for report in reports for region in report.regions]
    assert "sum_of_linears" in kernels
    assert kernels.count("linear_weight_gradient") == 1
    eager = gradients(model, x, grad)
    exact = gradients(copy.deepcopy(model).double(), x.double(), grad.double())
    for have, want, true in zip(found, eager, exact, strict=True):
        assert (have.dtype, have.shape, have.stride()) == (want.dtype, want.shape, want.stride())
        ours, eagers = ((t.double() - true).square().mean().sqrt() for t in (have, want))
        eps = torch.finfo(dtype).eps
        in_order = eps * true.square().mean().sqrt() * math.sqrt(128 / 3 / 12)
        allowed = 2 * eagers + eps * true.abs().max() / 8
        assert ours <= (allowed + in_order if true.ndim == 1 else allowed)


def test_weights_of_different_layers_stay_apart() -> None:
    """Gradients that meet only in one sum, of inputs of their own."""

    class Apart(Projected):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (product(x * n) for n, product in enumerate(self.products, 1))
            return q * k.sigmoid() + v.tanh()

    torch.manual_seed(0)
    model = Apart(256)
    x, grad = torch.randn(2, 64, 256), torch.randn(2, 64, 256)
    torch._dynamo.reset()
    with trnx.collect_reports() as reports:
        found = gradients(torch.compile(model, backend="trnx"), x, grad)
    kernels = [region.kernel for report in reports for region in report.regions]
    assert kernels.count("linear_weight_gradient") == 3
    for have, want in zip(found, gradients(model, x, grad), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-4)
