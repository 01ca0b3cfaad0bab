"""Sizes that depend on data run in eager, from the plan on: nothing is compiled for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import trnx
from trnx.errors import FallbackForbiddenError


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


class Experts(torch.nn.Module):
    """A mixture of `count` experts: every token goes to the one that the gate likes best."""

    def __init__(self, width: int = 16, count: int = 4) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(width, count)
        self.experts = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(width, 32), torch.nn.GELU(), torch.nn.Linear(32, width)
            )
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = torch.softmax(self.gate(x), -1).max(-1)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == index).squeeze(1)
            result = result.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return result


@pytest.mark.parametrize("fallback", ["auto", "xla"])
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
def test_a_new_routing_compiles_nothing(
    train: bool, fallback: str, compilations: list[int]
) -> None:
    torch.manual_seed(0)
    model = Experts()
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
