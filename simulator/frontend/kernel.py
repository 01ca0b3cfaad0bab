"""`@nki.jit`: a kernel as an object. Called in another kernel it is a plain call, else it is
simulated (see `nki_runtime`) for the target that the environment or `nki.jit` names.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

from trnx.simulator.errors import TrnxError
from trnx.simulator.hardware import DEFAULT_TARGET, hardware
from trnx.simulator.language.recorder import current_or_none


class DeviceRequiredError(TrnxError):
    """`NKI_SIMULATOR=0` asks for a Trainium device."""


class Kernel:
    """A kernel function; `kernel[grid]` is the same kernel launched as that many programs."""

    def __init__(
        self,
        function: Callable[..., Any],
        grid: tuple[int, ...] | None = None,
        platform_target: str | None = None,
    ) -> None:
        self.function = function
        self.grid = grid
        self.platform_target = platform_target
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)

    def __getitem__(self, grid: Any) -> Kernel:
        sizes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
        return Kernel(self.function, tuple(int(size) for size in sizes), self.platform_target)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if current_or_none() is not None:
            return self.function(*args, **kwargs)
        return launch(self, *args, **kwargs)

    @property
    def func(self) -> Callable[..., Any]:
        """The function under the decorator, by the name that AWS's kernels have for it."""
        return self.function

    def __repr__(self) -> str:
        return f"<kernel {self.function.__qualname__}>"


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The decorator of kernels, plain or with options. `platform_target` is the target where the
    environment names none; the others (`mode`, `debug_kernel`, ...) are ignored.
    """
    if fn is None:
        return functools.partial(jit, **options)
    if isinstance(fn, Kernel):
        return fn
    return Kernel(fn, platform_target=options.get("platform_target"))


def simulate(kernel: Any) -> Callable[..., Any]:
    """`nki.simulate(kernel)(*args)`; see `nki_runtime`, which is loaded by the first call."""
    from trnx.simulator.frontend import nki_runtime

    return nki_runtime.simulate(kernel)


def launch(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
    """`kernel(...)` outside of a kernel."""
    if os.environ.get("NKI_SIMULATOR", "1") == "0":
        raise DeviceRequiredError(
            f"NKI_SIMULATOR=0 asks to run {kernel!r} on a device; this `nki` is the simulator of "
            "trnx: unset the variable, or run with AWS's own package on Trainium"
        )
    return simulate(kernel)(*args, **kwargs)


def chosen_target(kernel: Any) -> str:
    """The target by the environment, else by `nki.jit` of `kernel` (None for no kernel)."""
    asked = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE", "").strip().lower()
    chosen = asked or getattr(kernel, "platform_target", None) or DEFAULT_TARGET
    return hardware(str(chosen)).target
