"""Half precision that is rounded once after two steps: equal bit for bit, and one instruction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

aten = torch.ops.aten
Build = Callable[..., Any]
F16, BF16 = torch.float16, torch.bfloat16
INF, NAN = math.inf, math.nan


def special(dtype: torch.dtype) -> torch.Tensor:
    x = draw(129, 300, dtype=dtype) * 3
    x.view(-1)[:8] = torch.tensor([0.0, -0.0, INF, -INF, NAN, 1e-40, -1e-40, 60000.0])
    return x


def scaled_abs(x: Any) -> Any:
    return aten.abs.default(aten.mul.Tensor(x, 1.3))


def shifted_relu(x: Any) -> Any:
    return aten.relu.default(aten.sub.Tensor(x, 0.3))


def shifted_maximum(x: Any) -> Any:
    return aten.maximum.default(aten.add.Tensor(x, 0.7), x)


def clamped(x: Any) -> Any:
    return aten.clamp_max.default(aten.mul.Tensor(x, 1.3), 0.5)


STEPS = [scaled_abs, shifted_relu, shifted_maximum, clamped]


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("function", STEPS)
def test_values_are_equal(region: Build, function: Any, dtype: torch.dtype) -> None:
    region(function, special(dtype)).check(rtol=0, atol=0)


@pytest.mark.parametrize("function", STEPS)
def test_two_steps_are_one_instruction(region: Build, function: Any) -> None:
    source = region(function, special(BF16)).source()
    calls = source.count("nisa.tensor_scalar(") + source.count("nisa.tensor_tensor(")
    assert calls + source.count("nisa.scalar_tensor_tensor(") == 1


def test_steps_of_a_chain_are_paired_once(region: Build) -> None:
    """The third step stands alone: an instruction has two."""

    def chain(x: Any) -> Any:
        return aten.maximum.default(scaled_abs(x), aten.add.Tensor(x, 0.7))

    region(chain, special(BF16)).check(rtol=0, atol=0)


def sum_with_abs(x: Any) -> Any:
    return aten.abs.default(aten.add.Tensor(x, x))


def rounded_twice(x: Any) -> Any:
    return aten.add.Tensor(aten.mul.Tensor(x, 1.3), 0.7)


def finer_number(x: Any) -> Any:
    """The number is none of bfloat16's, so that it is no fixed point of rounding."""
    scaled = aten.mul.Tensor(x, 1.3)
    return aten.clamp_max.default(scaled, 0.3), scaled


@pytest.mark.parametrize("function", [sum_with_abs, rounded_twice, finer_number])
def test_other_roundings_stay(region: Build, function: Any) -> None:
    made = region(function, special(BF16))
    made.check(rtol=0, atol=0)
    source = made.source()
    calls = [source.count(f"nisa.{name}(") for name in ("tensor_scalar", "tensor_tensor")]
    assert sum(calls) == 2
