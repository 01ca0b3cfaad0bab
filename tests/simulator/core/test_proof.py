"""Proofs that a Program computes an operator: what is proven, and what is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
import torch

from trnx.simulator import Program, TensorSpec, load_module, trace
from trnx.simulator.memory.dtype_conversion import store_wide
from trnx.simulator.program.portable import from_data, to_data
from trnx.simulator.program.proof import Claim

ROWS = 96


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return load_module(Path(__file__).with_name("proof_kernels.py"))


def _claim(operator: Callable[..., torch.Tensor]) -> Claim:
    def compute(given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return (operator(*given),)

    return Claim("an operator", compute)


def _product(
    kernels: ModuleType,
    operator: Callable[..., torch.Tensor],
    less: int = 0,
    factor: float = 1.0,
    op: str = "",
    dtype: torch.dtype = torch.float32,
) -> Program:
    specs = [TensorSpec.dense((ROWS, 64), dtype), TensorSpec.dense((ROWS, 80), dtype)]
    program = trace(kernels.product, [*specs, less, factor, op])
    program.shorten(_claim(operator))
    return program


def _mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() @ y


def test_a_product_is_proven(kernels: ModuleType) -> None:
    program = _product(kernels, _mm)
    assert program.proven == "an operator"
    x, y = torch.randn(ROWS, 64), torch.randn(ROWS, 80)
    # The recorded steps are left.
    torch.testing.assert_close(program.run([x, y])[0], _mm(x, y), rtol=1e-5, atol=1e-5)
    known = to_data(program)
    assert known is not None
    assert from_data(known, lambda: program.rows).proven == "an operator"
    assert program.replica().proven == "an operator"


@pytest.mark.parametrize(
    ("given", "operator"),
    [
        ({"less": 1}, _mm),  # one term of 96 is missing
        ({"factor": 1.0 + 2.0**-20}, _mm),
        ({}, lambda x, y: _mm(x, y).index_fill(1, torch.tensor([79]), 0.0)),
        ({}, lambda x, y: _mm(x, y).relu()),
    ],
)
def test_another_operator_is_not(
    kernels: ModuleType, given: dict[str, object], operator: Callable[..., torch.Tensor]
) -> None:
    assert not _product(kernels, operator, **given).proven  # type: ignore[arg-type]


def test_other_steps_than_sums_and_products_prove_nothing(kernels: ModuleType) -> None:
    assert not _product(kernels, lambda x, y: _mm(x, y).exp(), op="exp").proven


def test_functions_of_the_sums_may_be_anything(kernels: ModuleType) -> None:
    """The same one on both sides, once, and of the same sums."""
    for op, operator in (("relu", torch.relu), ("sigmoid", torch.sigmoid), ("rsqrt", torch.rsqrt)):
        program = _product(kernels, lambda x, y: operator(_mm(x, y)), op=op)  # noqa: B023
        assert program.proven == "an operator"


@pytest.mark.parametrize(
    ("op", "operator"),
    [
        ("relu", _mm),
        ("relu", lambda x, y: _mm(x, y).sigmoid()),
        ("relu", lambda x, y: _mm(x, y).sub(2.0**-9).relu()),
        ("relu", lambda x, y: _mm(x, y).relu() * 2),
        ("relu", lambda x, y: _mm(x, y).relu().relu()),
        ("relu", lambda x, y: x[:90].t().mm(y[:90]).relu() + x[90:].t().mm(y[90:]).relu()),
        ("sigmoid", lambda x, y: _mm(x, y).relu()),
        ("", lambda x, y: _mm(x, y).relu()),
    ],
)
def test_another_function_is_not_the_same(
    kernels: ModuleType, op: str, operator: Callable[..., torch.Tensor]
) -> None:
    assert not _product(kernels, operator, op=op).proven


def test_rounded_sums_prove_nothing(kernels: ModuleType) -> None:
    assert not _product(kernels, _mm, dtype=torch.bfloat16).proven


@pytest.mark.parametrize("is_constant", [True, False])
def test_masks_have_to_be_constant(kernels: ModuleType, is_constant: bool) -> None:
    spec = TensorSpec.dense((64, 48), torch.float32)

    def operator(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        chosen = torch.ones_like(mask).index_fill(1, torch.tensor([0]), 0.0)
        return x * (chosen if is_constant else (mask > 0).float())

    program = trace(kernels.masked, [spec, spec, is_constant])
    program.shorten(_claim(operator))
    assert bool(program.proven) == is_constant


def test_a_claim_that_fails_leaves_the_short_replay(kernels: ModuleType) -> None:
    claimed = _product(kernels, lambda x, y: _mm(x, y) + 1)
    specs = [TensorSpec.dense((ROWS, columns), torch.float32) for columns in (64, 80)]
    plain = trace(kernels.product, [*specs, 0, 1.0, ""])
    plain.shorten()
    assert len(claimed.steps) == len(plain.steps)


def test_integers_in_range_are_stored_as_wide_ones_are() -> None:
    """The short way of `store_wide` gives what the long one does."""
    values = torch.tensor([0.5, 1.5, -2.5, 2.0**31 - 128, -(2.0**31), 7.0])
    outside = torch.tensor([math.nan, math.inf, -math.inf, 2.0**31, -3e9, 1e30])
    alone, together = torch.empty(6, dtype=torch.int32), torch.empty(12, dtype=torch.int32)
    store_wide(values, alone, -(2**31), 2**31 - 1)
    store_wide(torch.cat((values, outside)), together, -(2**31), 2**31 - 1)
    assert alone.tolist() == together[:6].tolist() == [0, 2, -2, 2147483520, -(2**31), 7]
    assert together[6:].tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2**31 - 1]
