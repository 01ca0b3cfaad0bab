"""What a kernel file's own `nki` offers to run kernels: `nki.simulate`, `kernel(...)`, and the
environment variables of AWS's package that choose how.

* `NEURON_PLATFORM_TARGET_OVERRIDE`: the target (trn1, inf2, gen2, trn2, gen3, trn3, gen4). Else the
  `platform_target` of `nki.jit`, else trn2, as everywhere in trnx (AWS's own simulator takes trn3).
  (`trnx.simulator.simulate` and `trace` have a parameter `target` and read no variable.)
* `NKI_PRECISE_FP=0`: bfloat16, float16 and float8 are stored as float32, and results come as
  float32: tells an error of rounding from an error of the kernel. Tensors then take more memory
  than on the device, so the capacity of SBUF and PSUM is reported as a warning.
* `NKI_SIMULATOR`: 1 or unset runs every kernel here; 0 asks for a device, which is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from trnx.simulator.frontend.kernel import chosen_target
from trnx.simulator.frontend.options import Passing, TraceOptions
from trnx.simulator.frontend.tracing import run_kernel

_LOW_PRECISION = (
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


# What `warning_of` asked for.
_WARN: ContextVar[frozenset[str]] = ContextVar("trnx_warn", default=frozenset())


@contextmanager
def warning_of(checks: Collection[str]) -> Iterator[None]:
    """Kernels that run in the block have these names in `warn`. Raises UnknownCheckError."""
    token = _WARN.set(frozenset(TraceOptions(warn=checks).warn))
    try:
        yield
    finally:
        _WARN.reset(token)


def asked_warnings() -> frozenset[str]:
    """The names that `warning_of` gives the block."""
    return _WARN.get()


def simulate(kernel: Any) -> Callable[..., Any]:
    """`nki.simulate(kernel)(*args)`: numpy or torch in, the same kind out; numpy where no argument
    is a tensor, as AWS's own gives (SDK/nki/guides/nki_simulator.rst, How It Works).

    Tensors that the kernel writes into are changed in place.
    """
    options = TraceOptions(
        chosen_target(kernel),
        values=True,
        passing=Passing.dense,
        warn=asked_warnings(),
        makes_numpy=True,
    )

    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_precise():
            return run_kernel(kernel, options, *args, **kwargs)
        widened = _Widened()
        results = run_kernel(
            kernel,
            replace(options, warn={*options.warn, "capacity"}, stores_float32=True),
            *(widened.convert(value) for value in args),
            **{name: widened.convert(value) for name, value in kwargs.items()},
        )
        return widened.restored(results)

    return call


def _is_precise() -> bool:
    return os.environ.get("NKI_PRECISE_FP", "1") != "0"


class _Widened:
    """Arguments as float32, and the way back for those that the kernel wrote into."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any, Any]] = []

    def convert(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in _LOW_PRECISION:
            return self._keep(value, value.float(), value.float())
        if isinstance(value, np.ndarray) and value.dtype.kind in "fV" and value.dtype.itemsize < 4:
            return self._keep(value, value.astype(np.float32), value.astype(np.float32))
        if isinstance(value, list | tuple):
            items = [self.convert(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, dict):
            return {key: self.convert(item) for key, item in value.items()}
        return value

    def _keep(self, given: Any, wide: Any, before: Any) -> Any:
        self._pairs.append((given, wide, before))
        return wide

    def restored(self, results: Any) -> Any:
        for given, wide, before in self._pairs:
            if isinstance(given, torch.Tensor):
                if not torch.equal(wide.nan_to_num(), before.nan_to_num()):
                    given.copy_(wide)
            elif not np.array_equal(wide, before, equal_nan=True):
                given[...] = wide.astype(given.dtype)
        return results
