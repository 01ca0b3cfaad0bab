"""MX formats: blocks of 8 partitions x 4 packed elements that share one scale, a power of two.

A scale is stored as exponent + 127 (float8_e8m0fnu, or its bits as uint8); 255 is NaN. The scale of
partition group g lies at partition 32 * (g // 4) + g % 4 of the scale tile: the first four rows of
each quadrant, which may start at 0, 4, 8 or 12 so that four tensors share one tile. Sources: SDK
nki.isa (quantize_mx, nc_matmul_mx) and SDK/nki/deep-dives/mxfp-matmul.rst.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from trnx.simulator.isa.indirect import gather_rows
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import MemoryRegion

GROUP = 8  # partitions of a block
PACKED = 4  # elements of a block in each partition
BIAS = 127
_QUADRANT = 32
_SCALE_TYPES = ("float8_e8m0fnu", "uint8")
_FP8 = {"float8_e4m3fn_x4": torch.float8_e4m3fn, "float8_e5m2_x4": torch.float8_e5m2}
PACKED_TYPES = (*_FP8, "float4_e2m1fn_x4")
# Values of the codes of float4_e2m1fn without the sign.
_FP4_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

_older_rule: ContextVar[bool] = ContextVar("trnx_older_mx_rule", default=False)


@contextmanager
def scales_before_0_5() -> Iterator[None]:
    """Kernels traced inside quantise with the rule that NKI had before 0.5: scales of half the
    size, the largest values saturate.
    """
    token = _older_rule.set(True)
    try:
        yield
    finally:
        _older_rule.reset(token)


def is_older_rule() -> bool:
    """True inside of `scales_before_0_5`."""
    return _older_rule.get()


def scale_quadrants(
    emit: Emit, scale: NkiTensor, operand: str, partitions: int, columns: int
) -> list[NkiTensor]:
    """The rows of a scale tile that belong to `partitions` partitions of data, by quadrant; their
    free dimensions, as those of the data, together have `columns` elements.
    """
    quadrants = partitions // _QUADRANT
    rows = _QUADRANT // GROUP
    if not isinstance(scale, NkiTensor) or scale.buffer is not MemoryRegion.sbuf:
        emit.illegal(f"{operand} must be a tile in sbuf")
    if scale.dtype not in _SCALE_TYPES:
        emit.illegal(f"{operand} is {scale.dtype}; it must be one of {', '.join(_SCALE_TYPES)}")
    needed = _QUADRANT * (quadrants - 1) + rows
    if scale.ndim < 2 or scale.shape[0] < needed or scale.free_size != columns:
        emit.illegal(
            f"{operand} has shape {scale.shape}; expected ({partitions}, {columns}), or "
            f"({rows}, {columns}) for data of one quadrant"
        )
    start = scale.start_partition % _QUADRANT
    if start % rows or start > 12:
        emit.finding(
            "start-partition",
            f"{operand} starts at partition {start} of its quadrant; it must be 0, 4, 8 or 12",
        )
    return [
        scale.slice(0, _QUADRANT * quadrant, _QUADRANT * quadrant + rows)
        for quadrant in range(quadrants)
    ]


def append_dequantise(emit: Emit, data: NkiTensor, operand: str, scale: NkiTensor) -> torch.Tensor:
    """Steps that compute float32 [partitions * 4, columns] from packed data and its scales, which
    are one logical tensor: tensor indirection takes the same columns of both.
    """
    partitions, columns = data.shape[0], data.free_size
    name = f"{operand}_scale"
    packed = emit.read(data, operand, shape=(partitions, columns))
    if isinstance(scale, NkiTensor) and (scale.has_column_index or data.has_column_index):
        views = _gathered_scales(emit, data, operand, scale)
    else:
        views = []
        for quadrant in scale_quadrants(emit, scale, name, partitions, columns):
            emit.require_written(quadrant, name)
            emit.reads(quadrant)
            views.append(quadrant.torch_view().view(torch.uint8))
    held = emit.scratch((partitions, columns), data.dtype.torch)
    out = emit.scratch((partitions * PACKED, columns))
    emit.step(held.copy_, packed)
    emit.step(_dequantise, held, str(data.dtype), views, out)
    return out


def _gathered_scales(
    emit: Emit, data: NkiTensor, operand: str, scale: NkiTensor
) -> list[torch.Tensor]:
    """Rows of scales by quadrant, of the columns that the index of both operands names."""
    ours, theirs = data.indirection, scale.indirection
    if ours is None or theirs is None or ours.base is None or theirs.base is None:
        emit.illegal(f"{operand} and {operand}_scale must both be indirect, or neither")
    index, other = ours.index, theirs.index
    if not isinstance(index, NkiTensor) or not isinstance(other, NkiTensor):
        emit.illegal(f"the index of {operand} must be a tensor")
    if not (index.same_elements(other) and data.free_size == scale.free_size):
        emit.illegal(f"{operand} and {operand}_scale must have the same index and as many columns")
    count = scale.shape[1]
    views = []
    rows = _QUADRANT // GROUP
    for first in range(0, data.shape[0], _QUADRANT):
        held = theirs.base.slice(0, first, first + rows)
        if held.dtype not in _SCALE_TYPES:
            emit.illegal(
                f"{operand}_scale is {held.dtype}; it must be one of {', '.join(_SCALE_TYPES)}"
            )
        emit.require_written(held, f"{operand}_scale")
        emit.reads(held)
        offsets = index.slice(0, first, first + _QUADRANT).torch_view()
        picked = emit.scratch((rows, count), torch.uint8)
        source = held.torch_view().view(torch.uint8)
        emit.step(gather_rows, source, offsets, _QUADRANT, picked, emit.location)
        views.append(picked)
    return views


def _dequantise(
    packed: torch.Tensor, dtype: str, scales: Sequence[torch.Tensor], out: torch.Tensor
) -> None:
    partitions, columns = packed.shape
    values = _unpack(packed, dtype).view(partitions // GROUP, GROUP, columns, PACKED)
    codes = torch.cat([scale.reshape(-1, columns) for scale in scales])
    factors = codes.view(torch.float8_e8m0fnu).to(torch.float32)
    scaled = values * factors[:, None, :, None]
    rows = out.view(partitions // GROUP, GROUP, PACKED, columns)
    rows.copy_(scaled.transpose(2, 3))


def _unpack(packed: torch.Tensor, dtype: str) -> torch.Tensor:
    """float32 values of packed elements, the element in the lowest bits first."""
    if dtype in _FP8:
        return packed.view(_FP8[dtype]).to(torch.float32)
    octets = packed.view(torch.uint8)
    codes = torch.stack((octets & 0xF, octets >> 4), -1)
    values = [*_FP4_MAGNITUDES, *(-magnitude for magnitude in _FP4_MAGNITUDES)]
    return torch.tensor(values, device="cpu")[codes.to(torch.int64)]
