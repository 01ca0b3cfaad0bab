"""Where a job runs: on Neuron devices where AWS's native PyTorch stack is, else on the CPU.

The same file runs unchanged in both places. On Neuron devices both backends of `torch.compile` can
be asked for: `neuron`, which is AWS's own and the default, and `trnx` with its runner `neuron`. The
stack is found without an import, because an import may claim cores. What concerns Neuron devices
follows the documentation of the stack and has not been seen on a device.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from trnx.backend.neuron.choice import choose_runner
from trnx.backend.neuron.region_op import check_cores
from trnx.backend.neuron.stack import LNC_VARIABLE
from trnx.backend.options import make_options
from trnx.jobs.errors import FlagError

BACKENDS = ("auto", "trnx", "eager", "neuron")
RUNNERS = ("auto", "neuron", "simulator", "reference")
_IN_HOST_MEMORY = ("simulator", "reference")


@dataclass(frozen=True)
class Platform:
    """`process_group` is the backend string for torch.distributed; collectives of checkpoints
    run on the CPU."""

    device: torch.device
    process_group: str


def has_neuron() -> bool:
    """Whether the native stack is installed: not its predecessor, nor an empty placeholder."""
    spec = importlib.util.find_spec("torch_neuronx")
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / "neuron_dynamo_backend").exists() for folder in folders or ())


def detect(runner: str | None = None) -> Platform:
    """The platform of this process. The runners `simulator` and `reference` of trnx compute in host
    memory, wherever they run."""
    if has_neuron() and runner not in _IN_HOST_MEMORY:
        return Platform(torch.device("neuron"), "cpu:gloo,neuron:neuron")
    return Platform(torch.device("cpu"), "gloo")


def resolve_backend(name: str, platform: Platform) -> str:
    """The `torch.compile` backend that a flag means here; "eager" means no compilation.

    Raises FlagError where the platform has no such backend.
    """
    on_neuron = platform.device.type == "neuron"
    if name == "auto":
        return "neuron" if on_neuron else "trnx"
    if name == "neuron" and not on_neuron:
        raise FlagError(
            "--backend neuron needs torch-neuronx 2.13 or later (the native stack), which is not "
            "installed here; leave --backend out, or say --backend trnx"
        )
    return name


def trnx_options(platform: Platform, target: str | None, runner: str | None) -> dict[str, str]:
    """Options of the backend trnx on the platform: what flags say, and on Neuron devices the runner
    `neuron`.

    Raises NeuronError where the device cannot run trnx's plans (NEURON_LOGICAL_NC_CONFIG, say), and
    FlagError for a runner that the platform does not have.
    """
    on_neuron = platform.device.type == "neuron"
    if runner == "neuron" and not on_neuron:
        raise FlagError(
            "--runner neuron needs torch-neuronx 2.13 or later (the native stack), which is not "
            "installed here; `trnx doctor` says what is missing"
        )
    given = {"target": target, "runner": "neuron" if on_neuron else runner}
    options = {key: value for key, value in given.items() if value is not None}
    if on_neuron:
        chosen = make_options(options)
        choose_runner("neuron", chosen.target)
        configured = os.environ.get(LNC_VARIABLE)
        check_cores("trnx's kernels are", chosen.lnc, chosen.target, configured)
    return options


@dataclass(frozen=True)
class Ranks:
    """This process among all."""

    rank: int = 0
    world: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0


def join(platform: Platform) -> Ranks:
    """Join the process group where torchrun started this process; else there is one process."""
    if "WORLD_SIZE" not in os.environ:
        return Ranks()
    dist.init_process_group(platform.process_group)
    return Ranks(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    """Leave the process group, where there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def end_rank(status: int) -> NoReturn:
    """End this process with a status; a rank of several skips the interpreter's teardown.

    A mesh keeps its process group after `destroy_process_group`, and with it Gloo's threads. One
    that drops its last tensor once the teardown has begun asks for the GIL; Python 3.11 ends such
    a thread from within C++ code that may not be unwound, and the process aborts with its work
    done. What is registered to run at exit runs.
    """
    if "WORLD_SIZE" in os.environ:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
