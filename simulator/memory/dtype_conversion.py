"""Conversion of stored values to float32 and back, as steps: one rounding, saturating integers.

Float types round to nearest even and overflow as the type says: to infinity, or, in float8_e4m3fn,
which has none, to the largest number (as torch does; the NKI documents are silent). Integers round
to nearest even and saturate (SDK release notes of NKI 0.6); NaN becomes 0, which no document says.
`float8_e4m3`, the IEEE-like type that torch lacks, goes through a table of its 256 values.
`tfloat32` is held as float32 and has 10 bits of mantissa: it is rounded when it is written, and
when it is read, in case its bits came from a float32 tensor.
"""

from __future__ import annotations

import functools
from typing import NoReturn

import torch

from trnx.simulator.errors import IllegalInstructionError
from trnx.simulator.kernel_lines import kernel_location
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import Step

# The largest float32 that any 32-bit integer type holds.
_IN_RANGE = 2.0**31 - 2**7


@functools.cache
def _e4m3_values() -> torch.Tensor:
    """float32 value of every float8_e4m3 code (1 sign, 4 exponent with bias 7, 3 mantissa bits)."""
    values = []
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent, mantissa = (code >> 3) & 0xF, code & 7
        if exponent == 15:
            value = float("inf") if mantissa == 0 else float("nan")
        elif exponent == 0:
            value = mantissa * 2.0**-9
        else:
            value = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values.append(sign * value)
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _decode_e4m3(source: torch.Tensor, out: torch.Tensor) -> None:
    # The table by index_select and int32: a third of the time of indexing with int64.
    codes = source.reshape(-1).to(torch.int32)
    out.copy_(torch.index_select(_e4m3_values(), 0, codes).view(source.shape))


def _encode_e4m3(value: torch.Tensor, target: torch.Tensor) -> None:
    # e4m3fn has the same codes for finite values up to 240; above that this type has inf and NaN.
    magnitude = value.abs()
    codes = magnitude.clamp(max=240.0).to(torch.float8_e4m3fn).view(torch.uint8)
    # Half-way between 240 and the next step 256 rounds to even, which is infinity.
    codes = torch.where(magnitude >= 248.0, torch.full_like(codes, 0x78), codes)
    codes = torch.where(value.isnan(), torch.full_like(codes, 0x7C), codes)
    target.copy_(codes | (torch.signbit(value).to(torch.uint8) << 7))


def _round_tf32(source: torch.Tensor, target: torch.Tensor) -> None:
    """target = source rounded to 10 bits of mantissa, to nearest even."""
    bits = source.contiguous().view(torch.int32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    target.copy_(torch.where(source.isnan(), source, rounded.view(torch.float32)))


def _refuse_packed(dtype: DType) -> NoReturn:
    raise IllegalInstructionError(
        "dtype",
        f"{dtype} has no arithmetic; only DMA, copies and nc_matmul_mx take it",
        kernel_location(),
    )


def append_load_f32(
    steps: list[Step], dtype: DType, source: torch.Tensor, out: torch.Tensor
) -> None:
    """Append the step that converts stored values of `dtype` into the float32 tensor `out`."""
    if dtype == "float8_e4m3":
        steps.append(functools.partial(_decode_e4m3, source, out))
    elif dtype == "tfloat32":
        steps.append(functools.partial(_round_tf32, source, out))
    elif dtype.is_packed:
        _refuse_packed(dtype)
    else:
        steps.append(functools.partial(out.copy_, source))


def store_wide(value: torch.Tensor, target: torch.Tensor, low: int, high: int) -> None:
    """float32 to 32-bit integers, rounded and saturated."""
    if value.numel():
        least, most = torch.aminmax(value)
        # False for NaN.
        if float(least) >= low and float(most) <= _IN_RANGE:
            target.copy_(torch.round(value))
            return
    # float32 cannot represent the largest 32-bit integers, so saturation happens in float64.
    wide = value.to(torch.float64).round_().clamp_(low, high)
    target.copy_(wide.nan_to_num_(0.0))


def append_store_f32(
    steps: list[Step], dtype: DType, value: torch.Tensor, target: torch.Tensor, exact: bool
) -> None:
    """Append the steps that round the float32 scratch `value` (which they may change) into
    `target`.
    """
    if dtype == "float8_e4m3":
        steps.append(functools.partial(_encode_e4m3, value, target))
        return
    if dtype == "tfloat32":
        steps.append(functools.partial(_round_tf32, value, target))
        return
    if dtype.is_packed:
        _refuse_packed(dtype)
    limits = dtype.limits
    if limits is not None and not exact:
        if dtype.itemsize == 4:
            steps.append(functools.partial(store_wide, value, target, *limits))
            return
        steps.append(value.round_)
        steps.append(functools.partial(value.clamp_, *limits))
        steps.append(functools.partial(value.nan_to_num_, 0.0))
    steps.append(functools.partial(target.copy_, value))
