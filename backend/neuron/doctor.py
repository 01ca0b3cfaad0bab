"""`trnx doctor`: what this machine can run, what is in the way, and the command that mends it.

Nothing of AWS's is imported, and torch only without the devices that it would load. A machine that
is not meant to have a Neuron device (no Trainium instance, no device nodes, no Neuron package) has
no problem for not having one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from trnx.backend.environment import option_defaults
from trnx.backend.neuron.stack import LNC_VARIABLE, Stack, find_stack, runtime_lnc
from trnx.backend.options import option_names
from trnx.backend.supported import PYTHON, TORCH, Version

Status = Literal["ok", "note", "problem"]

# torch loads the packages of devices when it is imported, unless this is 0.
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_RUNTIME = "opt/aws/neuron/lib/libnrt.so.1"
_GENERATIONS = {"trn1": "trn1", "trn2": "trn2", "trn3": "trn3"}


@dataclass(frozen=True)
class Check:
    """One thing looked at: what was found, and for a problem (or a note) the command that mends
    it."""

    name: str
    status: Status
    found: str
    fix: str = ""


@dataclass(frozen=True)
class Machine:
    """What is examined; everything can be faked. `root` holds dev, proc, sys and opt."""

    root: Path = Path("/")
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: Version = sys.version_info[:2]
    stack: Stack | None = None
    version_of: Callable[[str], str] | None = None
    compiler: Callable[[], str | None] = lambda: shutil.which("neuronx-cc")

    def version(self, distribution: str) -> str:
        """The version of an installed distribution, empty where there is none."""
        if self.version_of is not None:
            return self.version_of(distribution)
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return ""

    def text(self, path: str) -> str:
        """The content of a file under the root, empty where it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return ""


@dataclass(frozen=True)
class Diagnosis:
    """All checks; `runner` is what `runner="auto"` chooses."""

    checks: tuple[Check, ...]
    runner: str

    @property
    def is_well(self) -> bool:
        """Whether there is no problem."""
        return all(check.status != "problem" for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ok": self.is_well,
            "runner": self.runner,
            "checks": [asdict(check) for check in self.checks],
        }

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = []
        for check in self.checks:
            lines.append(f"{check.status:<8} {check.name:<{width}}  {check.found}")
            if check.fix:
                lines.append(f"{'':<{width + 9}}  -> {check.fix}")
        return "\n".join([*lines, f"runner='auto' is {self.runner}"])


def examine(machine: Machine | None = None) -> Diagnosis:
    """Look at everything, and import none of AWS's packages."""
    here = Machine() if machine is None else machine
    stack = here.stack or find_stack(here.variables, here.root)
    checks = [_python(here), _torch(here), _instance(here)]
    checks += [_stack(here, stack), _driver(here, stack), _devices(here, stack), _lnc(here, stack)]
    checks += [_compiler(here, stack), _runtime(here, stack), _xla(here)]
    with _without_devices():
        checks += [_simulator(), _cache()]
    runner = "neuron" if stack.problem() is None and _generation(here) != "trn1" else "simulator"
    return Diagnosis(tuple(checks), runner)


@contextmanager
def _without_devices() -> Iterator[None]:
    before = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_AUTOLOAD]
        else:
            os.environ[_AUTOLOAD] = before


def _shown(version: Version) -> str:
    return ".".join(map(str, version))


def _in_range(name: str, found: Version, known: tuple[Version, Version], fix: str) -> Check:
    first, last = known
    if first <= found <= last:
        return Check(name, "ok", _shown(found))
    wanted = f"{_shown(found)}; trnx needs {_shown(first)} to {_shown(last)}"
    return Check(name, "problem", wanted, fix)


def _python(here: Machine) -> Check:
    return _in_range("python", here.python, PYTHON, f"python{_shown(PYTHON[1])} -m venv .venv")


def _torch(here: Machine) -> Check:
    found = re.match(r"(\d+)\.(\d+)", here.version("torch"))
    if found is None:
        return Check("torch", "problem", "not installed", 'pip install "torch>=2.13,<2.16"')
    version = (int(found[1]), int(found[2]))
    return _in_range("torch", version, TORCH, 'pip install "torch>=2.13,<2.16"')


def _instance_type(here: Machine) -> str:
    """The type of an EC2 instance, empty elsewhere."""
    if "amazon" not in here.text("sys/devices/virtual/dmi/id/sys_vendor").lower():
        return ""
    return here.text("sys/devices/virtual/dmi/id/product_name")


def _generation(here: Machine) -> str:
    family = _instance_type(here).partition(".")[0]
    return next((target for name, target in _GENERATIONS.items() if family.startswith(name)), "")


def _instance(here: Machine) -> Check:
    kind, generation = _instance_type(here), _generation(here)
    if generation == "trn1":
        found = f"{kind}: TorchNeuron does not run on it; trnx plans for it and simulates"
        return Check("instance", "note", found, "use a Trn2 or Trn3 instance to run on the device")
    if generation:
        return Check("instance", "ok", f"{kind}; compile with options={{'target': '{generation}'}}")
    return Check("instance", "ok", f"{kind or 'no EC2 instance'}: no Trainium, kernels simulate")


def _is_meant_for_neuron(here: Machine, stack: Stack) -> bool:
    return _generation(here) in ("trn2", "trn3") or bool(stack.nodes) or stack.kind == "native"


def _wanted(here: Machine, stack: Stack) -> Status:
    """The status of something that a Neuron machine needs and that is missing."""
    return "problem" if _is_meant_for_neuron(here, stack) else "ok"


def _stack(here: Machine, stack: Stack) -> Check:
    problem = stack.stack_problem()
    if problem is None:
        found = f"TorchNeuron {stack.version}, nki {stack.nki_version}"
        return Check("neuron stack", "ok", found)
    if stack.kind == "none":
        status = _wanted(here, stack)
    else:
        status = "note" if stack.kind == "xla" and _generation(here) == "trn1" else "problem"
    return Check("neuron stack", status, problem.found, problem.fix if status != "ok" else "")


def _driver(here: Machine, stack: Stack) -> Check:
    if (here.root / "sys/module/neuron").exists():
        version = here.text("sys/module/neuron/version") or "of an unknown version"
        return Check("driver", "ok", f"neuron {version}")
    status = _wanted(here, stack)
    fix = "sudo apt-get install -y aws-neuronx-dkms && sudo modprobe neuron"
    return Check("driver", status, "not loaded", fix if status == "problem" else "")


def _devices(here: Machine, stack: Stack) -> Check:
    problem = stack.device_problem()
    if problem is None:
        nodes = f"{len(stack.nodes)} device node(s), from {stack.nodes[0]}" if stack.nodes else ""
        counted = "" if stack.devices is None else f"TorchNeuron counts {stack.devices}"
        return Check("devices", "ok", "; ".join(filter(None, (nodes, counted))))
    status: Status = "problem" if stack.nodes else _wanted(here, stack)
    return Check("devices", status, problem.found, problem.fix if status == "problem" else "")


def _lnc(here: Machine, stack: Stack) -> Check:
    variable = here.variables.get(LNC_VARIABLE, "")
    have = runtime_lnc(_generation(here), variable)
    asked = option_defaults(option_names(), here.variables).get("lnc", have)
    if have == asked or not _is_meant_for_neuron(here, stack):
        return Check("logical cores", "ok", f"{LNC_VARIABLE}={variable}" if variable else "not set")
    found = f"{LNC_VARIABLE} is {variable or f'not set, which means {have}'}; "
    found += f"TRNX_LNC={asked} asks for kernels for {asked}"
    wanted = f"unset TRNX_LNC, or export {LNC_VARIABLE}={asked}"
    return Check("logical cores", "problem", found, wanted)


def _compiler(here: Machine, stack: Stack) -> Check:
    path = here.compiler()
    if path:
        return Check("graph compiler", "ok", f"{path} {here.version('neuronx-cc')}".strip())
    status: Status = "problem" if stack.kind == "native" else "ok"
    fix = "activate the environment that has torch-neuronx, or install neuronx-cc from AWS's index"
    return Check(
        "graph compiler", status, "neuronx-cc is not on PATH", fix if status != "ok" else ""
    )


def _runtime(here: Machine, stack: Stack) -> Check:
    if (here.root / _RUNTIME).exists():
        return Check("runtime", "ok", f"/{_RUNTIME}")
    status: Status = "problem" if stack.kind == "native" else "ok"
    fix = "sudo apt-get install -y aws-neuronx-runtime-lib"
    return Check("runtime", status, "libnrt is not installed", fix if status != "ok" else "")


def _xla(here: Machine) -> Check:
    found = {name: here.version(name) for name in ("jax", "jaxlib")}
    if all(found.values()):
        return Check("xla", "ok", ", ".join(f"{n} {v}" for n, v in found.items()))
    what = "not installed; what no kernel takes runs in eager"
    return Check("xla", "note", what, "pip install 'trnx[xla]'")


def _simulator() -> Check:
    """One kernel of the registry, traced with all checks."""
    try:
        from trnx.backend.neuron.probe import traced_instructions

        count = traced_instructions()
    except Exception as error:  # noqa: BLE001  whatever it is, it is the diagnosis
        found = f"{type(error).__name__}: {error}"
        return Check("simulator", "problem", found, "pip install --force-reinstall trnx")
    return Check("simulator", "ok", f"a kernel of {count} instructions passes all checks")


def _cache() -> Check:
    try:
        from trnx.nki_kernels.generator.source_cache import why_temporary

        folder, reason = why_temporary()
    except ImportError as error:
        return Check("cache", "problem", str(error), 'pip install "torch>=2.13,<2.16"')
    if not reason:
        return Check("cache", "ok", str(folder))
    fix = "export XDG_CACHE_HOME=$(mktemp -d ~/cache.XXXXXX)"
    return Check("cache", "problem", f"generated kernels are not kept: {reason}", fix)
