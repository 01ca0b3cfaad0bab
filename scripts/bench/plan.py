"""`trnx plan` of public models on three machines: CPU seconds of each answer, in a new process
without the compile cache.

Bar: 60 s of one core. No prediction may be below the lower bound of its mesh (roofline and links).
`--json` prints one object as the last line; exit status 0 if and only if the bars hold.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from typing import Any

BAR_SECONDS = 60.0
MODELS = ("llama-3-8b", "llama-3-70b", "mixtral-8x7b", "bert-large")
MACHINES = (("trn1.32xlarge", 1), ("trn2.48xlarge", 1), ("trn2u.48xlarge", 4))
MODES = ("train", "prefill", "decode")


def cpu_seconds() -> float:
    """Of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(model: str, instance: str, nodes: int, mode: str) -> dict[str, Any]:
    """One answer; raises AssertionError where it is below a lower bound."""
    sequence = 512 if model.startswith("bert") else 4096
    command = [sys.executable, "-m", "trnx.cli", "plan", model, "--json", "--batch=512"]
    command += [f"--instance={instance}", f"--nodes={nodes}", f"--mode={mode}"]
    command += [f"--sequence={sequence}", "--activation-checkpointing"]
    before = cpu_seconds()
    run = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRNX_CACHE_DIR": "off"},
    )
    plan = json.loads(run.stdout.splitlines()[-1])["plans"][0]
    for mesh in plan["meshes"]:
        taken = mesh["step_seconds"]
        assert taken is None or taken >= mesh["least_seconds"], mesh
    best = plan["best"] or {}
    return {
        "model": model,
        "machine": f"{nodes} x {instance}",
        "mode": mode,
        "cpu_seconds": cpu_seconds() - before,
        "mesh": best.get("mesh"),
        "step_seconds": best.get("step_seconds"),
        "tokens_per_second": best.get("tokens_per_second"),
        "mfu": best.get("mfu"),
        "why": plan["why"],
    }


def main() -> int:
    """Print the answers and say whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, action="append", help="may be repeated; else all")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for model in MODELS:
        for instance, nodes in MACHINES:
            for mode in asked.mode or MODES:
                row = measured(model, instance, nodes, mode)
                rows.append(row)
                print(
                    f"{model:13} {row['machine']:19} {mode:8} {row['cpu_seconds']:5.1f} s  "
                    f"{row['why']}",
                    flush=True,
                )
    worst = max(row["cpu_seconds"] for row in rows)
    ok = worst <= BAR_SECONDS
    print(
        f"slowest answer: {worst:.1f} s of CPU, bar {BAR_SECONDS:.0f} s: {'ok' if ok else 'missed'}"
    )
    if asked.json:
        print(json.dumps({"ok": ok, "bar_seconds": BAR_SECONDS, "plans": rows}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
