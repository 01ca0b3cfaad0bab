"""Generated kernels on disk: their sources, or why a region has none.

They are code: `Kind.is_code`, so that they are read only where nobody but this user could have
written them, and never leave the machine. Without an entry a kernel is generated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnx.backend.cache.cache import SOURCE, Codec
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Key
from trnx.backend.cache.errors import DamagedEntryError
from trnx.backend.cache.identity import versions
from trnx.nki_kernels.generator.kernel import Generated, Made, Refusal


def kept_source(key: str, make: Callable[[], Made]) -> Made:
    """What was generated for a region; see `trnx.nki_kernels.generator.kernel.SourceStore`."""
    cache = current()
    if cache is None:
        return make()
    return cache.get_or_make(Key(SOURCE, {**versions(), "region": key}), make, _CODEC)


def _encode(made: Made) -> Any:
    if isinstance(made, Refusal):
        return {"reason": made.reason, "index": made.index}
    orders = [list(order) for order in made.orders]
    return {"source": made.source, "orders": orders, "cores": made.cores}


def _decode(given: Any) -> Made:
    if "reason" in given:
        reason, index = given["reason"], given["index"]
        if not isinstance(reason, str) or not (index is None or type(index) is int):
            raise DamagedEntryError(f"{given!r} is no refusal")
        return Refusal(reason, index)
    orders = tuple(tuple(int(dim) for dim in order) for order in given["orders"])
    if not isinstance(given["source"], str):
        raise DamagedEntryError("a source that is no text")
    return Generated(given["source"], orders, int(given["cores"]))


_CODEC = Codec(_encode, _decode)
