"""Query, key and value of one input as one kernel: chosen by torch.compile where it is faster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trnx


class Projected(nn.Module):
    """Three products of one input."""

    def __init__(self, hidden: int, columns: tuple[int, int, int], bias: bool) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(hidden, one, bias=bias) for one in columns)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(product(x) for product in self.products)


def compiled_kernels(model: nn.Module, x: torch.Tensor, **options: Any) -> list[str | None]:
    """The kernels of the plan; results are compared with eager's."""
    torch._dynamo.reset()
    with torch.no_grad(), trnx.collect_reports() as reports:
        found = torch.compile(model, backend="trnx", options=options)(x)
        wanted = model(x)
    rounding = 8 * torch.finfo(x.dtype).eps
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            have, want, rtol=rounding, atol=rounding, check_stride=True, equal_nan=True
        )
    return [region.kernel for report in reports for region in report.regions]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("rows", [1, 127, 129, 600])
@pytest.mark.parametrize("bias", [False, True])
def test_query_key_and_value_are_one_kernel(rows: int, lnc: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = Projected(256, (512, 130, 128), bias).bfloat16()
    x = torch.randn(1, rows, 256).bfloat16()
    assert compiled_kernels(model, x, lnc=lnc) == ["three_linears"]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_float32_of_narrow_columns(target: str) -> None:
    torch.manual_seed(0)
    model = Projected(70, (66, 33, 1), bias=True)
    x = torch.randn(3, 90, 70)
    assert compiled_kernels(model, x, target=target) == ["three_linears"]


def test_not_finite_values_stay_in_their_rows() -> None:
    torch.manual_seed(0)
    model = Projected(128, (64, 64, 64), bias=True).bfloat16()
    x = torch.randn(400, 128).bfloat16()
    x[3, 5], x[390, 0] = torch.nan, torch.inf
    assert compiled_kernels(model, x, lnc=2) == ["three_linears"]


class Chained(nn.Module):
    """Products of one input, the last one's weight made of the first's result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = self.first(x)
        return one, self.second(x), x @ one


def test_products_that_need_each_other_stay_apart() -> None:
    torch.manual_seed(0)
    found = compiled_kernels(Chained(), torch.randn(64, 64) / 8)
    assert "three_linears" not in found
