"""Locks that a forked child can take.

A thread that holds a lock while another thread forks does not exist in the child, where the lock
would stay taken for ever. A child gets new ones. What they guard are caches and counters that
every step of theirs leaves usable, so a thread that was cut off inside does no harm.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Lock = TypeVar("Lock", threading.Lock, threading.RLock)

_owners: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()


def fork_lock(owner: Any, make: Callable[[], Lock]) -> Lock:
    """A lock by `make` for `owner._lock`, which is set anew in a forked child.

    A plain lock, so that taking it costs what it costs. `owner` is hashed by identity.
    """
    _owners[owner] = make
    return make()


def _renew() -> None:
    for owner, make in list(_owners.items()):
        owner._lock = make()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
