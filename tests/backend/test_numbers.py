"""Python numbers that change from call to call are arguments: no program is made for their values.

Every function is compared with eager on values, dtype and strides, over numbers that neither
float32, nor half precision, nor int32 hold exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx

NUMBERS = (3, 5, 257, -7, 2**24 + 1, 300, 2**31 + 3, -(2**33) - 1)
SMALL = (3, 5, 7, 2, 11)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def specialisations(
    function: Callable[..., Any], x: torch.Tensor, numbers: tuple[Any, ...], **options: Any
) -> int:
    """How many specialisations serve `numbers`, every result being eager's."""
    compiled = torch.compile(function, backend="trnx", dynamic=True, options=options)
    narrow = x.dtype in (torch.bfloat16, torch.float16)
    with trnx.collect_reports() as reports:
        for number in numbers:
            got, want = compiled(x, number), function(x, number)
            torch.testing.assert_close(
                got, want, rtol=2**-7 if narrow else 2e-5, atol=1e-5, equal_nan=True
            )
            assert got.stride() == want.stride()
    return sum(report.shapes for report in reports)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda x, i: x + i,
    "difference": lambda x, i: i - x,
    "product": lambda x, i: x * i,
    "quotient": lambda x, i: x / i,
    "inverse": lambda x, i: i / x,
    "floor": lambda x, i: x // i,
    "derived": lambda x, i: x * (i * 2 + 1) - i // 3,
    "half": lambda x, i: x * (i / 2),
    "compared": lambda x, i: x > i,
    "bounded": lambda x, i: x >= i - 2,
    "equal": lambda x, i: x == i,
}
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_one_specialisation_serves_all_numbers(name: str, dtype: torch.dtype) -> None:
    x = (torch.randn(9, 7, generator=torch.Generator().manual_seed(0)) * 90).abs().to(dtype) + 1
    assert specialisations(ARITHMETIC[name], x, NUMBERS, select="legal") == 1


COMPOSED: dict[str, Callable[..., Any]] = {
    "power": lambda x, i: (x.abs() + 0.5) ** i,
    "power_of": lambda x, i: i ** x.sigmoid(),
    "root": lambda x, i: x * (i**0.5),
    "chosen": lambda x, i: torch.where(x > 0, x, i),
    "clamped": lambda x, i: x.clamp(-i, i),
    "clamped_below": lambda x, i: x.clamp(min=i),
    "filled": lambda x, i: torch.full_like(x, i) + x,
    "scaled_sum": lambda x, i: torch.add(x, x.sin(), alpha=i),
    "softmax": lambda x, i: torch.softmax(x / i, -1),
    "product_of_matrices": lambda x, i: (x @ x.t()) * i,
    "returned": lambda x, i: torch.full((x.dim(),), i) + i,
    "chain": lambda x, i: torch.relu(x * i + x.exp()) - i,
    "counted": lambda x, i: torch.arange(7) + i + x,
    "transposed": lambda x, i: (x.t() * i).t(),
    "reduced": lambda x, i: (x * i).sum(-1) / i,
}


@pytest.mark.parametrize(
    "options", [{}, {"fallback": "xla", "select": "none"}], ids=["auto", "xla"]
)
@pytest.mark.parametrize("name", COMPOSED)
def test_kernels_and_xla_take_numbers_as_arguments(name: str, options: dict[str, str]) -> None:
    x = torch.randn(9, 7, generator=torch.Generator().manual_seed(0))
    assert specialisations(COMPOSED[name], x, SMALL, **options) == 1


def test_floats_too() -> None:
    def function(x: torch.Tensor, rate: float) -> torch.Tensor:
        return x - rate * x.sign() * x.abs().sqrt() / (1 - rate)

    assert specialisations(function, torch.randn(9, 7), (0.5, 0.25, 1e-3, 3.5, -2.75)) == 1


def test_gradients_by_a_number_that_changes() -> None:
    def function(x: torch.Tensor, i: int) -> torch.Tensor:
        return (x / i).sigmoid() * i + x * i

    compiled = torch.compile(function, backend="trnx", dynamic=True)
    with trnx.collect_reports() as reports:
        for number in SMALL:
            x = torch.rand(5, 6) + 0.5
            grads = []
            for one in (compiled, function):
                leaf = x.clone().requires_grad_()
                one(leaf, number).square().sum().backward()
                grads.append(leaf.grad)
            torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)
    assert [report.shapes for report in reports] == [1, 1]


def test_a_number_that_eager_refuses_is_refused() -> None:
    def function(x: torch.Tensor, i: int) -> torch.Tensor:
        return torch.where(x > 0, x, i)

    x = torch.ones(3, dtype=torch.int32)
    compiled = torch.compile(function, backend="trnx", dynamic=True)
    assert torch.equal(compiled(x, 7), x)
    for one in (function, compiled):
        with pytest.raises(RuntimeError, match="without overflow"):
            one(x, 2**40)


def test_a_number_that_is_a_size_too_makes_a_specialisation() -> None:
    def function(x: torch.Tensor, i: int) -> torch.Tensor:
        return x[:, :i] * i

    assert specialisations(function, torch.randn(4, 12), SMALL) == len(SMALL)


def test_a_number_that_a_kernel_is_made_for_is_in_the_ledger() -> None:
    def function(x: torch.Tensor, slope: int) -> torch.Tensor:
        return F.leaky_relu(x, slope)

    options = {"select": "legal"}
    with trnx.collect_reports() as reports:
        assert specialisations(function, torch.randn(4, 12), SMALL, **options) == len(SMALL)
    (entry,) = reports[0].near_misses
    assert "kernel fused_leaky_relu is made for each value of the number" in entry.reason
    assert "test_numbers.py" in entry.source


def test_a_number_read_from_a_tensor_reaches_kernels() -> None:
    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (x * n.item()).relu() + n.item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True), trnx.collect_reports() as reports:
        compiled = torch.compile(
            function, backend="trnx", fullgraph=True, options={"select": "legal"}
        )
        x = torch.randn(4, 12)
        for number in (3, -4, 2**24 + 1):
            n = torch.tensor(number)
            torch.testing.assert_close(compiled(x, n), function(x, n))
    assert [region.engine for region in reports[0].regions if "relu" in region.name] == ["nki"]
    assert not [entry for entry in reports.fallbacks if "relu" in entry.op]
