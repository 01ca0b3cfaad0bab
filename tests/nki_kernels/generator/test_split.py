"""Dimensions in parts, on the partitions that another one leaves empty; parts that overlap."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.split import equal_parts
from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def softmax(x: Any, y: Any) -> Any:
    return aten.relu.default(aten._softmax.default(aten.add.Tensor(x, y), 1, False))


def largest(x: Any, y: Any) -> Any:
    return aten.amax.default(aten.mul.Tensor(x, y), [1], True)


def centred(x: Any, y: Any) -> Any:
    return aten.sub.Tensor(x, aten.mean.dim(aten.mul.Tensor(x, y), [1], True))


def test_parts_cover_a_dimension() -> None:
    for size, count in itertools.product(range(16, 140), range(2, 8)):
        inner, step = equal_parts(size, count)
        assert step * (count - 1) + inner == size
        assert step <= inner < step + count


def overlapping(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry whose parts overlap."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        lead, (strides, *_) = cut.geometry.lead, cut.output_strides
        sizes = {a.label: a.size for a in (*cut.geometry.free, *cut.geometry.loops)}
        if lead is not None and any(
            0 < strides.get(lead.label, 0) < strides[d] * n
            for d, n in sizes.items()
            if strides.get(d) == 1
        ):
            found.setdefault((cut.geometry, cut.keeps), cut)
    return list(found.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [softmax, largest, centred])
@pytest.mark.parametrize(("rows", "columns"), [(56, 121), (35, 131)])
def test_parts_that_overlap(
    region: Build, cuts: Cuts, function: Any, rows: int, columns: int, dtype: torch.dtype
) -> None:
    x, y = (draw(rows, 13, columns, dtype=dtype) for _ in range(2))
    made = region(function, x, y + 1)
    error = {"rtol": 2e-2, "atol": 1e-2} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-5}
    cuts.check(made, overlapping(cuts.of(made)), **({} if function is largest else error))


def test_softmax_over_a_middle_axis_fills_the_partitions(region: Build) -> None:
    x = draw(56, 128, 121)
    made = region(softmax, x, x)
    assert "(112, " in made.source()
