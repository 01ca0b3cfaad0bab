"""Maxima that softmax and logsumexp do without where what they read is bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

aten = torch.ops.aten
Build = Callable[..., Any]
Function = Callable[[Any], Any]
F32, BF16 = torch.float32, torch.bfloat16


def softmax(x: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [1], True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [1], True))


def atens_softmax(x: Any) -> Any:
    return aten._softmax.default(x, 1, False)


def logsumexp(x: Any) -> Any:
    most = aten.amax.default(x, [1], True)
    weights = aten.exp.default(aten.sub.Tensor(x, most))
    return aten.add.Tensor(aten.log.default(aten.sum.dim_IntList(weights, [1], True)), most)


def capped(x: Any, most: float) -> Any:
    """As attention caps its scores."""
    return aten.mul.Tensor(aten.tanh.default(aten.mul.Tensor(x, 1 / most)), most)


def has_maximum(made: Any) -> bool:
    return "nl.maximum" in made.source()


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).abs().max())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [softmax, atens_softmax, logsumexp])
@pytest.mark.parametrize("most", [1.0, 50.0])
@pytest.mark.parametrize("shape", [(129, 40), (3, 5000), (127, 1)])
def test_values_of_what_is_capped(
    region: Build, shape: tuple[int, ...], most: float, function: Function, dtype: torch.dtype
) -> None:
    x = draw(*shape, dtype=dtype) * most
    made = region(lambda x: function(capped(x, most)), x)
    assert not has_maximum(made)
    (found,), (eager,) = made.run(), made.eager()
    exact = function(capped(x.double(), most))
    assert error(found, exact) <= max(2 * error(eager, exact), 1e-6)


@pytest.mark.parametrize("low", [-60.0, 0.0, 60.0])
def test_extremes_of_what_is_bounded(region: Build, low: float) -> None:
    x = torch.full((40, 300), low)
    made = region(lambda x: softmax(aten.clamp.default(x, -59.0, 59.0)), x)
    made.check(rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("function", [softmax, logsumexp])
def test_what_is_no_number_stays_in_its_row(region: Build, function: Function) -> None:
    x = draw(64, 100)
    x[3, 7], x[5, 1], x[6, 2] = float("nan"), float("inf"), -float("inf")
    made = region(lambda x: function(aten.sigmoid.default(x)), x)
    assert not has_maximum(made)
    made.check(rtol=1e-5, atol=1e-6)


def log_softmax(x: Any) -> Any:
    shifted = aten.sub.Tensor(x, aten.amax.default(x, [1], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [1], True)
    return aten.sub.Tensor(shifted, aten.log.default(total))


def with_maximum(x: Any) -> Any:
    most = aten.amax.default(x, [1], True)
    weights = aten.exp.default(aten.sub.Tensor(x, most))
    return aten.log.default(aten.sum.dim_IntList(weights, [1], True)), most


def scaled_weights(x: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [1], True)))
    return aten.mul.Tensor(weights, 2.0)


def shifted_by_inverse(x: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [1], True)))
    total = aten.sum.dim_IntList(weights, [1], True)
    return aten.add.Tensor(weights, aten.reciprocal.default(total))


@pytest.mark.parametrize(
    "function", [log_softmax, with_maximum, scaled_weights, shifted_by_inverse]
)
def test_results_that_depend_on_the_maximum(region: Build, function: Function) -> None:
    made = region(lambda x: function(aten.tanh.default(x)), draw(130, 60))
    assert has_maximum(made)
    made.check(rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "bounded",
    [
        lambda x: x,
        aten.relu.default,
        aten.silu.default,
        lambda x: capped(x, 61.0),
        lambda x: aten.add.Tensor(aten.tanh.default(x), x),
    ],
)
def test_what_is_not_bounded_keeps_its_maximum(region: Build, bounded: Function) -> None:
    made = region(lambda x: softmax(bounded(x)), draw(130, 60) * 100)
    assert has_maximum(made)
    made.check(rtol=1e-4, atol=1e-6)


def test_half_precision_keeps_its_maximum(region: Build) -> None:
    x = draw(130, 60, dtype=torch.float16) * 50
    made = region(lambda x: softmax(capped(x, 50.0)), x)
    assert has_maximum(made)
    made.check(rtol=1e-2, atol=1e-3)
