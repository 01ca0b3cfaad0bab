"""Rows on some of the partitions, each in several parts that are reduced together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.joined_parts import joined_totals
from trnx.nki_kernels.generator.split import ways_to_split_rows
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16
TRN2 = hardware("trn2")


def extremes(x: Any, y: Any) -> Any:
    total = aten.add.Tensor(x, y)
    return aten.amax.default(total, [1], True), aten.amin.default(total, [1], False)


def centred(x: Any, y: Any) -> Any:
    return aten.mul.Tensor(aten.sub.Tensor(x, aten.mean.dim(x, [1], True)), y)


def logsumexp(x: Any, y: Any) -> Any:
    x = aten.mul.Tensor(x, y)
    most = aten.amax.default(x, [1], True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), [1], True)
    return aten.add.Tensor(aten.log.default(total), most)


def softmax(x: Any, y: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [1], True)))
    shares = aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [1], True))
    return aten.mul.Tensor(shares, y)


def largest(x: Any) -> Any:
    return aten.amax.default(x, [1], True)


def in_parts(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry with parts, and of what phases keep."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        if cut.geometry.leads_reduced:
            calls = tuple(i.call for i in cut.instructions)
            found.setdefault((cut.geometry, cut.keeps, calls, cut.phase_stages), cut)
    return list(found.values())


def test_parts_are_equal_and_fill_partitions() -> None:
    kept, reduced = {0: 56, 1: 3}, {2: 4896, 3: 7, 4: 4895}
    ways = ways_to_split_rows(kept, reduced, overlap=False)
    assert (0, 2, 2) in ways
    assert (1, 2, 36) in ways
    assert all((n * kept) <= 128 for p, _, n in ways for kept in [{0: 56, 1: 3}[p]])
    assert not any(p == 0 and d in (3, 4) for p, d, _ in ways)
    assert (0, 4, 2) in ways_to_split_rows(kept, reduced, overlap=True)


@pytest.mark.parametrize("function", [extremes, centred, logsumexp, softmax])
@pytest.mark.parametrize(
    ("shapes", "target"),
    [
        (((56, 1302), (56, 1)), "trn2"),
        (((33, 1299), (1, 1299)), "trn2"),
        (((33, 1299), (33, 1)), "trn1"),
        (((64, 1300), (64, 1300)), "trn3"),
        (((32, 1300), (32, 1)), "trn2"),
    ],
)
def test_values(
    region: Build, cuts: Cuts, function: Any, shapes: tuple[tuple[int, ...], ...], target: str
) -> None:
    made = region(function, *(draw(*shape) for shape in shapes))
    cuts.check(made, in_parts(cuts.of(made, target)), target, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("function", [centred, softmax])
def test_rounded_values(region: Build, cuts: Cuts, function: Any) -> None:
    made = region(function, draw(48, 1302, dtype=BF16), draw(48, 1, dtype=BF16))
    cuts.check(made, in_parts(cuts.of(made)), rtol=2e-2, atol=2e-2)


def test_parts_that_lie_apart(region: Build, cuts: Cuts) -> None:
    def centred(x: Any) -> Any:
        return aten.sub.Tensor(x, aten.mean.dim(x, [0, 1], True))

    made = region(centred, draw(12, 56, 130).permute(0, 2, 1))
    cuts.check(made, in_parts(cuts.of(made)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [56, 64])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_special_values_reach_their_row_alone(
    region: Build, cuts: Cuts, value: float, rows: int
) -> None:
    x = draw(rows, 1302)
    x[7, 1300] = value
    made = region(largest, x)
    cuts.check(made, in_parts(cuts.of(made)), rtol=0, atol=0)


@pytest.mark.parametrize(("rows", "copied"), [(32, True), (48, False), (56, False), (64, True)])
def test_parts_that_begin_with_a_quadrant_are_copied(
    region: Build, cuts: Cuts, rows: int, copied: bool
) -> None:
    """TensorE turns others twice."""
    found = in_parts(cuts.of(region(largest, draw(rows, 1320))))
    assert found
    assert all(bool(cut.geometry.lead_in_quadrants) == copied for cut in found)


def test_parts_are_tried_where_another_cut_fills_all_partitions(region: Build, cuts: Cuts) -> None:
    """16 rows fill few partitions, their elements all of them: every total has 16 values then, and
    short runs."""
    found = cuts.of(region(logsumexp, draw(16, 8532), draw(16, 8532)))
    assert any(cut.geometry.crosses and cut.geometry.filled > 0.9 for cut in found)
    assert in_parts(found)
    ways = {cut.geometry.leads_reduced: cut for cut in reversed(found)}
    assert ways[True].estimated_ns(TRN2) < 0.9 * ways[False].estimated_ns(TRN2)


@pytest.mark.parametrize("rows", [16, 33, 48, 56])
def test_parts_joined_in_a_line(region: Build, cuts: Cuts, rows: int) -> None:
    """Each part has a maximum of its own: one may be -inf, or far below another."""
    x, y = draw(rows, 9216), torch.ones(rows, 9216)
    x[1, 3], x[2, 4600], x[3, 700] = float("nan"), float("inf"), -float("inf")
    x[4, :1600], x[5] = -float("inf"), -float("inf")
    x[6, 900:], x[7, :200], x[8] = 1e30, -1e30, 3e38
    made = region(logsumexp, x, y)
    found = in_parts(list(filter(joins_parts, cuts.of(made))))
    cuts.check(made, found[:6], rtol=1e-6, atol=1e-6)


def test_a_joined_sum_is_as_exact_as_eager(region: Build, cuts: Cuts) -> None:
    x = draw(16, 8192) * 3
    made = region(logsumexp, x, torch.ones(16, 1))
    found = in_parts(list(filter(joins_parts, cuts.of(made))))
    exact = torch.logsumexp(x.double(), 1, keepdim=True)
    eager = (logsumexp(x, torch.ones(16, 1)).double() - exact).abs().max()
    for result in cuts.results(made, found[:6]):
        assert (result.double() - exact).abs().max() <= 2 * eager


def joins_parts(cut: TiledRegion) -> bool:
    if not cut.geometry.leads_reduced or cut.across is None:
        return False
    phases = [staged.phase for staged in cut.staged_phases]
    return joined_totals(cut.across, phases) is not None
