"""Tiles of all loops in stages that run beside each other, and the tail of stages with little of
each tile that all tiles run after the others."""

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
INF, NAN = math.inf, math.nan


def logsumexp(x: Any, dim: int) -> Any:
    most = aten.amax.default(x, [dim], True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), [dim], True)
    return aten.add.Tensor(aten.log.default(total), most)


def softmax(x: Any, dim: int) -> Any:
    most = aten.amax.default(x, [dim], True)
    weights = aten.exp.default(aten.sub.Tensor(x, most))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [dim], True))


@pytest.mark.parametrize("shape", [(127, 300), (129, 300), (1409, 300), (30, 40, 129), (8, 1, 1)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values_with_a_tail(
    region: Build, cuts: Cuts, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = draw(*shape, dtype=dtype)
    flat = x.view(-1)
    flat[:4] = torch.tensor([-0.0, INF, -INF, NAN])
    flat[-1:] = -INF
    made = region(lambda x: logsumexp(x, 1), x)
    every = cuts.of(made)
    found = [cut for cut in every if cut.tail]
    assert found or shape[0] < 1409
    kinds = {(c.geometry.even, bool(c.geometry.loops), c.tail): c for c in found or every[:2]}
    error = 1e-4 if dtype is F32 else 2e-2
    cuts.check(made, kinds.values(), rtol=error, atol=error)


def test_with_a_tail_a_table_is_loaded_once(region: Build, cuts: Cuts) -> None:
    made = region(lambda x: logsumexp(x, 1), draw(4800, 881))
    chip = hardware("trn2")
    least = {True: INF, False: INF}
    for cut in cuts.of(made):
        if all(i.by_row is None for i in cut.instructions):
            least[cut.tail > 0] = min(least[cut.tail > 0], cut.estimated_ns(chip))
    assert least[True] < 0.7 * least[False]


@pytest.mark.parametrize("shape", [(5, 40, 127), (6, 40, 128), (7, 41, 129), (4, 3, 1)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_values_of_stages_across_loops(
    region: Build, cuts: Cuts, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    def function(x: Any, y: Any) -> Any:
        return aten.silu.default(aten.tanh.default(aten.mul.Tensor(softmax(x, 1), y)))

    made = region(function, draw(*shape, dtype=dtype), draw(1, shape[1], 1, dtype=dtype))
    every = cuts.of(made)

    def is_flat(cut: TiledRegion) -> bool:
        return bool(cut.geometry.loops) and not cut.geometry.in_phases and cut.in_turn > 1

    found = [cut for cut in every if is_flat(cut)]
    assert found or math.prod(shape) < 1000
    kinds = {(c.geometry.partition, c.geometry.even, c.tail): c for c in found or every[:1]}
    error = 1e-4 if dtype is F32 else 2e-2
    cuts.check(made, kinds.values(), rtol=error, atol=error)
