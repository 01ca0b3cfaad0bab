"""Reductions along the partitions: values, phases, what stays in SBUF between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.engines import TENSOR

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def sums(x: Any) -> Any:
    return aten.sum.dim_IntList(x, [0], True)


def extremes(x: Any) -> Any:
    return aten.amax.default(x, [0], True), aten.amin.default(x, [0], True)


def softmax(x: Any) -> Any:
    """Three phases, of which the last one reads what the second one computed."""
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [0], True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [0], True))


@pytest.mark.parametrize("function", [sums, extremes, softmax])
@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((127, 3), "trn2"),
        ((40001,), "trn2"),
        ((1290, 3, 40), "trn1"),
        ((1290, 3, 40), "trn2"),
        ((1290, 3, 40), "trn3"),
    ],
)
def test_values(
    region: Build, function: Callable[..., Any], shape: tuple[int, ...], target: str
) -> None:
    region(function, draw(*shape)).check(target, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("columns", [1, 127, 129, 513, 2049])
@pytest.mark.parametrize("function", [sums, extremes])
def test_columns_that_fill_banks_and_blocks(
    region: Build, function: Callable[..., Any], columns: int
) -> None:
    region(function, draw(300, columns, dtype=BF16)).check(rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dims", [[0, 1], [0, 2], [1, 2], [0, 1, 2]])
def test_a_mean_over_several_axes_comes_back(region: Build, dims: list[int]) -> None:
    def centre(x: Any, w: Any) -> Any:
        return aten.mul.Tensor(aten.sub.Tensor(x, aten.mean.dim(x, dims, True)), w)

    region(centre, draw(60, 7, 129), draw(1, 7, 1)).check(rtol=1e-5, atol=1e-5)


def test_permuted_operands(region: Build) -> None:
    def function(x: Any, y: Any) -> Any:
        return aten.amax.default(aten.add.Tensor(x, y), [0, 2], False)

    region(function, draw(30, 5, 90).permute(2, 1, 0), draw(90, 5, 30)).check()


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("function", [sums, extremes])
def test_special_values_reach_their_column_alone(
    region: Build, function: Callable[..., Any], value: float
) -> None:
    x = draw(1000, 3)
    x[700, 1] = value
    region(function, x).check(rtol=1e-5, atol=1e-4)


def test_what_a_phase_reads_again_is_loaded_once(region: Build) -> None:
    x = draw(200_000)
    made = region(softmax, x)
    assert "kept0 = []" in made.source()
    assert made.program().hbm_bytes <= 2.1 * x.nbytes


def test_what_of_a_tensor_fits_in_sbuf_is_loaded_once(region: Build) -> None:
    """Of 40 MB, SBUF has 28 on trn2. The sum is taken with the maximum."""
    x = torch.empty(10_000_000)
    made = region(softmax, x)
    assert "kept0 = []" in made.source()
    assert 2.2 * x.nbytes <= made.program().hbm_bytes <= 2.6 * x.nbytes


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_an_rms_norm_of_a_row_beyond_a_partition(
    region: Build, offset: float, rounds: bool, dtype: torch.dtype
) -> None:
    def norm(x: Any, w: Any) -> Any:
        return torch.ops.trnx.rms_norm.default(x, w, 1e-5, offset, rounds)

    tolerance = 1e-5 if dtype is F32 else 2e-2
    inputs = (draw(2, 70_001, dtype=dtype), draw(70_001, dtype=dtype))
    region(norm, *inputs).check(rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_an_rms_norm_without_weights_of_special_values(region: Build, value: float) -> None:
    x = draw(3, 60_001)
    x[1, 5] = value
    region(lambda x: torch.ops.trnx.rms_norm.default(x, None, 1e-5), x).check(rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [0.1, 0.7, 1.3, 3.3])
@pytest.mark.parametrize(("target", "worst"), [("trn1", 1e-6), ("trn2", 7e-7), ("trn3", 7e-7)])
@pytest.mark.parametrize("shape", [(513,), (40001,), (31, 1000), (8, 65536)])
def test_partitions_with_equal_sums_are_added_in_groups(
    region: Build, shape: tuple[int, ...], target: str, worst: float, number: float
) -> None:
    # One after another, each of 128 additions would round in the same direction.
    region(lambda x: aten.sum.default(x), torch.full(shape, number)).check(
        target, rtol=worst, atol=0.0
    )


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("shape", [(7, 4096), (3, 20000), (16, 16384), (2, 100, 700)])
def test_products_add_up_halves_of_the_partitions(
    region: Build, shape: tuple[int, ...], target: str
) -> None:
    dims = list(range(1, len(shape)))
    x = draw(shape[0], *[1] * len(dims)).abs().expand(shape).contiguous()
    made = region(lambda x: aten.sum.dim_IntList(x, dims, False), x)
    made.check(target, rtol=1.2e-6, atol=0.0)


def equal_rows(rows: int, columns: int) -> torch.Tensor:
    return draw(1, columns).abs().expand(rows, columns).contiguous()


@pytest.mark.parametrize(("target", "groups"), [("trn1", 2), ("trn2", 4), ("trn3", 4)])
@pytest.mark.parametrize("shape", [(1024, 257), (1024, 1000), (300, 2049), (129, 512)])
def test_groups_of_partitions_of_columns_that_fill_banks(
    region: Build, shape: tuple[int, int], target: str, groups: int
) -> None:
    # 128 equal terms that are added one after another are 16 ulp off.
    x = equal_rows(*shape)
    (found,) = region(lambda x: aten.sum.dim_IntList(x, [0], False), x).run(target)
    torch.testing.assert_close(found.double(), x.double().sum(0), rtol=2.4e-6 / groups, atol=0.0)


@pytest.mark.parametrize(("target", "groups"), [("trn1", 2), ("trn2", 4), ("trn3", 4)])
@pytest.mark.parametrize("columns", [60, 257, 1000])
@pytest.mark.parametrize("rows", [96, 512])
def test_groups_of_partitions_that_all_get_the_sum(
    region: Build, rows: int, columns: int, target: str, groups: int
) -> None:
    x = equal_rows(rows, columns)
    made = region(lambda x: aten.mul.Tensor(x, aten.sum.dim_IntList(x, [0], True)), x)
    exact = x.double() * x.double().sum(0)
    (found,) = made.run(target)
    torch.testing.assert_close(found.double(), exact, rtol=2.4e-6 / groups, atol=0.0)


def total(x: Any) -> Any:
    return aten.sum.dim_IntList(x, [0], False)


def times_total(x: Any) -> Any:
    return aten.mul.Tensor(x, aten.sum.dim_IntList(x, [0], True))


@pytest.mark.parametrize("function", [total, times_total])
@pytest.mark.parametrize("columns", [513, 1000, 1024])
def test_no_cut_that_adds_up_partitions_has_more_than_twice_the_error_of_eager(
    region: Build, cuts: Cuts, function: Callable[..., Any], columns: int
) -> None:
    x = equal_rows(1024, columns)
    made = region(function, x)
    on_tensor = {
        cut.geometry: cut
        for cut in cuts.of(made)
        if cut.across and any(i.engine == TENSOR for i in cut.instructions)
    }
    exact = function(x.double())
    eager = ((made.eager()[0].double() - exact) / exact).abs().max().item()
    for found in cuts.results(made, list(on_tensor.values())):
        error = ((found.double() - exact) / exact).abs().max().item()
        assert error <= 2 * eager


@pytest.mark.parametrize("number", [0.1, 0.7])
def test_millions_of_equal_terms_are_as_exact_as_in_eager(region: Build, number: float) -> None:
    x = torch.full((8_000_000,), number)
    made = region(lambda x: aten.sum.default(x), x)
    exact = x.double().sum()
    error, eager = ((y.double() - exact).abs() for y in (made.run()[0], made.eager()[0]))
    assert error <= 2 * eager


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_rows_of_equal_terms_are_as_exact_as_in_eager(region: Build, target: str) -> None:
    x = draw(100, 1).abs().expand(100, 5000).contiguous()
    exact = x.double().sum(1)
    (found,) = region(lambda x: aten.sum.dim_IntList(x, [1], False), x).run(target)
    error, eager = ((y.double() - exact).abs().max() for y in (found, x.sum(1)))
    assert error <= 2 * eager
