"""Copies into other layouts, `cat` of many tensors, and running sums with a dtype run on NKI and
equal eager bit by bit, layouts included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
aten = torch.ops.aten


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_same(function: Callable[..., torch.Tensor], *given: Any) -> None:
    with torch.no_grad():
        ours = torch.compile(function, backend="trnx", options=ALL_ON_NKI)(*given)
        theirs = function(*given)
    assert ours.dtype == theirs.dtype
    assert ours.stride() == theirs.stride()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("count", [1, 16, 17, 33, 257])
@pytest.mark.parametrize("dim", [0, 1])
def test_cat_of_many(count: int, dim: int) -> None:
    parts = [draw(3, 4) + i for i in range(count)]
    assert_same(lambda *x: torch.cat(x, dim), *parts)


def test_cat_of_many_with_empty_ones_and_other_layouts() -> None:
    parts = [torch.empty(0), *(draw(2, 3, 4, 5) for _ in range(20))]
    assert_same(lambda *x: torch.cat(x, 1), *parts)
    last = [draw(2, 3, 4, 5).to(memory_format=torch.channels_last) for _ in range(20)]
    assert_same(lambda *x: torch.cat(x, 1), *last)
    assert_same(lambda *x: torch.stack(x, 1), *(draw(4, 5).bfloat16() for _ in range(18)))


@pytest.mark.parametrize(
    ("into", "source"),
    [
        (draw(64, 65), draw(64, 1)),
        (draw(64, 65).t(), draw(65, 64)),
        (draw(65, 64).t(), draw(1, 65).bfloat16()),
        (draw(8, 9, 10).permute(2, 0, 1), draw(9)),
        (draw(129), draw(1)[0]),
    ],
)
def test_copy_takes_sizes_dtype_and_layout(into: torch.Tensor, source: torch.Tensor) -> None:
    assert_same(aten.copy, into, source)


INTEGERS = (torch.int64, torch.int32, torch.bool)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("wanted", [torch.int64, torch.int32, *FLOATS])
@pytest.mark.parametrize("given", INTEGERS)
def test_running_sums_of_integers(given: torch.dtype, wanted: torch.dtype) -> None:
    x = (draw(5, 129) * 2**30).long()
    x = x.remainder(2).bool() if given is torch.bool else x.to(given)
    if wanted.is_floating_point:
        x = x.remainder(7).to(given) if given is not torch.bool else x
    assert_same(lambda x: x.cumsum(1, dtype=wanted), x)


@pytest.mark.parametrize("wanted", [torch.int64, *FLOATS])
def test_running_sums_of_floats(wanted: torch.dtype) -> None:
    assert_same(lambda x: x.cumsum(0, dtype=wanted), draw(37, 3) * 5)
