"""`LruCache`: what is expensive to make, by key; the least recently used leaves first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from trnx.simulator.fork_locks import fork_lock

Value = TypeVar("Value")


def _no_bytes(values: Collection[object]) -> int:  # noqa: ARG001
    return 0


class LruCache(Generic[Value]):
    """At most `most` values, and `most_bytes` by `bytes_of(values)`; the newest one always stays.

    Safe under threads and in a forked child, and where comparing keys is interrupted, which leaves
    an OrderedDict damaged. What leaves dies outside of the lock.
    """

    def __init__(
        self,
        most: int,
        most_bytes: int = 0,
        bytes_of: Callable[[Collection[Value]], int] = _no_bytes,
    ) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes_of = bytes_of
        # The least recently used first.
        self._kept: dict[Hashable, Value] = {}
        self._lock = fork_lock(self, threading.Lock)

    def get(self, key: Hashable) -> Value | None:
        """The value for `key`, which is now the newest; None where there is none."""
        with self._lock:
            return self._found(key) if key in self._kept else None

    def put(self, key: Hashable, value: Value) -> None:
        """Keep `value` as the newest; others leave where that is too much."""
        dropped = []
        with self._lock:
            dropped.append(self._kept.pop(key, None))
            self._kept[key] = value
            while len(self._kept) > 1 and self._is_too_much():
                dropped.append(self._kept.pop(next(iter(self._kept))))

    def get_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value for `key`, by `make` where there is none; threads at once may each make one."""
        with self._lock:
            if key in self._kept:
                return self._found(key)
        value = make()
        self.put(key, value)
        return value

    def values(self) -> tuple[Value, ...]:
        """All values, the newest last."""
        with self._lock:
            return tuple(self._kept.values())

    def trim(self, most: int) -> None:
        """Forget all but the `most` newest values."""
        dropped = []
        with self._lock:
            while len(self._kept) > most:
                dropped.append(self._kept.pop(next(iter(self._kept))))
        del dropped

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            dropped, self._kept = self._kept, {}
        del dropped

    def __len__(self) -> int:
        return len(self._kept)

    def _found(self, key: Hashable) -> Value:
        value = self._kept[key] = self._kept.pop(key)
        return value

    def _is_too_much(self) -> bool:
        if len(self._kept) > self._most:
            return True
        return self._bytes_of(self._kept.values()) > self._most_bytes
