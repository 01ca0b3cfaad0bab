"""`@nki.jit`: a kernel as an object. Called in another kernel it is a plain call, else it is
simulated.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from trnx.simulator.context import current_or_none


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
        from trnx.simulator.front import launch

        return launch(self, *args, **kwargs)

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
