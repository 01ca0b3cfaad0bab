"""Integers divided by numbers, and shifted: equal to eager for all numbers of any range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.nki_kernels.generator import fused_kernel
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]

EDGES = [
    *(0, 1, -1, 2, -2, 6, 7, 8, -6, -7, -8, 99, 100, -100, 255, 256, 2**16 - 1, 2**16, -(2**16)),
    *(2**23, 2**24 - 1, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1),
    *(2**32 - 1, 2**32, -(2**32), 2**40 + 1, -(2**40) - 1, 2**62, 2**63 - 1, -(2**63)),
]
DIVISORS = [1, 2, 3, 7, 8, 100, 255, 256, 257, 1000, 32768, 50257, 524288]


def draw(count: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """The edges, and numbers of random lengths."""
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 63, (count,), generator=generator)
    numbers = torch.randint(-(2**62), 2**62, (count,), generator=generator) >> (63 - lengths)
    return torch.cat([torch.tensor(EDGES), numbers]).to(dtype)


def exactly(region: Build, function: Any, *inputs: torch.Tensor, target: str = "trn2") -> None:
    region(function, *inputs).check(target, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_and_remainders(region: Build, divisor: int, dtype: torch.dtype) -> None:
    def function(x: Any) -> Any:
        return (
            aten.floor_divide.default(x, divisor),
            aten.div.Tensor_mode(x, divisor, rounding_mode="floor"),
            aten.div.Tensor_mode(x, divisor, rounding_mode="trunc"),
            aten.remainder.Scalar(x, divisor),
        )

    exactly(region, function, draw(300, dtype))
    exactly(region, lambda x: aten.remainder.Scalar(x, divisor), draw(300, dtype))
    exactly(region, lambda x: aten.floor_divide.default(x, divisor), draw(129, dtype))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_numbers_of_a_known_range(region: Build, target: str) -> None:
    def places(mask: Any) -> Any:
        x = aten.mul.Tensor(aten._to_copy.default(mask, dtype=torch.int64), 123456)
        y = aten.sub.Tensor(x, 3)
        return aten.remainder.Scalar(x, 100), aten.floor_divide.default(y, 7), y

    exactly(region, places, torch.tensor([[True, False, True]]), target=target)


@pytest.mark.parametrize("places", [0, 1, 5, 16, 31, 32, 33, 47, 63])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_shifts(region: Build, dtype: torch.dtype, places: int) -> None:
    here = min(places, 8 * dtype.itemsize - 1)

    def function(x: Any) -> Any:
        return (
            aten.__rshift__.Scalar(x, here),
            aten.__lshift__.Scalar(x, here),
            aten.bitwise_right_shift.Tensor_Scalar(x, here),
            aten.bitwise_left_shift.Tensor_Scalar(x, here),
        )

    exactly(region, function, draw(200, dtype))


def test_what_compiles() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x // 7, x % 7, torch.div(x, 7, rounding_mode="trunc"), x >> 3, x << 2

    x = draw(129).view(-1, 1)
    compiled = torch.compile(function, backend="trnx", options={"fallback": "error"})
    for found, wanted in zip(compiled(x), function(x), strict=True):
        assert (found.dtype, found.stride()) == (wanted.dtype, wanted.stride())
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: aten.floor_divide.default(x, -3), "not by -3"),
        (lambda x: aten.remainder.Scalar(x, 2**20), "up to 524288"),
        (lambda x: aten.__lshift__.Scalar(x, 64), "not by 64"),
        (lambda x: aten.remainder.Tensor(x, aten.bitwise_or.Scalar(x, 1)), "positive numbers"),
    ],
)
def test_refusals(region: Build, function: Any, reason: str) -> None:
    refusal = fused_kernel(region(function, draw(8)).gm, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in str(refusal.reason)
