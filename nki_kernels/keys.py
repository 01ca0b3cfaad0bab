"""Cache keys: two values have equal keys exactly if a kernel cannot tell them apart."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


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
