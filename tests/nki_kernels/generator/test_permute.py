"""Tensors in another order than their tiles: DMA in long runs, a copy inside a partition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.simulator.hardware import hardware
from trnx.simulator.timing.profile import predicted_seconds

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
Order = tuple[int, ...]
F32, BF16, I32, I64 = torch.float32, torch.bfloat16, torch.int32, torch.int64


def draw(shape: Order, order: Order, dtype: torch.dtype = F32) -> torch.Tensor:
    """Values that lie in this order, the first ones special."""
    generator = torch.Generator().manual_seed(sum(shape))
    lies = torch.randn([shape[i] for i in order], generator=generator) * 100
    special = torch.tensor([math.inf, -math.inf, math.nan, -0.0, 1e-40])
    if dtype.is_floating_point:
        lies.view(-1)[: len(special)] = special[: lies.numel()]
    return lies.to(dtype).permute([order.index(i) for i in range(len(order))])


def copy(x: Any) -> Any:
    return aten.clone.default(x, memory_format=torch.contiguous_format)


def check_all(made: Any, cuts: Cuts, target: str = "trn2") -> None:
    """One of each geometry and order that moves a tensor in an order of its own equals eager."""
    moving = [cut for cut in cuts.of(made, target) if cut.layouts]
    different = {(cut.geometry, cut.keeps, tuple(cut.layouts.values())): cut for cut in moving}
    cuts.check(made, different.values(), target, rtol=1e-5, atol=1e-3)


COPIES = [
    ((96, 2, 7, 256), (0, 2, 3, 1)),
    ((64, 7, 36, 8), (1, 2, 0, 3)),
    ((14, 57, 9, 8), (1, 2, 0, 3)),
    ((129, 109, 12), (0, 2, 1)),
    ((127, 3, 1, 20), (0, 3, 2, 1)),
    ((64, 3, 37, 4), (3, 0, 2, 1)),
    ((33, 2, 29, 3), (3, 0, 2, 1)),
]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16, I32, torch.bool])
@pytest.mark.parametrize(("shape", "order"), COPIES[:2])
def test_copies_of_all_dtypes(
    region: Build, cuts: Cuts, shape: Order, order: Order,
    dtype: torch.dtype, target: str,
) -> None:  # fmt: skip
    check_all(region(copy, draw(shape, order, dtype)), cuts, target)


@pytest.mark.parametrize(("shape", "order"), COPIES)
def test_copies_of_ragged_sizes(region: Build, cuts: Cuts, shape: Order, order: Order) -> None:
    check_all(region(copy, draw(shape, order)), cuts)


def test_a_copy_of_int64_stays_in_one_order(region: Build) -> None:
    region(copy, draw((96, 2, 7, 25), (0, 2, 3, 1), I64)).check()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("dims", [[1], [2], [3], [1, 3]])
def test_operands_in_two_orders_that_are_reduced(
    region: Build, cuts: Cuts, dims: list[int], dtype: torch.dtype
) -> None:
    def function(x: Any, y: Any) -> Any:
        return aten.amax.default(aten.maximum.default(x, y), dims, True)

    shape = (130, 5, 12, 9)
    made = region(function, draw(shape, (0, 3, 1, 2), dtype), draw(shape, (0, 1, 2, 3), dtype))
    check_all(made, cuts)


def test_a_copy_within_partitions_is_predicted_near_the_rate_of_its_bytes(region: Build) -> None:
    built = region(copy, torch.empty(7, 256, 64, 8, device="meta").permute(2, 0, 1, 3))
    seconds = predicted_seconds(built.program(), hardware("trn2"))
    nbytes = 2 * 4 * 64 * 7 * 256 * 8
    assert seconds < 1.4 * nbytes / hardware("trn2").dma_bytes_per_second


@pytest.mark.parametrize(
    ("shape", "order", "dtype"),
    [((64, 7, 918, 4), (3, 0, 2, 1), BF16), ((56, 29, 28, 16), (0, 3, 2, 1), F32)],
)
def test_tiles_are_long_along_the_last_axes_of_both_orders(
    region: Build, shape: Order, order: Order, dtype: torch.dtype
) -> None:
    """A part of one axis fills the partitions, and neither the load nor the store has short
    runs."""
    lies = torch.empty([shape[i] for i in order], dtype=dtype, device="meta")
    x = lies.permute([order.index(i) for i in range(4)])
    chip = hardware("trn2")
    seconds = predicted_seconds(region(copy, x).program(), chip)
    bound = 2 * math.prod(shape) * dtype.itemsize / chip.dma_bytes_per_second
    assert seconds < 1.4 * (bound + chip.region_seconds)


def largest_in_three_orders(x: Any, y: Any) -> Any:
    return aten.maximum.default(aten.clone.default(x, memory_format=torch.contiguous_format), y)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(6, 33, 4, 4), (2, 65, 3, 5)])
def test_a_part_of_a_merged_axis_beside_several_orders(
    region: Build, cuts: Cuts, shape: Order, dtype: torch.dtype, target: str
) -> None:
    """The last two axes are one for both tensors, and tiles are cut along each of them, too."""
    x, y = draw(shape, (2, 3, 0, 1), dtype), draw(shape, (1, 0, 2, 3), dtype)
    made = region(largest_in_three_orders, x, y)
    check_all(made, cuts, target)


def reduced_in_three_orders(x: Any, y: Any) -> Any:
    total = aten.sum.dim_IntList(aten.abs.default(aten.sub.Tensor(x, y)), [1, 3], True)
    return aten.sub.Tensor(total, 0.5)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(96, 67, 2, 4), (127, 90, 3, 5)])
def test_steps_along_a_reduced_dimension(
    region: Build, cuts: Cuts, shape: Order, dtype: torch.dtype
) -> None:
    def values(order: Order) -> torch.Tensor:
        x = draw(shape, order, dtype)
        return torch.where(x.isfinite(), x, 1.0)

    made = region(reduced_in_three_orders, values((2, 0, 1, 3)), values((3, 1, 2, 0)))
    in_steps = {
        cut.geometry: cut
        for cut in cuts.of(made)
        if cut.layouts and cut.across is not None and not cut.geometry.crosses
    }
    error = {"rtol": 1e-2, "atol": 1e-3} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-3}
    cuts.check(made, in_steps.values(), **error)


def total_in_three_orders(x: Any, y: Any, z: Any) -> Any:
    total = aten.sum.dim_IntList(aten.add.Tensor(x, y), [0, 1, 2, 3], True)
    return aten.mul.Tensor(aten.tanh.default(total), z)


@pytest.mark.parametrize("shape", [(50, 17, 24, 4), (33, 9, 28, 3)])
def test_transposed_beside_permuted(region: Build, cuts: Cuts, shape: Order) -> None:
    def values(order: Order) -> torch.Tensor:
        x = draw(shape, order)
        return torch.where(x.isfinite(), x, 1.0)

    made = region(
        total_in_three_orders, values((2, 1, 3, 0)), values((3, 2, 0, 1)), values((1, 3, 0, 2))
    )
    both = {
        (cut.geometry, cut.keeps): cut
        for cut in cuts.of(made)
        if cut.layouts and cut.geometry.interleaved and any(map(cut.is_turned, cut.load_strides))
    }
    cuts.check(made, both.values(), rtol=1e-5, atol=1e-3)
