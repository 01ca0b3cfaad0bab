"""What triton-viz's examples call of triton-viz: `trace(...)` runs a kernel with the simulator of
trnx instead of triton-viz's own interpreter, and `launch` shows nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

import nki


class Tracer:
    """A client, of which nothing is asked."""


class _Traced:
    def __init__(self, kernel: Any, grid: tuple[int, ...] = ()) -> None:
        self._kernel = kernel
        self._grid = grid

    def __getitem__(self, grid: tuple[int, ...]) -> _Traced:
        return _Traced(self._kernel, grid)

    def __call__(self, *args: Any, **_: Any) -> Any:
        kernel = nki.jit(self._kernel)
        if "launch_grid" in signature(self._kernel).parameters:  # from `trnx migrate`
            return nki.simulate(kernel)(*args, launch_grid=self._grid)
        programs = math.prod(self._grid)
        return nki.simulate(kernel[programs] if programs > 1 else kernel)(*args)


def trace(*_: object, **__: object) -> Callable[[Any], _Traced]:
    """The decorator of kernels."""
    return _Traced


def launch(**_: object) -> None:
    """Nothing is shown."""


def _module(name: str, **members: Any) -> None:
    made = ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made


_module("triton_viz.clients", Tracer=Tracer)
_module("triton_viz.core")
_module("triton_viz.core.trace", launches=[])
