"""What is special to `extremum`: NaN, ties, scalars, strides, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

ALL_ON_NKI = {"fallback": "error", "select": "legal"}
INF, NAN = float("inf"), float("nan")


def check(function: Any, x: torch.Tensor) -> None:
    results = torch.compile(function, backend="trnx", options=ALL_ON_NKI)(x)
    expected = function(x)
    if isinstance(expected, torch.Tensor):
        results, expected = (results,), (expected,)
    for result, wanted in zip(results, expected, strict=True):
        assert (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())
        torch.testing.assert_close(result, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_and_special_values(name: str, dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-2, 3, (9, 11, 10), generator=generator).to(dtype)
    chosen = torch.randint(0, 12, x.shape, generator=generator)
    x[chosen == 0], x[chosen == 1], x[chosen == 2] = NAN, INF, -INF
    x[0], x[1], x[:, 0], x[..., 1], x[2, 3] = 0.0, -INF, 1.0, INF, NAN
    check(lambda x: getattr(torch, name)(x, dim), x)
    check(lambda x: getattr(torch, name)(x.transpose(0, 2), dim, True), x)


@pytest.mark.parametrize("name", ["max", "argmin"])
def test_scalars(name: str) -> None:
    check(lambda x: getattr(torch, name)(x, 0), torch.tensor([2.0, NAN, -1.0]))
    check(lambda x: getattr(torch, name)(x, 0), torch.randn(300))


def test_everything() -> None:
    check(lambda x: x.argmax(), torch.randn(7, 30).t())
    check(lambda x: x.argmin(keepdim=True), torch.randn(7, 30))


def test_one_result_of_two() -> None:
    check(lambda x: x.max(1).indices, torch.randn(7, 30))
    check(lambda x: x.min(1).values * 2, torch.randn(7, 30))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    ("rows", "size", "dtype"),
    [
        (1, 50257, torch.float32),  # segments that overlap
        (3, 20001, torch.bfloat16),
        (7, 5000, torch.float32),
        (70, 3001, torch.float32),  # several parts in one segment
        (130, 700, torch.float16),
        (520, 100, torch.float32),  # several rows in a partition
    ],
)
def test_long_rows(rows: int, size: int, dtype: torch.dtype, lnc: int) -> None:
    """Ties and NaN within, across and between parts and segments; rows of one value."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, size, generator=generator).to(dtype)
    x[:, -1] = x[:, size // 2] = x[:, size // 3] = 9.0
    options = {**ALL_ON_NKI, "lnc": lnc}
    compiled = torch.compile(lambda x: (x.max(1), x.argmin(1)), backend="trnx", options=options)
    for special in (None, -INF, INF, NAN):
        if special is not None:
            x[0], x[-1, size // 2 :: 3] = special, special
            x[rows // 2, -2:] = special
        (values, indices), least = compiled(x)
        expected = x.max(1)
        assert torch.equal(values.nan_to_num(77.0), expected.values.nan_to_num(77.0))
        assert torch.equal(indices, expected.indices)
        assert torch.equal(least, x.argmin(1))


@pytest.mark.parametrize(
    ("x", "dim", "reason"),
    [
        (torch.zeros(3, 4, dtype=torch.float64), 1, "float64"),
        (torch.zeros(3, 4, dtype=torch.int32), 1, "int32"),
        (torch.zeros(20000, 3), 0, "20000"),
        (torch.zeros(300, 4, 2), 1, "300 groups"),
        (torch.zeros(0, 4), 1, "no elements"),
    ],
)
def test_refusals(x: torch.Tensor, dim: int, reason: str) -> None:
    given = {"x": TensorSpec.of(x), "dim": dim, "keepdim": False}
    bindings = Bindings({**given, "largest": True, "gives_values": False})
    refusal = registry.kernels()["extremum"].supports(bindings, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert reason in refusal.reason
