"""Error, Bessel and gamma functions, angles of two numbers and signs, against float64 and eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trnx.nki_kernels.generator.series import Series

aten = torch.ops.aten
Build = Callable[..., Any]
NAN, INF = math.nan, math.inf
FUNCTIONS = [
    aten.erfc, aten.special_erfcx, aten.erfinv, aten.special_ndtri, aten.i0, aten.special_i0e,
    aten.special_i1, aten.special_i1e, aten.special_modified_bessel_i0,
    aten.special_modified_bessel_i1, aten.special_modified_bessel_k0,
    aten.special_modified_bessel_k1, aten.special_scaled_modified_bessel_k0,
    aten.special_scaled_modified_bessel_k1, aten.special_bessel_j0, aten.special_bessel_j1,
    aten.special_bessel_y0, aten.special_bessel_y1, aten.special_spherical_bessel_j0, aten.lgamma,
    aten.digamma, aten.angle, aten.signbit,
]  # fmt: skip
SPECIAL = [
    NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1e-40, -1e-40, 1e-30, 3e38, -3e38,
    3.0, 8.0, -5.0, 17.5, 89.0, -100.0, 1e6,
]  # fmt: skip


def arguments() -> torch.Tensor:
    """Special values, the limits of the pieces and what is around them, all magnitudes."""
    generator = torch.Generator().manual_seed(0)
    near = torch.rand(128, generator=generator) * 20 - 10
    unit = torch.rand(64, generator=generator) * 2 - 1
    sizes = torch.logspace(-30, 30, 61)
    return torch.cat([torch.tensor(SPECIAL), near, unit, sizes, -sizes[:31]])


def assert_as_close(result: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Each element is close to eager's, or to what eager gives in float64; of the same class."""
    close = [
        torch.isclose(result.float(), e.float(), 1.3e-6, 1e-5, equal_nan=True)
        for e in (eager, exact)
    ]
    assert (close[0] | close[1]).all()
    assert result.isnan().equal(eager.isnan())
    assert result.isinf().equal(eager.isinf())


@pytest.mark.parametrize("op", FUNCTIONS, ids=str)
def test_functions_of_one_argument(region: Build, op: Any) -> None:
    x = arguments()
    (result,) = region(lambda x: op.default(x), x).run()
    assert result.dtype is op.default(x).dtype
    assert_as_close(result, op.default(x), op.default(x.double()).to(result.dtype))


@pytest.mark.parametrize("op", [aten.erfc, aten.lgamma, aten.special_i0e], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_functions_in_half_precision(region: Build, op: Any, dtype: torch.dtype) -> None:
    x = torch.linspace(-6.0, 6.0, 129).to(dtype)
    (result,) = region(lambda x: op.default(x), x).run()
    torch.testing.assert_close(result, op.default(x.double()).to(dtype), equal_nan=True)


def test_tails_keep_their_relative_precision(region: Build) -> None:
    x = torch.linspace(0.5, 9.0, 129)
    (result,) = region(lambda x: aten.erfc.default(x), x).run()
    torch.testing.assert_close(result.double(), x.double().erfc(), rtol=1e-6, atol=0.0)
    x = torch.logspace(-37, -1, 129)
    (result,) = region(lambda x: aten.special_ndtri.default(x), x).run()
    exact = torch.special.ndtri(x.double())
    torch.testing.assert_close(result.double(), exact, rtol=1e-6, atol=0.0)


def test_the_second_derivative_of_log_gamma(region: Build) -> None:
    # At its poles eager is finite, because it rounds pi; near them it is as far off.
    x = torch.cat([torch.linspace(0.01, 30.0, 129), torch.linspace(-4.9, -4.1, 33)])
    (result,) = region(lambda x: aten.polygamma.default(1, x), x).run()
    torch.testing.assert_close(result, torch.polygamma(1, x.double()).float())
    (pole,) = region(lambda x: aten.polygamma.default(1, x), torch.tensor([0.0, -3.0])).run()
    assert pole.tolist() == [INF, INF]


@pytest.mark.parametrize("op", [aten.atan2.default, aten.hypot.default, aten.copysign.Tensor])
def test_functions_of_two_arguments(region: Build, op: Any) -> None:
    edge = torch.tensor([*SPECIAL, 1e-45, 2.5, -2.5, 1e20, 1e-20, 3.4e38])
    x, y = (z.reshape(-1) for z in torch.meshgrid(edge, edge, indexing="ij"))
    (result,) = region(lambda x, y: op(x, y), x, y).run()
    assert_as_close(result, op(x, y), op(x.double(), y.double()).float())
    numbers = ~result.isnan()
    assert result[numbers].signbit().equal(op(x, y)[numbers].signbit())


def test_signs_of_numbers_and_of_broadcast_views(region: Build) -> None:
    x = arguments()[:126].reshape(6, 21)
    region(lambda x: aten.copysign.Scalar(x, -0.0), x.t()).check()
    region(lambda x, y: aten.atan2.default(x, y), x, x[:1]).check()
    region(lambda x, y: aten.copysign.Tensor(x, y), x, x[:, :1].long()).check()


@pytest.mark.parametrize("order", [3, 3.5, 6, 0.5, -2.5])
def test_vector_norms_of_any_order(region: Build, order: float) -> None:
    x = torch.randn(5, 129, generator=torch.Generator().manual_seed(0))
    region(lambda x: aten.linalg_vector_norm.default(x, order, [1]), x).check()
    x[0, 3], x[1, 4], x[2] = INF, NAN, 0.0
    region(lambda x: aten.linalg_vector_norm.default(x, order, [1], True), x).check()


def test_a_series_is_as_exact_as_its_degree() -> None:
    exact = Series(lambda x: 3.0 * x**2 - x + 2.0, -1.0, 1.0, 2)
    assert exact.coefficients == pytest.approx((2.0, -1.0, 3.0))
    rest = [Series(torch.exp, -1.0, 1.0, degree).coefficients[-1] for degree in (4, 8)]
    assert rest[1] == pytest.approx(1.0 / math.factorial(8), rel=0.1)
    assert rest[0] == pytest.approx(1.0 / math.factorial(4), rel=0.2)


def test_coefficients_are_numbers_while_a_graph_is_compiled() -> None:
    with FakeTensorMode():
        found = Series(torch.exp, -1.0, 1.0, 4).coefficients
    assert found == Series(torch.exp, -1.0, 1.0, 4).coefficients
