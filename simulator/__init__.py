"""The NKI 0.6 API on the CPU: semantics, checks, Programs, replay; hardware facts.

    program = trace(kernel, [TensorSpec.dense((128, 512), torch.float32)])
    (y,) = program.run([x])
    y = simulate(kernel)(x)

Importing this package is cheap and has no side effects; names are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trnx.simulator.frontend.cpu_simulator import install_cpu_simulator as install_cpu_simulator
    from trnx.simulator.frontend.cpu_simulator import (
        uninstall_cpu_simulator as uninstall_cpu_simulator,
    )
    from trnx.simulator.frontend.installation import install as install
    from trnx.simulator.frontend.installation import uninstall as uninstall
    from trnx.simulator.frontend.kernel import Kernel as Kernel
    from trnx.simulator.frontend.rank_programs import RankProgram as RankProgram
    from trnx.simulator.frontend.rank_programs import simulate_ranks as simulate_ranks
    from trnx.simulator.frontend.rank_programs import trace_ranks as trace_ranks
    from trnx.simulator.frontend.session import interactive as interactive
    from trnx.simulator.frontend.tracing import simulate as simulate
    from trnx.simulator.frontend.tracing import trace as trace
    from trnx.simulator.frontend.twins import load as load
    from trnx.simulator.frontend.twins import load_module as load_module
    from trnx.simulator.memory.tensor_spec import TensorSpec as TensorSpec
    from trnx.simulator.program.observer import Observer as Observer
    from trnx.simulator.program.observer import Recorded as Recorded
    from trnx.simulator.program.observer import observing as observing
    from trnx.simulator.program.program import Program as Program

_HOME = {
    "Kernel": "frontend.kernel",
    "Observer": "program.observer",
    "Program": "program.program",
    "RankProgram": "frontend.rank_programs",
    "Recorded": "program.observer",
    "TensorSpec": "memory.tensor_spec",
    "install": "frontend.installation",
    "install_cpu_simulator": "frontend.cpu_simulator",
    "interactive": "frontend.session",
    "load": "frontend.twins",
    "load_module": "frontend.twins",
    "observing": "program.observer",
    "simulate": "frontend.tracing",
    "simulate_ranks": "frontend.rank_programs",
    "trace": "frontend.tracing",
    "trace_ranks": "frontend.rank_programs",
    "uninstall": "frontend.installation",
    "uninstall_cpu_simulator": "frontend.cpu_simulator",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
