"""NKI data types: names that are strings, as kernels see them, and the torch dtype that holds them.

A `DType` is a `str` (`nl.float32 == "float32"`, usable as a numpy dtype name) with a torch dtype.
Packed x4 types and IEEE `float8_e4m3` have no torch dtype: they are held as integers of their size.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its types by name then, which are those of NKI
import torch
from torch import dtype as TorchDType

from trnx.simulator.errors import UnknownDTypeError
from trnx.simulator.kernel_lines import kernel_location


class DType(str):
    """One NKI data type. `torch` is the dtype of the storage; `limits` are those of an integer
    type.
    """

    torch: TorchDType
    itemsize: int
    is_float: bool
    is_packed: bool
    limits: tuple[int, int] | None
    # True for the integer types (bool counts, packed types do not).
    is_integer: bool
    # True where torch cannot convert between the held values and float32 by itself.
    needs_codec: bool

    def __new__(
        cls, name: str, held_as: TorchDType, *, is_float: bool, is_packed: bool = False
    ) -> DType:
        self = super().__new__(cls, name)
        self.torch = held_as
        self.itemsize = held_as.itemsize
        self.is_float = is_float
        self.is_packed = is_packed
        info = None if is_float or held_as is torch.bool else torch.iinfo(held_as)
        self.limits = (int(info.min), int(info.max)) if info else None
        self.is_integer = not is_float and not is_packed
        self.needs_codec = is_packed or name in ("float8_e4m3", "tfloat32")
        return self

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve, (str(self),)


# nl.bool_ is one byte, 0 or 1.
bool_ = DType("bool", torch.uint8, is_float=False)
int8 = DType("int8", torch.int8, is_float=False)
int16 = DType("int16", torch.int16, is_float=False)
int32 = DType("int32", torch.int32, is_float=False)
uint8 = DType("uint8", torch.uint8, is_float=False)
uint16 = DType("uint16", torch.uint16, is_float=False)
uint32 = DType("uint32", torch.uint32, is_float=False)
float16 = DType("float16", torch.float16, is_float=True)
float32 = DType("float32", torch.float32, is_float=True)
bfloat16 = DType("bfloat16", torch.bfloat16, is_float=True)
tfloat32 = DType("tfloat32", torch.float32, is_float=True)
float8_e4m3 = DType("float8_e4m3", torch.uint8, is_float=True)
float8_e4m3fn = DType("float8_e4m3fn", torch.float8_e4m3fn, is_float=True)
float8_e5m2 = DType("float8_e5m2", torch.float8_e5m2, is_float=True)
float8_e8m0fnu = DType("float8_e8m0fnu", torch.float8_e8m0fnu, is_float=True)
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", torch.int32, is_float=False, is_packed=True)
float8_e5m2_x4 = DType("float8_e5m2_x4", torch.int32, is_float=False, is_packed=True)
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", torch.int16, is_float=False, is_packed=True)

DTYPES: tuple[DType, ...] = (
    bool_,
    int8,
    int16,
    int32,
    uint8,
    uint16,
    uint32,
    float16,
    float32,
    bfloat16,
    tfloat32,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float8_e8m0fnu,
    float8_e4m3fn_x4,
    float8_e5m2_x4,
    float4_e2m1fn_x4,
)
_BY_NAME = {str(dtype): dtype for dtype in DTYPES} | {"bool_": bool_}
_BY_TORCH = {
    dtype.torch: dtype
    for dtype in DTYPES
    if not dtype.is_packed and dtype not in ("bool", "tfloat32", "float8_e4m3")
}


def resolve(dtype: Any) -> DType:
    """The `DType` of a name, a DType, a torch dtype or a numpy dtype. Raises UnknownDTypeError."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, torch.dtype):
        found = _BY_TORCH.get(dtype)
    elif isinstance(dtype, str):
        found = _BY_NAME.get(dtype)
    else:
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
        found = _BY_NAME.get(str(name))
    if found is None:
        raise UnknownDTypeError(
            "dtype",
            f"{dtype!r} is not an NKI data type; there are {', '.join(DTYPES)}",
            kernel_location(),
        )
    return found
