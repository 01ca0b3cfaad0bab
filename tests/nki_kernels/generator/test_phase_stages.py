"""Phases in stages: values of ragged, special and short tiles, and the time that overlap saves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def activated_mean(x: Any, y: Any) -> Any:
    """ScalarE, VectorE and ScalarE again with another table, and a reduction."""
    gate = aten.mul.Tensor(aten.silu.default(x), y)
    return aten.mean.dim(aten.tanh.default(gate), [0], True)


def softmax(x: Any, y: Any) -> Any:
    """Three phases, whose tiles stay in SBUF in between."""
    x = aten.mul.Tensor(aten.tanh.default(x), y)
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [0], True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [0], True))


@pytest.mark.parametrize("function", [activated_mean, softmax])
@pytest.mark.parametrize("shape", [(300007,), (1291, 40), (3, 901, 7), (700, 129)])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("special", [0.0, math.inf, -math.inf, math.nan])
def test_values(
    region: Build,
    cuts: Cuts,
    function: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    special: float,
) -> None:
    x = draw(*shape, dtype=dtype)
    x.view(-1)[-1] = special
    made = region(function, x, draw(*shape, dtype=dtype))
    every = cuts.of(made)
    staged = [cut for cut in every if cut.phase_stages > 1]
    assert staged or math.prod(shape) < 30000
    error = 1e-4 if dtype is F32 else 2e-2
    deepest: dict[Any, TiledRegion] = {}
    for cut in staged or every:
        deepest[cut.geometry.crosses, cut.keeps, cut.geometry.even] = cut
    cuts.check(made, deepest.values(), rtol=error, atol=error)


def test_stages_take_less_than_tiles_one_after_another(region: Build, cuts: Cuts) -> None:
    made = region(activated_mean, draw(700001), draw(700001))
    found = cuts.of(made)
    chip = hardware("trn2")
    least = {
        is_staged: min(
            cut.estimated_ns(chip)
            for cut in found
            if cut.across is not None and (cut.phase_stages > 1) == is_staged
        )
        for is_staged in (False, True)
    }
    assert least[True] < 0.95 * least[False]


def test_what_is_left_of_the_rows_is_computed_first(region: Build, cuts: Cuts) -> None:
    made = region(lambda x: aten.amax.default(x, [0], True), draw(185274))
    across = [cut.across for cut in cuts.of(made) if cut.across is not None]
    ragged = [one for one in across if len(one.geometry.rows) > 1]
    assert ragged
    for one in ragged:
        assert list(one.rows) == list(one.geometry.rows[::-1])
        assert one.rows[-1].fold == max(rows.fold for rows in one.rows)


def scaled_extreme(x: Any, y: Any) -> Any:
    """Two instructions of VectorE, the second of which reads what the first one gives."""
    return aten.amax.default(aten.mul.Tensor(aten.sigmoid.default(x), y), [0], True)


@pytest.mark.parametrize("function", [scaled_extreme, softmax])
@pytest.mark.parametrize("shape", [(300007,), (1291, 40)])
def test_an_engine_need_not_wait_for_itself(
    region: Build, cuts: Cuts, function: Callable[..., Any], shape: tuple[int, ...]
) -> None:
    made = region(function, draw(*shape), draw(*shape))
    apart: dict[Any, TiledRegion] = {}
    for cut in cuts.of(made):
        if cut.apart:
            apart[cut.geometry.crosses, cut.keeps, cut.geometry.even] = cut
    cuts.check(made, apart.values(), rtol=1e-4, atol=1e-4)


def test_stages_apart_save_time_where_vector_is_the_busiest(region: Build, cuts: Cuts) -> None:
    def largest(x: Any) -> Any:  # of what falls: the maximum stays behind it
        return aten.amax.default(aten.mul.Tensor(aten.sigmoid.default(x), -1.25), [0], True)

    chip = hardware("trn2")
    every = [cut for cut in cuts.of(region(largest, draw(765523))) if cut.across is not None]
    least = {
        is_apart: min(cut.estimated_ns(chip) for cut in every if cut.apart == is_apart)
        for is_apart in (False, True)
    }
    assert least[True] < 0.98 * least[False]
