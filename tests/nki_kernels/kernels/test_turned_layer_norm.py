"""Layer norm of many long rows in half precision, whose weight TensorE multiplies: accuracy, what
spoils products, both cores, time and room."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx import simulator
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings, Launch
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.timing.profile import Profile, profile_program

LAYER_NORM = registry.kernels()["layer_norm"]
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
# With a ragged tile, with tiles of several rows a partition, and of one.
SHAPES = pytest.mark.parametrize("shape", [(2060, 768), (770, 2176)])


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def launched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, target: str) -> Launch:
    shape = [x.shape[-1]]
    values = {"x": TensorSpec.of(x), "residual": None, "normalized_shape": shape, "eps": 1e-5}
    both = {"weight": TensorSpec.of(weight), "bias": TensorSpec.of(bias)}
    launch = LAYER_NORM.launch(Bindings({**values, **both}), hardware(target))
    assert launch.kernel.__name__ == "turned_layer_norm_kernel"
    return launch


def run(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, target: str = "trn2"
) -> tuple[torch.Tensor, ...]:
    launch = launched(x, weight, bias, target)
    program = simulator.trace(launch.kernel, launch.arguments, target=target)
    results: tuple[torch.Tensor, ...] = program.run([x, weight, bias])
    return results


def eager(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, weight, bias = tensors
    width = [x.shape[-1]]
    result: tuple[torch.Tensor, ...]
    result = torch.ops.aten.native_layer_norm.default(x, width, weight, bias, 1e-5)
    return result


def profiled(rows: int, columns: int, target: str = "trn2") -> Profile:
    x, vector = torch.zeros(rows, columns).bfloat16(), torch.zeros(columns).bfloat16()
    launch = launched(x, vector, vector, target)
    program = simulator.trace(launch.kernel, launch.arguments, target=target, values=False)
    assert program.peak_sbuf_bytes <= hardware(target).sbuf_partition_bytes
    return profile_program(program, hardware(target), launch.unknown_trips)


@HALVES
@SHAPES
def test_results_are_as_accurate_as_in_eager(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """On usual rows, constant ones, large and tiny ones, outliers, large means, and means that are
    many times the deviation."""
    x = draw(*shape)
    x[1], x[9] = 3.0, 0.0
    x[2] *= 1e4
    x[3] *= 1e-4
    x[4, 7] = x[5, -1] = 3e4
    x[6] = 1000.0
    x[6, 7] = 1004.0
    x[100:130] += 50.0
    x, weight, bias = x.to(dtype), draw(shape[1]).to(dtype), (draw(shape[1]) * 3).to(dtype)
    ours, theirs = run(x, weight, bias), eager(x, weight, bias)
    exact = eager(x.double(), weight.double(), bias.double())
    parts = [
        [1],
        [2],
        [3],
        [4],
        [5],
        [6],
        [9],
        range(100, 130),
        [*range(10, 100), *range(130, shape[0])],
    ]
    for mine, other, wanted in zip(ours, theirs, exact, strict=True):
        for part in map(list, parts):
            least = torch.finfo(dtype).eps / 2 * wanted[part].abs().max()
            allowed = max((other[part] - wanted[part]).abs().max(), least)
            assert (mine[part] - wanted[part]).abs().max() <= 2 * allowed
    usual = parts[-1]
    mean_square = [(r[0][usual] - exact[0][usual]).square().mean() for r in (ours, theirs)]
    assert mean_square[0] <= 1.01 * mean_square[1]


@pytest.mark.parametrize("deviations", [6.0, 7.9, 8.5, 300.0])
def test_a_mean_of_many_deviations_costs_no_accuracy(deviations: float) -> None:
    """Sums of squares lose the variance in it; float16 keeps what bfloat16 would round away."""
    noise = draw(1030, 2176)
    weight, bias = draw(2176).half(), draw(2176).half()
    x = noise.clone()
    x[5:90] += deviations
    x[7:40:3] *= -1
    x = x.half()
    ours, theirs = run(x, weight, bias), eager(x, weight, bias)
    exact = eager(x.double(), weight.double(), bias.double())
    for mine, other, wanted in zip(ours, theirs, exact, strict=True):
        rows = slice(5, 90)
        least = torch.finfo(x.dtype).eps / 2 * wanted[rows].abs().max()
        allowed = max((other[rows] - wanted[rows]).abs().max(), least)
        assert (mine[rows] - wanted[rows]).abs().max() <= 2 * allowed
        mean_square = [(r[rows] - wanted[rows]).square().mean() for r in (mine, other)]
        assert mean_square[0] <= 1.02 * mean_square[1]


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("rows", [895, 896, 897, 1025])
def test_ragged_tiles_are_as_accurate(rows: int, target: str) -> None:
    """A last tile of 127, 128 and 1 rows: in halves only where all partitions have rows."""
    x, weight, bias = (draw(*shape).bfloat16() for shape in ((rows, 2176), (2176,), (2176,)))
    found, others = run(x, weight, bias, target), eager(x, weight, bias)
    exact = eager(x.double(), weight.double(), bias.double())
    for mine, other, wanted in zip(found, others, exact, strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        assert (mine - wanted).abs().max() <= 2 * (other - wanted).abs().max()


def in_x(tensors: list[torch.Tensor]) -> None:
    x = tensors[0]
    x[3, 0], x[700, 9], x[769, -1] = torch.nan, torch.inf, -torch.inf


def in_weight(tensors: list[torch.Tensor]) -> None:
    tensors[1][[0, 130, 767]] = torch.tensor([torch.inf, torch.nan, -torch.inf]).to(tensors[1])


def in_bias(tensors: list[torch.Tensor]) -> None:
    tensors[2][[1, 200, 766]] = torch.tensor([torch.inf, torch.nan, -torch.inf]).to(tensors[2])


def too_large(tensors: list[torch.Tensor]) -> None:
    """In float32 neither the squares of a row nor its products with weights."""
    x, weight, bias = tensors
    x[5] *= torch.finfo(x.dtype).max / 8
    weight[3] = bias[4] = torch.finfo(x.dtype).max


@HALVES
@pytest.mark.parametrize("spoil", [in_x, in_weight, in_bias, too_large])
def test_what_spoils_products_is_done_again(
    spoil: Callable[[list[torch.Tensor]], None], dtype: torch.dtype
) -> None:
    tensors = [draw(2060, 768).to(dtype), draw(768).to(dtype), draw(768).to(dtype)]
    spoil(tensors)
    found, wanted = run(*tensors)[0], eager(*tensors)[0]
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.isinf(), wanted.isinf())
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_both_cores_give_the_same(target: str) -> None:
    x, weight, bias = (draw(*s).bfloat16() for s in ((4100, 768), (768,), (768,)))
    launch = launched(x, weight, bias, target).on(2, 2)
    program = simulator.trace(launch.kernel, launch.arguments, target=target, grid=2)
    for found, wanted in zip(program.run([x, weight, bias]), run(x, weight, bias), strict=True):
        assert torch.equal(found, wanted)


def test_other_parameters_are_left_to_other_engines() -> None:
    x, vector = torch.zeros(2048, 768).bfloat16(), torch.zeros(768)
    values = {"x": TensorSpec.of(x), "residual": None, "normalized_shape": [768], "eps": 1e-5}
    for weight in (None, TensorSpec.of(vector)):
        b = Bindings({**values, "weight": weight, "bias": TensorSpec.of(vector)})
        kernel: Any = LAYER_NORM.launch(b, hardware("trn2")).kernel
        assert kernel.__name__ == "layer_norm_kernel"


def test_wide_rows_are_near_the_rate_of_dma() -> None:
    profile = profiled(4096, 4096)
    assert profile.mbu > 0.88
    assert math.isclose(profile.hbm_bytes, 2 * 2 * 4096**2, rel_tol=0.01)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_the_widest_rows_fit(target: str) -> None:
    profiled(1024, 8192, target)
