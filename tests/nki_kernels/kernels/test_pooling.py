"""What is special to `max_pool` and `avg_pool`: as modules, layouts, NaN, refusals, indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import trnx
from trnx.nki_kernels import registry
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.tensor_spec import TensorSpec

ALL_ON_NKI = {"fallback": "error", "select": "legal"}


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("pool", "shape"),
    [
        (nn.MaxPool1d(3, 2, 1), (2, 5, 30)),
        (nn.MaxPool2d(3, 2, 1), (2, 5, 20, 17)),
        (nn.MaxPool2d(2, ceil_mode=True), (5, 7, 9)),
        (nn.MaxPool3d(2, 2, 1), (2, 3, 5, 6, 7)),
        (nn.AvgPool1d(3, 1, 1), (2, 5, 30)),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 5, 20, 17)),
        (nn.AvgPool2d((2, 3), (1, 2), ceil_mode=True), (2, 5, 9, 8)),
        (nn.AvgPool3d(2), (2, 3, 4, 6, 7)),
        (nn.AdaptiveAvgPool2d((7, 1)), (2, 3, 14, 5)),
    ],
    ids=str,
)
def test_modules_run_on_nki(pool: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = draw(*shape).to(dtype)
    if isinstance(pool, nn.AvgPool3d) and dtype is torch.bfloat16:
        for function in (pool, torch.compile(pool, backend="trnx")):
            with pytest.raises(NotImplementedError, match="avg_pool3d"):
                function(x)
        return
    result = torch.compile(pool, backend="trnx", options=ALL_ON_NKI)(x)
    torch.testing.assert_close(result, pool(x))
    assert result.stride() == pool(x).stride()


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1)], ids=str)
@pytest.mark.parametrize("layout", ["channels_last", "sliced", "special"])
def test_layouts_and_special_values(pool: nn.Module, layout: str) -> None:
    x = draw(2, 5, 12, 14)
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "sliced":
        x = x[:, ::2, 1:, ::3]
    else:
        x[0, 0, 3, 3], x[0, 1, 3, 3], x[1] = float("nan"), float("inf"), float("-inf")
    result = torch.compile(pool, backend="trnx", options={"select": "legal"})(x)
    torch.testing.assert_close(result, pool(x), equal_nan=True)
    assert result.stride() == pool(x).stride()


@pytest.mark.parametrize("layout", ["ties", "special", "channels_last", "bfloat16"])
@pytest.mark.parametrize(
    "pool",
    [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 1, 1, 2), nn.MaxPool2d((2, 5), 3)],
    ids=str,
)
def test_indices_and_gradients_are_eagers(pool: nn.MaxPool2d, layout: str) -> None:
    pool.return_indices = True
    x = draw(2, 3, 11, 13).relu()  # ties at zero
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "special":
        nan, inf = float("nan"), float("inf")
        x[0, 0, 3, 3:6], x[0, 1, 3:5, 3], x[1, 0], x[1, 1, ::4, ::4] = nan, inf, -inf, nan
    elif layout == "bfloat16":
        x = x.bfloat16()
    torch._dynamo.reset()
    compiled = torch.compile(pool, backend="trnx", options={"select": "legal"})
    grad = draw(*pool(x)[0].shape).to(x.dtype)
    grad[0, 0, 0, 0], grad[0, 1, 1, 1] = float("inf"), float("nan")
    # The kernel rounds each sum of gradients once; eager's bfloat16 rounds every addition.
    with_sums_rounded_once = (_results(pool, x.float(), grad.float()), _results(compiled, x, grad))
    for theirs, ours in zip(*with_sums_rounded_once, strict=True):
        theirs = theirs.to(ours.dtype)
        torch.testing.assert_close(ours, theirs, equal_nan=True, check_stride=True)


def _results(pool: Callable[..., Any], x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    given = x.clone().requires_grad_()
    values, indices = pool(given)
    return [values.detach(), indices, *torch.autograd.grad(values, given, grad)]


def test_pooling_in_training_runs_on_nki() -> None:
    x = draw(2, 3, 6, 9, 8).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(nn.MaxPool3d(3, 2, 1), backend="trnx", options=ALL_ON_NKI)
    with trnx.collect_reports() as reports:
        compiled(x).sum().backward()
    kernels = [region.kernel for report in reports for region in report.regions]
    assert "max_pool_indices" in kernels
    assert "max_pool_backward" in kernels


@pytest.mark.parametrize("size", [(2, 2), (2, 5), (5, 2)])
def test_a_window_that_sees_padding_alone_is_eagers(size: tuple[int, int]) -> None:
    pool = nn.MaxPool2d(2, 1, 1, 3, return_indices=True)
    x = draw(1, 2, *size)
    compiled = torch.compile(pool, backend="trnx", options={"select": "legal"})
    for ours, theirs in zip(compiled(x), pool(x), strict=True):
        assert torch.equal(ours, theirs)


def test_a_window_whose_rows_do_not_fit_is_refused() -> None:
    numbers = {"kernel_size": [9, 9], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    x = TensorSpec.dense((1, 1, 9, 60_000), torch.float32)
    b = Bindings({"x": x, **numbers, "ceil_mode": False, "spatial": 2})
    refusal = registry.kernels()["max_pool"].supports(b, hardware("trn2"))
    assert isinstance(refusal, Reject)
    assert "do not fit" in refusal.reason
