"""numpy arrays in and out: the torch tensor over an array's memory, and back.

numpy has bfloat16 and the float8 types from ml_dtypes. The packed x4 types are numpy types of this
module: each element is one opaque item of 4 (float8) or 2 (float4) bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trnx.simulator.memory.dtypes import DType, resolve

Array = np.ndarray[Any, Any]

# Types that numpy has from ml_dtypes alone, and torch as well.
_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")


class float8_e4m3fn_x4(np.void):  # type: ignore[misc]  # noqa: N801 (the name of the type)
    """Four float8_e4m3fn in 4 bytes."""


class float8_e5m2_x4(np.void):  # type: ignore[misc]  # noqa: N801
    """Four float8_e5m2 in 4 bytes."""


class float4_e2m1fn_x4(np.void):  # type: ignore[misc]  # noqa: N801
    """Four float4_e2m1fn in 2 bytes."""


# Public code knows a packed type by its name ("x4" in str(dtype)), which numpy prints for a field,
# and by the TypeError of a cast to a number, which numpy raises for more than one field.
PACKED: dict[str, np.dtype[Any]] = {
    kind.__name__: np.dtype((kind, [(kind.__name__, f"V{size // 2}"), ("", f"V{size // 2}")]))
    for kind, size in ((float8_e4m3fn_x4, 4), (float8_e5m2_x4, 4), (float4_e2m1fn_x4, 2))
}
# NKI's types are given to numpy by their names (np.zeros(shape, dtype=nl.float8_e4m3fn_x4)):
# ml_dtypes registers its own there, too.
for _name, _kind in PACKED.items():
    np.sctypeDict.setdefault(_name, _kind)  # type: ignore[arg-type]


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The numpy dtype of an NKI or numpy type; tfloat32 is stored as float32. Raises TypeError."""
    name = str(dtype) if isinstance(dtype, str) else None
    if name is None:
        given: np.dtype[Any] = np.dtype(dtype)
        return given
    if name in PACKED:
        return PACKED[name]
    if name == "tfloat32":
        return np.dtype(np.float32)
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(name)


def kind_of(array: Array) -> DType | None:
    """The NKI type of an array where torch has none: float8_e4m3 and the packed types."""
    name = array.dtype.type.__name__
    return resolve(name) if name == "float8_e4m3" or name in PACKED else None


def from_numpy(array: Array) -> torch.Tensor:
    """A tensor over the array's memory, a copy where torch cannot share it; types that torch lacks
    come as the integers that hold them (see `dtypes`).
    """
    name = array.dtype.type.__name__
    kind = kind_of(array)
    held: torch.dtype | None = kind.torch if kind is not None else None
    if name in _ML_DTYPES:
        held = getattr(torch, name)
    if held is not None:
        array = array.view(f"uint{array.dtype.itemsize * 8}")
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    tensor = torch.from_numpy(array)
    return tensor if held is None else tensor.view(held)


def to_numpy(tensor: torch.Tensor, dtype: DType | None = None) -> Array:
    """An array over the tensor's memory; `dtype` is the NKI type that the tensor holds."""
    name = str(tensor.dtype).removeprefix("torch.")
    if dtype is not None and dtype.needs_codec:
        name = str(dtype)
    if name in _ML_DTYPES or name == "float8_e4m3" or name in PACKED:
        held = getattr(torch, f"uint{tensor.element_size() * 8}")
        return tensor.view(held).numpy().view(numpy_dtype(name))
    return tensor.numpy()
