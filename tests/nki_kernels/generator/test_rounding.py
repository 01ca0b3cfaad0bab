"""Quotients by a root that are only added need no correct rounding; all others keep theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

aten = torch.ops.aten
Build = Callable[..., Any]


def draw(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-30, 30, (20_000,), generator=generator)
    return torch.randn(20_000, generator=generator) * 2.0**exponents


def root(v: Any) -> Any:
    return aten.add.Tensor(aten.div.Tensor(aten.sqrt.default(v), 0.3), 1e-8)


def adam(p: Any, m: Any, v: Any) -> Any:
    return aten.addcdiv.default(p, m, root(v), value=-0.1)


def rmsprop(p: Any, m: Any, v: Any) -> Any:
    return aten.add.Tensor(p, aten.mul.Tensor(aten.div.Tensor(m, root(v)), -0.1))


@pytest.mark.parametrize("step", [adam, rmsprop])
def test_an_update_is_within_twice_the_error_of_eager(region: Build, step: Any) -> None:
    p, m, v = draw(0), draw(1), draw(2).square()
    p[::2] = 0.0
    v[:5] = 0.0
    built = region(step, p, m, v)
    exact = step(*(t.double() for t in (p, m, v)))
    (ours,), eager = built.run(), step(p, m, v)
    errors = [((r.double() - exact) / exact.abs()).abs() for r in (eager, ours)]

    assert "nl.bitwise_and" not in built.source()
    assert errors[1].max() <= 2 * errors[0].max()


@pytest.mark.parametrize(
    "function",
    [
        lambda m, v: aten.div.Tensor(m, root(v)),
        lambda m, v: aten.round.default(aten.div.Tensor(m, root(v))),
        lambda p, m, v: aten.add.Tensor(p, aten.div.Tensor(m, v)),
        lambda p, m, v: aten.addcdiv.default(p, m, v),
    ],
)
def test_other_quotients_are_those_of_eager(region: Build, function: Any) -> None:
    built = region(function, draw(0), draw(1).square(), draw(2).square())
    (ours,) = built.run()
    torch.testing.assert_close(ours, *built.eager(), rtol=0, atol=0, equal_nan=True)


def softmax(x: Any, *, shifted_by: Any = aten.amax.default, of: Any = None) -> Any:
    most = shifted_by(x if of is None else of, [1], True)
    weights = aten.exp.default(aten.sub.Tensor(x, most))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [1], True))


def test_a_softmax_written_out_multiplies_by_the_reciprocal(region: Build) -> None:
    x = draw(3)[:9000].reshape(90, 100).clamp(-80, 80)
    x[0, :3] = torch.tensor([float("inf"), 1.0, -float("inf")])
    x[1] = -float("inf")
    x[2, 5] = float("nan")
    x[3, 1:] = -float("inf")
    built = region(lambda x: softmax(x), x)
    assert "nl.bitwise_and" not in built.source()
    built.check(rtol=1e-6, atol=1e-9)


def rms(x: Any) -> Any:
    mean = aten.mean.dim(aten.pow.Tensor_Scalar(x, 2), [1], True)
    return aten.div.Tensor(x, aten.sqrt.default(aten.add.Tensor(mean, 1e-5)))


def norm(x: Any) -> Any:
    total = aten.sum.dim_IntList(aten.mul.Tensor(x, x), [0], True)
    return aten.div.Tensor(x, aten.sqrt.default(aten.div.Tensor(total, 0.7)))


@pytest.mark.parametrize("function", [rms, norm])
def test_a_norm_written_out_is_within_twice_the_error_of_eager(
    region: Build, function: Any
) -> None:
    x = draw(4)[:9000].reshape(90, 100)
    built = region(function, x)
    exact = function(x.double())
    (ours,), eager = built.run(), function(x)
    errors = [((r.double() - exact) / exact.abs()).abs() for r in (eager, ours)]

    assert "nl.bitwise_and" not in built.source()
    assert errors[1].max() <= 2 * errors[0].max()
    assert errors[1].mean() <= 2 * errors[0].mean()


def test_norms_of_special_values_are_those_of_eager(region: Build) -> None:
    x = draw(5)[:800].reshape(8, 100)
    x[0, 3], x[1, 4], x[2, 5] = float("inf"), -float("inf"), float("nan")
    x[3] = 0.0
    x[4, :2] = torch.tensor([3e38, -3e38])  # whose squares are infinite
    x[5] = 1e-30  # whose squares are zero
    for function in (rms, norm):
        region(function, x).check(rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, v: aten.div.Tensor(x, aten.sqrt.default(v)),
        lambda x, v: aten.div.Tensor(x, aten.sqrt.default(aten.amax.default(v, [1], True))),
        lambda x, v: aten.div.Tensor(x, aten.add.Tensor(aten.mean.dim(v, [1], True), 1.0)),
    ],
)
def test_quotients_by_roots_of_no_sum_keep_the_rounding(region: Build, function: Any) -> None:
    built = region(function, torch.randn(90, 100), torch.rand(90, 100) + 0.5)
    assert "nl.bitwise_and" in built.source()


def test_a_mean_that_is_read_elsewhere_divides(region: Build) -> None:
    def function(x: Any) -> Any:
        mean = aten.mean.dim(x, [1], True)
        return aten.div.Tensor(x, aten.sqrt.default(mean)), mean

    x = torch.arange(600, dtype=torch.float32).reshape(200, 3)
    built = region(function, x)
    _, mean = built.run()
    torch.testing.assert_close(mean, function(x)[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: softmax(x, shifted_by=aten.amin.default),
        lambda x: softmax(x, of=aten.neg.default(x)),
        lambda x: aten.div.Tensor(x, aten.sum.dim_IntList(x, [1], True)),
    ],
)
def test_sums_that_may_be_small_keep_the_rounding(region: Build, function: Any) -> None:
    built = region(function, torch.rand(90, 100) + 0.5)
    assert "nl.bitwise_and" in built.source()
