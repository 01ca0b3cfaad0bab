"""Heads of keys and values that a model repeats for their query heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fx_passes.canonicalise import canonicalise
from trnx.fx_passes.match import call_arguments
from trnx.fx_passes.verify import verify_graph

sdpa = torch.ops.trnx.sdpa.default


def expanded(x: torch.Tensor, group: int) -> torch.Tensor:
    """As models of the Llama family write it."""
    batch, heads, length, width = x.shape
    return (
        x[:, :, None]
        .expand(batch, heads, group, length, width)
        .reshape(batch, heads * group, length, width)
    )


def interleaved(x: torch.Tensor, group: int) -> torch.Tensor:
    return x.repeat_interleave(group, 1)


def tiled(x: torch.Tensor, group: int) -> torch.Tensor:
    """Other heads than a group's."""
    return x.repeat(1, group, 1, 1)


def read_heads(repeat: Callable[[torch.Tensor, int], torch.Tensor], mode: str = "fake") -> Any:
    """The heads of k and v that the canonical sdpa reads; its results are eager's."""
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, heads, 5, 8, generator=generator) for heads in (6, 2, 2))

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return sdpa(q, repeat(k, 3), repeat(v, 3), None, None, 0.0, True, 0.3)

    gm = canonicalise(make_fx(function, tracing_mode=mode)(q, k, v))
    verify_graph(gm, "canonicalise")
    torch.testing.assert_close(gm(q, k, v), function(q, k, v), check_stride=True)
    (node,) = (n for n in gm.graph.nodes if n.target is sdpa)
    return [x.meta["val"].shape[1] for x in call_arguments(node)[1:3]]


@pytest.mark.parametrize("repeat", [expanded, interleaved])
def test_repeated_heads_are_read_once(repeat: Any) -> None:
    assert read_heads(repeat) == [2, 2]


def test_heads_in_another_order_are_not_those_of_a_group() -> None:
    assert read_heads(tiled) == [6, 6]


def test_the_results_of_grouped_training_are_eager_s() -> None:
    """The gradients of keys are summed over the heads of their group."""

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.scaled_dot_product_attention(
            q, expanded(k, 3), expanded(v, 3), is_causal=True
        )
        return out.square().sum()

    generator = torch.Generator().manual_seed(2)
    tensors = [torch.randn(2, h, 5, 8, generator=generator).requires_grad_() for h in (6, 2, 2)]
    wanted = torch.autograd.grad(loss(*tensors), tensors)
    compiled = torch.compile(loss, backend="trnx", options={"runner": "reference"})
    torch.testing.assert_close(torch.autograd.grad(compiled(*tensors), tensors), wanted)
