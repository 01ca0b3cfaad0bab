"""What tests of kernels import from `neuron_dtypes`: numpy types that numpy lacks, and
conversions with one rounding. Part of the surface that `cpu_simulator` installs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from trnx.simulator.frontend.nki_modules import make_module
from trnx.simulator.memory.arrays import PACKED, Array, numpy_dtype

# The type of one of the four values in a packed element, and how many bits it has.
_PACKED_VALUES: dict[str, tuple[Any, int]] = {
    "float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, 8),
    "float8_e5m2_x4": (ml_dtypes.float8_e5m2, 8),
    "float4_e2m1fn_x4": (ml_dtypes.float4_e2m1fn, 4),
}


def static_cast(array: Any, dtype: Any) -> Array:
    """`array` as `dtype`. Four values along the last axis become one packed element, and a packed
    element becomes four values.
    """
    source = np.asarray(array)
    target = numpy_dtype(dtype)
    if source.dtype == target:
        return source
    if _packed_name(source.dtype) is not None:
        return _unpacked(source).astype(target)
    if _packed_name(target) is not None:
        return _packed(source, target)
    return source.astype(target)


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element."""
    return numpy_dtype(dtype).itemsize


def is_float_type(dtype: Any) -> bool:
    """True for floating point types, also those of ml_dtypes; False for packed ones."""
    kind = numpy_dtype(dtype)
    if _packed_name(kind) is not None:
        return False
    if kind.kind == "f":
        return True
    try:
        _limits(kind)
    except ValueError:
        return False
    return True


def finfo(dtype: Any) -> Any:
    """Limits of a floating point type; of a packed type, those of one of its four values."""
    kind = numpy_dtype(dtype)
    name = _packed_name(kind)
    return _limits(_PACKED_VALUES[name][0] if name is not None else kind)


def _limits(kind: Any) -> Any:
    return ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]


def as_module() -> ModuleType:
    """The module `neuron_dtypes`."""
    names = ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
    return make_module(
        "neuron_dtypes",
        {
            **{name: getattr(ml_dtypes, name) for name in names},
            **PACKED,
            "static_cast": static_cast,
            "sizeinbytes": sizeinbytes,
            "is_float_type": is_float_type,
            "finfo": finfo,
        },
    )


def _packed_name(dtype: np.dtype[Any]) -> str | None:
    name = dtype.type.__name__
    return name if name in PACKED else None


def _packed(values: Array, target: np.dtype[Any]) -> Array:
    """Four values to an element, the first in the lowest bits."""
    kind, bits = _PACKED_VALUES[target.type.__name__]
    limit = float(_limits(kind).max)
    # Out-of-range values saturate, as the hardware's quantisation does.
    clipped = np.clip(values.astype(np.float32), -limit, limit)
    codes = clipped.astype(kind).view(np.uint8).astype(np.uint32)
    quads = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 4, 4)
    shifted = quads << (np.arange(4, dtype=np.uint32) * bits)
    words = np.bitwise_or.reduce(shifted, axis=-1)
    packed: Array = words.astype(f"uint{4 * bits}").view(target)
    return packed


def _unpacked(elements: Array) -> Array:
    """float32 values, four for each element, along the last axis."""
    kind, bits = _PACKED_VALUES[elements.dtype.type.__name__]
    words = np.ascontiguousarray(elements).view(f"uint{4 * bits}").astype(np.uint32)
    codes = (words[..., None] >> (np.arange(4, dtype=np.uint32) * bits)) & ((1 << bits) - 1)
    values = codes.astype(np.uint8).view(kind).astype(np.float32)
    flat: Array = values.reshape(*elements.shape[:-1], elements.shape[-1] * 4)
    return flat
