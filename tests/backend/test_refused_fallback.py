"""A fallback region that XLA does not compile: it runs in eager, and the report says so."""

from __future__ import annotations

import pytest
import torch

import trnx
from trnx.fallback.xla import SETTLED_AFTER

pytest.importorskip("jax")

OPTIONS = {"select": "none", "fallback": "xla"}


@pytest.fixture(autouse=True)
def _xla_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr("trnx.fallback.program.jax_function", None)


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu() + 1


def test_the_report_says_eager(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 8)
    with trnx.collect_reports() as reports:
        out = torch.compile(function, backend="trnx", options=OPTIONS)(x)
    assert torch.equal(out, function(x))
    (region,) = reports[0].regions
    assert region.engine == "eager"
    entry = reports.fallbacks[-1]
    assert entry.engine == "eager"
    assert entry.reason.startswith("XLA does not compile the region: TypeError")
    assert __file__ in entry.source
    assert "runs eagerly" in caplog.text


def test_refused_sizes_have_one_entry() -> None:
    compiled = torch.compile(function, backend="trnx", dynamic=True, options=OPTIONS)
    with trnx.collect_reports() as reports:
        for size in (4, *[6] * (SETTLED_AFTER + 2)):
            x = torch.randn(size, 8)
            assert torch.equal(compiled(x), function(x))
    refusals = [e for e in reports.fallbacks if e.reason.startswith("XLA does not compile")]
    assert [entry.engine for entry in refusals] == ["eager"]
