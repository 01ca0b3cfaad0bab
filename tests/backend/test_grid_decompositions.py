"""Grid sampling of pixels and at coordinates that are not finite, as of points behind a camera."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

LARGEST = torch.finfo(torch.float32).max
COORDINATES = (math.nan, math.inf, -math.inf, LARGEST, -LARGEST, 9.5, -7.0, 1.5, -1.0, 0.3, 1.0)
MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def operands(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 5, 7, generator=generator)
    pairs = torch.tensor(list(itertools.product(COORDINATES, repeat=2)))
    return x.to(dtype), pairs.expand(2, 1, -1, 2).to(dtype)


def check(
    x: torch.Tensor, grid: torch.Tensor, mode: str, padding: str, align: bool
) -> torch.Tensor:
    """Compares with eager, and returns eager's result."""

    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, padding, align)

    expected, actual = sample(x, grid), torch.compile(sample, backend="trnx")(x, grid)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert actual.stride() == expected.stride()
    return expected


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_not_finite(mode: str, padding: str, align: bool) -> None:
    assert check(*operands(), mode, padding, align).isfinite().any()


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_pixels_that_are_not_finite(mode: str, padding: str, align: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    x, _ = operands()
    x[:, 0, 0, 0], x[0, 1, 4, 6], x[1, 2, 2, 3] = math.nan, math.inf, -math.inf
    grid = torch.rand(2, 9, 14, 2, generator=generator) * 4 - 2
    assert check(x, grid, mode, padding, align).isfinite().any(dim=(2, 3)).all()


@pytest.mark.parametrize("mode", MODES)
def test_half_precision_rounds_once(mode: str) -> None:
    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, mode, align_corners=False)

    x, grid = (t.nan_to_num(0.5, 0.5, 0.5) for t in operands(torch.bfloat16))
    actual = torch.compile(sample, backend="trnx")(x, grid)
    assert actual.dtype is torch.bfloat16
    exact = sample(x.double(), grid.double())
    torch.testing.assert_close(actual.double(), exact, rtol=2**-8, atol=1e-4)


def test_symbolic_sizes() -> None:
    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)

    compiled = torch.compile(sample, backend="trnx", dynamic=True)
    x, grid = operands()
    for width in (7, 4, 1):
        expected = sample(x[..., :width], grid)
        torch.testing.assert_close(compiled(x[..., :width], grid), expected, rtol=1e-4, atol=1e-5)
