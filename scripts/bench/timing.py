"""Speed of the timing model on one core: `timing.py [--json]`.

Bars: a million instructions scheduled in 20 s, with memory that grows as the instructions do; a
4096 x 8192 x 8192 product predicted from shapes alone, trace included, in 10 s. Times are those of
this process on its core. For information: the same schedule with repetitions simulated one by one,
which must give the same total to 0.1 % (it does to the picosecond). `--json` prints one object as
the last line; exit status 0 means that the bars hold.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from trnx.nki_kernels.registry import kernels
from trnx.nki_kernels.spec import Bindings
from trnx.simulator import Program, TensorSpec, trace
from trnx.simulator.hardware import hardware
from trnx.simulator.timing.scheduler import schedule

MILLION_SECONDS = 20.0
PRODUCT_SECONDS = 10.0
EXACT = 1e-3
# Memory of the schedule: twice the instructions may take at most this much more than twice.
GROWTH = 1.25
SHAPE = (4096, 8192, 8192)
MILLION_ROWS = 4096 * 29


def _seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def linear_program(rows: int, depth: int, columns: int, dtype: torch.dtype) -> Program:
    """The registry's product, traced from shapes."""
    bindings = Bindings(
        {
            "x": TensorSpec.dense((rows, depth), dtype),
            "weight": TensorSpec.dense((columns, depth), dtype),
            "bias": None,
            "residual": None,
            "activation": "none",
        }
    )
    launch = kernels()["linear"].launch(bindings, hardware("trn2"))
    return trace(launch.kernel, launch.arguments, target="trn2")


def product() -> dict[str, float]:
    """Trace and schedule of one large product."""
    chip = hardware("trn2")
    tracing, program = _seconds(lambda: linear_program(*SHAPE, torch.bfloat16))
    scheduling, result = _seconds(lambda: schedule(program.rows, chip))
    return {
        "trace_seconds": tracing,
        "schedule_seconds": scheduling,
        "seconds": tracing + scheduling,
        "instructions": len(result.order),
        "predicted_ms": result.total_ps / 1e9,
    }


def million() -> dict[str, float]:
    """A product of a million instructions."""
    chip = hardware("trn2")
    tracing, program = _seconds(lambda: linear_program(MILLION_ROWS, 8192, 8192, torch.bfloat16))
    with_skipping, result = _seconds(lambda: schedule(program.rows, chip))
    one_by_one, full = _seconds(lambda: schedule(program.rows, chip, skips=False))
    count = len(result.order)
    return {
        "instructions": count,
        "trace_seconds": tracing,
        "seconds": with_skipping,
        "one_by_one_seconds": one_by_one,
        "skipped_share": result.skipped / count,
        "difference": abs(result.total_ps / full.total_ps - 1),
    }


def memory() -> dict[str, float]:
    """Memory of the schedule, for twice as many instructions."""
    chip = hardware("trn2")
    programs = [linear_program(rows, 8192, 8192, torch.bfloat16) for rows in (4096, 8192)]
    peaks = [_peak(functools.partial(schedule, program.rows, chip)) for program in programs]
    few, many = (program.instruction_count for program in programs)
    return {
        "instructions": many,
        "bytes_per_instruction": peaks[1] / many,
        "growth": peaks[1] / peaks[0] / (many / few),
    }


def _peak(call: Callable[[], Any]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    as_json = parser.parse_args().json
    torch.set_num_threads(1)
    results = {"product_4096x8192x8192": product(), "million": million(), "memory": memory()}
    for name, row in results.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    holds = {
        "a million instructions": results["million"]["seconds"] <= MILLION_SECONDS,
        "memory is linear": results["memory"]["growth"] <= GROWTH,
        "skipping is exact": results["million"]["difference"] <= EXACT,
        "a product from shapes": results["product_4096x8192x8192"]["seconds"] <= PRODUCT_SECONDS,
    }
    print(f"bars that fail: {', '.join(name for name, ok in holds.items() if not ok) or 'none'}")
    if as_json:
        print(json.dumps(results | {"bars": holds}))
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
