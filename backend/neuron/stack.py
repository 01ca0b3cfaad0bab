"""Which Neuron stack this Python has, found without importing any of it: an import may claim cores.

`torch_neuronx` is the import name of three packages: TorchNeuron (2.13 and later, which brings
`neuron_dynamo_backend`), its predecessor on PyTorch/XLA (2.9 and before, which brings `xla_impl`),
and an empty placeholder on the public index. `nki` has a placeholder too. Torch is not imported
either, because it loads the devices that are installed. Sources: AWS Neuron SDK 2.33,
`torch/troubleshooting.rst`, `torch/get-started/quickstart-torch-neuron.rst` and
`quickstart-nki-kernel.rst`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from trnx.backend.neuron.errors import (
    NeuronDeviceError,
    NeuronMachineError,
    NeuronStackError,
)

Kind = Literal["native", "xla", "placeholder", "none"]
Version = tuple[int, int]

# torch/get-started/quickstart-nki-kernel.rst, prerequisites.
PYTHON: tuple[Version, Version] = ((3, 12), (3, 14))
TORCH: tuple[Version, ...] = ((2, 13), (2, 14))
LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
# What the runtime takes where the variable is not set: two cores of Trainium2 and later work as one
# (about-neuron/arch/neuron-features/logical-neuroncore-config.rst).
_DEFAULT_LNC = {"trn1": "1"}
# torch/get-started/quickstart-torch-neuron.rst, prerequisites.
TARGETS = ("trn2", "trn3")
INSTALL = "install torch-neuronx 2.13 or later as AWS's quickstart for TorchNeuron says"


@dataclass(frozen=True)
class Stack:
    """What was found.

    `nodes` are the device nodes, `opened` those that this process may open, `devices` the devices
    that a loaded TorchNeuron counts (None where it is not loaded). `lnc` is the value of
    NEURON_LOGICAL_NC_CONFIG, None where it is not set. `has_python` says whether TorchNeuron takes
    this Python.
    """

    kind: Kind
    version: str = ""
    torch_version: str = ""
    python: Version = sys.version_info[:2]
    has_python: bool = True
    nki: Kind = "none"
    nki_version: str = ""
    nodes: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    devices: int | None = None
    lnc: str | None = None

    @property
    def has_device(self) -> bool:
        """Whether there is a device to run on."""
        return bool(self.opened) if self.devices is None else self.devices > 0

    def problem(self) -> NeuronMachineError | None:
        """Why the runner `neuron` cannot be used here, None where it can."""
        return self.stack_problem() or self.device_problem()

    def stack_problem(self) -> NeuronStackError | None:
        """What is wrong with the installed packages, None where they fit."""
        return self._package_problem() or self._version_problem()

    def _package_problem(self) -> NeuronStackError | None:
        if self.kind == "none":
            return NeuronStackError("TorchNeuron (torch-neuronx) is not installed", INSTALL)
        if self.kind == "placeholder":
            return NeuronStackError(
                f"torch_neuronx {self.version} is the empty placeholder of the public index, not "
                "AWS's package",
                f"pip uninstall -y torch-neuronx, and {INSTALL}",
            )
        if self.kind == "xla":
            return NeuronStackError(
                f"torch_neuronx {self.version} is the predecessor of TorchNeuron, for PyTorch/XLA, "
                "and both cannot share an environment",
                f"python -m venv neuron (a new environment), and there {INSTALL}",
            )
        if self.nki != "native":
            found = "is not installed" if self.nki == "none" else "is an empty placeholder"
            return NeuronStackError(
                f"AWS's package nki {found}, and TorchNeuron needs it",
                "pip uninstall -y nki, and install nki from AWS's index, in the version that comes "
                f"with torch-neuronx {self.version}",
            )
        return None

    def _version_problem(self) -> NeuronStackError | None:
        ours, theirs = _numbers(self.version), _numbers(self.torch_version)
        if ours not in TORCH:
            known = " and ".join(_shown(v) for v in TORCH)
            return NeuronStackError(
                f"torch_neuronx {self.version} is not one that trnx knows ({known})", INSTALL
            )
        if ours != theirs:
            return NeuronStackError(
                f"torch_neuronx {self.version} needs torch {_shown(ours)}, and torch "
                f"{self.torch_version} is installed",
                f'pip install "torch=={_shown(ours)}.*"',
            )
        if not self.has_python:
            first, last = (_shown(version) for version in PYTHON)
            return NeuronStackError(
                f"torch_neuronx {self.version} does not run on Python {_shown(self.python)}",
                f"python{first} -m venv .venv (Python {first} to {last})",
            )
        return None

    def device_problem(self) -> NeuronDeviceError | None:
        """Why there is no device to run on, None where there is one."""
        if self.has_device:
            return None
        if self.nodes and not self.opened:
            return NeuronDeviceError(
                f"{self.nodes[0]} cannot be opened by this user",
                f"run as a user with access to the device nodes (ls -l {self.nodes[0]}), or give "
                "the container the devices",
            )
        if self.nodes:
            return NeuronDeviceError(
                "TorchNeuron counts no device although there are device nodes",
                "another process may hold all cores (neuron-ls), or NEURON_RT_VISIBLE_CORES hides "
                "them",
            )
        return NeuronDeviceError(
            "there is no Neuron device (/dev/neuron0)",
            "run on a Trn2 or Trn3 instance; there, load the driver with `sudo modprobe neuron` "
            "and look with `neuron-ls`",
        )


def _shown(version: Version) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> Version:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def find_stack(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> Stack:
    """The stack of this Python, with the device nodes under `root`."""
    variables = os.environ if environment is None else environment
    nodes = tuple(str(p) for p in sorted((root / "dev").glob("neuron[0-9]*")))
    version = _version("torch-neuronx")
    return Stack(
        kind=_torch_neuronx_kind(),
        version=version,
        torch_version=_version("torch"),
        has_python=_takes_python(sys.version_info[:2]),
        nki=_nki_kind(),
        nki_version=_version("nki"),
        nodes=nodes,
        opened=tuple(node for node in nodes if os.access(node, os.R_OK | os.W_OK)),
        devices=_loaded_devices(),
        lnc=variables.get(LNC_VARIABLE),
    )


def runtime_lnc(target: str, configured: str | None) -> str:
    """The physical cores of a logical core that the runtime has, where the variable is
    `configured`: its text as it stands, which nobody has checked."""
    return configured or _DEFAULT_LNC.get(target, "2")


def device_lnc(
    runner: str, target: str, environment: Mapping[str, str] | None = None
) -> str | None:
    """`runtime_lnc` of the device that the option `runner` means here; None for a stand-in."""
    if runner not in ("auto", "neuron") or target not in TARGETS:
        return None
    if _torch_neuronx_kind() != "native":  # most machines; the rest of a stack takes a millisecond
        return None
    stack = find_stack(environment)
    return None if stack.problem() else runtime_lnc(target, stack.lnc)


def _folders(package: str) -> tuple[Path, ...]:
    """Where the package lies; it is not imported."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # ValueError: a module in sys.modules without a spec
        return ()
    return tuple(Path(folder) for folder in (spec and spec.submodule_search_locations) or ())


def _has(folders: tuple[Path, ...], *names: str) -> bool:
    return any((folder / name).exists() for folder in folders for name in names)


def _torch_neuronx_kind() -> Kind:
    folders = _folders("torch_neuronx")
    if not folders:
        return "none"
    if _has(folders, "neuron_dynamo_backend"):
        return "native"
    return "xla" if _has(folders, "xla_impl", "xla.py") else "placeholder"


def _nki_kind() -> Kind:
    folders = _folders("nki")
    if not folders:
        return "none"
    return "native" if _has(folders, "isa", "isa.py", "isa.pyi") else "placeholder"


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _takes_python(python: Version) -> bool:
    """What the installed distribution asks for, the documentation where it asks for nothing."""
    first, last = PYTHON
    try:
        asked = metadata.metadata("torch-neuronx")["Requires-Python"] or ""
    except (metadata.PackageNotFoundError, KeyError):
        asked = ""
    for sign, major, minor in re.findall(r"(>=|<=|<)\s*(\d+)\.(\d+)", asked):
        bound = (int(major), int(minor))
        if sign == ">=":
            first = bound
        else:
            last = bound if sign == "<=" else (bound[0], bound[1] - 1)
    return first <= python <= last


def _loaded_devices() -> int | None:
    """What TorchNeuron counts where torch has loaded it (`torch.backends` entry points do, when
    torch is imported)."""
    device = getattr(sys.modules.get("torch"), "neuron", None)
    if "torch_neuronx" not in sys.modules or device is None:
        return None
    return int(device.device_count())
