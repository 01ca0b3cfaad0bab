"""The tasks of a collection: their names, the part that each belongs to, and its time limit."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from trnx.device.errors import CollectError
from trnx.device.probes import PROBES
from trnx.device.ranks import GROUPS

# Part -> seconds that one of its tasks may take; a device compiles every graph and kernel anew.
LIMITS: Mapping[str, float] = {
    "doctor": 120, "kernel": 1800, "probe": 600, "model": 1800, "cores": 600,
    "ranks": 900,
}  # fmt: skip
LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
# What a part's processes have for that variable, where it is not what the caller has.
LNC: Mapping[str, str] = {"cores": "2", "ranks": "1"}
MODELS = ("mlp", "encoder", "training_step")


def part_of(task: str) -> str:
    """`kernel` of `kernel.softmax`."""
    return task.partition(".")[0]


def kernel_files() -> dict[str, Path]:
    """Name -> file of kernels. Nothing of it is imported: importing torch may claim the device, and
    whoever asks for the tasks waits while workers use it."""
    found = find_spec("trnx.nki_kernels")
    if found is None or not found.submodule_search_locations:
        raise CollectError("trnx.nki_kernels is not installed; install trnx anew")
    folder = Path(found.submodule_search_locations[0]) / "kernels"
    files = (file for file in folder.rglob("*.py") if not file.name.startswith("_"))
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


def all_tasks() -> tuple[str, ...]:
    """All tasks, in the order in which they run: first what tells most about why others fail."""
    kernels = kernel_files()
    probes = [f"probe.{i:02}" for i, probe in enumerate(PROBES) if probe.cores == 1]
    cores = [f"cores.{i:02}" for i, probe in enumerate(PROBES) if probe.cores == 2]
    models = (f"model.{name}" for name in MODELS)
    ranks = (f"ranks.{group}" for group in GROUPS)
    return ("doctor", *(f"kernel.{k}" for k in kernels), *probes, *models, *cores, *ranks)
