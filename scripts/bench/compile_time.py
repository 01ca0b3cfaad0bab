"""How long compiling takes, on one thread: `compile_time.py [--json]`.

Graphs of 250, 500, 1000 and 2000 nodes (blocks of a product, norm and activation, whose kernels are
known already) are compiled in this process; the demo's model, BERT-base and ResNet-18 in processes
of their own, with an empty compile cache, with what that left in it (the median of three
processes), and by Inductor with empty caches.

Bars: trnx's own time grows with an exponent <= 1.1 in the number of nodes; import, compilation and
first call of the demo <= 4 s; those of BERT-base <= 0.35x of Inductor's, of ResNet-18 <= 0.3x; with
the cache, the time inside trnx <= 0.2x of that without. `--json` prints one object as the last
line; exit status 0 means that the bars hold.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

EXPONENT = 1.1
DEMO_SECONDS = 4.0
RATIOS = {"bert_base": 0.35, "resnet18": 0.3}
WARM_RATIO = 0.2
WARM_PROCESSES = 3
NODES = (250, 500, 1000, 2000)
# Nodes of one block: product, norm (with its result taken), activation, sum.
BLOCK = 5


class Blocks(nn.Module):
    """A graph of about so many nodes."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.Softsign()
            )
            for _ in range(nodes // BLOCK)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def growth(repeats: int = 2) -> dict[str, float]:
    """Seconds inside trnx for each number of nodes (the least of some runs), and the exponent: the
    slope of the line of least squares through their logarithms."""
    import trnx

    found = {}
    with torch.no_grad():
        torch.compile(Blocks(BLOCK).eval(), backend="trnx")(torch.randn(8, 32))
        for nodes in NODES:
            seconds = []
            for _ in range(repeats):
                torch._dynamo.reset()
                with trnx.collect_reports() as reports:
                    torch.compile(Blocks(nodes).eval(), backend="trnx")(torch.randn(8, 32))
                seconds.append(reports.compile_seconds)
            found[nodes] = min(seconds)
    return {**{f"seconds_{n}": s for n, s in found.items()}, "exponent": slope(found)}


def slope(points: dict[int, float]) -> float:
    """Of the line of least squares through the logarithms."""
    xs, ys = [math.log(x) for x in points], [math.log(y) for y in points.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )


def model_of(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """One of the models, and its inputs."""
    torch.manual_seed(0)
    if name == "demo":
        from trnx.backend import demo

        return demo.load(torch.float32)
    if name == "resnet18":
        from convolutional import resnet18

        return resnet18().eval(), {"input": torch.randn(1, 3, 224, 224)}
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()).eval(), {"input_ids": torch.randint(0, 30000, (1, 128))}


def first_call(name: str, backend: str) -> dict[str, float]:
    """In this process, which has done nothing before: seconds of import, compilation and first
    call, and those inside trnx."""
    model, inputs = model_of(name)
    start = time.perf_counter()
    with torch.no_grad():
        if backend == "trnx":
            import trnx

            with trnx.collect_reports() as reports:
                torch.compile(model, backend="trnx")(**inputs)
            inside = reports.compile_seconds
        else:
            torch.compile(model, backend=backend)(**inputs)
            inside = 0.0
    return {"seconds": time.perf_counter() - start, "inside": inside}


def in_process(name: str, backend: str, cache: str) -> dict[str, float]:
    """`first_call` in a process of its own with the caches in a folder."""
    folders = {"TRNX_CACHE_DIR": f"{cache}/trnx", "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
    command = [sys.executable, str(Path(__file__).resolve()), "--first-call", name, backend]
    run = subprocess.run(
        command, env={**os.environ, **folders}, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{run.stderr}")
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def processes(name: str) -> dict[str, float]:
    """Cold and warm by trnx, and cold by Inductor where the bar needs it."""
    with tempfile.TemporaryDirectory() as cache:
        cold = in_process(name, "trnx", cache)
        warm = [in_process(name, "trnx", cache) for _ in range(WARM_PROCESSES)]
    inside = median(run["inside"] for run in warm)
    found = {
        "cold": cold["seconds"],
        "warm": median(run["seconds"] for run in warm),
        "inside_cold": cold["inside"],
        "inside_warm": inside,
        "warm_ratio": inside / cold["inside"],
    }
    if name in RATIOS:
        with tempfile.TemporaryDirectory() as cache:
            found["inductor"] = in_process(name, "inductor", cache)["seconds"]
        found["ratio"] = found["cold"] / found["inductor"]
    return found


def holds(results: dict[str, dict[str, float]]) -> bool:
    """Whether the bars do, of what was measured."""
    bars = [row["warm_ratio"] <= WARM_RATIO for row in results.values() if "warm_ratio" in row]
    if "growth" in results:
        bars.append(results["growth"]["exponent"] <= EXPONENT)
    if "demo" in results:
        bars.append(results["demo"]["cold"] <= DEMO_SECONDS)
    bars += [results[name]["ratio"] <= bar for name, bar in RATIOS.items() if name in results]
    return all(bars)


def main() -> int:
    """Command line: 0 where the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="growth, demo, bert_base or resnet18")
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    parser.add_argument("--first-call", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.first_call:
        print(json.dumps(first_call(*chosen.first_call)))
        return 0
    results: dict[str, dict[str, Any]] = {}
    for name in ("growth", "demo", *RATIOS):
        if chosen.only in (None, name):
            results[name] = row = growth() if name == "growth" else processes(name)
            print(f"{name}: " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)
    if chosen.json:
        print(json.dumps({**results, "bars_hold": holds(results)}))
    return 0 if holds(results) else 1


if __name__ == "__main__":
    sys.exit(main())
