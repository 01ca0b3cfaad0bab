"""How exact both sides of a problem of `versus_aws.py` are, where one of them does less for it.

The error of a row is the largest difference from float64, divided by eager's own on the CPU for
that row; of a side, that of its worst row. Rows are random, or cancel: the second half takes away
again what the first one adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trnx.simulator import simulate

ROWS = 32


def rows_of(columns: int) -> Mapping[str, torch.Tensor]:
    """`[ROWS, columns]` of float32, by kind."""
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(ROWS, columns, generator=generator)
    cancelling = random.clone()
    half = columns // 2
    cancelling[:, half : 2 * half] = -random[:, :half]
    return {"random": random, "cancelling": cancelling}


def errors(
    function: Callable[..., Any], kernel: Callable[..., Any], name: str, columns: int, target: str
) -> dict[str, dict[str, float]]:
    """By kind of rows: `ours` for `function` under `torch.compile`, and `theirs` for `kernel`,
    whose argument is called `name`, in times eager's error."""
    found = {}
    for kind, x in rows_of(columns).items():
        exact, eager = function(x.double()).double(), function(x)
        torch._dynamo.reset()
        options = {"target": target, "fallback": "error", "select": "legal"}
        sides = {
            "ours": torch.compile(function, backend="trnx", options=options)(x),
            "theirs": simulate(kernel)(**{name: x}),
        }
        own = (eager - exact).abs().amax(1)
        found[kind] = {
            side: ((sums - exact).abs().amax(1) / own).max().item() for side, sums in sides.items()
        }
    return found


def text(found: Mapping[str, Mapping[str, float]]) -> str:
    """One line."""
    parts = [
        f"{kind} rows: ours {of['ours']:.1f}, theirs {of['theirs']:.1f}"
        for kind, of in found.items()
    ]
    return f"      error against float64, in times eager's: {'; '.join(parts)}"
