"""The packages `nki_cpu_simulator` and `neuron_dtypes`, which nki-library's own suite imports in
`--test-mode simulation`. Nothing is put into `sys.modules` before `install_cpu_simulator()`.

`cpu_simulate(kernel)[lnc](**inputs)` runs a kernel as `lnc` programs with all checks on. The target
is the generation that `NKI_NC_VERSION` names (gen2, gen3, gen4), gen3 without it. The caller's
arrays are left as they are: what a kernel writes into an argument is in the results alone. Within
`nki_runtime.warning_of(names)` these checks warn.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from trnx.simulator.frontend import neuron_dtypes
from trnx.simulator.frontend.nki_modules import make_module, nki_modules
from trnx.simulator.frontend.nki_runtime import asked_warnings
from trnx.simulator.frontend.tracing import simulate
from trnx.simulator.hardware import hardware
from trnx.simulator.memory.dtypes import DTYPES

_DEFAULT_GENERATION = "gen3"


def cpu_simulate(kernel: Any) -> CpuSimulation:
    """`cpu_simulate(kernel)[lnc](**inputs)`; without `[lnc]`, one program."""
    return CpuSimulation(kernel)


class CpuSimulation:
    """A kernel that is called with numpy arrays."""

    def __init__(self, kernel: Any, programs: int = 1) -> None:
        self._kernel = kernel
        self._programs = programs

    def __getitem__(self, programs: int) -> CpuSimulation:
        return CpuSimulation(self._kernel, int(programs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        generation = os.environ.get("NKI_NC_VERSION", "").strip() or _DEFAULT_GENERATION
        target = hardware(generation).target
        warn = asked_warnings()
        return simulate(self._kernel, target, self._programs, warn=warn, borrow=True)(
            *args, **kwargs
        )


def install_cpu_simulator() -> None:
    """Make `import nki_cpu_simulator`, its modules, and `neuron_dtypes` (unless there is one)
    work. May be called twice.
    """
    for name, module in cpu_simulator_modules().items():
        if name == "neuron_dtypes" and _is_installed(name):
            continue
        sys.modules[name] = module


def uninstall_cpu_simulator() -> None:
    """Undo `install_cpu_simulator`."""
    for name, module in cpu_simulator_modules().items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


@functools.cache
def cpu_simulator_modules() -> Mapping[str, ModuleType]:
    """Module name -> module."""
    ours = nki_modules()
    nki = ours["nki"]
    language = ours["nki.language"]
    dtypes = make_module("nki.language.dtypes", {str(dtype): dtype for dtype in DTYPES})
    # `nki` itself, as this surface has it, is a module of its own: `cpu_simulate` is not NKI's.
    members: dict[str, Any] = {**vars(nki), "cpu_simulate": cpu_simulate}
    children = {
        "builtin": make_module("nki_cpu_simulator.nki.builtin", {}),
        "collectives": ours["nki.collectives"],
        "compiler": make_module("nki_cpu_simulator.nki.compiler", {"jit": nki.jit}),
        "isa": ours["nki.isa"],
        "language": language,
        "tensor": make_module(
            "nki_cpu_simulator.nki.tensor", {"NkiTensor": vars(language)["NkiTensor"]}
        ),
        "typing": ours["nki.typing"],
    }
    top = make_module("nki", members | children)
    tree: dict[str, ModuleType] = {
        "nki_cpu_simulator": make_module("nki_cpu_simulator", {"nki": top}),
        "nki_cpu_simulator.nki": top,
        **{f"nki_cpu_simulator.nki.{name}": module for name, module in children.items()},
        "nki_cpu_simulator.nki.isa.constants": ours["nki.isa.constants"],
        "nki_cpu_simulator.nki.language.dtypes": dtypes,
        # Names under `nki` that the suite's own aliases leave out.
        "nki.language.dtypes": dtypes,
        "nki.collectives": ours["nki.collectives"],
        "neuron_dtypes": neuron_dtypes.as_module(),
    }
    return tree


def _is_installed(name: str) -> bool:
    module = sys.modules.get(name)
    if module is not None:
        return module is not cpu_simulator_modules()[name]
    return find_spec(name) is not None
