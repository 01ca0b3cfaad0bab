"""Where XLA is slower than eager on this CPU: the facts behind `trnx.fallback.host`.

One row an op: microseconds in eager and as a program of XLA, one thread, least of alternating
rounds. Bars: XLA is slower for every op of `LIBRARY_OPS` that is timed here, and for one pointwise
op; it is faster for a chain of 16. `--json` prints one object as the last line; exit status 0 means
that the bars hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from trnx.fallback.program import Program

ROUNDS = 15
Case = tuple[Callable[..., Any], Sequence[torch.Tensor]]
aten = torch.ops.aten


def _convolution(size: int, *, stride: int = 1, groups: int = 1, transposed: bool = False) -> Any:
    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        dims, padding = weight.ndim - 2, [size // 2] * (weight.ndim - 2)
        return aten.convolution.default(  # type: ignore[no-any-return]
            x, weight, None, [stride] * dims, padding, [1] * dims, transposed, [0] * dims, groups
        )

    return function


def _convolution_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
    two = [1, 1]
    return aten.convolution_backward.default(
        grad, x, weight, None, two, two, two, False, [0, 0], 1, [True, True, False]
    )[:2]


def _pool(x: torch.Tensor) -> Any:
    return aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [1, 1])


def _pool_backward(grad: torch.Tensor, x: torch.Tensor, indices: torch.Tensor) -> Any:
    return aten.max_pool2d_with_indices_backward.default(
        grad, x, [3, 3], [2, 2], [1, 1], [1, 1], False, indices
    )


def _chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = torch.maximum(x * y + y, y) - y
    return x


def cases() -> dict[str, Case]:
    """Name -> function and inputs; `library` ops first, then pointwise ones."""
    images, wide = torch.randn(2, 64, 28, 28), torch.randn(2, 64, 56, 56)
    pooled, indices = _pool(wide)
    matrix, batch = torch.randn(256, 512), torch.randn(16, 128, 64)
    return {
        "convolution 3x3": (_convolution(3), (images, torch.randn(64, 64, 3, 3))),
        "convolution 1x1": (_convolution(1), (images, torch.randn(64, 64, 1, 1))),
        "convolution 7x7": (
            _convolution(7, stride=2), (torch.randn(2, 3, 112, 112), torch.randn(64, 3, 7, 7))),
        "convolution depthwise": (
            _convolution(3, groups=64), (images, torch.randn(64, 1, 3, 3))),
        "convolution transposed": (
            _convolution(2, stride=2, transposed=True), (images, torch.randn(64, 32, 4, 4))),
        "convolution backward": (
            _convolution_backward, (images, images, torch.randn(64, 64, 3, 3))),
        "mm": (torch.mm, (matrix, torch.randn(512, 256))),
        "bmm": (torch.bmm, (batch, torch.randn(16, 64, 128))),
        "max_pool2d": (_pool, (wide,)),
        "max_pool2d backward": (_pool_backward, (torch.randn_like(pooled), wide, indices)),
        "avg_pool2d": (lambda x: aten.avg_pool2d.default(x, [3, 3], [2, 2], [1, 1]), (wide,)),
        "sort": (lambda x: torch.sort(x, dim=-1, stable=True), (matrix,)),
        "cumsum": (lambda x: torch.cumsum(x, -1), (matrix,)),
        "sin": (torch.sin, (matrix,)),
        "cos": (torch.cos, (matrix,)),
        "one pointwise op": (torch.mul, (matrix.double(), matrix.double())),
        "16 pointwise ops": (_chain, (matrix.double(), matrix.double())),
    }  # fmt: skip


def measure(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Least microseconds of a call in eager and in XLA."""

    def flat(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = function(*values)
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)

    program = Program(make_fx(flat, tracing_mode="fake")(*inputs), inputs)
    calls: tuple[Callable[[], Any], ...] = (lambda: flat(*inputs), lambda: program.run(inputs))
    best = [float("inf")] * 2
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], (time.perf_counter() - start) * 1e6)
    return best[0], best[1]


def main() -> int:
    """Print the table; 0 where all bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {name: measure(*case) for name, case in cases().items()}
    ratios = {name: xla / eager for name, (eager, xla) in rows.items()}
    for name, (eager, xla) in rows.items():
        print(f"{name:<24} eager {eager:9.0f} us  xla {xla:9.0f} us  {ratios[name]:6.2f}")
    passed = all((ratio < 1) == (name == "16 pointwise ops") for name, ratio in ratios.items())
    if arguments.json:
        print(json.dumps({"passed": passed, **ratios}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
