"""quantize_mx: FP16/BF16 to MXFP8 data and scales on VectorE of trn3.

Blocks, scales and where they lie: see `mx`. The exponent of a scale is floor(log2(amax)) - (Emax -
1), with Emax 8 for float8_e4m3fn and 15 for float8_e5m2; 2**-127 for a block of zeros. Before NKI
0.5 it was one less, and values beyond the element type saturated. The partitions of dst_scale that
hold no scale are not written. Source: the entry of this name in SDK nki.isa.
"""

from __future__ import annotations

import torch

from trnx.simulator.costs.vector import on_vector, per_element
from trnx.simulator.isa.instruction import Emit, instruction
from trnx.simulator.isa.mx import BIAS, GROUP, PACKED, is_older_rule, scale_quadrants
from trnx.simulator.isa.operands import flat, in_sbuf, require_dtype
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor

_ELEMENTS = {
    "float8_e4m3fn_x4": (torch.float8_e4m3fn, 8),
    "float8_e5m2_x4": (torch.float8_e5m2, 15),
}


@instruction(engines=(Engine.vector,), generation=4, cost=(on_vector(per_element(0.25)),))
def quantize_mx(
    emit: Emit, dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None
) -> None:
    """dst = src quantised in blocks, four elements packed into one; dst_scale = the scales."""
    in_sbuf(emit, dst=dst, src=src)
    require_dtype(emit, "src", src, ("float16", "bfloat16"))
    require_dtype(emit, "dst", dst, tuple(_ELEMENTS))
    partitions, length = flat(src)
    if partitions % 32:
        emit.illegal(f"src has {partitions} partitions; not a multiple of 32")
    if length % PACKED:
        emit.illegal(f"src has {length} elements; not a multiple of {PACKED}")
    columns = length // PACKED
    if flat(dst) != (partitions, columns):
        emit.illegal(f"dst has shape {dst.shape}; expected ({partitions}, {columns})")
    quadrants = scale_quadrants(emit, dst_scale, "dst_scale", partitions, columns)
    value = emit.read_f32(src, "src", shape=(partitions, length))
    packed = emit.write(dst, "dst", shape=(partitions, columns), elementwise=False)
    scales = []
    for quadrant in quadrants:
        emit.writes_some(quadrant)
        scales.append(quadrant.torch_view().view(torch.uint8))
    element, largest_exponent = _ELEMENTS[dst.dtype]
    if not is_older_rule():
        largest_exponent -= 1
    emit.step(_quantize, value, element, largest_exponent, packed, scales)


def _quantize(
    value: torch.Tensor,
    element: torch.dtype,
    largest_exponent: int,
    packed: torch.Tensor,
    scales: list[torch.Tensor],
) -> None:
    partitions, length = value.shape
    blocks = value.view(partitions // GROUP, GROUP, length // PACKED, PACKED)
    largest = blocks.abs().amax((1, 3))
    # frexp gives a mantissa in [0.5, 1): its exponent is floor(log2) + 1.
    exponent = torch.frexp(largest).exponent - 1 - largest_exponent
    exponent = torch.where(largest == 0, -BIAS, exponent).clamp(-BIAS, BIAS)
    scaled = torch.ldexp(blocks, -exponent[:, None, :, None])
    limit = torch.finfo(element).max
    codes = scaled.clamp(-limit, limit).to(element).view(torch.uint8).reshape(partitions, length)
    packed.copy_(codes.view(torch.int32))
    stored = (exponent + BIAS).to(torch.uint8)
    for quadrant, target in enumerate(scales):
        target.copy_(stored[4 * quadrant : 4 * quadrant + 4].view(target.shape))
