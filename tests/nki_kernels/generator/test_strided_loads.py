"""Loads of every second to fourth element, and of expanded tensors: values, patterns, time."""

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


def gated(x: Any, y: Any) -> Any:
    return aten.mul.Tensor(aten.sigmoid.default(x), y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "step"), [(1, 2), (2, 3), (129, 2), (129, 3), (129, 4), (129, 5)])
def test_a_gate_and_a_value_side_by_side(
    region: Build, rows: int, step: int, dtype: torch.dtype
) -> None:
    both = draw(rows, 33 * step, dtype=dtype)
    built = region(gated, both[:, ::step], both[:, step - 1 :: step])
    assert ("x0_runs" in built.source()) == (rows == 129 and step < 5)
    built.check(rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [1, 127, 300])
def test_every_second_element_is_reduced(region: Build, size: int) -> None:
    def norm(x: Any) -> Any:
        return aten.sub.Tensor(x, aten.amax.default(x, [-1], True))

    region(norm, draw(3, 5, 2 * size)[..., 1::2]).check(rtol=0, atol=0)


def test_channels_last_beside_channels_first(region: Build) -> None:
    """Neighbours that a run holds are elements of the tile too."""
    last = draw(2, 7, 9, 3).permute(0, 3, 1, 2)
    region(gated, draw(2, 3, 7, 9), last).check(rtol=1e-5, atol=1e-5)


def test_bits_of_every_second_element(region: Build) -> None:
    x = draw(500, 40)[:, ::2].clone()
    strided = torch.stack((x, x), -1).view(500, 40)[:, ::2]
    strided[0, :3] = torch.tensor([float("inf"), float("nan"), -0.0])
    region(lambda a, b: aten.div.Tensor(a, b), draw(500, 20), strided).check(rtol=0, atol=0)


def test_runs_are_loaded_for_every_second_element(region: Build) -> None:
    hw = hardware("trn2")
    both = torch.empty(640, 1024)
    apart = region(gated, both[:, ::2], both[:, 1::2])
    dense = region(gated, torch.empty(640, 512), torch.empty(640, 512))
    assert predicted_seconds(apart.program(), hw) < 2.5 * predicted_seconds(dense.program(), hw)


@pytest.mark.parametrize("shape", [(1, 1), (129, 1), (1, 130)])
def test_an_expanded_tensor(region: Build, shape: tuple[int, ...]) -> None:
    def function(x: Any, y: Any) -> Any:
        return aten.add.Tensor(aten.div.Tensor(x, 256), y), aten.sum.dim_IntList(x, [1])

    region(function, draw(*shape).expand(129, 130), draw(129, 130)).check(rtol=1e-5, atol=1e-5)


def test_a_column_is_loaded_once_for_its_row(region: Build) -> None:
    def function(x: Any, y: Any) -> Any:
        return aten.add.Tensor(aten.div.Tensor(x, 256), y)

    built = region(function, draw(320, 1).expand(320, 256), draw(320, 256))
    # One element a row, with one or several rows in a partition.
    patterns = ("[[k, p], [1, k]]", "[[1, p], [1, 1]]")
    assert any(f"src=x0.ap(pattern={x}, offset=r)" in built.source() for x in patterns)
