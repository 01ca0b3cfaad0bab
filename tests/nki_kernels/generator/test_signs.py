"""Absolute values and relus that change nothing, and those that do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

aten = torch.ops.aten
Build = Callable[..., Any]
F32, BF16 = torch.float32, torch.bfloat16


def chain(*names: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        for name in names:
            x = getattr(aten, name).default(x)
        return x

    return function


def special(dtype: Any) -> torch.Tensor:
    x = draw(129, 40, dtype=dtype)
    for row, value in enumerate([math.inf, -math.inf, math.nan, -0.0, 0.0, -1e-40]):
        x[row, 3], x[row + 6] = value, value
    return x


def signs_taken(made: Any) -> int:
    """How many instructions take an absolute value or a maximum with zero."""
    source = made.source()
    names = ("nl.abs", "op0=nl.maximum", "op1=nl.maximum", "nl.relu")
    return sum(source.count(name) for name in names)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("names", "left"),
    [
        (("sigmoid", "relu"), 0),
        (("exp", "abs", "sqrt", "abs"), 0),
        (("abs", "relu", "abs"), 1),
        (("relu", "relu", "tanh", "relu"), 2),
        (("abs", "reciprocal", "relu"), 1),
        (("relu", "abs"), 2),  # the relu may be -0.0
        (("tanh", "relu"), 1),
        (("sin", "abs"), 1),
    ],
)
def test_values(region: Build, names: tuple[str, ...], left: int, dtype: Any) -> None:
    made = region(chain(*names), special(dtype))
    if "sin" not in names:  # its exact range reduction has others
        assert signs_taken(made) == left
    made.check(rtol=2e-2 if dtype is BF16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_square_and_what_is_reduced_of_it_have_no_sign(region: Build, dtype: Any) -> None:
    def function(x: Any) -> Any:
        total = aten.sum.dim_IntList(aten.mul.Tensor(x, x), [1], True)
        return aten.relu.default(aten.abs.default(total))

    made = region(function, special(dtype))
    assert signs_taken(made) == 0
    made.check(rtol=2e-2 if dtype is BF16 else 1e-5, atol=1e-6)


def test_a_result_keeps_its_type(region: Build) -> None:
    made = region(lambda x: aten.relu.default(aten._to_copy.default(
        aten.sigmoid.default(x), dtype=F32)), draw(130, 30, dtype=BF16))  # fmt: skip
    assert signs_taken(made) == 0
    made.check(rtol=1e-2, atol=0)


def test_a_sum_with_a_negative_number_has_a_sign(region: Build) -> None:
    made = region(
        lambda x: aten.relu.default(aten.sub.Tensor(aten.sigmoid.default(x), 0.5)), special(F32)
    )
    assert signs_taken(made) == 1
    made.check(rtol=1e-5, atol=1e-6)
