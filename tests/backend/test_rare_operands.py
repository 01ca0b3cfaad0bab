"""Operands at the end of their ranges and a whole training step, compared with eager."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

# Dynamo imports Inductor where it meets an optimizer, which uses what torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

XLA = {"select": "none", "fallback": "xla"}
LEGAL = {"select": "legal"}
LARGE = torch.finfo(torch.float32).max


def near_the_limit() -> torch.Tensor:
    """Squares of what is left of the mean fit, sums of the values do not."""
    values = torch.linspace(0.97, 0.99, 3 * 129).reshape(3, 129) * LARGE
    values[1] = LARGE
    values[2] = torch.linspace(1e18, 1.5e18, 129)
    return values


DENORMALS = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-40, 1.2e-38, 1e-30, 0.5, 1.0, 2.0])
CASES: dict[str, tuple[Callable[..., Any], Sequence[torch.Tensor]]] = {
    "powers beyond 64 bits": (
        lambda x, n: (x**n, x**64, x**65, 3**n, (-2) ** n, x.pow(n.to(torch.int8))),
        (torch.tensor([-3, -2, -1, 0, 1, 2, 3, 7]), torch.tensor([63, 64, 65, 66, 70, 99, 100, 0])),
    ),
    "sinc of denormals": (lambda x: (torch.sinc(x), torch.special.sinc(x) * 2), (DENORMALS,)),
    "std_mean near the limit": (
        lambda x: (*torch.std_mean(x, 1), *torch.var_mean(x, 1), x.std(1), x.mean(1)),
        (near_the_limit(),),
    ),
    "cat with a legacy empty tensor": (
        lambda x, e: (torch.cat([x, e], -2), torch.cat([e, x, e, x], -1), torch.cat([e, e], 0)),
        (torch.randn(3, 129), torch.empty(0)),
    ),
    "complex constants that are not finite": (
        torch.logaddexp,
        (torch.randn(3, 5, dtype=torch.complex64), torch.randn(3, 5, dtype=torch.complex64)),
    ),
    "distances of NaN and infinity": (
        lambda x, y: [torch.cdist(x, y, p=p) for p in (0.0, 1.0, 2.0, 3.0)],
        (
            torch.tensor([[math.nan, 1.0], [math.inf, 2.0], [math.inf, 0.0], [1.0, 1.0]]),
            torch.tensor([[1.0, 1.0], [math.inf, 2.0], [-math.inf, 2.0], [math.nan, math.nan]]),
        ),
    ),
    "adaptive pooling to no windows": (
        lambda x: [nn.functional.adaptive_avg_pool2d(x, size) for size in (0, (0, 3), (3, 0))],
        (torch.randn(2, 3, 7, 8),),
    ),
}


def compared(function: Callable[..., Any], inputs: Sequence[torch.Tensor], **settings: Any) -> None:
    """Values, dtypes, shapes and strides are those of eager."""
    torch.compiler.reset()
    compiled = torch.compile(function, backend="trnx", **settings)
    actual, expected = compiled(*inputs), function(*inputs)
    torch.testing.assert_close(actual, expected, equal_nan=True, check_stride=True)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_rare_operands(name: str, dynamic: bool) -> None:
    function, inputs = CASES[name]
    # A kernel squares in float32.
    for options in (XLA,) if "limit" in name else (XLA, LEGAL):
        compared(function, inputs, options=options, dynamic=dynamic)


def trained(steps: int, wrapped: Callable[..., Any]) -> list[torch.Tensor]:
    """Parameters after some steps, each of them forward, backward and Adam in one function."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(17, 33), nn.Tanh(), nn.LayerNorm(33), nn.Linear(33, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor, target: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()

    run = wrapped(step)
    for _ in range(steps):
        run(torch.randn(16, 17), torch.randn(16, 5))
    return [p.detach() for p in model.parameters()]


def test_training_with_adam_in_one_function_is_that_of_eager() -> None:
    torch.compiler.reset()
    expected = trained(4, lambda step: step)
    actual = trained(4, lambda step: torch.compile(step, backend="trnx"))
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)
