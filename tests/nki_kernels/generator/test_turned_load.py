"""Loads that TensorE transposes, where other cuts of the same tensor have short runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def added(x: Any, y: Any) -> Any:
    return aten.sub.Tensor(x, y)


def normed(x: Any, y: Any) -> Any:
    total = aten.sub.Tensor(x, y)
    mean = aten.mean.dim(aten.pow.Tensor_Scalar(total, 2), [0], True)
    return aten.mul.Tensor(total, aten.rsqrt.default(aten.add.Tensor(mean, 1e-5)))


def largest(x: Any, y: Any) -> Any:
    return aten.amax.default(aten.add.Tensor(x, y), [0], True)


def turning(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry in which TensorE transposes a load."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if cut.turned_loads:
            found.setdefault((cut.geometry, cut.keeps, cut.depth, cut.phase_stages), cut)
    return list(found.values())


def permuted(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor whose first axis lies second to last in memory."""
    first, *middle, last = shape
    x = draw(*middle, first, last, dtype=dtype)
    return x.permute(len(middle), *range(len(middle)), len(middle) + 1)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [added, normed, largest])
@pytest.mark.parametrize("shape", [(256, 2, 127, 7), (150, 40, 3), (200, 130, 5), (64, 3, 50, 4)])
def test_values(
    region: Build, cuts: Cuts, function: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    made = region(function, permuted(*shape, dtype=dtype), draw(*shape, dtype=dtype))
    error = {"rtol": 2e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 2e-5, "atol": 2e-5}
    found = turning(cuts.of(made))
    assert found
    cuts.check(made, found[:4], **(error if function is normed else {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_special_values_stay_where_they_are(region: Build, cuts: Cuts, dtype: torch.dtype) -> None:
    x, y = permuted(160, 40, 3, dtype=dtype), draw(160, 40, 3, dtype=dtype)
    y[3, 5, 1], y[140, 39, 2], y[7, 0, 0] = float("inf"), -float("inf"), float("nan")
    y[9, 0, 0] = -0.0
    made = region(added, x, y)
    cuts.check(made, turning(cuts.of(made))[:3], rtol=0, atol=0)


def test_an_operand_that_lacks_an_axis(region: Build, cuts: Cuts) -> None:
    made = region(added, permuted(256, 2, 127, 7, dtype=BF16), draw(256, 1, 127, 7, dtype=BF16))
    cuts.check(made, turning(cuts.of(made))[:3], rtol=0, atol=0)


def test_the_fastest_way_turns_what_has_short_runs(region: Build) -> None:
    made = region(normed, permuted(256, 2, 127, 7, dtype=BF16), draw(256, 2, 127, 7, dtype=BF16))
    assert "nisa.nc_transpose(dst=bank[:, i], data=loaded[" in made.source()


def test_long_runs_and_trn1_are_left_alone(region: Build, cuts: Cuts) -> None:
    x, y = permuted(128, 64, 256, dtype=F32), draw(128, 64, 256)
    assert not turning(cuts.of(region(added, x, y)))
    x, y = permuted(150, 40, 3, dtype=F32), draw(150, 40, 3)
    assert not turning(cuts.of(region(added, x, y), "trn1"))
