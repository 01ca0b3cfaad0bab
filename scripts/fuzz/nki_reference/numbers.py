"""Stored elements and their values, by numpy and ml_dtypes: no code of the simulator.

An engine reads any type as float32 and rounds its float32 result once when it writes: float types
to nearest even with the overflow of the type (float8_e4m3fn, which has no infinity, saturates),
integers to nearest even and saturating, NaN as 0.
tfloat32 has float32's exponent and 10 bits of mantissa, in 4 bytes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STORED: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "tfloat32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "float8_e4m3fn_x4": np.dtype(np.uint32),
    "float8_e5m2_x4": np.dtype(np.uint32),
    "float4_e2m1fn_x4": np.dtype(np.uint16),
}
FLOATS = (
    "float32",
    "tfloat32",
    "bfloat16",
    "float16",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
)
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
PACKED = ("float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4")
ARITHMETIC = FLOATS + INTEGERS
ANY = (*ARITHMETIC, *PACKED)
WIDE_INTEGERS = ("int32", "uint32")
RAW: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
}
TINY = 2.0**-140


def size_of(dtype: str) -> int:
    """Bytes of one element."""
    return STORED[dtype].itemsize


def raw(stored: Array) -> Array:
    """The bits of stored elements as unsigned integers."""
    return stored.view(RAW[stored.dtype.itemsize])


def round_tf32(values: Array) -> Array:
    """float32 rounded to 10 bits of mantissa, to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    lowest = (bits >> np.uint32(13)) & np.uint32(1)
    rounded = ((bits + np.uint32(0xFFF) + lowest) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), rounded).astype(np.float32)


def decode(stored: Array, dtype: str) -> Array:
    """What an engine computes with: float32."""
    with np.errstate(all="ignore"):
        values = np.asarray(stored.astype(np.float32))
        return round_tf32(values) if dtype == "tfloat32" else values


def encode(values: Array, dtype: str) -> Array:
    """float32 values (or float64 ones, rounded to float32 first) as stored elements."""
    with np.errstate(all="ignore"):
        single = np.asarray(values).astype(np.float32)
        if dtype in INTEGERS:
            limits = np.iinfo(STORED[dtype])
            whole = np.clip(np.rint(single.astype(np.float64)), limits.min, limits.max)
            return np.where(np.isnan(single), 0, whole).astype(STORED[dtype])
        if dtype == "tfloat32":
            return round_tf32(single)
        if dtype == "float8_e4m3fn":
            single = np.clip(single, -448.0, 448.0)
        return np.asarray(single.astype(STORED[dtype]))


def same_values(actual: Array, expected: Array) -> Array:
    """Element-wise equality of stored elements: any NaN equals any other, zeros have no sign."""
    if actual.dtype.kind in "iu":
        return np.asarray(actual == expected)
    with np.errstate(all="ignore"):
        a, b = actual.astype(np.float32), expected.astype(np.float32)
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def between(actual: Array, low: Array, high: Array) -> Array:
    """Element-wise low <= actual <= high; where a bound is NaN, the element must be NaN too."""
    with np.errstate(all="ignore"):
        a, x, y = (part.astype(np.float64) for part in (actual, low, high))
    is_nan = np.isnan(x) | np.isnan(y)
    return np.where(is_nan, np.isnan(a), (x <= a) & (a <= y))
