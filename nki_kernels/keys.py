"""Cache keys: two values have equal keys exactly if a kernel cannot tell them apart."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


def key_of(value: Any) -> Hashable:
    """`value` as a hashable key; lists, tuples, slices and dicts by their elements."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(key_of(item) for item in value))
    if isinstance(value, dict):
        return ("dict", *((key, key_of(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return ("slice", key_of((value.start, value.stop, value.step)))
    if isinstance(value, float):  # by its text: 0.0 and -0.0 are equal, NaN is not equal to itself
        return (float, repr(value))
    # 1 and True are equal, and are different constants to a kernel.
    return (type(value), value)


class Memo(Generic[Result]):
    """Results by key: an LRU cache of `capacity` entries, thread-safe.

    `made` counts the results that were computed.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Result] = OrderedDict()
        self.made = 0

    def get(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """The result for `key`, computed by `make` where it is new."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        result = make()
        with self._lock:
            self.made += 1
            self._known[key] = result
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)
        return result
