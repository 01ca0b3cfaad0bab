"""`profile`: record a kernel and predict its time."""

from __future__ import annotations

from typing import Any

from trnx.simulator.frontend.options import Grid
from trnx.simulator.frontend.tracing import trace
from trnx.simulator.hardware import DEFAULT_TARGET, hardware
from trnx.simulator.timing.profile import Profile, profile_program


def profile(kernel: Any, *args: Any, target: str = DEFAULT_TARGET, grid: Grid = None) -> Profile:
    """The prediction for `kernel` with these positional arguments (tensors, TensorSpecs or
    constants) on `target`. Raises what tracing the kernel raises.
    """
    return profile_program(trace(kernel, args, target=target, grid=grid), hardware(target))
