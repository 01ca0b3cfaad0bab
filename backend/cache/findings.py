"""Kernels whose source was found to be of NKI's subset, on disk: reading it is most of what a
process that has everything else still does before it records a kernel.

Findings themselves are not kept: a kernel that has some is read again, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnx.backend.cache.cache import SUBSET, Codec
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Key
from trnx.backend.cache.errors import DamagedEntryError
from trnx.backend.cache.identity import kernel_part, versions
from trnx.simulator.frontend.subset import Found


def kept_findings(kernel: Callable[..., Any], make: Callable[[], Found]) -> Found:
    """What is outside of the subset in a kernel, by `make` unless it is known that nothing is."""
    cache = current()
    name = None if cache is None else kernel_part(kernel)
    if cache is None or name is None:
        return make()
    return cache.get_or_make(Key(SUBSET, {**versions(), "kernel": name}), make, _CODEC)


def _encode(found: Found) -> Any:
    return None if found else {"findings": 0}


def _decode(given: Any) -> Found:
    if given["findings"] != 0:
        raise DamagedEntryError(f"{given!r} is not the entry of a kernel without findings")
    return ()


_CODEC = Codec(_encode, _decode)
