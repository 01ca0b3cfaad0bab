"""Measures of `models.py` of what a call costs besides its work, beside the backend `aot_eager`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

CALLS = 300
ROUNDS = 15
POINTWISE = 300

Function = Callable[[torch.Tensor], torch.Tensor]


def _thread_seconds(compiled: Function, x: torch.Tensor, calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        compiled(x)
    return (time.thread_time() - start) / calls


def _both(function: Function, x: torch.Tensor, calls: int) -> tuple[float, float]:
    """Seconds of a call by `aot_eager` and by trnx: medians of rounds that alternate, in time of
    this thread."""
    torch._dynamo.reset()
    compiled = [torch.compile(function, backend=backend) for backend in ("aot_eager", "trnx")]
    with torch.no_grad():
        for one in compiled:
            torch.testing.assert_close(one(x), function(x), rtol=1e-4, atol=1e-5)
        rounds = [[_thread_seconds(one, x, calls) for one in compiled] for _ in range(ROUNDS)]
    theirs, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    return theirs, ours


def tiny_regions() -> dict[str, float]:
    """Microseconds that a call of one kernel on 8x32 elements takes more than by aot_eager."""
    weight = torch.randn(32, 32)
    functions: dict[str, Function] = {
        "pointwise": lambda x: torch.tanh(x) + 1,
        "softmax": lambda x: torch.softmax(x, -1),
        "product": lambda x: x @ weight,
    }
    found = {}
    for name, function in functions.items():
        theirs, ours = _both(function, torch.randn(8, 32), CALLS)
        found[name] = (ours - theirs) * 1e6
    return found


def many_pointwise() -> dict[str, float]:
    """Seconds of a graph of 300 pointwise ops on 64x64 elements; `ratio` is trnx / aot_eager."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(POINTWISE // 3):
            x = torch.tanh(x * 1.01 + 0.1)
        return x

    theirs, ours = _both(function, torch.randn(64, 64), 3)
    return {"aot_eager": theirs, "trnx": ours, "ratio": ours / theirs}
