"""Sizes that depend on data run in eager, from the plan on: nothing is compiled for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import trnx
from trnx.errors import FallbackForbiddenError


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@pytest.fixture
def experts(monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """The benchmark's mixture of experts, 16 wide."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts" / "bench")
    torch.manual_seed(0)
    model: torch.nn.Module = importlib.import_module("changing").Experts(16)
    return model


@pytest.mark.parametrize("fallback", ["auto", "xla"])
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
def test_a_new_routing_compiles_nothing(
    train: bool, fallback: str, compilations: list[int], experts: torch.nn.Module
) -> None:
    model = experts
    compiled = torch.compile(model, backend="trnx", fullgraph=True, options={"fallback": fallback})
    made: list[tuple[int, ...]] = []
    with trnx.collect_reports() as reports:
        for tokens in (24, 24, 24, 24):
            x = torch.randn(tokens, 16)
            results = []
            for one in (compiled, model):
                model.zero_grad()
                with torch.set_grad_enabled(train):
                    y = one(x)
                if train:
                    y.square().mean().backward()
                results.append([y.detach(), *(p.grad for p in model.parameters() if train)])
            torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
            made.append((len(compilations), *(report.shapes for report in reports)))
    assert made[1:] == made[:1] * 3


def test_the_plan_says_that_data_decides() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        kept = x[x > 0]
        return (kept * 2).relu() + 1

    compiled = torch.compile(function, backend="trnx", options={"select": "legal"})
    with trnx.collect_reports() as reports:
        for values in ([1.0, -1.0, 2.0], [3.0, -1.0, -2.0], [-1.0, -2.0]):
            x = torch.tensor(values)
            assert torch.equal(compiled(x), function(x))
    found = {entry.op: entry for entry in reports[0].fallbacks}
    for op in ("aten.mul.Tensor", "aten.relu.default", "aten.add.Tensor"):
        assert found[op].engine == "eager"
        assert "sizes that depend on data" in found[op].reason
        assert "test_data_sizes.py" in found[op].source
    assert len(reports[0].fallbacks) == reports[0].compute_nodes - reports[0].nki_nodes


def test_forbidden_fallbacks_are_told_when_compiling() -> None:
    compiled = torch.compile(
        lambda x: torch.nonzero(x) * 2, backend="trnx", options={"fallback": "error"}
    )
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="depend on data") as caught:
        compiled(torch.ones(4, dtype=torch.int32))
    assert isinstance(caught.value.inner_exception, FallbackForbiddenError)


@pytest.mark.parametrize("fallback", ["auto", "xla"])
def test_strides_that_depend_on_data_are_told_when_the_kernel_is_bound(fallback: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        width = x.sum().int().item()
        torch._check(width >= 4)
        torch._check(width <= 100)
        return torch.ones(16, width)[:, :4] * 2 + 1

    options = {"select": "legal", "fallback": fallback}
    compiled = torch.compile(function, backend="trnx", fullgraph=True, options=options)
    with torch._dynamo.config.patch(capture_scalar_outputs=True), trnx.collect_reports() as reports:
        for size in (7, 4):
            x = torch.ones(size)
            torch.testing.assert_close(compiled(x), function(x), check_stride=True)
    reasons = [entry.reason for entry in reports[0].fallbacks]
    assert any("strides that depend on data" in reason for reason in reasons), reasons


def four_found(x: torch.Tensor) -> torch.Tensor:
    found = x.nonzero()
    torch._check(found.size(0) == 4)
    return found * 3


def a_value_of_four(x: torch.Tensor) -> torch.Tensor:
    count = x.sum().item()
    torch._check(count == 4)
    return torch.ones(4) * count


def a_value_of_an_input(x: torch.Tensor) -> torch.Tensor:
    count = x.max().item()
    torch._check(count == 1)
    return torch.arange(count + 2) + x.sum()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", [four_found, a_value_of_four, a_value_of_an_input])
def test_what_the_user_asserts_is_tested_at_each_call(
    function: Callable[[torch.Tensor], torch.Tensor], dynamic: bool
) -> None:
    right, wrong = torch.tensor([1, 1, 0, 1, 0, 1, 0]), torch.tensor([1, 1, 2, 1, 0, 1, 0])
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend="trnx", fullgraph=True, dynamic=dynamic)
        torch.testing.assert_close(compiled(right), function(right))
        for refused in (wrong, torch.zeros_like(right)):
            with pytest.raises(RuntimeError):
                compiled(refused)
        torch.testing.assert_close(compiled(right), function(right))
