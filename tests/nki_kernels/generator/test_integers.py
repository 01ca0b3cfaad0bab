"""Integers of 64 bits: every operation equals eager for all numbers, whatever their range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.nki_kernels.generator.ir import Builder, Value
from trnx.nki_kernels.generator.words import WORD_RANGE, range_of

aten = torch.ops.aten
Build = Callable[..., Any]
Function = Callable[..., Any]

EDGES = [
    *(0, 1, -1, 2, 7, -100, 2**24, 2**24 + 1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1),
    *(2**32, 2**32 - 1, -(2**32), 2**40, -(2**40), 2**40 + 1, -(2**40) - 1, 2**53 + 1),
    *(2**40 + 2**16, 2**41 + 2**17, 2**41 + 2**17 + 1, -(2**41) - 2**17 - 1),
    *(2**62, -(2**62) - 1, 2**63 - 1, -(2**63), 123456789012345, 2**33 + 2**9),
]
NUMBERS = [0, 1, -3, 255, 2**31 - 1, -(2**31), 2**33 + 5, -(2**63)]
MASKS = torch.tensor([[True, False, True], [False, False, True]])


def draw(count: int) -> torch.Tensor:
    """The edges, and numbers of random lengths, up to `count`."""
    generator = torch.Generator().manual_seed(count)
    lengths = torch.randint(1, 63, (count,), generator=generator)
    numbers = torch.randint(-(2**62), 2**62, (count,), generator=generator) >> (63 - lengths)
    return torch.cat([torch.tensor(EDGES), numbers])[:count]


def pairs(count: int = 129) -> list[torch.Tensor]:
    values = draw(count)
    return [x.contiguous() for x in torch.meshgrid(values, values, indexing="ij")]


def exactly(region: Build, function: Function, *inputs: torch.Tensor, target: str = "trn2") -> Any:
    built = region(function, *inputs)
    built.check(target, rtol=0, atol=0)
    return built


BINARY = [
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor),
    *(aten.maximum.default, aten.minimum.default),
    *(aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor),
    *(aten.ge.Tensor, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor),
    *(aten.logical_and.default, aten.rsub.Tensor, aten.heaviside.default, aten.fmax.default),
]
WITH_NUMBER = [
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.eq.Scalar, aten.ne.Scalar),
    *(aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar),
    *(aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar),
    *(aten.clamp_min.default, aten.clamp_max.default),
]
UNARY = [
    *(aten.neg, aten.abs, aten.sign, aten.square, aten.bitwise_not, aten.relu, aten.isnan),
    *(aten.logical_not, aten.clone, aten.floor, aten.isfinite, aten.signbit, aten.ones_like),
]


@pytest.mark.parametrize("op", BINARY, ids=str)
def test_two_tensors(region: Build, op: Any) -> None:
    exactly(region, lambda x, y: op(x, y), *pairs())


@pytest.mark.parametrize("op", WITH_NUMBER, ids=str)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_tensor_and_a_number(region: Build, op: Any, number: int) -> None:
    exactly(region, lambda x: op(x, number), draw(200))


@pytest.mark.parametrize("op", UNARY, ids=str)
def test_one_tensor(region: Build, op: Any) -> None:
    exactly(region, lambda x: op.default(x), draw(300))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_every_generation_has_what_it_takes(region: Build, target: str) -> None:
    def function(x: Any, y: Any) -> Any:
        product = aten.mul.Tensor(x, y)
        return product, aten.lt.Tensor(x, y), aten._to_copy.default(product, dtype=torch.float32)

    exactly(region, function, *pairs(40), target=target)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int32]
)
def test_conversions_from_int64(region: Build, dtype: torch.dtype) -> None:
    exactly(region, lambda x: aten._to_copy.default(x, dtype=dtype), draw(4000))


def test_ties_between_float32_numbers_are_rounded_to_even(region: Build) -> None:
    ties = [
        sign * ((mantissa << shift) + (1 << (shift - 1)) + below)
        for mantissa in (2**23, 2**23 + 1, 2**24 - 1)
        for shift in (1, 8, 15, 16, 17, 18, 24, 32, 38)
        for below in (-1, 0, 1)
        for sign in (1, -1)
    ]
    exactly(region, lambda x: aten._to_copy.default(x, dtype=torch.float32), torch.tensor(ties))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_conversions_to_int64(region: Build, dtype: torch.dtype) -> None:
    halves = [0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.0**63, -(2.0**63), 1e30, 4294967040.0]
    special = torch.tensor([*halves, float("inf"), float("-inf"), float("nan")])
    numbers = draw(500).float()
    values = torch.cat([special, numbers, numbers * 0.37]).to(dtype)
    exactly(region, lambda x: aten._to_copy.default(x, dtype=torch.int64), values)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_narrow_integers_to_int64(region: Build, dtype: torch.dtype) -> None:
    exactly(region, lambda x: aten._to_copy.default(x, dtype=torch.int64), draw(300).to(dtype))


def test_choices(region: Build) -> None:
    x, y = pairs(40)
    exactly(region, lambda m, x, y: aten.where.self(m, x, y), x > 3, x, y)
    exactly(region, lambda m, x: aten.where.ScalarOther(m, x, -100), x > 3, x)
    exactly(region, lambda x: aten.clamp.default(x, -(2**33), 100), x)
    exactly(region, lambda x: aten.threshold.default(x, 7, 2**40), x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("number", [2**24, 2**24 + 1, -(2**24) - 3, 2**31 - 127, 1 - 2**31])
def test_numbers_that_float32_does_not_have_are_chosen(
    region: Build, dtype: torch.dtype, number: int
) -> None:
    x = torch.arange(-64, 66, dtype=dtype)
    exactly(region, lambda m, x: aten.where.ScalarSelf(m, number, x), x > 3, x)
    exactly(region, lambda m, x: aten.where.ScalarOther(m, x, number), x > 3, x)
    exactly(
        region, lambda m, x: aten.add.Tensor(aten.where.Scalar(m, number, number - 1), x), x > 3, x
    )
    exactly(region, lambda m, x: aten.masked_fill.Scalar(x, m, number), x > 3, x)


def test_with_floats_eager_promotes(region: Build) -> None:
    x, y = pairs(60)
    exactly(region, lambda x: aten.mul.Tensor(x, 0.5), x)
    exactly(region, lambda x: aten.gt.Scalar(x, 0.5), x)
    for dtype in (torch.float32, torch.bfloat16):
        exactly(region, lambda x, y: aten.add.Tensor(x, y), x, y.to(dtype))
        exactly(region, lambda x, y: aten.lt.Tensor(x, y), x, y.to(dtype))


def test_layouts(region: Build) -> None:
    x, y = pairs(40)
    exactly(region, lambda x, y: aten.add.Tensor(x, y), x[:, :1], y[:1])
    exactly(region, lambda x, y: aten.add.Tensor(x, y), x.t(), y[:, ::3][:, :1])
    exactly(region, lambda x, y: aten.sub.Tensor(x, y), x[1:, 1::2], y[1:, 1::2].flip(0))
    exactly(region, lambda x: aten.add.Tensor(x, 2**40), torch.tensor(-1))
    for size in (1, 127, 128, 129):
        exactly(region, lambda x: aten.add.Tensor(x, 2**40), draw(size))


REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: aten.sum.dim_IntList(x, [1]),
    "sum over rows": lambda x: aten.sum.dim_IntList(x, [0], True),
    "sum of all": lambda x: aten.sum.default(x),
    "amax": lambda x: aten.amax.default(x, [1]),
    "amin": lambda x: aten.amin.default(x, [0], True),
    "max of all": lambda x: aten.max.default(x),
    "any": lambda x: aten.any.dim(x, 1),
    "all": lambda x: aten.all.dim(x, 0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
def test_reductions(region: Build, name: str, dtype: torch.dtype) -> None:
    if dtype is torch.bool and "m" in name[1:3]:
        dtype = torch.int64
    exactly(region, REDUCTIONS[name], pairs(60)[0].to(dtype))
    exactly(region, REDUCTIONS[name], draw(700).to(dtype).view(2, 350))


def test_masks_are_counted_in_float32_alone(region: Build) -> None:
    def count(x: Any) -> Any:
        return aten.sum.dim_IntList(aten.ne.Scalar(x, 0), [1])

    source = exactly(region, count, pairs(40)[0]).source()
    assert source.count("tensor_reduce") == 1
    assert "gpsimd" not in source


def test_ranges_are_known_from_masks_and_numbers(region: Build) -> None:
    def positions(mask: Any) -> Any:
        ones = aten._to_copy.default(mask, dtype=torch.int64)
        return aten.add.Tensor(aten.mul.Tensor(ones, 1000), aten.sub.Tensor(ones, 7))

    built = exactly(region, positions, MASKS)
    # Small numbers are computed as float32, on one word; the other one is the sign.
    assert "right_shift" not in built.source()
    assert "bitwise_xor" not in built.source()


def test_the_range_of_a_value() -> None:
    builder = Builder()
    assert range_of(True) == (1, 1)
    assert range_of(-5) == (-5, -5)
    for dtype, found in ((torch.bool, (0, 1)), (torch.int32, WORD_RANGE)):
        assert range_of(builder.load("x", dtype, frozenset(), ())) == found
    assert range_of(Value("pack", "", (0, 0), torch.int64, frozenset(), (2, 9))) == (2, 9)
