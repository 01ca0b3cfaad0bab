"""A compiled optimizer's step over 300 parameters: time to compile, kernels, and the same as eager.

AdamW and SGD with momentum over lists of tensors (`foreach=True`), and AdamW with gradient
clipping. Bars: the first compiled step of AdamW <= 20 s of processor time on one core, of which
importing is no part; <= 12 kernels, and nothing off NKI; parameters equal to eager's after 5 steps
(rtol 1e-5, atol 1e-6). `--json` prints one object as the last line; exit status 0 means that the
bars hold. `--calls` also counts the Python and C functions that the first step calls, which is the
same on a loaded machine; its seconds are those under a profiler then, and no bar.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["TRNX_CACHE_DIR"] = "off"

import torch

import trnx

COUNT, STEPS = 300, 5
SECONDS, KERNELS = 20.0, 12
_NO_TIME = {"compile_seconds": 0.0}
SHAPES = [(64, 64), (64,), (128, 64), (128,), (64, 128), (32, 64), (256, 64), (256,), (10, 64),
          (10,)]  # fmt: skip

Parameters = list[torch.nn.Parameter]
Optimizer = torch.optim.Optimizer


def _adamw(parameters: Parameters) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, foreach=True)


def _sgd(parameters: Parameters) -> Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True)


def _step(optimizer: Optimizer) -> None:
    optimizer.step()


def _clip_and_step(optimizer: Optimizer) -> None:
    parameters = optimizer.param_groups[0]["params"]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
    optimizer.step()


MEASURES: dict[str, tuple[Callable[[Parameters], Optimizer], Callable[[Optimizer], None]]] = {
    "adamw": (_adamw, _step),
    "sgd": (_sgd, _step),
    "adamw_clipped": (_adamw, _clip_and_step),
}


def steps(
    make: Callable[[Parameters], Optimizer],
    step: Callable[[Optimizer], Any],
    count: int,
    profile: cProfile.Profile | None = None,
) -> tuple[Parameters, float]:
    """The parameters after all steps, and the seconds of processor time of the first one, which
    `profile` watches."""
    torch.manual_seed(0)
    shapes = [SHAPES[i % len(SHAPES)] for i in range(count)]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = make(parameters)
    first = 0.0
    for index in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        start = time.process_time()
        if profile is None or index:
            step(optimizer)
        else:
            profile.runcall(step, optimizer)
        first = first if index else time.process_time() - start
    return parameters, first


def measure(name: str, count: int, calls: bool = False) -> dict[str, Any]:
    """One optimizer, compiled and in eager."""
    make, step = MEASURES[name]
    torch._dynamo.reset()
    profile = cProfile.Profile() if calls else None
    with trnx.collect_reports() as reports:
        ours, seconds = steps(make, torch.compile(step, backend="trnx"), count, profile)
    eager, _ = steps(make, step, count)
    differences = [
        float(((a - b).abs() / (1e-6 + 1e-5 * b.abs())).max())
        for a, b in zip(ours, eager, strict=True)
    ]
    return {
        "compile_seconds": seconds,
        "kernels": max(sum(r.engine == "nki" for r in report.regions) for report in reports),
        "off_nki": len(reports.fallbacks),
        "difference": max(differences),  # 1 is what the tolerances allow
        **({} if profile is None else {"calls": pstats.Stats(profile).total_calls}),  # type: ignore[attr-defined]
    }


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=COUNT, help="parameters")
    parser.add_argument("--only", choices=sorted(MEASURES), help="one optimizer")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--calls", action="store_true", help="count the first step's calls")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for name in [arguments.only] if arguments.only else MEASURES:
        results[name] = row = measure(name, arguments.count, arguments.calls)
        print(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    holds = all(
        row["kernels"] <= KERNELS and not row["off_nki"] and row["difference"] <= 1
        for name, row in results.items()
        if name != "adamw_clipped"
    ) and (arguments.calls or results.get("adamw", _NO_TIME)["compile_seconds"] <= SECONDS)
    if arguments.json:
        print(json.dumps({**results, "bars_hold": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
