"""Which of two float32 results is nearer to what float64 gives."""

from __future__ import annotations

import torch

FINER = 2.0  # times eager's own error


def is_as_exact(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor | None) -> bool:
    """Whether the error of `actual` against `exact`, in float64, is at most `FINER` times that of
    `expected`, which is eager's."""
    if exact is None or exact.shape != expected.shape or not expected.is_floating_point():
        return False
    own = (expected.double() - exact).abs().max().item()
    return (actual.double() - exact).abs().max().item() <= FINER * own
