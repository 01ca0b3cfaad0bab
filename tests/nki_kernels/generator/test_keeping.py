"""What phases keep of their tiles where SBUF has no room for all that later ones read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.region_cuts import RegionCuts
from trnx.nki_kernels.generator.tiled_region import TiledRegion, elements

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def softmax(x: Any, y: Any, dims: list[int]) -> Any:
    x = aten.mul.Tensor(x, y)
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, dims, True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, dims, True))


def normal(x: Any, y: Any, dims: list[int]) -> Any:
    x = aten.add.Tensor(x, y)
    centred = aten.sub.Tensor(x, aten.mean.dim(x, dims, True))
    mean = aten.mean.dim(aten.mul.Tensor(centred, centred), dims, True)
    return aten.mul.Tensor(centred, aten.rsqrt.default(aten.add.Tensor(mean, 1e-5)))


def keeps_first(made: Any, cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> list[TiledRegion]:
    """One way of each geometry, staged or not, that keeps what the first phase leaves alone."""
    fits = RegionCuts._fits
    most = ("first", "none")
    monkeypatch.setattr(RegionCuts, "_fits", lambda s, one: one.keeps in most and fits(s, one))
    found: dict[Any, TiledRegion] = {}
    for cut in cuts.of(made):
        if cut.keeps == "first":
            found.setdefault((cut.geometry, cut.phase_stages), cut)
    return list(found.values())


@pytest.mark.parametrize("function", [softmax, normal])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("shape", "dims"), [((129, 401), [0, 1]), ((40_001,), [0]), ((5, 9_003), [1])]
)
def test_the_first_phase_alone(
    region: Build,
    cuts: Cuts,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    dims: list[int],
) -> None:
    x, y = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype).abs()
    made = region(lambda x, y: function(x, y, dims), x, y)
    found = keeps_first(made, cuts, monkeypatch)
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if dtype is F32 else {"rtol": 2e-2, "atol": 2e-2}
    cuts.check(made, found, **tolerance)
    assert all(len([i for i in p.each if i.call == "load"]) == 0
               for one in found for p in one.across.phases("first")[1:])  # fmt: skip


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_special_values(
    region: Build, cuts: Cuts, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    x, y = draw(40_001), torch.ones(40_001)
    x[40_000] = value
    made = region(lambda x, y: softmax(x, y, [0]), x, y)
    cuts.check(made, keeps_first(made, cuts, monkeypatch), rtol=1e-4, atol=1e-6)


def test_smaller_tiles_make_room(
    region: Build, cuts: Cuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles in which nothing is kept are no reason to load everything again."""

    def fits(_: Any, one: TiledRegion) -> bool:
        largest = max(elements(v, one.geometry) for v in one.load_strides)
        return one.geometry.in_phases and (one.keeps == "none" or largest <= 128)

    monkeypatch.setattr(RegionCuts, "_fits", fits)
    x, y = draw(120_001), draw(120_001)
    made = region(lambda x, y: normal(x, y, [0]), x, y)
    found = cuts.of(made)
    assert {"all", "none"} <= {cut.keeps for cut in found}
    cuts.check(made, [next(cut for cut in found if cut.keeps == "all")], rtol=1e-4, atol=1e-5)
