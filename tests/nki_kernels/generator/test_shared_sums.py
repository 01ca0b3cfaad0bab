"""Accumulators to which VectorE and GpSimd both add rows of each tile."""

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


def largest(x: Any) -> Any:
    return aten.amax.default(x, [0], True)


def smallest(x: Any) -> Any:
    return aten.amin.default(aten.abs.default(x), [0], True)


def softmax(x: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [0], True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [0], True))


def with_both(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry in which both engines add to an accumulator."""
    found = {
        (cut.geometry, cut.keeps): cut
        for cut in every
        if any(i.beside is not None and i.dst in cut.halved for i in cut.instructions)
    }
    return list(found.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("rows", [12000, 16385, 20001])
@pytest.mark.parametrize("function", [largest, smallest, softmax])
def test_values(region: Build, cuts: Cuts, function: Any, rows: int, dtype: torch.dtype) -> None:
    made = region(function, draw(rows, 28, dtype=dtype))
    found = with_both(cuts.of(made))
    assert found
    exact = {"rtol": 0, "atol": 0} if function is not softmax else {}
    cuts.check(made, found[:4], **exact)


def test_special_values(region: Build, cuts: Cuts) -> None:
    x = draw(16385, 28)
    x[:, 0] = -float("inf")
    x[5, 1] = x[16000, 2] = float("inf")
    x[77, 3] = x[16384, 4] = float("nan")
    made = region(largest, x)
    cuts.check(made, with_both(cuts.of(made))[:4], rtol=0, atol=0)


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1)])
def test_orders_in_memory(region: Build, order: tuple[int, ...]) -> None:
    lies = draw(*((316, 28, 127)[d] for d in order), dtype=BF16)
    x = lies.permute([order.index(d) for d in range(3)])
    region(lambda x: aten.amax.default(x, [0, 2], True), x).check(rtol=0, atol=0)


def test_many_rows_are_shared(region: Build) -> None:
    built = region(largest, draw(40132, 28, dtype=BF16))
    assert "engine=nisa.engine.gpsimd" in built.source()
    built.check(rtol=0, atol=0)


def test_trn1_shares_nothing(region: Build, cuts: Cuts) -> None:
    """Its engines take turns."""
    made = region(largest, draw(16385, 28))
    assert not with_both(cuts.of(made, "trn1"))
