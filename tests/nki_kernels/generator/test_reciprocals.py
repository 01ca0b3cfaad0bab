"""Softmax of many sums in a partition multiplies by ScalarE's reciprocal, corrected once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trnx.nki_kernels.generator.reciprocals import FEW, MANY

aten = torch.ops.aten
Build = Callable[..., Any]
Cuts = Any  # of conftest.py
F32, BF16 = torch.float32, torch.bfloat16


def draw(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * 5).to(dtype)


def whole(x: Any) -> Any:
    return aten._softmax.default(x, 0, False)


def written_out(x: Any) -> Any:
    weights = aten.exp.default(aten.sub.Tensor(x, aten.amax.default(x, [0], True)))
    return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [0], True))


def by_scalar(every: list[Any]) -> list[Any]:
    """One way of each geometry in which ScalarE gives the reciprocal."""
    found: dict[Any, Any] = {}
    for cut in every:
        if any(("op", "nl.reciprocal") in i.arguments for i in cut.instructions):
            found.setdefault((cut.geometry, cut.keeps), cut)
    return list(found.values())


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("function", [whole, written_out])
def test_values(region: Build, cuts: Cuts, function: Any, dtype: torch.dtype) -> None:
    x = draw(129, 700, dtype=dtype)
    x[0, 0], x[1, 1], x[:, 2] = float("nan"), float("inf"), -float("inf")
    x[3, 3], x[:, 4] = -float("inf"), 3e38
    made = region(function, x)
    error = {"rtol": 1e-5, "atol": 1e-7} if dtype is F32 else {"rtol": 1e-2, "atol": 1e-3}
    cuts.check(made, by_scalar(cuts.of(made)), **error)


def test_few_sums_take_one_instruction(region: Build, cuts: Cuts) -> None:
    assert not by_scalar(cuts.of(region(whole, draw(300, MANY - 1))))


def test_other_reciprocals_have_any_range(region: Build, cuts: Cuts) -> None:
    x = draw(300, 700)
    for function in (
        lambda x: aten.reciprocal.default(aten.sum.dim_IntList(aten.exp.default(x), [0], True)),
        lambda x: aten.reciprocal.default(aten.amax.default(x, [0], True)),
    ):
        assert not by_scalar(cuts.of(region(function, x)))


def rms(x: Any) -> Any:
    mean = aten.mean.dim(aten.pow.Tensor_Scalar(x, 2), [0], True)
    return aten.div.Tensor(x, aten.sqrt.default(aten.add.Tensor(mean, 1e-5)))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("shape", [(300, FEW - 1), (129, 3), (127, 1)])
def test_quotients_of_few_roots_load_no_table(
    region: Build, cuts: Cuts, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = draw(*shape, dtype=dtype)
    x[0, 0], x[1, -1] = float("nan"), float("inf")
    made = region(rms, x)
    every = [cut for cut in cuts.of(made) if cut.across is not None]
    assert every
    assert not by_scalar(every)
    error = {"rtol": 1e-6, "atol": 0} if dtype is F32 else {"rtol": 1e-2, "atol": 0}
    cuts.check(made, every[:2], **error)


def test_quotients_of_many_roots_are_scalars(region: Build, cuts: Cuts) -> None:
    made = region(rms, draw(300, 700, dtype=BF16))
    assert by_scalar([cut for cut in cuts.of(made) if cut.across is not None])
