"""Tiles that DMA transposes lie with the reduced dimensions inside; tiles of whole rows are filled
along the innermost dimensions of a total that lies in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.strided_walks import walks_in_steps
from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def logsumexp(x: Any, y: Any) -> Any:
    every = aten.sub.Tensor(x, y)
    most = aten.amax.default(every, [0], True)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(every, most)), [0], True)
    return aten.add.Tensor(aten.log.default(total), most)


def total(x: Any, y: Any) -> Any:
    return aten.sum.dim_IntList(aten.add.Tensor(x, y), [1], True)


def reduces_inside(cut: TiledRegion) -> bool:
    """Whether DMA transposes what is loaded, and the innermost free axis is reduced."""
    free, turned = cut.geometry.free, any(map(cut.is_turned, cut.load_strides))
    return turned and len(free) > 1 and free[-1].label in cut.geometry.reduced


def of_geometries(found: list[TiledRegion]) -> list[TiledRegion]:
    return list({(cut.geometry, cut.keeps): cut for cut in found}.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_reduced_dimensions_lie_inside(region: Build, cuts: Cuts, dtype: torch.dtype) -> None:
    x, y = draw(64, 6, 2, 197, dtype=dtype), draw(64, 1, 1, 197, dtype=dtype)
    x[3, 1, 0, 7], x[4, 1, 1, 190] = float("inf"), float("nan")
    made = region(logsumexp, x, y)
    found = of_geometries([cut for cut in cuts.of(made) if reduces_inside(cut)])
    for cut in found:
        assert not any(walks_in_steps(i, cut.geometry) for i in cut.instructions)
    error = 1e-5 if dtype is F32 else 2e-2
    cuts.check(made, found[:6], rtol=error, atol=error)


def test_the_fastest_way_has_them_inside(region: Build) -> None:
    made = region(logsumexp, draw(64, 6, 2, 197), draw(64, 1, 1, 197))
    assert "data=subtract_tile, axis=(2,))" in made.source()


@pytest.mark.parametrize("is_alike", [True, False])
def test_an_operand_in_another_order_keeps_them_outside(
    region: Build, cuts: Cuts, *, is_alike: bool
) -> None:
    y = draw(64, 1, 1, 197) if is_alike else draw(197, 1, 1, 64).permute(3, 1, 2, 0)
    found = cuts.of(region(logsumexp, draw(64, 6, 2, 197), y))
    assert any(map(reduces_inside, found)) is is_alike


def lying(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of four axes, of which the last one lies outermost."""
    *outer, last = shape
    return draw(last, *outer, dtype=dtype).permute(1, 2, 3, 0)


def outermost_whole(cut: TiledRegion, made: Any) -> bool:
    """Whether tiles have all of the outermost dimension, and a part of the innermost one."""
    whole = [a for a in cut.geometry.free if a.block == a.size == made.inputs["x"].shape[3]]
    return bool(whole and cut.layouts) and any(a.block < a.size for a in cut.geometry.free)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(7, 3, 4365, 4), (9, 2, 1100, 6)])
def test_tiles_are_filled_as_totals_lie(
    region: Build, cuts: Cuts, shape: tuple[int, ...], dtype: torch.dtype, target: str
) -> None:
    made = region(total, lying(*shape, dtype=dtype), draw(1, shape[1], shape[2], 1, dtype=dtype))
    found = of_geometries([cut for cut in cuts.of(made, target) if outermost_whole(cut, made)])
    error = 1e-5 if dtype is F32 else 1e-2
    cuts.check(made, found[:5], target, rtol=error, atol=error)


def test_several_tiles_are_the_fastest(region: Build) -> None:
    made = region(total, lying(7, 4, 4365, 4, dtype=F32), draw(1, 4, 4365, 1))
    assert "in range(0, 291, 97):" in made.source()
