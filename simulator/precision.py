"""Products in full float32 whatever the process asks of its own: nc_matmul accumulates in float32.

torch's settings (`torch.set_float32_matmul_precision`, `torch.backends...fp32_precision`) let CPU
products round their operands to bfloat16 or TF32. They belong to the process, so uses are counted:
the first one in sets full precision where it is not set, the last one out restores. A use that an
interrupt cut short ends when its object goes.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any

import torch

from trnx.simulator.fork_locks import fork_lock

_REDUCED = ("bf16", "tf32")


# Of all CPU products; torch's stubs do not know it. Looked up once, as every replay reads it.
_SETTING: Any = getattr(torch.backends.mkldnn, "matmul")  # noqa: B009
_CONVOLUTIONS: Any = getattr(torch.backends.mkldnn, "conv")  # noqa: B009


class _Users:
    """Who relies on full precision, by identity, and the setting before the first of them."""

    def __init__(self) -> None:
        # Reentrant: collecting garbage may end a use within `begin` or `end`.
        self._lock = fork_lock(self, threading.RLock)
        self._active: set[int] = set()
        self._before: str | None = None
        # How often a setting was replaced.
        self._replaced = 0

    def needs_none(self) -> bool:
        """True where precision is full without this class: nobody has replaced a setting, which
        would return before others have ended.
        """
        replaced = self._replaced
        is_full = _SETTING.fp32_precision not in _REDUCED
        return is_full and self._before is None and self._replaced == replaced

    def begin(self, user: int) -> None:
        with self._lock:
            self._active.add(user)
            if len(self._active) == 1 and self._before is None:
                setting = _SETTING.fp32_precision
                if setting in _REDUCED:
                    self._before = setting
                    self._replaced += 1
                    _SETTING.fp32_precision = "ieee"

    def end(self, user: int) -> None:
        """May be called again: the user counts until everything is restored."""
        with self._lock:
            if self._active == {user} and self._before is not None:
                _restore(self._before)
                self._before = None
            self._active.discard(user)

    def forget(self) -> None:
        """End the uses of threads that a forked child does not have."""
        if self._before is not None:
            _restore(self._before)
        self._before = None
        self._active.clear()

    @property
    def count(self) -> int:
        return len(self._active)


def _restore(before: str) -> None:
    # Unset where that gives the same: the setting was inherited, and stays so.
    _SETTING.fp32_precision = "none"
    if _SETTING.fp32_precision != before:
        _SETTING.fp32_precision = before


_users = _Users()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_users.forget)


def users() -> int:
    """How many uses there are now."""
    return _users.count


def is_full() -> bool:
    """True where products are in full precision as the process has it: a use would change nothing,
    and cost as much as a product of few elements.
    """
    return _users.needs_none()


def is_full_for_operators() -> bool:
    """As `is_full`, also for convolutions."""
    return is_full() and _CONVOLUTIONS.fp32_precision not in _REDUCED


class FullPrecision:
    """One use; see the module's docstring."""

    _is_open = False

    def __enter__(self) -> None:
        self._is_open = True
        _users.begin(id(self))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _users.end(id(self))
        self._is_open = False

    def __del__(self) -> None:
        if self._is_open:
            _users.end(id(self))
