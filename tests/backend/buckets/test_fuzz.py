"""Random graphs over a dynamic batch and length, against eager. The values are such that zeros in
padding become inf and NaN at once (`log`, `rsqrt`), and are 1 at the least elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import trnx

WIDTH = 16
SHAPES = ((2, 9), (3, 13), (5, 7), (2, 16), (3, 10), (7, 5))
Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_generator = torch.Generator().manual_seed(0)
SQUARE = torch.randn(WIDTH, WIDTH, generator=_generator) / 4
SCALE = torch.rand(WIDTH, generator=_generator)


def _again(x: torch.Tensor) -> torch.Tensor:
    """Values from 1 to 2, with which the next op starts; NaN stays."""
    return 1 + torch.sigmoid(x)


def _attend(x: torch.Tensor, mask: torch.Tensor | None, *, is_causal: bool) -> torch.Tensor:
    heads = x.unflatten(-1, (2, WIDTH // 2)).transpose(1, 2)
    keys, values = torch.log(heads), torch.rsqrt(heads)
    seen = None if mask is None else mask[:, None, None, :]
    found = F.scaled_dot_product_attention(heads, keys, values, seen, is_causal=is_causal)
    return found.transpose(1, 2).flatten(2)


OPS: dict[str, Op] = {
    "log": lambda x, _: torch.log(x),
    "rsqrt": lambda x, _: torch.rsqrt(x - 0.5),
    "linear": lambda x, _: F.linear(x, SQUARE),
    "norm": lambda x, _: F.layer_norm(x, (WIDTH,), SCALE),
    "rms": lambda x, _: F.rms_norm(x, (WIDTH,), SCALE),
    "softmax": lambda x, _: torch.softmax(x, -1),
    "weights": lambda x, _: torch.softmax(torch.log(x) @ x.transpose(1, 2), -1) @ x,
    "columns": lambda x, _: x * torch.softmax(F.linear(x, SQUARE), 1),
    "halves": lambda x, _: torch.cat([-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]], -1),
    "scaled": lambda x, _: x * SCALE + x.mean(-1, keepdim=True),
    "flat": lambda x, _: F.linear(x.reshape(-1, WIDTH), SQUARE).view(x.shape),
    "gram": lambda x, _: x @ (x.transpose(1, 2) @ torch.log(x)),
    "scores": lambda x, _: (x @ x.transpose(1, 2)) @ x,
    "masked": lambda x, mask: torch.where(mask[..., None], x, 0.25),
    "mean": lambda x, _: x + x.mean(1, keepdim=True),
    "most": lambda x, _: x - x.amax(1, keepdim=True),
    "summed": lambda x, _: x / x.sum(1, keepdim=True),
    "by_size": lambda x, _: x / x.shape[1],
    "first": lambda x, _: x + x[:, :1],
    "last": lambda x, _: x + x[:, -1:],
    "turned": lambda x, _: x.flip(1),
    "causal": lambda x, _: _attend(x, None, is_causal=True),
    "open": lambda x, _: _attend(x, None, is_causal=False),
    "hidden": lambda x, mask: _attend(x, mask, is_causal=False),
}


def _graph(seed: int) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]:
    chosen = random.Random(seed).choices(list(OPS.values()), k=5)

    def function(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = []
        for op in chosen:
            y = op(x, mask)
            results.append(y)
            x = _again(y)
        return results[1], results[-1], x.transpose(0, 1)

    return function


@pytest.mark.parametrize("seed", range(16))
def test_random_graphs_equal_eager_at_all_sizes(seed: int) -> None:
    torch._dynamo.reset()
    function = _graph(seed)
    runner = "simulator" if seed % 2 else "reference"
    options = {"select": "legal", "runner": runner}
    compiled = torch.compile(function, backend="trnx", dynamic=True, options=options)
    with torch.no_grad():
        for batch, length in SHAPES:
            x = 1 + torch.rand(batch, length, WIDTH)
            mask = torch.rand(batch, length) > 0.3
            mask[:, 0] = True
            for got, want in zip(compiled(x, mask), function(x, mask), strict=True):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_most_of_the_graphs_have_padded_regions() -> None:
    """Else the test above would test nothing."""
    torch._dynamo.reset()
    padded = 0
    for seed in range(0, 16, 2):
        options = {"select": "legal", "runner": "reference"}
        compiled = torch.compile(_graph(seed), backend="trnx", dynamic=True, options=options)
        found = trnx.explain(compiled, torch.rand(2, 9, WIDTH) + 1, torch.rand(2, 9) > 0)
        regions = [region for report in found.reports for region in report.regions]
        padded += any("% padding" in region.padding for region in regions)
    assert padded >= 4
