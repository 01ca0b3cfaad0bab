"""Collectives over the cores of an instance: a job of one rank a core, by torchrun.

`measure_ranks` starts the job. It imports no torch: with TorchNeuron that may claim the cores which
the ranks need. `python -m trnx.device.ranks FILE`, under torchrun, is a rank; the first one writes
FILE.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from trnx.device.errors import RanksError
from trnx.device.probes import FACTORS
from trnx.simulator.hardware import hardware

GROUPS = ("pair", "chip", "instance")
COLLECTIVES = ("all_reduce", "all_gather")
# Bytes of the result on each rank: latency, a layer's activations, a layer's gradients.
SIZES = (64 << 10, 4 << 20, 32 << 20)
_COUNT = 2  # collectives of the shorter run
_REPEATS = 5  # the same on all ranks: they wait for each other
_TOLD_CHARACTERS = 2000


def measure_ranks(name: str, target: str) -> dict[str, Any]:
    """Seconds of collectives over a group of cores: see GROUPS. Raises RanksError."""
    ranks = group_size(name, target, Path("/dev"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", "-m", "trnx.device.ranks", str(file)]
        environment = {**os.environ, "NEURON_RT_NUM_CORES": str(ranks)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode or not file.exists():
            # What a rank raised says more than what torchrun says of it.
            told = [error.read_text() for error in sorted(file.parent.glob("*.error"))]
            why = (told or [done.stderr])[0].strip()[-_TOLD_CHARACTERS:]
            raise RanksError(f"{ranks} ranks: status {done.returncode}: {why}")
        return {"ranks": ranks, "rows": json.loads(file.read_text())}


def group_size(name: str, target: str, devices: Path) -> int:
    """Ranks of a group. A folder without devices is that of one chip."""
    chip = hardware(target).cores_per_chip
    chips = sum(file.name[len("neuron") :].isdigit() for file in devices.glob("neuron*"))
    return {"pair": 2, "chip": chip, "instance": chip * max(chips, 1)}[name]


def _rank(file: Path) -> None:
    """Time every collective of every size; the first rank writes the rows."""
    import torch.distributed as dist
    import torch.multiprocessing

    # Who collects ends torchrun where the time is over; the rank would go on and hold its core.
    torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]
    dist.init_process_group("neuron")
    rows = [_row(collective, nbytes) for nbytes in SIZES for collective in COLLECTIVES]
    if dist.get_rank() == 0:
        file.write_text(json.dumps(rows))
    dist.destroy_process_group()


def _row(collective: str, nbytes: int) -> dict[str, Any]:
    """Seconds of one collective: those of a longer run less those of a shorter one, by what is
    between. The copy to host memory that ends a run is in both."""
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    whole = nbytes // 4 // ranks * ranks
    size = whole if collective == "all_reduce" else whole // ranks
    mine = torch.full((size,), dist.get_rank() + 1.0).to("neuron")
    result = torch.empty(whole).to("neuron") if collective == "all_gather" else mine

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            if collective == "all_reduce":
                dist.all_reduce(result)
            else:
                dist.all_gather_into_tensor(result, mine)
        result[-1:].cpu()
        return time.perf_counter() - start

    run(1)
    expected = ranks * (ranks + 1) / 2 if collective == "all_reduce" else float(ranks)
    wrong = float(result[-1:].cpu()) != expected
    # Sums of sums would overflow; the time does not depend on values.
    mine.zero_()
    few, many = (min(run(_COUNT * factor) for _ in range(_REPEATS)) for factor in FACTORS)
    return {
        "collective": collective,
        "bytes": whole * 4,
        "seconds": (many - few) / (_COUNT * (FACTORS[1] - FACTORS[0])),
        "problem": f"{collective} of {whole * 4} bytes has a wrong value" if wrong else "",
    }


def main(file: Path) -> None:
    """Be a rank; the error of one is written beside FILE."""
    try:
        _rank(file)
    except BaseException:
        file.with_name(f"{os.environ.get('RANK', 0)}.error").write_text(traceback.format_exc())
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # threads of process groups may outlive them
