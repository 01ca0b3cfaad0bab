"""What XLA takes is decided by traces that JAX does not keep."""

from __future__ import annotations

from typing import Any

import jax
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fallback import legality


def _refusals(function: Any, *args: torch.Tensor) -> list[Any]:
    nodes = make_fx(function, tracing_mode="fake")(*args).graph.nodes
    return [legality.refusal(node) for node in nodes if node.op == "call_function"]


def test_a_trace_leaves_nothing_in_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    original = legality.call_entry

    def spy(*args: Any) -> Any:
        found.append(jax.config.jax_disable_jit)
        return original(*args)

    monkeypatch.setattr(legality, "call_entry", spy)
    assert _refusals(torch.sinc, torch.randn(3, 61)) == [None]
    assert found == [True]


@pytest.mark.parametrize("batch", [0, 1, 5])
def test_a_loop_over_a_batch_is_taken(batch: int) -> None:
    x = torch.randn(3, 4)
    a, b = torch.randn(batch, 3, 2), torch.randn(batch, 2, 4)
    assert _refusals(torch.addbmm, x, a, b) == [None]
