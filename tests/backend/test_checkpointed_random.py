"""Random operators in activation checkpoints: the backward pass draws what the forward pass drew,
and leaves the generator as eager does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

Function = Callable[[torch.Tensor], torch.Tensor]


def kept(function: Function, use_reentrant: bool = False) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(function, x, use_reentrant=use_reentrant)
        return result

    return run


def dropped(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.sin(x), 0.5)


def several(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(torch.sin(F.dropout(x * 2, 0.3)), 0.5) * torch.rand_like(x)


FUNCTIONS: dict[str, Function] = {
    "one": kept(dropped),
    "reentrant": kept(dropped, use_reentrant=True),
    "several": kept(several),
    "in turn with others": lambda x: (
        F.dropout(kept(dropped)(x) + torch.randn_like(x), 0.2) + kept(several)(x)
    ),
    "attention": kept(lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4)),
    "between products": kept(lambda x: F.dropout(x @ x.transpose(-1, -2)) @ x),
}


def results(function: Function, x: torch.Tensor) -> list[torch.Tensor]:
    """Of two steps: the result, the gradient, and what the generator gives after it."""
    torch.manual_seed(7)
    found = []
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        y.backward(torch.ones_like(y))
        assert leaf.grad is not None
        found += [y.detach(), leaf.grad, torch.rand(3)]
    return found


@pytest.mark.parametrize(
    "options", [{"select": "legal"}, {"fallback": "xla"}, {"select": "none", "fallback": "eager"}]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_gradients_and_the_generator(name: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 2, 5, 8, generator=torch.Generator().manual_seed(0))
    run = torch.compile(FUNCTIONS[name], backend="trnx", options=options)
    for got, wanted in zip(results(run, x), results(FUNCTIONS[name], x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_with_sizes_that_change() -> None:
    torch._dynamo.reset()
    run = torch.compile(FUNCTIONS["several"], backend="trnx", dynamic=True)
    for rows in (5, 7, 130):
        x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(rows))
        for got, wanted in zip(results(run, x), results(FUNCTIONS["several"], x), strict=True):
            torch.testing.assert_close(got, wanted)
