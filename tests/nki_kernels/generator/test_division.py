"""Quotients of generated kernels are those of eager, bit for bit, but next to the middle of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

Build = Callable[..., Any]
aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")
SPECIAL = [
    0.0, -0.0, INF, -INF, NAN, 1e-45, -1e-45, 1e-40, -3e-39, 2.0**-126, 3.4028235e38, -3.4e38,
    1e30, -1e-30, 0.5, -1.5, 1.0, 3.0, -15.0, 1.99999988, 0.99999994,
]  # fmt: skip
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def draw(seed: int, dtype: torch.dtype, count: int = 20_000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-18, 18, (count,), generator=generator)
    return (torch.randn(count, generator=generator) * 2.0**exponents).to(dtype)


def assert_same_bits(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    signs = torch.signbit(result) == torch.signbit(expected)
    assert bool((signs | expected.isnan()).all())


def quotient(x: Any, y: Any) -> Any:
    return aten.div.Tensor(x, y)


def not_denormal(x: torch.Tensor) -> torch.Tensor:
    return (x.float().abs() >= 2.0**-126) | (x == 0) | x.isnan()


def assert_nearest(result: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Eager's quotients; where the exact one is within 2^-21 units of the middle of two numbers,
    either of them."""
    exact = x.double() / y.double()
    unit = (torch.nextafter(result.abs(), torch.tensor(INF)) - result.abs()).double()
    off = (result.double() - exact).abs() / unit
    is_middle = (off - 0.5).abs() < 2.0**-21
    assert_same_bits(torch.where(is_middle, x / y, result), x / y)


def run(region: Build, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    (result,) = region(function, *inputs).run()
    assert_same_bits(result, function(*inputs))


@pytest.mark.parametrize("dtype", TYPES)
def test_tensors(region: Build, dtype: torch.dtype) -> None:
    run(region, quotient, draw(0, dtype), draw(1, dtype))


def test_close_to_where_rounding_changes(region: Build) -> None:
    # (b + 1) / b is nearest to the middle of two floats where b is large.
    b = torch.arange(2**24 - 4096, 2**24, dtype=torch.float32)
    y = torch.cat([b, b, torch.arange(2**23, 2**23 + 4096, dtype=torch.float32)])
    x = torch.cat([b + 1, b - 1, torch.full((4096,), 2.0**23 + 1)])
    (result,) = region(quotient, x, y).run()
    assert_nearest(result, x, y)


def test_exact_quotients_of_all_mantissas(region: Build) -> None:
    x, y = draw(9, torch.float32), draw(10, torch.float32)
    few = -(2**12)  # the bits of numbers whose products float32 holds
    x, y = ((z.view(torch.int32) & few).view(torch.float32) for z in (x, y))
    y = torch.where(y == 0, 1.0, y)
    run(region, quotient, x * y, y)


@pytest.mark.parametrize("dtype", TYPES)
def test_special_values(region: Build, dtype: torch.dtype) -> None:
    values = torch.tensor(SPECIAL)
    x, y = (t.reshape(-1).to(dtype) for t in torch.meshgrid(values, values, indexing="ij"))
    # Quotients below the normal numbers may be rounded twice; see the module.
    keep = not_denormal(x / y)
    (result,) = region(quotient, x[keep], y[keep]).run()
    if dtype is torch.float32:
        assert_nearest(result, x[keep], y[keep])
    else:
        assert_same_bits(result, (x / y)[keep])


def test_special_values_by_columns(region: Build) -> None:
    values = torch.tensor(SPECIAL)
    x, y = values.expand(len(SPECIAL), -1).contiguous(), values.reshape(-1, 1)
    (result,) = region(quotient, x, y).run()
    keep = not_denormal(x / y)
    assert_nearest(result[keep], x[keep], y.expand_as(x)[keep])


def test_quotients_below_the_normal_numbers_are_one_step_off_at_most(region: Build) -> None:
    x, y = draw(0, torch.float32) * 2.0**-110, draw(1, torch.float32).abs() * 2.0**18
    (result,) = region(quotient, x, y).run()
    torch.testing.assert_close(result, x / y, rtol=0, atol=2.0**-149)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "divisor", [3.0, 15, 255.0, 0.1, -7, 1.7, 4.0, -0.125, 1e-39, 2.0**127, 0.0, -0.0, INF, NAN]
)
def test_numbers_as_divisors(region: Build, dtype: torch.dtype, divisor: float) -> None:
    x = torch.cat([draw(2, dtype, 4000), torch.tensor(SPECIAL).to(dtype)])
    run(region, lambda x: aten.div.Tensor(x, divisor), x[not_denormal(x / divisor)])


@pytest.mark.parametrize("dtype", TYPES[1:])
@pytest.mark.parametrize("divisor", [2**0.5, 0.1, 1000.0, 1e-3])
def test_numbers_as_divisors_of_all_numbers(
    region: Build, dtype: torch.dtype, divisor: float
) -> None:
    """1.414 and 0.1 are divided by with one product, 1e-3 not in float16."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    run(region, lambda x: aten.div.Tensor(x, divisor), x[not_denormal(x / divisor)])


def test_a_number_divides_halves_with_one_product(region: Build) -> None:
    for dtype in TYPES[1:]:
        x = draw(2, dtype)
        divided = region(lambda x: aten.div.Tensor(x, 2**0.5), x)
        multiplied = region(lambda x: aten.mul.Tensor(x, 2**0.5), x)
        assert divided.source().count("nisa.") == multiplied.source().count("nisa.")


@pytest.mark.parametrize("dividend", [1.0, -1, 2.5])
def test_numbers_as_dividends(region: Build, dividend: float) -> None:
    def function(x: Any) -> Any:
        return aten.div.Tensor(aten.full_like.default(x, dividend), x)

    run(region, function, draw(3, torch.float32))


def test_a_column_as_divisor(region: Build) -> None:
    x, scale = draw(4, torch.float32).reshape(100, 200), draw(5, torch.float32, 100)
    run(region, quotient, x, scale.reshape(100, 1))


@pytest.mark.parametrize("dtype", TYPES)
def test_a_root_as_divisor(region: Build, dtype: torch.dtype) -> None:
    """Of numbers of all sizes, special ones among both operands."""
    generator = torch.Generator().manual_seed(3)
    most = 14 if dtype is torch.float16 else 60
    exponents = torch.randint(-most, most, (300, 64), generator=generator)
    x = (torch.randn(300, 64, generator=generator) * 2.0**exponents).to(dtype)
    squares = (2.0 ** (exponents[:, :1].float() / 2 - 3)).to(dtype)
    special = torch.tensor(SPECIAL).to(dtype)
    x[:, : len(SPECIAL)] = torch.where(special.float().abs() < 1e-30, 0.0, special)
    squares[: len(SPECIAL), 0] = special.abs()
    function = lambda x, y: quotient(x, aten.sqrt.default(y))  # noqa: E731
    (result,) = region(function, x, squares).run()
    expected = function(x, squares)
    normal = not_denormal(expected)
    assert bool(normal[:, len(SPECIAL) :].any())
    if dtype is torch.float32:  # in which the root's last bit shows
        torch.testing.assert_close(
            result[normal], expected[normal], rtol=2.0**-22, atol=0, equal_nan=True
        )
    else:
        assert_same_bits(result[normal], expected[normal])


def test_a_row_as_divisor(region: Build) -> None:
    x, scale = draw(4, torch.float32).reshape(100, 200), draw(5, torch.float32, 200)
    run(region, quotient, x, scale)


def test_integers_divide_in_float32(region: Build) -> None:
    x = torch.arange(-3000, 3000, dtype=torch.int32)
    run(region, lambda x: aten.div.Tensor(x, 7), x)


def test_addcdiv_scales_the_dividend_first(region: Build) -> None:
    x, y, z = (draw(seed, torch.float32) for seed in (6, 7, 8))
    run(region, lambda x, y, z: aten.addcdiv.default(x, y, z, value=-0.3), x, y, z)


def test_a_mean_divides(region: Build) -> None:
    x = torch.arange(600, dtype=torch.float32).reshape(200, 3)
    run(region, lambda x: aten.mean.dim(x, [1]), x)


@pytest.mark.parametrize("length", [257, 300, 641, 1000, 1023, 4097])
def test_a_mean_of_many_numbers(region: Build, length: int) -> None:
    """The quotient where float32 has it, else within one unit in the last place."""
    values = draw(9, torch.float32, 1000)
    whole = torch.arange(-500.0, 500.0)
    x = torch.zeros(2000, length)
    x[:, length // 2] = torch.cat([values, whole * length])  # the sum has no other terms
    (result,) = region(lambda x: aten.mean.dim(x, [1]), x).run()
    assert torch.equal(result[1000:], whole)
    exact = values.double() / length
    size = result[:1000].abs()
    unit = (torch.nextafter(size, torch.tensor(INF)) - size).double()
    assert bool(((result[:1000].double() - exact).abs() <= unit).all())


@pytest.mark.parametrize("length", [3, 127, 129, 300, 641])
def test_a_mean_of_special_values_divides(region: Build, length: int) -> None:
    """An infinite total has no remainder, and the largest finite one does not overflow."""
    largest = torch.finfo(torch.float32).max
    rows = [math.inf, -math.inf, math.nan, largest, -largest, 2.0**-126, 0.0, -0.0]
    x = torch.zeros(len(rows) + 1, length)
    x[: len(rows), 0] = torch.tensor(rows)
    x[-1, :2] = torch.tensor([math.inf, -math.inf])
    run(region, lambda x: aten.mean.dim(x, [1]), x)


@pytest.mark.parametrize("op", [aten.round, aten.floor, aten.ceil, aten.trunc])
@pytest.mark.parametrize("dtype", TYPES)
def test_rounding_keeps_signs_and_halves(region: Build, op: Any, dtype: torch.dtype) -> None:
    halves = torch.arange(2.0**22 - 50, 2.0**22 + 50, 0.5)
    values = torch.cat([torch.tensor(SPECIAL), torch.arange(-9, 9, 0.25), halves, -halves])
    run(region, lambda x: op.default(x), values.to(dtype))
