"""Dimensions in parts, on the partitions that another one leaves empty; parts that overlap."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.split import (
    equal_parts,
    filled_by,
    run_beside,
    ways_to_split,
)
from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def softmax(x: Any, y: Any) -> Any:
    return aten.relu.default(aten._softmax.default(aten.add.Tensor(x, y), 1, False))


def largest(x: Any, y: Any) -> Any:
    return aten.amax.default(aten.mul.Tensor(x, y), [1], True)


def centred(x: Any, y: Any) -> Any:
    return aten.sub.Tensor(x, aten.mean.dim(aten.mul.Tensor(x, y), [1], True))


def test_parts_cover_a_dimension() -> None:
    for size, count in itertools.product(range(16, 140), range(2, 8)):
        inner, step = equal_parts(size, count)
        assert step * (count - 1) + inner == size
        assert step <= inner < step + count


def overlapping(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry whose parts overlap."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        lead, (strides, *_) = cut.geometry.lead, cut.output_strides
        sizes = {a.label: a.size for a in (*cut.geometry.free, *cut.geometry.loops)}
        if lead is not None and any(
            0 < strides.get(lead.label, 0) < strides[d] * n
            for d, n in sizes.items()
            if strides.get(d) == 1
        ):
            found.setdefault((cut.geometry, cut.keeps), cut)
    return list(found.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [softmax, largest, centred])
@pytest.mark.parametrize(("rows", "columns"), [(56, 121), (35, 131)])
def test_parts_that_overlap(
    region: Build, cuts: Cuts, function: Any, rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, y = (draw(rows, 13, columns, dtype=dtype) for _ in range(2))
    made = region(function, x, y + 1)
    error = {"rtol": 2e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-5}
    cuts.check(made, overlapping(cuts.of(made)), **({} if function is largest else error))


def test_softmax_over_a_middle_axis_fills_the_partitions(region: Build, cuts: Cuts) -> None:
    """With parts of another axis beside its own, or with the last one."""
    x = draw(56, 128, 121)
    made = region(softmax, x, x)
    every = cuts.of(made)
    assert every[0].geometry.partitions >= 112
    assert any(cut.geometry.partitions >= 112 and cut.geometry.lead for cut in every)


def test_the_fullest_ways_come_first() -> None:
    """56 rows leave room for two parts; 400, of which four tiles would have 100 each, for three."""
    ways = ways_to_split({0: 56, 1: 121}, 0.4)
    assert ways == [(1, 0, 2), (0, 1, 2)]
    assert ways_to_split({0: 400, 1: 129}, 400 / 512)[0] == (0, 1, 3)


def test_a_dimension_that_fills_its_tiles_is_left_alone() -> None:
    assert not [way for way in ways_to_split({0: 384, 1: 129}, 1.0) if way[0] == 0]
    assert not [way for way in ways_to_split({0: 400, 1: 3}, 400 / 512) if way[0] == 0]


def test_parts_that_are_computed_twice_fill_nothing() -> None:
    assert filled_by(128, 100, 1) == 1
    assert filled_by(42, 129, 3) == pytest.approx(126 / 128)
    assert filled_by(16, 129, 8) == pytest.approx(129 / 136)
    assert filled_by(400, 129, 1) == pytest.approx(400 / 512)


def test_runs_beside_a_part() -> None:
    """[56, 29, 28, 16] with axis 0 and two parts of axis 2 on the partitions: 14 of its 28."""
    sizes, plain = {0: 56, 1: 29, 2: 28, 3: 16}, {0: 12_992, 1: 448, 2: 16, 3: 1}
    permuted = {0: 12_992, 3: 812, 2: 29, 1: 1}
    assert run_beside(sizes, plain, (0, 2, 2)) == 14 * 16
    assert run_beside(sizes, permuted, (0, 2, 2)) == 29 * 14
    assert run_beside(sizes, permuted, (1, 0, 4)) == 1
    assert run_beside(sizes, {0: 29, 1: 1}, (0, 2, 2)) == 29


def test_parts_that_overlap_fill_what_equal_ones_leave_empty() -> None:
    """Ten equal parts of 1,000 beside 8, and 16 that overlap by 8 elements in all."""
    assert {count for _, _, count in ways_to_split({0: 8, 1: 1000}, 0.5)} >= {10, 16}


def test_rows_in_a_few_tiles_fill_their_partitions(region: Build) -> None:
    """100 of 128 partitions would have one row each: DMA has as few engines. 40 rows beside three
    parts of 43 elements have 120."""
    made = region(lambda x: aten.amax.default(x, [1], True), draw(400, 70, 129))
    assert "for r in range(0, 400, 40):" in made.source()
    assert ", 43, 3, " in made.source()
    made.check()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [largest, centred])
@pytest.mark.parametrize(("rows", "columns"), [(197, 28), (129, 33)])
def test_parts_beside_a_long_dimension(
    region: Build, cuts: Cuts, function: Any, rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, y = (draw(rows, 13, columns, dtype=dtype) for _ in range(2))
    made = region(function, x, y + 1)
    parts = {c.geometry: c for c in cuts.of(made) if c.geometry.lead and c.geometry.filled > 0.7}
    error = {"rtol": 2e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-5}
    cuts.check(made, list(parts.values())[:4], **({} if function is largest else error))


def beside_a_reduced_one(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry with a part of a reduced dimension beside another on partitions."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        lead, (strides, *_) = cut.geometry.lead, cut.load_strides.values()
        if cut.geometry.crosses and lead is not None and strides[lead.label] > 1:
            found.setdefault((cut.geometry, cut.keeps), cut)
    return list(found.values())


def centred_over_both(x: Any, y: Any) -> Any:
    return aten.sub.Tensor(x, aten.mean.dim(aten.mul.Tensor(x, y), [0, 2], True))


def largest_over_both(x: Any, y: Any) -> Any:
    return aten.amax.default(aten.mul.Tensor(x, y), [0, 2], True)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [centred_over_both, largest_over_both])
def test_parts_of_a_reduced_dimension(
    region: Build, cuts: Cuts, function: Any, dtype: torch.dtype
) -> None:
    x, y = (draw(20, 3, 120, dtype=dtype) for _ in range(2))
    x[1, 0, 3], x[19, 1, 119] = float("inf"), float("nan")
    made = region(function, x, y + 1)
    error = {"rtol": 2e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-5}
    every = beside_a_reduced_one(cuts.of(made))
    assert any(cut.geometry.lead.block == 6 for cut in every)
    exact = function is largest_over_both
    cuts.check(made, every[:3], **({} if exact else error))


def least_and_most(x: Any, y: Any) -> Any:
    return aten.sub.Tensor(aten.amax.default(x, [1], True), aten.amin.default(y, [1], True))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [largest, least_and_most])
def test_extrema_take_what_parts_of_rows_share_twice(
    region: Build, cuts: Cuts, function: Any, dtype: torch.dtype
) -> None:
    """2999 is prime."""
    x, y = (draw(56, 2999, dtype=dtype) for _ in range(2))
    made = region(function, x, y)
    found = [cut for cut in cuts.of(made) if cut.geometry.lead and cut.geometry.leads_reduced]
    assert found
    cuts.check(made, {cut.geometry: cut for cut in found}.values(), rtol=0, atol=0)
