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
