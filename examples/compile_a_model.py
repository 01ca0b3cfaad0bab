"""Compile a model, compare it with eager, and see what runs where.

python examples/compile_a_model.py
trnx explain examples/compile_a_model.py:example      # the same ledger, nothing is executed
"""

from __future__ import annotations

import torch
from torch import nn

import trnx


class Block(nn.Module):
    """A transformer block of centred positions, because median has no kernel."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [batch, length, width] -> the same shape."""
        x = x - x.median(dim=1, keepdim=True).values
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.feed_forward(x)


def example() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Model and inputs for `trnx explain`."""
    torch.manual_seed(0)
    return Block().eval(), (torch.randn(4, 64, 128),)


def main() -> None:
    """Compile, compare, report."""
    model, inputs = example()
    compiled = torch.compile(model, backend="trnx")
    with torch.no_grad():
        expected, result = model(*inputs), compiled(*inputs)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        print(f"largest difference from eager: {(result - expected).abs().max():.1e}")
        print(trnx.explain(compiled, *inputs))


if __name__ == "__main__":
    main()
