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
    from trnx.simulator.cpu_simulator import install_cpu_simulator as install_cpu_simulator
    from trnx.simulator.cpu_simulator import uninstall_cpu_simulator as uninstall_cpu_simulator
    from trnx.simulator.installation import install as install
    from trnx.simulator.installation import uninstall as uninstall
    from trnx.simulator.kernel import Kernel as Kernel
    from trnx.simulator.observer import Observer as Observer
    from trnx.simulator.observer import Recorded as Recorded
    from trnx.simulator.observer import observing as observing
    from trnx.simulator.program import Program as Program
    from trnx.simulator.rank_programs import RankProgram as RankProgram
    from trnx.simulator.rank_programs import simulate_ranks as simulate_ranks
    from trnx.simulator.rank_programs import trace_ranks as trace_ranks
    from trnx.simulator.session import interactive as interactive
    from trnx.simulator.spec import TensorSpec as TensorSpec
    from trnx.simulator.tracing import simulate as simulate
    from trnx.simulator.tracing import trace as trace
    from trnx.simulator.twins import load as load
    from trnx.simulator.twins import load_module as load_module

_HOME = {
    "Kernel": "kernel",
    "Observer": "observer",
    "Program": "program",
    "RankProgram": "rank_programs",
    "Recorded": "observer",
    "TensorSpec": "spec",
    "install": "installation",
    "install_cpu_simulator": "cpu_simulator",
    "interactive": "session",
    "load": "twins",
    "load_module": "twins",
    "observing": "observer",
    "simulate": "tracing",
    "simulate_ranks": "rank_programs",
    "trace": "tracing",
    "trace_ranks": "rank_programs",
    "uninstall": "installation",
    "uninstall_cpu_simulator": "cpu_simulator",
}

__all__ = [
    "Kernel",
    "Observer",
    "Program",
    "RankProgram",
    "Recorded",
    "TensorSpec",
    "install",
    "install_cpu_simulator",
    "interactive",
    "load",
    "load_module",
    "observing",
    "simulate",
    "simulate_ranks",
    "trace",
    "trace_ranks",
    "uninstall",
    "uninstall_cpu_simulator",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
