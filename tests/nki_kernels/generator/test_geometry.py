"""The cut of an iteration space: DMA runs along the dimension that lies innermost in HBM."""

from __future__ import annotations

from trnx.nki_kernels.generator.geometry import cut

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


def test_reduced_dimensions_stay_innermost() -> None:
    geometry = cut((0, 1, 2), {0: 4, 1: 1280, 2: 64}, frozenset({2}), BUDGET)
    assert geometry is not None
    assert geometry.free_labels[-1] == 2
