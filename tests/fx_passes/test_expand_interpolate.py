"""Nearest interpolation by powers of two: values, gradients, strides, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx


def run(function: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the gradient of x."""
    x = x.detach().requires_grad_()
    result = function(x)
    weights = torch.arange(result.numel(), dtype=x.dtype).view(result.shape) % 7
    (gradient,) = torch.autograd.grad((result * weights).sum(), x)
    return result.detach(), gradient


def ops_of(function: Callable[..., Any], x: torch.Tensor) -> set[str]:
    """Runs compiled and eager, compares, and gives the ops of the compiled graphs."""
    torch.compiler.reset()
    compiled = torch.compile(function, backend="trnx", options={"runner": "reference"})
    with trnx.collect_reports() as reports:
        found = run(compiled, x)
    for one, other in zip(found, run(function, x), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    return {op for report in reports for region in report.regions for op in region.ops}


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((2, 3, 5), {"scale_factor": 2}),
        ((2, 3, 5, 7), {"scale_factor": 2.0}),
        ((1, 4, 1, 7), {"size": (4, 7)}),
        ((2, 3, 5, 7), {"scale_factor": (4, 2), "mode": "nearest-exact"}),
        ((2, 2, 3, 2, 4), {"size": (3, 8, 16)}),
    ],
)
def test_no_index_is_left(shape: tuple[int, ...], arguments: dict[str, Any]) -> None:
    ops = ops_of(lambda x: F.interpolate(x, **arguments), torch.randn(shape))
    assert not {op for op in ops if "index" in op}


@pytest.mark.parametrize(
    ("shape", "arguments"),
    [
        ((2, 3, 4, 6), {"scale_factor": 3}),
        ((2, 3, 4, 6), {"scale_factor": 1.5}),
        ((2, 3, 4, 6), {"scale_factor": 2.1, "recompute_scale_factor": True}),
        ((2, 3, 4, 6), {"size": (2, 3)}),
        ((2, 3, 4, 6), {"scale_factor": 2, "mode": "bilinear"}),
    ],
)
def test_others_equal_eager_too(shape: tuple[int, ...], arguments: dict[str, Any]) -> None:
    ops_of(lambda x: F.interpolate(x, **arguments), torch.randn(shape))


def test_channels_last_stays_so() -> None:
    x = torch.randn(2, 3, 5, 7).contiguous(memory_format=torch.channels_last)
    ops_of(lambda x: F.interpolate(x, scale_factor=2), x)


def test_special_values_and_the_input_itself() -> None:
    x = torch.tensor([[[float("inf"), float("nan"), -0.0, 1e-40]]])
    compiled = torch.compile(lambda x: F.interpolate(x, scale_factor=2), backend="trnx")
    torch.testing.assert_close(
        compiled(x), F.interpolate(x, scale_factor=2), rtol=0, atol=0, equal_nan=True
    )
    same = torch.compile(lambda x: F.interpolate(x, scale_factor=1), backend="trnx")(x)
    assert same.data_ptr() != x.data_ptr()
