"""Reductions over any axis, and broadcasts from any axis: values, ragged edges, predicted time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

aten = torch.ops.aten
Build = Callable[..., Any]


SHAPES = [
    (1, 1, 1),
    (1, 5, 1),
    (3, 1, 700),
    (2, 127, 130),
    (3, 64, 129),
    (129, 3, 128),
    (7, 65, 49),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dims", [[0], [1], [2], [0, 1], [1, 2], [0, 2]])
def test_a_sum_over_these_axes(region: Build, shape: tuple[int, ...], dims: list[int]) -> None:
    def kept(x: Any) -> Any:
        return aten.sum.dim_IntList(x, dims, True)

    region(kept, draw(*shape)).check(rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_softmax_over_a_middle_axis(region: Build, shape: tuple[int, ...], target: str) -> None:
    region(lambda x: aten._softmax.default(x, 1, False), draw(*shape)).check(target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 64, 300), (3, 200, 1000), (2, 33, 5000)])
def test_a_norm_over_a_middle_axis(
    region: Build, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    def norm(x: Any, w: Any) -> Any:
        largest = aten.amax.default(x, [1], True)
        return aten.mul.Tensor(aten.sub.Tensor(x, largest), w), largest

    region(norm, draw(*shape, dtype=dtype), draw(1, shape[1], 1, dtype=dtype)).check()


@pytest.mark.parametrize(
    "shape", [(2, 64, 130), (5, 64, 130), (7, 20, 33), (3, 128, 9), (4, 130, 8)]
)
def test_operands_of_one_axis_each(region: Build, shape: tuple[int, ...]) -> None:
    """Results that vary along some axes of the space alone are stored once."""

    def function(x: Any, n: Any, c: Any, s: Any) -> Any:
        n, c, s = aten.exp.default(n), aten.exp.default(c), aten.exp.default(s)
        return aten.mul.Tensor(aten.mul.Tensor(aten.mul.Tensor(x, c), n), s), n, c, s

    operands = [draw(shape[0], 1, 1), draw(1, shape[1], 1), draw(1, 1, shape[2])]
    region(function, draw(*shape), *operands).check(rtol=1e-5, atol=1e-5)


def test_channels_that_fill_half_of_the_partitions_come_in_pairs(region: Build) -> None:
    def scale(x: Any, w: Any) -> Any:
        return aten.mul.Tensor(x, w)

    source = region(scale, draw(6, 64, 900), draw(1, 64, 1)).source()
    assert "x0_tile = nl.ndarray((p, n0)" in source
    assert "[57600, n1], [900, m], [1, n0]" in source
    # The same 64 numbers for both halves of the partitions, loaded once.
    assert "src=x1.ap(pattern=[[0, 2], [1, 64], [1, 1]])" in source


@pytest.mark.parametrize(
    ("function", "limit"),
    [
        (lambda x: aten.amax.default(x, [1], False), 3.0),
        (lambda x: aten._softmax.default(x, 1, False), 4.0),
    ],
)
def test_predicted_time_against_the_bytes(
    region: Build, function: Callable[..., Any], limit: float
) -> None:
    built = region(function, torch.empty(8, 64, 56, 56))
    moved = sum(t.nbytes for t in (*built.inputs.values(), *built.eager()))
    hw = hardware("trn2")
    bound = moved / hw.dma_bytes_per_second
    assert predicted_seconds(built.program(), hw) < limit * bound
