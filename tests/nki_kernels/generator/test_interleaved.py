"""Reductions along the partitions whose other reduced axes lie between those that stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from drawn import draw

from trnx.nki_kernels.generator.engines import TENSOR
from trnx.nki_kernels.generator.interleaved import interleaved_products
from trnx.nki_kernels.generator.tiled_region import TiledRegion

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def on_tensor(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry in which TensorE adds up what is no matrix."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        across = cut.across
        sums = [i for i in cut.instructions if i.call == "tensor_reduce" and i.engine == TENSOR]
        if across is not None and any(len(across.groups(i.reads()[0])) > 2 for i in sums):
            found.setdefault(cut.geometry, cut)
    return list(found.values())


def wide(every: list[TiledRegion]) -> list[TiledRegion]:
    """One way of each geometry with a wide accumulator of what stays outside of the rows, too."""
    found: dict[Any, TiledRegion] = {}
    for cut in every:
        rows = [cut.rows_of(i) for i in cut.instructions if i.dst in cut.halved]
        if cut.across is not None and any(r is not None and r[0] for r in rows):
            found.setdefault(cut.geometry, cut)
    return list(found.values())


def permuted(shape: Sequence[int], order: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    lies = draw(*(shape[d] for d in order), dtype=dtype)
    return lies.permute([order.index(d) for d in range(len(order))])


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((129, 3, 5, 2), [0, 2]), ((130, 4, 7, 3), [0, 2]), ((300, 2, 33, 8), [0, 2])],
)
def test_sums(
    region: Build, cuts: Cuts, shape: tuple[int, ...], dims: list[int], dtype: torch.dtype
) -> None:
    x = draw(*shape, dtype=dtype)
    made = region(lambda x: aten.sum.dim_IntList(x, dims), x)
    error = {"rtol": 2e-2, "atol": 1e-1} if dtype is BF16 else {"rtol": 1e-5, "atol": 1e-4}
    cuts.check(made, on_tensor(cuts.of(made))[:3], **error)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(260, 3, 40, 16), (129, 2, 33, 20)])
def test_extrema(region: Build, cuts: Cuts, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = draw(*shape, dtype=dtype)
    x[0, 0, 0, 0], x[1, 1, 1, 1] = float("nan"), -float("inf")
    made = region(lambda x: aten.sub.Tensor(x, aten.amax.default(x, [0, 2], True)), x)
    cuts.check(made, wide(cuts.of(made))[:3])


def test_values_that_are_not_finite_stay_in_their_sums(region: Build, cuts: Cuts) -> None:
    x = draw(129, 3, 5, 2, dtype=F32)
    x[0, 0, 0, 0], x[1, 1, 1, 1] = float("nan"), -float("inf")
    made = region(lambda x: aten.sum.dim_IntList(x, [0, 2]), x)
    cuts.check(made, on_tensor(cuts.of(made))[:2], rtol=1e-5, atol=1e-4)


def test_a_view_of_three_axes() -> None:
    """Of each bank."""
    lines = interleaved_products("x", "bank", 128, 8, 4, ["n0", "n1", "n2"], ["add()"])
    assert lines == [
        "flat = x.reshape((p, n0, n1, n2))",
        "goal = bank",
        "goal = goal.reshape((128, goal.shape[1], n0, n2, 8))",
        "goal = goal.permute((0, 1, 4, 2, 3))",
        "for first in range(0, n1, 4):",
        "    many = min(4, n1 - first)",
        "    moving = flat[:, :, first : first + many].permute((0, 2, 1, 3))",
        "    add()",
    ]


def test_a_mean_of_a_permuted_tensor_is_added_up_on_tensor(region: Build) -> None:
    x = permuted((15, 16, 197, 4), (2, 1, 0, 3), F32)
    made = region(lambda x: aten.mean.dim(x, [0, 2], True), x)
    assert "nisa.nc_matmul" in made.source()
    assert "nisa.tensor_reduce(dst=mean_part" not in made.source()
