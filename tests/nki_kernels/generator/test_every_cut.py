"""All ways to cut a region into tiles give the values of eager, not the fastest one alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def extremes(x: Any, y: Any, dims: list[int]) -> Any:
    total = aten.add.Tensor(x, y)
    return aten.amax.default(total, dims, True), aten.amin.default(total, dims, False)


def activated_mean(x: Any, y: Any, dims: list[int]) -> Any:
    product = aten.tanh.default(aten.mul.Tensor(x, y))
    return aten.relu.default(aten.mean.dim(product, dims, True))


def centred(x: Any, y: Any, dims: list[int]) -> Any:
    return aten.add.Tensor(aten.sub.Tensor(x, aten.mean.dim(x, dims, True)), y)


def logsumexp(x: Any, y: Any, dims: list[int]) -> Any:
    x = aten.mul.Tensor(x, y)
    most = aten.amax.default(x, dims, True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), dims, True)
    return aten.add.Tensor(aten.log.default(total), most)


def softmax(x: Any, y: Any, dims: list[int]) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, dims, True)))
    shares = aten.div.Tensor(weights, aten.sum.dim_IntList(weights, dims, True))
    return aten.mul.Tensor(shares, y)


SPACES = [
    ((127, 3024), (127, 1), (0, 1), [1]),
    ((129, 1500), (1, 1500), (0, 1), [0]),
    ((5, 70, 129), (5, 1, 129), (0, 1, 2), [1]),
    ((40, 3, 258), (1, 3, 1), (1, 2, 0), [0, 1]),
    ((33, 3000), (33, 3000), (1, 0), [1]),
    ((2, 300, 7, 5), (2, 300, 1, 1), (0, 1, 2, 3), [1, 3]),
    ((400001,), (1,), (0,), [0]),
    # DMA transposes, with a lead, folds and three free dimensions.
    ((9, 11, 6, 28), (9, 11, 6, 28), (1, 3, 0, 2), [2]),
    ((300, 129), (300, 129), (1, 0), [0, 1]),
    ((3, 700, 5), (3, 700, 5), (1, 2, 0), [0]),
]


@pytest.mark.parametrize("function", [extremes, activated_mean, centred, logsumexp, softmax])
@pytest.mark.parametrize(("shape", "other", "order", "dims"), SPACES)
def test_values(
    region: Build,
    cuts: Cuts,
    function: Callable[..., Any],
    shape: tuple[int, ...],
    other: tuple[int, ...],
    order: tuple[int, ...],
    dims: list[int],
) -> None:
    lies = draw(*(shape[i] for i in order)).permute([order.index(i) for i in range(len(order))])
    made = region(lambda x, y: function(x, y, dims), lies, draw(*other))
    found = cuts.of(made)
    assert len({(region.geometry, region.keeps) for region in found}) > 1
    cuts.check(made, found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [20, 127, 128, 129])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_heads_that_come_last_in_memory_repeat_over_a_batch(
    region: Build, cuts: Cuts, length: int, dtype: torch.dtype
) -> None:
    """A position bias from a table (T5, MPNet), and a mask for each sequence of the batch."""
    bias = draw(length, length, 4, dtype=dtype).permute(2, 0, 1)[None]
    seen = draw(2, 1, 1, length) > 0
    made = region(lambda seen, bias: aten.where.ScalarOther(seen, bias, -2.0), seen, bias)
    cuts.check(made, cuts.of(made), rtol=0, atol=0)
