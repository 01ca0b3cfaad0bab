"""Trigonometric and hyperbolic functions of generated kernels against float64 and eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import trnx
from trnx.nki_kernels.generator.angles import TURNS_PER_RADIAN

aten = torch.ops.aten
Build = Callable[..., Any]
NAN, INF = math.nan, math.inf
PERIODIC = [aten.sin, aten.cos]
OTHERS = [
    aten.asin, aten.acos, aten.atan, aten.sinh, aten.cosh, aten.asinh, aten.acosh, aten.atanh,
]  # fmt: skip
# Positions of rotary embeddings, time steps, multiples of pi / 2 and their neighbours, limits of
# the exponents that share words of 1 / (2 pi), denormals.
ANGLES = [
    0.0, -0.0, 1e-45, -1e-40, 1e-8, 0.5, -1.0, 1.9999999, 2.0, -2.0000002, 3.1415925, 3.1415927,
    -3.141593, 1.5707963, 1.5707964, 4.712389, 6.2831855, 31.415926, 1000.0, -999.5, 131071.0, 1e6,
    -16777216.0, 2.0**33, 8589933568.0, 1e10, -(2.0**65), 3.6893486e19, 2.0**97, 1.584563e29,
    5.3e20, -1e30, 1e38, 3.4028235e38, -3.4028235e38,
]  # fmt: skip


def bit_patterns(count: int) -> torch.Tensor:
    """Numbers of all exponents, among them infinity and NaN."""
    drawn = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(3))
    return drawn.int().view(torch.float32)


def angles(count: int) -> torch.Tensor:
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(4))
    return torch.cat([torch.tensor(ANGLES), bit_patterns(count), drawn * 2e5, drawn * 20 - 10])


@pytest.mark.parametrize("op", PERIODIC, ids=str)
def test_angles_of_any_size_are_reduced_exactly(region: Build, op: Any) -> None:
    x = angles(3000)
    (result,) = region(lambda x: op.default(x), x).run()
    truth = op.default(x.double())
    finite = x.isfinite()
    assert not result[finite].isnan().any()
    assert result[~finite].isnan().all()
    # Two units in the last place of the largest results; eager's error is half of one.
    assert (result.double() - truth)[finite].abs().max() < 2 * 2.0**-24


@pytest.mark.parametrize("op", PERIODIC, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_in_half_precision(region: Build, op: Any, dtype: torch.dtype) -> None:
    region(lambda x: op.default(x), angles(1500).to(dtype)).check()


def test_small_angles_keep_their_value_and_sign(region: Build) -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-38, 1e-30, -3e-7, 1e-3])
    (result,) = region(lambda x: aten.sin.default(x), x).run()
    torch.testing.assert_close(result, x.sin(), rtol=1e-6, atol=0.0)
    assert result.signbit().tolist() == x.signbit().tolist()


@pytest.mark.parametrize("size", [(1,), (127,), (128, 3), (129, 2), (2, 1, 5)])
def test_sine_and_cosine_share_their_reduction(region: Build, size: tuple[int, ...]) -> None:
    x = torch.randn(size, generator=torch.Generator().manual_seed(5)) * 1e4
    both = region(lambda x: (aten.sin.default(x), aten.cos.default(x)), x)
    both.check()
    one = region(lambda x: aten.sin.default(x), x)
    # Twelve more: the quarter of a turn, the sign, small angles, the sine, infinities, the store.
    assert both.source().count("nisa.") <= one.source().count("nisa.") + 12


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_angles_on_other_generations(region: Build, target: str) -> None:
    region(lambda x: (aten.sin.default(x), aten.cos.default(x)), angles(100)).check(target)


def test_angles_of_integers_and_views(region: Build) -> None:
    positions = torch.tensor([[0, 1, -7, 131072], [2**31 + 1, -(2**40), 5, 3]])
    region(lambda x: aten.cos.default(x), positions).check()
    region(lambda x: aten.sin.default(x), positions.int()).check()
    region(lambda x: aten.sin.default(x), angles(70)[:200].reshape(20, 10).t()).check()


@pytest.mark.parametrize("op", OTHERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_inverse_and_hyperbolic_functions(region: Build, op: Any, dtype: torch.dtype) -> None:
    special = [NAN, INF, -INF, 0.0, -0.0, 1e-30, 1.0, -1.0, 1.0000001, -0.99999994, 8191.5, 88.5]
    near = torch.linspace(-4.0, 4.0, 600)
    x = torch.cat([torch.tensor(special), near, near * 22, near * 3000]).to(dtype)
    (result,) = region(lambda x: op.default(x), x).run()
    # Eager overflows before the function does where it computes many elements at once.
    expected = op.default(x.double()).to(dtype)
    torch.testing.assert_close(result, expected, equal_nan=True)
    zero = expected == 0
    assert result[zero].signbit().equal(expected[zero].signbit())


@pytest.mark.parametrize("op", [aten.asin, aten.atan, aten.sinh, aten.asinh, aten.atanh], ids=str)
def test_odd_functions_of_small_arguments_keep_their_precision(region: Build, op: Any) -> None:
    x = torch.cat([torch.logspace(-30, -1, 100), -torch.logspace(-30, -1, 100)])
    (result,) = region(lambda x: op.default(x), x).run()
    torch.testing.assert_close(result, op.default(x), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("op", [*OTHERS, aten.log1p, aten.logit, aten.softplus, aten.mish], ids=str)
def test_functions_are_a_few_units_off(region: Build, op: Any) -> None:
    drawn = torch.randn(4000, generator=torch.Generator().manual_seed(8))
    bounded = (aten.asin, aten.acos, aten.atanh)
    x = drawn.sigmoid() * 0.998 + 1e-3 if op in (*bounded, aten.logit) else drawn * 4
    x = x.abs() + 1.0 if op is aten.acosh else x.abs() if op is aten.log1p else x
    x = x * 2.0 - 1.0 if op in bounded else x
    (result,) = region(lambda x: op.default(x), x).run()
    truth = op.default(x.double())
    # logit crosses zero where its quotient is rounded; the others keep their relative precision.
    scale = truth.abs().clamp(min=1.0) if op is aten.logit else truth.abs()
    assert ((result.double() - truth).abs() / scale).max() < 8 * 2.0**-24


def test_logarithms_of_one_and_an_exponential_are_softplus(region: Build) -> None:
    special = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1e-30, 88.8, -200.0, 1e30])
    x = torch.cat([special, torch.linspace(-30.0, 30.0, 300)])
    falling = region(
        lambda x: aten.log1p.default(aten.exp.default(aten.mul.Tensor(aten.abs.default(x), -1))), x
    )
    falling.check()
    assert "nl.softplus" in falling.source()
    # Where the exponential is infinite, so is eager's logarithm, and softplus is not.
    region(lambda x: aten.log1p.default(aten.exp.default(x)), x).check()


def test_the_bits_of_one_over_two_pi() -> None:
    """By Machin's formula, pi = 16 atan(1/5) - 4 atan(1/239), in integers."""
    one = 1 << 400

    def arctangent_of_inverse(n: int) -> int:
        total, term, k = 0, one // n, 0
        while term:
            total += (-1) ** k * (term // (2 * k + 1))
            term //= n * n
            k += 1
        return total

    pi = 16 * arctangent_of_inverse(5) - 4 * arctangent_of_inverse(239)
    assert (one << 256) // (2 * pi) == TURNS_PER_RADIAN


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_of_rotary_embeddings_are_kernels(dtype: torch.dtype) -> None:
    def tables(positions: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        turned = (steps[None, :, None] @ positions[:, None, :].float()).transpose(1, 2)
        both = torch.cat((turned, turned), dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)

    positions = torch.arange(130000, 130160)[None]
    steps = 1.0 / 10000.0 ** (torch.arange(0, 64, 2).float() / 64)
    with torch.no_grad(), trnx.collect_reports() as reports:
        results = torch.compile(tables, backend="trnx")(positions, steps)
    assert not {"aten.sin.default", "aten.cos.default"} & {e.op for e in reports[0].fallbacks}
    for result, expected in zip(results, tables(positions, steps), strict=True):
        torch.testing.assert_close(result, expected)
