"""Reductions to one value a partition: each tile of a phase leaves its part in a column."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16

REDUCTIONS = {
    "sum": lambda x, dims: aten.sum.dim_IntList(x, dims, True),
    "mean of tanh": lambda x, dims: aten.mean.dim(aten.tanh.default(x), dims, True),
    "amax": lambda x, dims: aten.amax.default(x, dims, True),
    "centre": lambda x, dims: aten.sub.Tensor(x, aten.mean.dim(x, dims, True)),
    "amin and amax": lambda x, dims: (aten.amin.default(x, dims), aten.amax.default(x, dims)),
}


def draw(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """Small integers: float32 has their sums, in any order."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def in_columns(made: Any, cuts: Cuts) -> list[TiledRegion]:
    """One way of each geometry, staged or not, of which some reduction leaves columns."""
    found: dict[Any, TiledRegion] = {}
    for cut in cuts.of(made):
        across = cut.across
        combines = [i for i in cut.instructions if i.call == "combine"]
        if across is not None and any(map(across.in_columns, combines)):
            found.setdefault((cut.geometry, cut.phase_stages, cut.by_stage), cut)
    return list(found.values())


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((127,), [0]), ((40_001,), [0]), ((129, 601), [0, 1]), ((5, 20_003), [1])],
)
def test_values(
    region: Build,
    cuts: Cuts,
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    dims: list[int],
) -> None:
    made = region(lambda x: REDUCTIONS[name](x, dims), draw(*shape, dtype=dtype))
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype is F32 else {"rtol": 2e-2, "atol": 2e-2}
    cuts.check(made, in_columns(made, cuts), **tolerance)


def test_products(region: Build, cuts: Cuts) -> None:
    signs = draw(40_001).ge(0).to(F32).mul(2).sub(1)
    made = region(lambda x: aten.prod.dim_int(x, 0), signs)
    cuts.check(made, in_columns(made, cuts), rtol=0, atol=0)


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("name", ["sum", "amax", "centre"])
def test_special_values(region: Build, cuts: Cuts, name: str, value: float) -> None:
    x = draw(40_001)
    x[40_000] = value
    made = region(lambda x: REDUCTIONS[name](x, [0]), x)
    cuts.check(made, in_columns(made, cuts), rtol=1e-5, atol=1e-6)


def test_a_row_alone_is_special(region: Build, cuts: Cuts) -> None:
    """What one row has does not reach the others, nor what lies on no partition."""
    x = draw(5, 20_003)
    x[1, 7], x[2, 20_002], x[3] = math.inf, math.nan, -math.inf
    made = region(lambda x: REDUCTIONS["amax"](x, [1]), x)
    cuts.check(made, in_columns(made, cuts), rtol=0, atol=0)
    assert torch.isfinite(made.eager()[0][[0, 4]]).all()
