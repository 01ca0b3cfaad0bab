"""Extrema that are stored from the partitions on which they were found, and those that are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.nki_kernels.generator.turned_totals import turned_total

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def largest(x: Any) -> Any:
    return aten.amax.default(x, [0], True)


def with_steps(x: Any) -> Any:
    most = aten.amin.default(aten.mul.Tensor(x, 2.0), [0], False)
    return aten.tanh.default(aten.add.Tensor(aten.relu.default(most), 0.5))


def stays_turned(cut: TiledRegion) -> bool:
    phases = [] if cut.across is None else cut.across.phases(cut.keeps)
    return cut.across is not None and bool(turned_total(cut.across, phases, dict(cut.stores)))


def turned(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry that stores a total from the partitions."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if stays_turned(cut):
            found.setdefault(cut.geometry, cut)
    return list(found.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [largest, with_steps])
@pytest.mark.parametrize(
    "shape", [(30_001, 2), (40_000, 7), (2_600, 127), (2_600, 128), (129, 3, 40)]
)
def test_values(
    region: Build, cuts: Cuts, function: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    made = region(function, draw(*shape, dtype=dtype))
    error = {} if function is largest else {"rtol": 1e-2 if dtype is BF16 else 1e-5, "atol": 1e-5}
    cuts.check(made, turned(cuts.of(made)), **error)


def test_special_values(region: Build, cuts: Cuts) -> None:
    x = draw(3_000, 9)
    x[7, 1], x[8, 2], x[:, 3] = float("inf"), -float("inf"), -float("inf")
    x[9, 4], x[:, 5] = float("nan"), float("nan")
    made = region(largest, x)
    cuts.check(made, turned(cuts.of(made)), rtol=0, atol=0)


@pytest.mark.parametrize(
    "x", [draw(900, 4, 31).permute(1, 0, 2), draw(7, 900, 5), draw(7, 900, 5).permute(2, 1, 0)]
)
def test_what_stays_is_several_dimensions(region: Build, cuts: Cuts, x: torch.Tensor) -> None:
    made = region(lambda x: aten.amax.default(x, [1], True), x)
    cuts.check(made, turned(cuts.of(made)), rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.sub.Tensor(x, aten.amax.default(x, [0], True)),  # tiles read it
        lambda x: aten.sum.dim_IntList(x, [0], True),
        lambda x: (aten.amax.default(x, [0], True), aten.amin.default(x, [0], True)),
    ],
)
def test_others_go_back_to_all_partitions(region: Build, cuts: Cuts, function: Any) -> None:
    assert not turned(cuts.of(region(function, draw(40_000, 7))))


def test_more_than_there_are_partitions_do_too(region: Build, cuts: Cuts) -> None:
    every = turned(cuts.of(region(largest, draw(2_600, 129))))
    assert all(cut.geometry.count(a.label) <= 128 for cut in every for a in cut.geometry.free)
