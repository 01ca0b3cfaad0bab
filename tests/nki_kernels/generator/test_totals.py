"""Extrema of all elements, and engines of phases that wait for such totals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.engines import VECTOR, engine_of
from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def below_most(x: Any) -> Any:
    return aten.sub.Tensor(x, aten.amax.default(x, [0], True))


def gated(x: Any, w: Any) -> Any:
    for _ in range(9):
        x = aten.tanh.default(x)
    return aten.add.Tensor(aten.mul.Tensor(aten.sub.Tensor(x, aten.mean.dim(x, [0], True)), w), w)


def crossing(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry with a reduced dimension on the partitions."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if cut.geometry.crosses:
            found.setdefault(cut.geometry, cut)
    return list(found.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("size", [2, 127, 128, 129, 30_001])
def test_an_extremum_of_all_is_found_in_each_partition(
    region: Build, cuts: Cuts, size: int, dtype: torch.dtype
) -> None:
    made = region(below_most, draw(size, dtype=dtype))
    if size > 128:
        assert made.source().count("nc_transpose") == 1
    cuts.check(made, crossing(cuts.of(made)), rtol=0, atol=0)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_an_extremum_that_is_no_number(region: Build, cuts: Cuts, value: float) -> None:
    x = draw(30_001)
    x[70] = value
    made = region(below_most, x)
    cuts.check(made, crossing(cuts.of(made)), rtol=0, atol=0)


def test_engines_share_the_work_of_each_phase(region: Build, cuts: Cuts) -> None:
    made = region(gated, draw(300_000, dtype=BF16), draw(300_000, dtype=BF16))
    shared: dict[Any, TiledRegion] = {}
    for cut in cuts.of(made):
        if cut.across is None or cut.geometry.tiles > cut.across.steps:
            continue
        last = [engine_of(i) for i in cut.across.phases("all")[-1].each if i.call != "load"]
        # The work of ScalarE in the first phase is none of this one, in which VectorE has the most.
        if set(last) != {VECTOR}:
            shared.setdefault(cut.geometry, cut)
    cuts.check(made, list(shared.values())[:3], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(700, 5), (300, 129), (260, 1000), (129, 2, 640)])
def test_extrema_of_many_columns(
    region: Build, cuts: Cuts, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = draw(*shape, dtype=dtype)
    x.view(shape[0], -1)[3, 1] = float("inf")
    x.view(shape[0], -1)[:, 2] = -float("inf")
    x.view(shape[0], -1)[4, 3] = float("nan")
    made = region(lambda x: aten.sub.Tensor(x, aten.amax.default(x, [0], True)), x)
    crossing = [cut for cut in cuts.of(made) if cut.geometry.crosses]
    different = {cut.geometry: cut for cut in crossing}
    cuts.check(made, list(different.values())[:4], rtol=0, atol=0)


@pytest.mark.parametrize("reduction", [aten.amax.default, aten.sum.dim_IntList])
def test_one_tile_writes_its_totals(region: Build, cuts: Cuts, reduction: Any) -> None:
    """In place of an addition to what was nothing before."""
    made = region(lambda x: reduction(x, [0, 2], True), draw(112, 40, 12))
    found = [cut for cut in cuts.of(made) if cut.across is not None and cut.across.steps == 1]
    cuts.check(made, {cut.key: cut for cut in found}.values(), rtol=1e-5, atol=1e-5)
    assert "_acc, value=" not in made.source()
