"""Gradients of layer norm of many long rows in half precision, by products of TensorE: accuracy,
what spoils products, both cores, time and room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from launched import launch_of

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Launch
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import Profile, profile_program

BACKWARD = registry.kernels()["layer_norm_backward"]
EAGER = torch.ops.aten.native_layer_norm_backward.default
# Tiles of several rows a partition, and of one; the last one of 127, 128 and 1 rows.
SHAPES = [(5503, 768), (1023, 2176), (1024, 2176), (1025, 2176)]
Values = dict[str, Any]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def values_of(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Values:
    width = [x.shape[-1]]
    _, mean, rstd = torch.ops.aten.native_layer_norm.default(x, width, weight, weight, 1e-5)
    values = {"grad": grad, "x": x, "normalized_shape": width, "mean": mean, "rstd": rstd}
    return {**values, "weight": weight, "bias": weight, "output_mask": [True] * 3}


def usual(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """The gradient, x and the weight."""
    return [
        t.to(dtype)
        for t in (draw(rows, columns), draw(columns, rows).mT.contiguous(), draw(columns))
    ]


def launched(values: Values, target: str) -> Launch:
    launch = launch_of(BACKWARD, values, target)
    assert launch.kernel.__name__ == "turned_layer_norm_backward_kernel"
    return launch


def run(values: Values, target: str = "trn2", cores: int = 1) -> tuple[torch.Tensor, ...]:
    launch = launched(values, target).on(cores, cores)
    program = simulator.trace(launch.kernel, launch.arguments, target=target, grid=cores)
    results: tuple[torch.Tensor, ...] = program.run([values[n] for n in launch.tensor_names])
    return results


def in_float64(values: Values) -> Any:
    return EAGER(*[v.double() if isinstance(v, torch.Tensor) else v for v in values.values()])


def assert_accurate(values: Values, parts: list[list[int]]) -> None:
    """Each part of the rows as in eager within a factor of two, and the sums over rows, of products
    that have 11 bits, as float16 has."""
    found, theirs, exact = run(values), EAGER(*values.values()), in_float64(values)
    eps = torch.finfo(values["x"].dtype).eps
    for part in parts:
        least = eps / 2 * exact[0][part].abs().max()
        allowed = max((theirs[0][part] - exact[0][part]).abs().max(), least)
        assert (found[0][part] - exact[0][part]).abs().max() <= 2 * allowed
    usual_rows = parts[-1]
    squares = [(r[0][usual_rows] - exact[0][usual_rows]).square().mean() for r in (found, theirs)]
    assert squares[0] <= 1.01 * squares[1]
    factor = 1.1 if values["x"].dtype == torch.bfloat16 else 1.5
    for ours, wanted in zip(found[1:], exact[1:], strict=True):
        assert (ours - wanted).abs().max() <= factor * (eps / 2 * wanted.abs().max())


HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@HALVES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_zeros", [False, True])
def test_gradients_are_as_accurate_as_in_eager(
    shape: tuple[int, int], dtype: torch.dtype, has_zeros: bool
) -> None:
    """On usual rows, constant ones, large ones, tiny ones, outliers, and means of many deviations;
    with weights that divide sums, and with some that do not."""
    grad, x, weight = usual(*shape, dtype)
    x[1], x[2] = 3.0, 0.0
    x[3] *= 1e3
    x[4, 7] = 3e4
    x[5] = 1000.0
    x[5, 7] = 1004.0
    x[7] *= 1e-4
    x[100:130] += 50.0
    x[200:230] += 1000.0
    grad[6] *= 1e3
    weight[weight.abs() < 1e-3] = 1.0
    weight[[1, 301]] = torch.tensor([1e-5, -1e3], dtype=dtype)
    if has_zeros:
        weight[[0, 300, -1]] = 0.0
    usual_rows = [0, *range(8, 100), *range(130, 200), *range(230, shape[0])]
    parts = [[1], [2], [3], [4], [5], [6], [7], [*range(100, 130)], [*range(200, 230)], usual_rows]
    assert_accurate(values_of(grad, x, weight), parts)


@pytest.mark.parametrize("shape", [(128, 4096), (129, 4096), (1151, 768)])
def test_few_tiles_are_as_accurate_as_in_eager(shape: tuple[int, int]) -> None:
    """One of all rows, and one that begins and ends with others: 1 and 127 rows behind whole
    ones."""
    assert_accurate(values_of(*usual(*shape)), [[*range(shape[0])]])


@HALVES
def test_gradients_along_the_rows_are_as_accurate_as_in_eager(dtype: torch.dtype) -> None:
    """What is left of `grad * weight` is as small as the rounding of the gradient."""
    _, x, weight = usual(5503, 768, dtype)
    wide = x.float()
    centred = wide - wide.mean(1, keepdim=True)
    weight = weight.abs() + 0.5
    grad = (centred / centred.std(1, keepdim=True) / weight.float()).to(dtype)
    values = values_of(grad, x, weight)
    found, theirs, exact = run(values)[0], EAGER(*values.values())[0], in_float64(values)[0]
    least = torch.finfo(dtype).eps / 2 * exact.abs().amax(1)
    allowed = torch.maximum((theirs - exact).abs().amax(1), least)
    assert ((found - exact).abs().amax(1) <= 2 * allowed).all()


@pytest.mark.parametrize("weight", [2.0**-19, 2.0**-21, 0.0])
def test_all_is_computed_again_where_a_weight_is_no_divisor(weight: float) -> None:
    """TensorE rounds products, which a sum of one row shows in float16; what is computed again is
    not rounded."""
    grad, x, weights = usual(5503, 768, torch.float16)
    grad[1:], weights[:], grad[0] = 0.0, 1.0, 1.0
    weights[300] = weight
    values = values_of(grad, x, weights)
    found, wanted = run(values)[1], BACKWARD.reference(**values)[1]
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=0.0)
    assert torch.equal(found, wanted) == (weight < 2.0**-20)


def in_grad(tensors: list[torch.Tensor]) -> None:
    tensors[0][3, 0], tensors[0][4100, 9], tensors[0][-1, -1] = torch.nan, torch.inf, -torch.inf


def in_x(tensors: list[torch.Tensor]) -> None:
    tensors[1][3, 0], tensors[1][4100, 9], tensors[1][-1, -1] = torch.nan, torch.inf, -torch.inf


def too_large(tensors: list[torch.Tensor]) -> None:
    """Products with weights, in float32."""
    tensors[0][5, 3], tensors[2][3] = torch.finfo(tensors[0].dtype).max, 4.0


@pytest.mark.parametrize("spoil", [in_grad, in_x, too_large])
@pytest.mark.parametrize("cores", [1, 2])
def test_what_spoils_products_is_done_again(
    spoil: Callable[[list[torch.Tensor]], None], cores: int
) -> None:
    """Rows and columns that are finite in eager are so here, with their values."""
    tensors = usual(5503 * cores, 768)
    spoil(tensors)
    values = values_of(*tensors)
    results, expected = run(values, cores=cores), BACKWARD.reference(**values)
    assert expected[0].isfinite().sum() >= (5503 * cores - 3) * 768
    for found, wanted in zip(results, expected, strict=True):
        assert torch.equal(found.isfinite(), wanted.isfinite())
        finite = wanted.isfinite()
        torch.testing.assert_close(found[finite], wanted[finite], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("cores", [1, 2])
def test_sums_have_the_infinities_of_eager(cores: int) -> None:
    """Products with zeros, which make the sums of two kinds in one place, would make them NaN."""
    tensors = usual(5503 * cores, 768)
    tensors[0][4, 9], tensors[0][-1, 300] = torch.inf, -torch.inf
    values = values_of(*tensors)
    for found, wanted in zip(
        run(values, cores=cores)[1:], BACKWARD.reference(**values)[1:], strict=True
    ):
        assert wanted.isinf().sum() == 2
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_both_cores_give_the_same(target: str) -> None:
    """But for the order in which numbers are added up."""
    values = values_of(*usual(11000, 768))
    one, two = run(values, target), run(values, target, 2)
    assert (one[0] == two[0]).float().mean() > 0.999
    for found, wanted in zip(two, one, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2**-7, atol=1e-5)


def test_the_first_of_both_cores_gives_the_same() -> None:
    """The other one, without rows, stores nothing."""
    values = values_of(*usual(5503, 768))
    launch = launched(values, "trn2").on(2, 1)
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", grid=2)
    results = program.run([values[n] for n in launch.tensor_names])
    for found, wanted in zip(results, run(values), strict=True):
        assert torch.equal(found, wanted)


def profiled(rows: int, columns: int, target: str = "trn2") -> Profile:
    launch = launched(values_of(*usual(rows, columns)), target)
    program = simulator.trace(launch.kernel, launch.arguments, target=target, values=False)
    assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes
    return profile_program(program, hardware(target), launch.unknown_trips)


@pytest.mark.parametrize(("rows", "columns", "least"), [(4096, 4096, 0.87), (8192, 768, 0.88)])
def test_all_engines_have_work(rows: int, columns: int, least: float) -> None:
    """Each is busy for nearly as long as HBM is."""
    assert profiled(rows, columns).mbu > least


def test_both_cores_take_less_than_two_thirds_of_the_time() -> None:
    """The sums over rows are exchanged behind the last ones."""
    launch = launched(values_of(*usual(8192, 768)), "trn2").on(2, 2)
    program = simulator.trace(launch.kernel, launch.arguments, target="trn2", grid=2, values=False)
    both = profile_program(program, hardware("trn2"), launch.unknown_trips)
    assert both.total_seconds < 0.65 * profiled(8192, 768).total_seconds


@pytest.mark.parametrize(("rows", "columns"), [(1 << 16, 512), (4224, 4096)])
def test_the_most_rows_and_the_widest_fit(rows: int, columns: int) -> None:
    profiled(rows, columns)
