"""When halving the rows of an accumulator ends, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.nki_kernels.generator import narrowing

aten = torch.ops.aten
Build = Callable[..., Any]


@pytest.mark.parametrize(
    ("rows", "width", "left"),
    [
        (1, 7, ()),
        (2, 7, (1,)),
        (72, 7, (36,)),
        (36, 7, ()),
        (4, 4000, (2, 1)),
        (5, 4000, (3, 2, 1)),
    ],
)
def test_few_elements_are_reduced_at_once(rows: int, width: int, left: tuple[int, ...]) -> None:
    assert narrowing.rows_left(rows, width) == left


@pytest.mark.parametrize("width", [2, 7, 51, 300, 4000])
@pytest.mark.parametrize("rows", [2, 3, 9, 72, 129])
def test_no_other_number_of_halvings_takes_less(rows: int, width: int) -> None:
    least, taken, left = 2 * rows * width + 176, 0, rows
    while left > 1:
        taken += left // 2 * width + 176
        left -= left // 2
        least = min(least, taken if left == 1 else taken + 2 * left * width + 176)
    assert narrowing.cycles(rows, width) == least


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(20_000, 7), (130, 9, 51), (130, 33, 6), (5, 1000, 12)])
@pytest.mark.parametrize("op", [aten.amax.default, aten.sum.dim_IntList])
def test_values(region: Build, op: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator).to(dtype)
    made = region(lambda x: op(x, [len(shape) - 2], True), x)
    made.check(rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-4)
