"""Powers of two that move to a sum, and those that stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

aten = torch.ops.aten
Build = Callable[..., Any]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def gated(factor: float, number: float) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any) -> Any:
        return aten.mul.Tensor(aten.mul.Tensor(x, factor), aten.add.Tensor(y, number))

    return function


def special(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of all sizes beside each other."""
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 3e38, 1e-30, -7e4])
    x, y = (t.to(dtype) for t in torch.meshgrid(values, values, indexing="ij"))
    more = draw(128, 10, dtype=dtype)
    return torch.cat([x, more]), torch.cat([y, -more.flip(0) - 1])


def passes(made: Any) -> int:
    """How many instructions there are in front of the last product."""
    return made.source().split("def fused")[0].count("nisa.tensor_scalar(")  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("factor", "number", "left"),
    [(0.5, 1.0, 1), (0.25, -3.0, 1), (0.3, 1.0, 2), (2.0, 1.0, 2), (0.5, 1e-30, 2)],
)
def test_a_power_of_two_takes_no_instruction(
    region: Build, factor: float, number: float, left: int
) -> None:
    x, y = special(BF16)
    made = region(gated(factor, number), x, y)
    assert passes(made) == left
    (result,) = made.run()
    expected = gated(factor, number)(x, y)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_what_half_of_a_small_number_loses_is_kept(region: Build) -> None:
    x = torch.arange(1, 4000, dtype=torch.int16).view(BF16)
    y = torch.full_like(x, 1e30)
    (result,) = region(gated(0.5, 1.0), x, y).run()
    exact = 0.5 * x.double() * y.double()
    eager = gated(0.5, 1.0)(x, y)
    assert bool(((result - exact).abs() <= (eager - exact).abs()).all())


@pytest.mark.parametrize("dtype", [F32, F16])
def test_other_types(region: Build, dtype: torch.dtype) -> None:
    x, y = special(dtype)
    (result,) = region(gated(0.5, 1.0), x, y).run()
    torch.testing.assert_close(result, gated(0.5, 1.0)(x, y), rtol=0, atol=0, equal_nan=True)


def test_a_product_without_a_factor(region: Build) -> None:
    def function(x: Any, y: Any) -> Any:
        return aten.mul.Tensor(x, aten.add.Tensor(y, 1.0))

    x, y = special(BF16)
    (result,) = region(function, x, y).run()
    torch.testing.assert_close(result, function(x, y), rtol=0, atol=0, equal_nan=True)


def test_a_factor_that_is_read_twice_stays(region: Build) -> None:
    def function(x: Any, y: Any) -> Any:
        half = aten.mul.Tensor(x, 0.5)
        return aten.mul.Tensor(half, aten.add.Tensor(y, 1.0)), half

    x, y = special(BF16)
    made = region(function, x, y)
    for result, expected in zip(made.run(), function(x, y), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
