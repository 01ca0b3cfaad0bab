"""Scheduled times of launches on disk: what planning asks the timing model for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnx.backend.cache.cache import PREDICTION, Codec
from trnx.backend.cache.current import current
from trnx.backend.cache.entries import Key
from trnx.backend.cache.errors import DamagedEntryError
from trnx.backend.cache.identity import is_told, kernel_part, versions
from trnx.nki_kernels.keys import key_of
from trnx.nki_kernels.spec import Launch


def launch_parts(launch: Launch, target: str) -> dict[str, str] | None:
    """The parts of a key that tell a launch from others, None where its text does not."""
    kernel, arguments = kernel_part(launch.kernel), repr(key_of(launch.arguments))
    if kernel is None or not is_told(arguments):
        return None
    parts = {"target": target, "kernel": kernel, "arguments": arguments}
    return {**versions(), **parts, "grid": str(launch.grid)}


def prediction_key(launch: Launch, target: str) -> Key | None:
    """The key of a launch's seconds."""
    parts = launch_parts(launch, target)
    return None if parts is None else Key(PREDICTION, parts)


def kept_seconds(launch: Launch, target: str, make: Callable[[], float]) -> float:
    """The seconds of a launch, by `make` where they are not in the cache."""
    cache = current()
    key = None if cache is None else prediction_key(launch, target)
    if cache is None or key is None:
        return make()
    return cache.get_or_make(key, make, _CODEC)


def _decode(given: Any) -> float:
    seconds = float.fromhex(given["seconds"])
    if not 0 <= seconds < float("inf"):
        raise DamagedEntryError(f"{given!r} is no time")
    return seconds


_CODEC = Codec(lambda seconds: {"seconds": seconds.hex()}, _decode)
