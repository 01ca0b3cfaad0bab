"""quantize_mx: FP16/BF16 to MXFP8 data and scales on VectorE of trn3.

A block is 8 partitions x 4 consecutive elements and shares one scale, a power of two stored as
exponent + 127: floor(log2(amax)) - (Emax - 1), with Emax 8 for float8_e4m3fn and 15 for
float8_e5m2; 2**-127 for a block of zeros. The scale of partition group g lies at partition 32 * (g
// 4) + g % 4; the other partitions of dst_scale are not written. Source: the entry of this name in
SDK nki.isa.
"""

from __future__ import annotations

import torch

from trnx.simulator.isa.enums import Engine
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.operands import flat, in_sbuf, needs_generation, require_dtype
from trnx.simulator.storage import SBUF
from trnx.simulator.tensor import NkiTensor

_GROUP = 8  # partitions of a block
_PACKED = 4  # elements of a block in each partition
_BIAS = 127
_ELEMENTS = {
    "float8_e4m3fn_x4": (torch.float8_e4m3fn, 8),
    "float8_e5m2_x4": (torch.float8_e5m2, 15),
}


@instruction
def quantize_mx(
    emit: Emit, dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None
) -> None:
    """dst = src quantised in blocks, four elements packed into one; dst_scale = the scales."""
    emit.on(Engine.vector, (Engine.vector,))
    needs_generation(emit, 4)
    in_sbuf(emit, dst=dst, src=src, dst_scale=dst_scale)
    require_dtype(emit, "src", src, ("float16", "bfloat16"))
    require_dtype(emit, "dst", dst, tuple(_ELEMENTS))
    require_dtype(emit, "dst_scale", dst_scale, ("float8_e8m0fnu", "uint8"))
    partitions, length = flat(src)
    emit.require(partitions % 32 == 0, f"src has {partitions} partitions; not a multiple of 32")
    emit.require(length % _PACKED == 0, f"src has {length} elements; not a multiple of {_PACKED}")
    columns = length // _PACKED
    if flat(dst) != (partitions, columns):
        emit.illegal(f"dst has shape {dst.shape}; expected ({partitions}, {columns})")
    rows = [32 * (group // 4) + group % 4 for group in range(partitions // _GROUP)]
    if dst_scale.ndim != 2 or dst_scale.shape[0] <= rows[-1] or dst_scale.shape[1] != columns:
        emit.illegal(f"dst_scale has shape {dst_scale.shape}; expected ({partitions}, {columns})")
    value = emit.read_f32(src, "src", shape=(partitions, length))
    packed = emit.write(dst, "dst", shape=(partitions, columns), elementwise=False)
    scales = emit.overwrite_some(dst_scale, "dst_scale", buffers=SBUF).view(torch.uint8)
    index = torch.tensor(rows, device="cpu")
    emit.step(_quantize, value, *_ELEMENTS[dst.dtype], packed, scales, index)


def _quantize(
    value: torch.Tensor,
    element: torch.dtype,
    largest_exponent: int,
    packed: torch.Tensor,
    scales: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    partitions, length = value.shape
    blocks = value.view(partitions // _GROUP, _GROUP, length // _PACKED, _PACKED)
    largest = blocks.abs().amax((1, 3))
    # frexp gives a mantissa in [0.5, 1): its exponent is floor(log2) + 1.
    exponent = torch.frexp(largest).exponent - largest_exponent
    exponent = torch.where(largest == 0, -_BIAS, exponent).clamp(-_BIAS, _BIAS)
    scaled = torch.ldexp(blocks, -exponent[:, None, :, None])
    codes = scaled.to(element).view(torch.uint8).reshape(partitions, length)
    packed.copy_(codes.view(torch.int32))
    scales.index_copy_(0, rows, (exponent + _BIAS).to(torch.uint8))
