"""Fake quantisation, as quantisation-aware training does it, flips no value against eager."""

from __future__ import annotations

import pytest
import torch

GROUP = 32


def symmetric(x: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Values of the last dimension share a scale; eager's order of operations matters."""
    largest = torch.maximum(-x.amin(-1, keepdim=True), x.amax(-1, keepdim=True))
    scale = (largest / (float(high - low) / 2)).clamp(min=torch.finfo(x.dtype).eps)
    return torch.round(x / scale).clamp(low, high) * scale


def asymmetric(x: torch.Tensor, low: int, high: int) -> torch.Tensor:
    least = x.amin(-1, keepdim=True).clamp(max=0.0)
    most = x.amax(-1, keepdim=True).clamp(min=0.0)
    scale = ((most - least) / float(high - low)).clamp(min=torch.finfo(x.dtype).eps)
    zero = (low - torch.round(least / scale)).clamp(low, high)
    quantised = (torch.round(x / scale) + zero).clamp(low, high)
    return (quantised - zero) * scale


@pytest.mark.parametrize("quantise", [symmetric, asymmetric])
@pytest.mark.parametrize(("low", "high"), [(-8, 7), (-128, 127)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 8, GROUP), (64, 8 * GROUP), (2, 33, 100)])
@pytest.mark.parametrize("fallback", ["auto", "xla"])
def test_equal_to_eager(quantise, low, high, dtype, shape, fallback) -> None:  # type: ignore[no-untyped-def]
    # Quarters put many quotients on ties.
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(low)) * 12).round() / 4
    torch.compiler.reset()  # else a second pair of bounds makes them symbolic
    options = {"fallback": fallback, "select": "legal" if fallback == "auto" else "none"}
    compiled = torch.compile(quantise, backend="trnx", options=options)
    with torch.no_grad():
        result, expected = compiled(x.to(dtype), low, high), quantise(x.to(dtype), low, high)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
