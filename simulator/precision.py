"""Products in full float32 whatever the process asks of its own: nc_matmul accumulates in float32.

torch's settings (`torch.set_float32_matmul_precision`, `torch.backends...fp32_precision`) let CPU
products round their operands to bfloat16 or TF32. They belong to the process, so the guard counts
its users: the first one in sets full precision where it is not set, the last one out restores.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch

_REDUCED = ("bf16", "tf32")


def _matmul_setting() -> Any:
    # torch's stubs do not know the attribute.
    backend: Any = torch.backends.mkldnn
    return backend.matmul


class _FullPrecision:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before: str | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                setting = _matmul_setting()
                if setting.fp32_precision in _REDUCED:
                    self._before = setting.fp32_precision
                    setting.fp32_precision = "ieee"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._before is not None:
                self._restore(self._before)
                self._before = None

    def _restore(self, before: str) -> None:
        setting = _matmul_setting()
        # Unset where that gives the same: the setting was inherited, and stays so.
        setting.fp32_precision = "none"
        if setting.fp32_precision != before:
            setting.fp32_precision = before


full_precision = _FullPrecision()
