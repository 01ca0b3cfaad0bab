"""Tiles with runs of a useful length in tensors that lie in several orders."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_permute import draw

from trnx.nki_kernels.generator import region_cuts, tile
from trnx.nki_kernels.generator.long_runs import Access, Space
from trnx.nki_kernels.generator.region_cuts import RegionCuts
from trnx.nki_kernels.generator.tiled_region import TiledRegion
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
Order = tuple[int, ...]
F32, BF16 = torch.float32, torch.bfloat16


def total(x: Any, y: Any) -> Any:
    return aten.sum.dim_IntList(aten.sub.Tensor(x, y), [0, 1, 2, 3], True)


def centred(x: Any, y: Any) -> Any:
    both = aten.add.Tensor(x, y)
    return aten.mul.Tensor(aten.sub.Tensor(both, aten.amax.default(both, [0, 1, 2], True)), y)


def largest(x: Any, y: Any) -> Any:
    return aten.amax.default(aten.maximum.default(aten.tanh.default(x), y), [3], True)


@pytest.fixture
def long_runs(cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[TiledRegion]]:
    """Finds one region of each geometry with long runs, however fast other ones are."""
    found: dict[Any, TiledRegion] = {}
    original = RegionCuts.with_long_runs

    def with_long_runs(self: RegionCuts) -> list[TiledRegion]:
        regions = list(original(self))
        found.update({(r.geometry, r.keeps, tuple(r.layouts.values())): r for r in regions})
        return regions

    monkeypatch.setattr(RegionCuts, "with_long_runs", with_long_runs)
    monkeypatch.setattr(tile, "_FAR_IN_ORDERS", 0.0)
    monkeypatch.setattr(region_cuts, "_MOST_SLOWED", math.inf)

    def of(made: Any, target: str = "trn2") -> list[TiledRegion]:
        found.clear()
        cuts.of(made, target)
        return list(found.values())

    return of


def test_blocks_grow_along_the_last_axes_of_all_tensors() -> None:
    sizes = {0: 128, 1: 96, 2: 406}
    one, other = {0: 96, 1: 1, 2: 128 * 96}, {0: 96 * 406, 1: 406, 2: 1}
    space = Space((0, 1, 2), sizes, frozenset(), [Access(2, one), Access(2, other)], 168.0)
    slowed, cut = min(space.cuts((0, 1, 2), 2048, 1), key=lambda pair: pair[0])
    assert cut.partition == 0
    assert {axis.label: axis.block for axis in cut.free} == {1: 48, 2: 32}
    assert slowed < 3, "runs of an element take 84 times as long"
    assert cut.run((2, 1), one) == 48
    assert cut.run((1, 2), other) == 32


def test_a_tensor_that_is_a_value_has_no_say() -> None:
    sizes, row = {0: 128, 1: 512}, {0: 512, 1: 1}
    space = Space((0, 1), sizes, frozenset(), [Access(4, row), Access(4, {})], 168.0)
    assert min(slowed for slowed, _ in space.cuts((0, 1), 2048, 1)) < 1.01


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(2, 129, 9, 37), (1, 127, 5, 33)])
def test_totals(
    region: Build, long_runs: Any, cuts: Cuts, shape: Order, dtype: torch.dtype, target: str
) -> None:
    def values(order: Order) -> torch.Tensor:
        x = draw(shape, order, dtype)
        return torch.where(x.isfinite(), x, 1.0)

    made = region(total, values((3, 1, 2, 0)), values((0, 1, 2, 3)))
    error = {"rtol": 2e-2, "atol": 1.0} if dtype is BF16 else {"rtol": 1e-4, "atol": 1e-1}
    cuts.check(made, long_runs(made, target), target, **error)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("function", [centred, largest])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(130, 12, 3, 7), (33, 64, 2, 5)])
def test_special_values(
    region: Build, long_runs: Any, cuts: Cuts, function: Any, shape: Order, dtype: torch.dtype,
    target: str,
) -> None:  # fmt: skip
    """Infinities and NaN among what is reduced, and what they give in every element."""
    made = region(function, draw(shape, (1, 0, 3, 2), dtype), draw(shape, (0, 1, 2, 3), dtype))
    cuts.check(made, long_runs(made, target), target, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "dtype", "shape", "order"),
    [
        (total, BF16, (2, 128, 96, 101), (3, 1, 2, 0)),
        (largest, BF16, (512, 256, 3, 7), (1, 0, 3, 2)),
    ],
)
def test_the_time_is_near_the_limit(
    region: Build, function: Any, dtype: torch.dtype, shape: Order, order: Order
) -> None:
    """A pass of VectorE for the first op and one for the reduction, or the bytes."""
    lies = torch.empty([shape[i] for i in order], dtype=dtype, device="meta")
    x = lies.permute([order.index(i) for i in range(4)])
    chip = hardware("trn2")
    y = torch.empty(shape, dtype=dtype, device="meta")
    seconds = predicted_seconds(region(function, x, y).program(), chip)
    elements = math.prod(shape)
    moved = 2 * elements * dtype.itemsize / chip.dma_bytes_per_second
    computed = 2 * elements / chip.partitions / chip.vector_clock
    assert seconds < 1.4 * (max(moved, computed) + chip.region_seconds)


def test_merged_dimensions_have_long_runs_too(region: Build) -> None:
    """Two axes that lie side by side in both tensors fill the partitions as one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 50, 156, 2, generator=generator).permute(0, 3, 2, 1)
    y = torch.randn(156, 50, 50, 2, generator=generator).permute(1, 3, 0, 2)
    made = region(lambda x, y: aten.sum.dim_IntList(aten.add.Tensor(x, y), [0, 1, 3], True), x, y)
    made.check(rtol=1e-5, atol=1e-3)
    assert predicted_seconds(made.program(), hardware("trn2")) < 28e-6
