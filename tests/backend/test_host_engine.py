"""What the target gives to XLA may be faster in eager on this machine: the report tells both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trnx
from trnx.fallback.program import Program


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()


def xla_regions(
    function: Callable[..., Any], *inputs: torch.Tensor, **options: Any
) -> list[tuple[str, str]]:
    """`host_engine` and `host_reason` of the regions that the plan gives to XLA."""
    compiled = torch.compile(function, backend="trnx", options=options)
    with trnx.collect_reports() as reports:
        torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-4, atol=1e-4)
    regions = [region for report in reports for region in report.regions if region.engine == "xla"]
    assert regions
    assert all(region.to_dict()["host_engine"] == region.host_engine for region in regions)
    return [(region.host_engine, region.host_reason) for region in regions]


LIBRARY: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "convolution": (F.conv2d, (torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3))),
    "transposed": (F.conv_transpose2d, (torch.randn(2, 8, 9, 9), torch.randn(8, 4, 4, 4))),
    "pooling": (lambda x: F.max_pool2d(x, 2), (torch.randn(2, 8, 8, 8),)),
    "product": (torch.mm, (torch.randn(9, 8).double(), torch.randn(8, 9).double())),
    "sine": (torch.sin, (torch.randn(40, 50),)),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_eager_runs_what_its_libraries_do_faster(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, inputs = LIBRARY[name]
    monkeypatch.setattr(Program, "__init__", None)  # XLA compiles nothing
    for engine, reason in xla_regions(function, *inputs, select="none"):
        assert engine == "eager"
        assert "faster" in reason


def test_the_text_of_the_report_tells_both_engines() -> None:
    with trnx.collect_reports() as reports:
        compiled = torch.compile(F.conv2d, backend="trnx", options={"select": "none"})
        compiled(torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3))
    assert "xla (eager here)" in str(reports[0])


def long_chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = (x * 3 + 1) ^ (x - 2)
    return x


def test_xla_runs_what_it_fuses() -> None:
    assert xla_regions(long_chain, torch.arange(64), select="none") == [("", "")]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_denormal_numbers_are_kept(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for _ in range(9):
            x = x * 0.5 + x * 0.25
        return x, x == 0, (x > 0).sum()

    tiny = torch.finfo(dtype).tiny
    x = torch.linspace(0.1, 4.0, 300, dtype=torch.float64).mul(tiny).to(dtype).reshape(3, 100)
    compiled = torch.compile(function, backend="trnx", options={"select": "none"})
    with trnx.collect_reports() as reports:
        results = compiled(x)
    assert [(r.engine, r.host_engine) for r in reports[0].regions] == [("xla", "eager")]
    assert "denormal" in reports[0].regions[0].host_reason
    for result, expected in zip(results, function(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_a_few_small_ops_run_in_eager() -> None:
    ((engine, reason),) = xla_regions(lambda x: x * 3 + 1, torch.arange(64), select="none")
    assert engine == "eager"
    assert "2 ops" in reason


def test_a_wish_for_xla_is_kept() -> None:
    function, inputs = LIBRARY["convolution"]
    assert xla_regions(function, *inputs, fallback="xla", select="none") == [("", "")]
