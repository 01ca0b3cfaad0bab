"""Sums of parts that overlap, on the partitions: what neighbours have in common counts once."""

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


def total(x: Any) -> Any:
    return aten.sum.dim_IntList(x, [1], True)


def product(x: Any) -> Any:
    return aten.prod.dim_int(x, 1, True)


def weighted(x: Any) -> Any:
    return aten.mean.dim(aten.mul.Tensor(x, 1.5), [1], False)


def normed(x: Any) -> Any:
    mean = aten.mean.dim(aten.pow.Tensor_Scalar(x, 2), [1], True)
    return aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor(mean, 1e-5)))


def total_and_most(x: Any) -> Any:
    return aten.add.Tensor(aten.amax.default(x, [1], True), total(aten.abs.default(x)))


def selecting(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry that leaves out what parts share."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if any(i.call == "affine_select" for i in cut.instructions):
            calls = tuple((i.call, i.engine) for i in cut.instructions)
            found.setdefault((cut.geometry, cut.keeps, calls, cut.phase_stages), cut)
    return list(found.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [total, weighted, normed, total_and_most])
def test_values(region: Build, cuts: Cuts, function: Any, dtype: torch.dtype) -> None:
    """2999 is prime: two parts of 1500 elements share one."""
    made = region(function, draw(56, 2999, dtype=dtype))
    error = {"rtol": 1e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 2e-5, "atol": 2e-5}
    cuts.check(made, selecting(cuts.of(made))[:6], **error)


@pytest.mark.parametrize("function", [total, product])
@pytest.mark.parametrize("shape", [(50, 129, 12), (7, 523, 3), (33, 131)])
def test_each_element_counts_once(
    region: Build, cuts: Cuts, function: Any, shape: tuple[int, ...]
) -> None:
    """Sums of whole numbers are exact, and so are products of powers of two."""
    x = draw(*shape).round() if function is total else torch.ones(shape)
    if function is product:
        x[:, -40:] = 0.5
    made = region(function, x)
    cuts.check(made, selecting(cuts.of(made))[:8], rtol=0, atol=0)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_special_values_in_what_parts_share(region: Build, cuts: Cuts, value: float) -> None:
    """An infinity times zero would be no infinity."""
    x = draw(56, 2999).round()
    x[7, 1499], x[9, 2998], x[50, 0] = value, value, value
    made = region(total, x)
    cuts.check(made, selecting(cuts.of(made))[:6], rtol=0, atol=0)


def test_parts_of_a_reduced_dimension_beside_another(region: Build, cuts: Cuts) -> None:
    def over_both(x: Any) -> Any:
        return aten.sum.dim_IntList(x, [0, 2], True)

    made = region(over_both, draw(20, 3, 121).round())
    found = [cut for cut in selecting(cuts.of(made)) if cut.geometry.crosses]
    cuts.check(made, found[:6], rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.sub.Tensor(x, aten.mean.dim(x, [1], True)),
        lambda x: (total(x), aten.relu.default(x)),
        lambda x: aten.sub.Tensor(total(x), total(aten.abs.default(x))),
    ],
)
def test_what_others_read_does_not_change(region: Build, cuts: Cuts, function: Any) -> None:
    every = cuts.of(region(function, draw(56, 2999)))
    assert not any(i.call == "affine_select" for cut in every for i in cut.instructions)
    assert not any(cut.geometry.leads_reduced for cut in every)


def test_rows_that_run_in_memory_stay_turned(region: Build, cuts: Cuts) -> None:
    """[129, 2, 24, 50] with the last axis outermost in memory: 50 rows have the sums of 48 columns,
    which are stored in runs of 50."""
    x = draw(50, 129, 24, 2).round().permute(1, 3, 2, 0)
    made = region(lambda x: aten.sum.dim_IntList(x, [0], True), x)
    found = [cut for cut in selecting(cuts.of(made)) if cut.geometry.leads_reduced]
    cuts.check(made, found[:4], rtol=0, atol=0)
    assert "add_tile = nl.ndarray((n1 * n2, m)" in made.source()


def test_steps_with_numbers_follow_turned_rows(region: Build, cuts: Cuts) -> None:
    def function(x: Any) -> Any:
        return aten.relu.default(aten.add.Tensor(aten.mean.dim(x, [0], True), 0.25))

    made = region(function, draw(50, 130, 24, 2).permute(1, 3, 2, 0))
    found = [cut for cut in cuts.of(made) if cut.geometry.leads_reduced]
    cuts.check(made, {cut.geometry: cut for cut in found}.values(), rtol=1e-5, atol=1e-5)
