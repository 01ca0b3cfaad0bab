"""Transfers: stores of several rectangles, descriptors that lie in HBM before the run, what phases
load again, and operands that lack dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator import kernel, tile
from trnx.nki_kernels.generator.cuts import (
    cut_along,
)
from trnx.nki_kernels.generator.geometry import (
    Geometry,
)
from trnx.nki_kernels.generator.region_cuts import RegionCuts
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware
from trnx.simulator.lru_cache import LruCache
from trnx.simulator.timing.profile import predicted_seconds

aten = torch.ops.aten
Build = Callable[..., Any]
F32, BF16 = torch.float32, torch.bfloat16


def copy(x: Any) -> Any:
    return aten.clone.default(x, memory_format=torch.contiguous_format)


def scaled(x: Any, y: Any) -> Any:
    return aten.mul.Tensor(copy(x), aten.amax.default(y, [1], True))


def is_split(region: TiledRegion) -> bool:
    (output,), (strides,) = region.outputs, region.output_strides
    return bool(region.geometry.split(region.labels(region.held[output.value]), strides))


def only(monkeypatch: pytest.MonkeyPatch, wanted: Callable[[TiledRegion], bool]) -> None:
    """The first way to cut a region that is `wanted`."""
    monkeypatch.setattr(kernel, "_stores", [])
    monkeypatch.setattr(tile, "MOST_TILINGS", 1000)
    monkeypatch.setattr(tile, "_WORTH_A_TRY", math.inf)
    monkeypatch.setattr(kernel, "_SOURCES", LruCache(8))

    def tilings(*arguments: Any) -> list[list[TiledRegion]]:
        found = [one for group in tile.tilings(*arguments) for one in group if wanted(one)]
        return [found[:1]]

    monkeypatch.setattr(kernel, "tilings", tilings)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("rows", [1, 127, 128, 129])
@pytest.mark.parametrize("function", [copy, scaled])
def test_values_of_split_stores(
    region: Build,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    rows: int,
    dtype: torch.dtype,
    target: str,
) -> None:
    x = draw(rows, 1292, 2, dtype=dtype).permute(0, 2, 1)
    made = region(function, x, draw(rows, 2, 1, dtype=dtype))
    only(monkeypatch, is_split if rows > 1 else lambda _: True)
    assert ("for s" in made.source(target)) == (rows > 1)
    made.check(target, rtol=0, atol=0)


def test_tiles_of_columns_do_not_wait_for_each_other(
    region: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transfer or in several: rows of both are evenly spaced in memory."""
    made = region(copy, draw(96, 1792, 2, dtype=BF16).permute(0, 2, 1))
    only(monkeypatch, is_split)
    split = predicted_seconds(made.program(), hardware("trn2"))
    only(monkeypatch, lambda _: True)
    monkeypatch.setattr(Geometry, "split", lambda *_: ())
    whole = predicted_seconds(made.program(), hardware("trn2"))
    assert split == pytest.approx(whole, rel=0.05)
    assert whole < 7e-6  # 16 us where they wait


SIZES = {0: 96, 1: 2, 2: 1792}


@pytest.mark.parametrize(
    ("strides", "expected"),
    [
        ({0: 3584, 1: 1792, 2: 1}, (1,)),
        # Rows of a rectangle are what is outermost.
        ({0: 1, 1: 96 * 1792, 2: 96}, ()),
        ({1: 1792, 2: 1}, ()),
    ],
)
def test_what_lies_between_tiles_in_memory_is_split(
    strides: dict[int, int], expected: tuple[int, ...]
) -> None:
    geometry = cut_along(0, None, (0, 1, 2), SIZES, frozenset({1}), 1024)
    assert [axis.label for axis in geometry.loops] == [2]
    assert geometry.split((1, 2), strides) == expected


def test_a_store_of_very_many_rectangles_is_one_transfer() -> None:
    sizes = {0: 96, 1: 9, 2: 1792}
    geometry = cut_along(0, None, (0, 1, 2), sizes, frozenset({1}), 1024)
    assert geometry.split((1, 2), {0: 9 * 1792, 1: 1792, 2: 1}) is None


@pytest.mark.parametrize(("columns", "expected"), [(512, True), (2, False)])
def test_descriptors_are_made_before_the_run_where_they_are_few(
    region: Build, columns: int, expected: bool
) -> None:
    x = draw(40000, columns * 2)[:, ::2] if columns == 2 else draw(400, columns)
    source = region(lambda x: aten.relu.default(x), x).source()
    assert ("dge_mode=nisa.dge_mode.none" in source) == expected


def centred(x: Any, y: Any) -> Any:
    product = aten.tanh.default(aten.mul.Tensor(x, y))
    return aten.maximum.default(aten.sub.Tensor(product, aten.mean.dim(product, [0], True)), y)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("rows", [1, 127, 128, 129, 1000])
def test_phases_load_again_what_they_do_not_keep(
    region: Build, monkeypatch: pytest.MonkeyPatch, rows: int, dtype: torch.dtype, target: str
) -> None:
    made = region(centred, draw(rows, 40, dtype=dtype), draw(rows, 40, dtype=dtype))
    # There are no phases where a single row is summed.
    kept = "none" if rows == 1 else "computed"
    monkeypatch.setattr(RegionCuts, "_fits", lambda _, one: one.keeps not in ("all", "loads"))
    only(monkeypatch, lambda one: one.keeps == kept)
    source = made.source(target)
    assert source.count("src=x0.ap") == 1
    assert source.count("src=x1.ap") == (1 if rows == 1 else 2)
    tolerance = 1e-5 if dtype is F32 else 2e-2
    made.check(target, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_a_long_row_is_not_copied_to_all_partitions(region: Build, target: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (96, 7682), generator=generator).to(F32)
    y = torch.randint(-3, 4, (1, 7682), generator=generator).to(F32)
    made = region(lambda x, y: aten.sum.dim_IntList(aten.sub.Tensor(x, y), [0, 1], True), x, y)
    assert "x1.ap(pattern=[[0, " not in made.source(target)
    made.check(target, rtol=0, atol=0)
