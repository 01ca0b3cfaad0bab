"""Reductions of rows that lie side by side: by halves, whatever their number; special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
BF16 = torch.bfloat16


def largest(x: Any) -> Any:
    return aten.amax.default(x, [1], True)


def smallest(x: Any) -> Any:
    return aten.amin.default(x, [1], False)


def total(x: Any) -> Any:
    return aten.sum.dim_IntList(x, [1], True)


def in_halves(source: str) -> bool:
    return "goal = " in source


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16])
@pytest.mark.parametrize("rows", [2, 3, 4, 7, 33])
@pytest.mark.parametrize("function", [largest, smallest, total])
def test_any_number_of_rows(
    region: Build, cuts: Cuts, function: Any, rows: int, dtype: torch.dtype, target: str
) -> None:
    built = region(function, draw(130, rows, 700, dtype=dtype))
    error = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {}
    built.check(target, **error)  # by the fastest tiles, in halves or not
    # Two tiles take two cycles an element on trn1; two rows are too few to gain by it.
    halves = [cut for cut in cuts.of(built, target) if cut.halved]
    assert bool(halves) == (target != "trn1" and rows > 2)
    if halves:
        cuts.check(built, halves[:1], target, **error)


@pytest.mark.parametrize("function", [largest, smallest, total])
def test_special_values(region: Build, function: Any) -> None:
    x = draw(128, 9, 600)
    x[0, 1, :] = float("inf")
    x[1, 8, :] = -float("inf")
    x[2, 4, ::2] = float("nan")
    x[3] = -float("inf")
    built = region(function, x)
    assert in_halves(built.source())
    built.check(rtol=1e-5, atol=1e-5)


def test_an_order_in_memory_and_several_axes(region: Build) -> None:
    x = draw(5, 6, 7, 900).permute(1, 0, 2, 3)
    built = region(lambda x: aten.amax.default(x, [1, 2], True), x)
    built.check(rtol=0, atol=0)


def test_narrow_rows_are_reduced_by_one_instruction(region: Build) -> None:
    built = region(largest, draw(500, 40, 4))
    assert not in_halves(built.source())
    built.check(rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "halves"), [(torch.float32, True), (BF16, False)])
def test_short_types_are_reduced_in_steps(
    region: Build, cuts: Cuts, dtype: torch.dtype, halves: bool
) -> None:
    """VectorE reduces them at twice the rate, in steps as fast as it adds up two tiles."""
    built = region(largest, draw(1000, 12, 34, dtype=dtype))
    whole = [cut for cut in cuts.of(built) if not cut.geometry.in_phases and not cut.layouts]
    assert whole
    assert any(cut.halved for cut in whole) == halves
