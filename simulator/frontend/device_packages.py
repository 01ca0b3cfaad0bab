"""Stand-ins for packages of the device that AWS's tutorials import beside `nki`: torch_xla and
torch_neuronx.

The device of a simulation is the host: `torch_xla.device()` is `torch.device("cpu")`, and a step
has nothing to wait for. Everything else of these packages raises an error that names what is
missing. An installed package is used instead; who only asks whether one is there
(`importlib.util.find_spec`, as transformers does) is told that it is not.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from trnx.simulator.errors import TrnxError

# What to write in place of a name that is not here.
_CHANGES = {"torch_neuronx.nki_jit": "decorate the kernel with nki.jit"}


class MissingDeviceModuleError(TrnxError, ModuleNotFoundError):
    """A script imports what the stand-in for a package of the device does not have."""


class MissingDeviceNameError(TrnxError, AttributeError):
    """A script uses what the stand-in for a package of the device does not have."""


class DeviceIndexError(TrnxError, IndexError):
    """A script asks for another device than the one that a simulation has."""


def _device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The host. `n` is the index of a device, of which there is one; `devkind` is not looked at.

    Raises DeviceIndexError for another device.
    """
    del devkind
    if n not in (None, 0):
        raise DeviceIndexError(
            f"device {n} of torch_xla: a simulation has one device, 0; run ranks with "
            "trnx.simulator.simulate_ranks"
        )
    return torch.device("cpu")


def _device_of_index(index: int | None = None) -> torch.device:
    return _device(index)


def _sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Nothing is pending: kernels have run when their call returns."""
    del wait, reset_scope


_PROVIDED: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "torch_xla": {"device": _device_of_index, "sync": _sync},
    "torch_xla.core": {},
    "torch_xla.core.xla_model": {"xla_device": _device, "mark_step": _sync},
    "torch_neuronx": {},
}


def install_device_packages() -> None:
    """Let `import torch_xla` and `import torch_neuronx` work where they are not installed."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.append(_FINDER)  # the last one: what is installed comes first


def uninstall_device_packages() -> None:
    """Undo `install_device_packages`."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in _PROVIDED:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


class _StandIn(ModuleType):
    """A module that says which of its names are missing, and why."""

    def __getattr__(self, name: str) -> Any:
        whole = f"{self.__name__}.{name}"
        if whole in _PROVIDED:
            return importlib.import_module(whole)
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise MissingDeviceNameError(_missing(whole))


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins, and raises for what else is imported of these packages."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's specification; None for other packages' modules."""
        del path, target
        top, _, rest = fullname.partition(".")
        if top not in _PROVIDED or _is_question():
            return None
        if rest and not isinstance(sys.modules.get(top), _StandIn):
            return None
        if fullname not in _PROVIDED:
            # Without `name=`: `from package import name` would replace the error by Python's own.
            raise MissingDeviceModuleError(_missing(fullname))
        return ModuleSpec(fullname, self, origin="trnx.simulator", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        vars(module).update(_PROVIDED[module.__name__])


_FINDER = _Finder()


def _is_question() -> bool:
    """True where `importlib.util.find_spec` asks: nothing is imported then."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == "importlib._bootstrap" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__") == "importlib.util"


def _missing(name: str) -> str:
    top = name.partition(".")[0]
    given = [
        f"{module}.{member}"
        for module, members in _PROVIDED.items()
        for member in members
        if module.partition(".")[0] == top
    ]
    change = _CHANGES.get(name) or (
        f"the simulator has {', '.join(given) or 'no name'} of {top}: drop the use, or run "
        "the script on a device"
    )
    return f"{name} is not there without a device; {change}"
