"""Softmax multiplies by a power of its sums, a norm in bfloat16 by one of its root."""

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


def by_power(every: list[Any], exponent: str) -> list[Any]:
    """One way of each geometry in which VectorE gives a power."""
    wanted = {("op0", "nl.power"), ("operand0", exponent)}
    found: dict[Any, Any] = {}
    for cut in every:
        if any(wanted.issubset(i.arguments) for i in cut.instructions):
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
    every = cuts.of(made)
    assert not by_scalar(every)
    if dtype is F32 or function is whole:  # bfloat16 rounds the sum that is divided by
        cuts.check(made, by_power(every, "-1.0"), **error)


def test_few_sums_have_exact_reciprocals(region: Build, cuts: Cuts) -> None:
    assert not by_power(cuts.of(region(whole, draw(300, MANY - 1))), "-1.0")


def test_other_reciprocals_have_any_range(region: Build, cuts: Cuts) -> None:
    x = draw(300, 700)
    for function in (
        lambda x: aten.reciprocal.default(aten.sum.dim_IntList(aten.exp.default(x), [0], True)),
        lambda x: aten.reciprocal.default(aten.amax.default(x, [0], True)),
    ):
        every = cuts.of(region(function, x))
        assert not by_scalar(every)
        assert not by_power(every, "-1.0")


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


def test_roots_in_bfloat16_are_powers(region: Build, cuts: Cuts) -> None:
    every = cuts.of(region(rms, draw(300, 700, dtype=BF16)))
    assert by_power(every, "0.5")
    assert by_power(every, "-1.0")
    for cut in every:
        assert not any(("op", "nl.sqrt") in i.arguments for i in cut.instructions)


def test_the_root_of_every_bfloat16_is_eager_s(region: Build) -> None:
    x = torch.arange(2**15, dtype=torch.int32).to(torch.int16).view(BF16).reshape(-1, 2)
    x[:, 1] = 0.0

    def function(x: Any) -> Any:
        return aten.sqrt.default(aten.sum.dim_IntList(aten.abs.default(x), [1], True))

    made = region(function, x)
    assert "nl.power" in made.source()
    made.check(rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.sqrt.default(aten.sum.dim_IntList(x, [1], True)),  # maybe of -0.0
        lambda x: aten.sqrt.default(aten.abs.default(x)),
    ],
)
def test_other_roots_stay_roots(region: Build, function: Any) -> None:
    assert "nl.sqrt" in region(function, draw(300, 70, dtype=BF16)).source()
