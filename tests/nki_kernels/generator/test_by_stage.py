"""Tiles that all run a stage before any runs the next one, totals in chunks, dimensions that are
split, and what ScalarE computes in VectorE's place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator import tile
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16
INF, NAN = math.inf, math.nan


def special(x: torch.Tensor) -> torch.Tensor:
    """`x` with numbers at its end that a total must not spread."""
    flat = x.view(-1)
    for index, value in enumerate([-0.0, INF, -INF, NAN][: flat.numel() - 1]):
        flat[-1 - index] = value
    return x


def two_tables(x: Any) -> Any:
    return aten.sigmoid.default(aten.mul.Tensor(aten.tanh.default(x), 1.5))


def logsumexp(x: Any) -> Any:
    x = aten.sigmoid.default(x)
    most = aten.amax.default(x, [-1], True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), [-1], True)
    return aten.add.Tensor(aten.log.default(total), most)


def activated_mean(x: Any) -> Any:
    x = aten.sigmoid.default(aten.tanh.default(x))
    return aten.silu.default(aten.sub.Tensor(x, aten.mean.dim(x, [0], True)))


@pytest.mark.parametrize("function", [two_tables, logsumexp, activated_mean])
@pytest.mark.parametrize("shape", [(127, 40), (129, 40), (1291, 40), (700, 129), (1, 2)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values_by_stage(
    region: Build,
    cuts: Cuts,
    function: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    made = region(function, special(draw(*shape, dtype=dtype)))
    every = cuts.of(made)
    found = [cut for cut in every if cut.by_stage]
    assert found or math.prod(shape) < 40000
    kinds = {
        (cut.geometry.in_phases, cut.geometry.crosses, cut.geometry.even): cut
        for cut in found or every
    }
    error = 1e-4 if dtype is F32 else 2e-2
    cuts.check(made, kinds.values(), rtol=error, atol=error)


def test_stage_by_stage_a_table_is_loaded_once(region: Build, cuts: Cuts) -> None:
    made = region(two_tables, draw(465965, dtype=BF16))
    chip = hardware("trn2")
    least = {True: INF, False: INF}
    for cut in cuts.of(made):
        least[cut.by_stage] = min(least[cut.by_stage], cut.estimated_ns(chip))
    assert least[True] < 0.9 * least[False]


@pytest.mark.parametrize("kept", [1, 2, 127, 128, 129, 197, 300, 513, 1025])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_extremes_across_partitions_of_any_number_of_columns(
    region: Build, cuts: Cuts, kept: int, dtype: torch.dtype
) -> None:
    def extremes(x: Any) -> Any:
        most = aten.amax.default(x, [0], True)
        return aten.sub.Tensor(x, most), aten.amin.default(x, [0], False)

    made = region(extremes, special(draw(260, kept, dtype=dtype)))
    crossing = [cut for cut in cuts.of(made) if cut.geometry.crosses]
    assert crossing
    cuts.check(made, {cut.keeps: cut for cut in crossing}.values(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_dimension_is_split_where_partitions_are_left_empty(
    region: Build, cuts: Cuts, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    x = special(draw(4, 24, 30, 7, dtype=dtype)).permute(1, 3, 2, 0)
    made = region(lambda x: aten.clone.default(x, memory_format=torch.contiguous_format), x)
    monkeypatch.setattr(tile, "_FAR", 0.0)
    split = [
        cut
        for cut in cuts.of(made)
        if cut.geometry.lead is not None and cut.geometry.lead.size == 5
    ]
    assert split
    cuts.check(made, split, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 127, 128, 129])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_what_scalar_computes_for_vector_is_equal(
    region: Build, cuts: Cuts, rows: int, dtype: torch.dtype
) -> None:
    def function(x: Any) -> Any:
        far = aten.abs.default(aten.sub.Tensor(aten.mul.Tensor(x, x), x))
        positive = aten.relu.default(aten.minimum.default(far, x))
        return aten.maximum.default(aten.mul.Tensor(positive, positive), far)

    made = region(function, special(draw(rows, 3000, dtype=dtype)))
    on_scalar: dict[str, TiledRegion] = {}
    every = cuts.of(made)
    for cut in every:
        ops = {dict(i.arguments)["op"] for i in cut.instructions if i.call == "activation"}
        on_scalar.update({str(op): cut for op in ops})
    assert rows == 1 or {"nl.square", "nl.abs", "nl.relu"} & set(on_scalar)
    cuts.check(made, on_scalar.values() or every, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_sums_on_scalar(region: Build, cuts: Cuts, dtype: torch.dtype) -> None:
    def function(x: Any, y: Any) -> Any:
        product = aten.maximum.default(aten.mul.Tensor(x, y), y)
        return aten.sum.dim_IntList(aten.add.Tensor(product, x), [1], True, dtype=F32)

    given = [special(draw(129, 3001, dtype=dtype)), draw(129, 3001, dtype=dtype)]
    made = region(function, *given)
    found = [
        cut
        for cut in cuts.of(made)
        if any(("op", "nl.copy") in i.arguments and i.result for i in cut.instructions)
    ]
    assert found
    kinds = {(cut.geometry.in_phases, bool(max(cut.stages))): cut for cut in found}
    cuts.check(made, kinds.values(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("rows", [129, 1280])
def test_a_stage_of_what_all_tiles_share_is_none(region: Build, cuts: Cuts, rows: int) -> None:
    def scaled(x: Any, number: Any) -> Any:
        factor = aten.exp.default(aten.sqrt.default(number))  # two tables of functions
        return aten.mul.Tensor(x, aten._to_copy.default(factor, dtype=BF16))

    made = region(scaled, draw(rows, 64, dtype=BF16), torch.tensor([[3.0]]))
    kinds = {(len(set(cut.stages)), cut.by_stage): cut for cut in cuts.of(made)}
    assert len(kinds) > 1
    cuts.check(made, kinds.values(), rtol=2e-2, atol=2e-2)
