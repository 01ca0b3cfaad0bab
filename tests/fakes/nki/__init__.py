"""The documented part of nki 0.7: `jit` and `simulate` (nki/api/generated/nki.jit.html of SDK
2.33.1, nki/api/nki/__init__.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["jit", "simulate"]

# The simulator takes functions of modules with this mark as they are, without a twin of their file.
__trnx__ = True


class _Kernel:
    """`kernel[lnc](*args)`; the function is `func`, as in the real package."""

    def __init__(self, fn: Callable[..., Any], lnc: int = 1) -> None:
        self.func = fn
        self.lnc = lnc
        functools.update_wrapper(self, fn)

    def __getitem__(self, lnc: int) -> _Kernel:
        from nki import _launch

        _launch.check_lnc(lnc)
        return _Kernel(self.func, lnc)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from nki import _launch

        if _launch.is_in_kernel():
            return self.func(*args, **kwargs)
        return _launch.launch(self.func, self.lnc, args, kwargs)


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    compile_config: Any = None,
    specialization_config: Any = None,
    **kwargs: Any,
) -> Any:
    """Compile a kernel for the device of the tensors that it is called with."""
    del compile_config, specialization_config, kwargs
    return _Kernel if fn is None else _Kernel(fn)


def simulate(kernel: Any) -> Callable[..., Any]:
    """The kernel on numpy arrays and on tensors in host memory."""
    from trnx import simulator

    if not isinstance(kernel, _Kernel):
        return simulator.simulate(kernel)
    return simulator.simulate(kernel.func, grid=kernel.lnc if kernel.lnc > 1 else None)
