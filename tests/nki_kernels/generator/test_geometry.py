"""The cut of an iteration space: DMA runs along the dimension that lies innermost in HBM."""

from __future__ import annotations

import pytest

from trnx.nki_kernels.generator.cuts import (
    cut,
    cut_along,
    cut_rows,
)
from trnx.nki_kernels.generator.geometry import (
    Axis,
    Geometry,
    RowTiles,
    laid_out,
    mixed_order,
)

BUDGET = 2048


def test_the_fold_of_the_innermost_dimension_comes_last() -> None:
    geometry = cut((0, 1), {0: 16, 1: 9600}, frozenset(), BUDGET)
    assert geometry is not None
    assert (geometry.partition, geometry.folded) == (1, True)
    assert geometry.free_labels == (0, 1)
    assert geometry.count(1) == 75


def test_the_fold_of_the_outermost_dimension_comes_first() -> None:
    geometry = cut((0, 1), {0: 9600, 1: 16}, frozenset(), BUDGET)
    assert geometry is not None
    assert geometry.free_labels == (0, 1)
    assert geometry.partition == 0


def test_a_dimension_that_leaves_partitions_empty_gets_a_lead() -> None:
    geometry = cut((0, 1, 2), {0: 6, 1: 64, 2: 900}, frozenset(), BUDGET)
    assert geometry is not None
    assert geometry.lead is not None
    assert (geometry.lead.label, geometry.lead.block, geometry.partition) == (0, 2, 1)
    assert geometry.partitions == 128
    assert geometry.even


def test_no_lead_where_a_result_varies_along_it_alone() -> None:
    stored = [frozenset({0, 1, 2}), frozenset({0}), frozenset({1})]
    geometry = cut((0, 1, 2), {0: 7, 1: 64, 2: 900}, frozenset(), BUDGET, stored)
    assert geometry is not None
    assert geometry.lead is None


def test_runs_stay_long_across_a_reduced_dimension() -> None:
    geometry = cut((0, 1, 2), {0: 8, 1: 64, 2: 3136}, frozenset({1}), 16384)
    assert geometry is not None
    assert geometry.partition == 2
    assert geometry.count(2) >= 64
    assert geometry.partitions > 96


def test_reduced_dimensions_stay_innermost() -> None:
    geometry = cut((0, 1, 2), {0: 4, 1: 1280, 2: 64}, frozenset({2}), BUDGET)
    assert geometry is not None
    assert geometry.free_labels[-1] == 2


def test_a_mixed_order_has_the_last_axes_of_all_orders_last() -> None:
    assert mixed_order([(0, 1, 2, 3)]) == (0, 1, 2, 3)
    assert mixed_order([(0, 1, 2, 3), (3, 0, 2, 1)]) == (0, 2, 1, 3)


@pytest.mark.parametrize("lead", [None, Axis(3, 2, 2)])
def test_tiles_are_laid_out_in_another_order_than_they_were_filled_in(lead: Axis | None) -> None:
    sizes = {0: 400, 1: 7, 2: 50, 3: 2}
    filled = cut_along(0, lead, (0, 2, 1, 3), sizes, frozenset(), BUDGET)
    order = (1, 0, 2, 3)
    geometry = laid_out(filled, order)
    assert geometry.free_labels == tuple(d for d in order if d in filled.free_labels)
    assert all(geometry.count(d) == filled.count(d) for d in order)
    assert geometry.loops == filled.loops


@pytest.mark.parametrize("fold", [1, 2, 7, 2048])
@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 200, 257, 437, 3000, 65_537, 465_965])
def test_rows_are_cut_without_gaps_into_few_tiles(size: int, fold: int) -> None:
    rows = cut_rows(size, fold, start=5)
    at = 5
    for group in rows:
        assert group.starts.start == at
        assert group.starts.step == group.count * group.fold
        assert 1 <= group.count <= 128
        assert 1 <= group.fold <= fold
        at = group.starts.stop
    assert at == 5 + size
    least = -(-size // (128 * fold))
    assert sum(len(group.starts) for group in rows) <= least + least // 8 + 1


def test_rows_that_divide_evenly_are_tiles_all_alike() -> None:
    (group,) = cut_rows(200, 2)
    assert (len(group.starts), group.count, group.fold) == (1, 100, 2)


def test_a_few_more_rows_in_fewer_partitions_are_shorter_than_a_tile_of_what_is_left() -> None:
    """5992 = 107 * 56 = 128 * 46 + 104. Of long rows the second tile is the smaller part."""
    (group,) = cut_rows(5992, 47, row=8)
    assert (len(group.starts), group.count, group.fold) == (1, 107, 56)
    assert [(g.count, g.fold) for g in cut_rows(5992, 47, row=64)] == [(128, 46), (104, 1)]


@pytest.mark.parametrize(
    ("folds", "inner", "found"),
    [
        ((20, 19), 40, (0, 20)),  # long: tiles that differ are cut about alike
        ((3, 2), 40, (1, 40)),  # the last tile would be cut elsewhere, or not at all
        ((3, 2), 5, (1, 5)),
        ((3, 2), 2, (0, 3)),
        ((2, 1), 2, None),
    ],
)
def test_what_two_engines_share_is_cut_alike_in_all_tiles(
    folds: tuple[int, int], inner: int, found: tuple[int, int] | None
) -> None:
    tiles = (RowTiles(range(1), 128, folds[0]), RowTiles(range(9999, 10000), 128, folds[1]))
    geometry = Geometry(0, True, tiles, (Axis(1, inner, inner),), (), frozenset())
    assert geometry.cut_along((0, 1)) == found
