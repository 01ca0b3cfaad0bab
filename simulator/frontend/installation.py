"""`install()`: unmodified scripts and packages that say `import nki` use the simulator.

Beside `device_packages`, which stands in for torch_xla and torch_neuronx where they are not
installed, this is the only place that writes `sys.modules`. The device's own `nki`, where there is
one, is hidden until `uninstall()`.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from trnx.simulator.errors import TrnxError
from trnx.simulator.frontend.device_packages import (
    install_device_packages,
    uninstall_device_packages,
)
from trnx.simulator.frontend.kernel_sources import is_nki
from trnx.simulator.frontend.nki_modules import MARK, nki_modules


class AlreadyImportedError(TrnxError):
    """Another package `nki` is in use in this process."""


def install() -> None:
    """Make `nki`, `nki.language`, ... and `neuronxcc.nki` the simulator's; let scripts import what
    tutorials use of torch_xla. May be called twice.

    Raises AlreadyImportedError where another `nki` was imported before: modules that hold parts of
    it would mix the two.
    """
    modules = nki_modules()
    foreign = [
        name
        for name, module in sys.modules.items()
        if is_nki(name) and not hasattr(module, MARK) and _has_content(module)
    ]
    if foreign:
        raise AlreadyImportedError(
            f"{', '.join(sorted(foreign)[:3])} of another package is imported already; call "
            "trnx.simulator.install() before anything imports nki, or use "
            "trnx.simulator.load(kernel), which works beside it"
        )
    for name, module in modules.items():
        if name == "neuronxcc" and _other_neuronxcc() is not None:
            continue
        sys.modules[name] = module
    install_device_packages()


def uninstall() -> None:
    """Undo `install`."""
    for name, module in nki_modules().items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    uninstall_device_packages()


def _has_content(module: ModuleType) -> bool:
    # An empty placeholder package counts as absent.
    return any(not name.startswith("__") for name in vars(module))


def _other_neuronxcc() -> object:
    """An installed compiler package: it keeps its name, of which only `nki` is replaced."""
    module = sys.modules.get("neuronxcc")
    if module is not None:
        return None if module is nki_modules()["neuronxcc"] else module
    return importlib.util.find_spec("neuronxcc")
