"""Python's cyclic garbage collector while trnx compiles.

A full collection visits every object of the process, of which torch alone has some hundred
thousand, and compiling makes enough objects to cause several. Most of what is made stays, so that a
collection after every 700 objects (Python's default) finds little: a seventh of the time in which a
kernel is recorded.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from trnx.simulator.fork_locks import fork_lock

# As Python's, but for the first: objects that are made until the youngest are visited.
THRESHOLDS = (20_000, 10, 10)

_lock = fork_lock(sys.modules[__name__], threading.Lock)
# The user's thresholds, once for each block that is open.
_before: list[tuple[int, int, int]] = []


@contextmanager
def new_objects_only() -> Iterator[None]:
    """Collections inside the block are rarer, and visit only what was made in it: garbage of before
    is collected after it. Blocks of threads may overlap; what the user has frozen stays frozen, and
    a collector that the user has turned off, or made rarer, stays so."""
    is_inner = _make_rarer()
    try:
        # Counting what is frozen visits it all.
        with nullcontext() if is_inner else _frozen():
            yield
    finally:
        _as_before()


@contextmanager
def _frozen() -> Iterator[None]:
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _make_rarer() -> bool:
    """True where another block is open."""
    with _lock:
        users = _before[0] if _before else gc.get_threshold()
        _before.append(users)
        if 0 < users[0] < THRESHOLDS[0]:
            gc.set_threshold(*THRESHOLDS)
        return len(_before) > 1


def _as_before() -> None:
    with _lock:
        users = _before.pop()
        # Not where somebody else has changed them since.
        if not _before and gc.get_threshold() == THRESHOLDS:
            gc.set_threshold(*users)
