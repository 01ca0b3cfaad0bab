"""Random operands of the generator's tests."""

from __future__ import annotations

import torch


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal values, the same ones for the same sizes."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)
