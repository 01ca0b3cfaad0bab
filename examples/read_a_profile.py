"""Predict what a kernel takes on the chip, and what holds it up.

    python examples/read_a_profile.py [FOLDER]

In FOLDER (`profile` here) lie a trace for ui.perfetto.dev and two pictures. `docs/timing.md` says
how to read them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import trnx
from trnx.simulator import TensorSpec, load_module


def main(folder: Path) -> None:
    """Shapes are enough: nothing is executed."""
    kernel = load_module(Path(__file__).with_name("rms_scale.py")).rms_scale
    x = TensorSpec.dense((4096, 2048), torch.float32)
    scale = TensorSpec.dense((2048,), torch.float32)
    profile = trnx.profile(kernel, x, scale, 1e-6, target="trn2")
    print(profile)
    busiest = max(profile.queues, key=lambda queue: queue.busy_seconds)
    print(f"busiest queue: {busiest.name}, {profile.utilisation(busiest.name):.0%} of the time")
    print("waits longest at", profile.critical_path[0].location)
    folder.mkdir(parents=True, exist_ok=True)
    print(profile.write_trace(folder / "kernel.pftrace"), *profile.plot(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("profile"))
