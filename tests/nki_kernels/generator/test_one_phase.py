"""log(sum(exp(x - max(x)))) in one phase: each tile has a maximum of its own."""

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
LOWEST = torch.finfo(torch.float32).min


def logsumexp(x: Any, dims: list[int]) -> Any:
    most = aten.amax.default(x, dims, True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(x, most)), dims, True)
    return aten.add.Tensor(aten.log.default(total), most)


def in_one_phase(made: Any, cuts: Cuts) -> list[TiledRegion]:
    """One way of each geometry that computes the sum in one phase."""
    found: dict[Any, TiledRegion] = {}
    for cut in cuts.of(made):
        if any(i.call == "combine" and len(i.reads()) > 1 for i in cut.instructions):
            found.setdefault(cut.geometry, cut)
    return list(found.values())


def check_all(made: Any, cuts: Cuts) -> None:
    cuts.check(made, in_one_phase(made, cuts), rtol=1e-5, atol=1e-5)


def spread(*shape: int) -> torch.Tensor:
    """Values whose size differs from tile to tile."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    return x * 3 + torch.linspace(-120.0, 120.0, x.numel()).view(shape)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((235_715,), [0]), ((129, 3000), [0, 1]), ((64, 27_974), [1]), ((1, 127, 900), [1, 2])],
)
def test_values(region: Build, cuts: Cuts, shape: tuple[int, ...], dims: list[int]) -> None:
    check_all(region(lambda x: logsumexp(x, dims), spread(*shape)), cuts)


SPECIAL = {
    "all of it": lambda x, value: x.fill_(value),
    "the first half": lambda x, value: x[: len(x) // 2].fill_(value),
    "the last element": lambda x, value: x[-1:].fill_(value),
    "all but the last element": lambda x, value: x[:-1].fill_(value),
}


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, LOWEST, -LOWEST])
@pytest.mark.parametrize("place", SPECIAL)
def test_special_values(region: Build, cuts: Cuts, place: str, value: float) -> None:
    x = spread(60_000)
    SPECIAL[place](x, value)
    check_all(region(lambda x: logsumexp(x, [0]), x), cuts)


def test_half_precision_rounds_where_eager_does(region: Build, cuts: Cuts) -> None:
    x = spread(60_000).to(torch.bfloat16)
    assert not in_one_phase(region(lambda x: logsumexp(x, [0]), x), cuts)


def test_maxima_of_tiles_are_compared_after_the_last_one(region: Build, cuts: Cuts) -> None:
    """Each is in a column already: a running maximum would take VectorE an instruction a tile."""
    made = region(lambda x: logsumexp(x, [0]), spread(235_715))
    cut = next(c for c in in_one_phase(made, cuts) if c.across is not None and c.across.steps > 2)
    assert cut.across is not None
    assert all(
        cut.across.in_columns(i)
        for i in cut.instructions
        if i.call == "combine" and len(i.reads()) == 1
    )


def softmax(x: Any, dims: list[int]) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, dims, True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, dims, True))


@pytest.mark.parametrize(
    ("shape", "dims"), [((235_715,), [0]), ((129, 3000), [0, 1]), ((64, 27_974), [1])]
)
def test_softmax(region: Build, cuts: Cuts, shape: tuple[int, ...], dims: list[int]) -> None:
    """Exponentials that are read again are computed again, with the maximum of all tiles."""
    made = region(lambda x: softmax(x, dims), spread(*shape))
    found = in_one_phase(made, cuts)
    cuts.check(made, found, rtol=1e-5, atol=1e-7)
    exponentials = [i for i in found[0].instructions if ("op", "nl.exp") in i.arguments]
    assert len(exponentials) == 2


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, LOWEST, -LOWEST])
@pytest.mark.parametrize("place", SPECIAL)
def test_softmax_of_special_values(region: Build, cuts: Cuts, place: str, value: float) -> None:
    x = spread(60_000)
    SPECIAL[place](x, value)
    made = region(lambda x: softmax(x, [0]), x)
    cuts.check(made, in_one_phase(made, cuts), rtol=1e-5, atol=1e-7)
