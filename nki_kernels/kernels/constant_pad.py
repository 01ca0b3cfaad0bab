"""`constant_pad`: a tensor with a frame of one number, or cut where a padding is negative.

`x` and its padding from the last dimension on, as `torch.nn.functional.pad` takes it; floats,
integers and bools, any strides. Rows that are short are put together in SBUF, long ones are moved
from HBM to HBM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from trnx.nki_kernels.kernels._copies import Piece, reject_copies
from trnx.nki_kernels.kernels._copy_spec import copies_spec
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten


def reference(x: torch.Tensor, pad: list[int], value: float) -> torch.Tensor:
    """aten.constant_pad_nd"""
    result: torch.Tensor = aten.constant_pad_nd.default(x, pad, value)
    return result


def _pieces(result: torch.Tensor, x: torch.Tensor, pad: list[int], value: float) -> Iterator[Piece]:
    """x, and for every padded dimension a block on each side."""
    del value
    inside, source = result, x
    for i in range(len(pad) // 2):
        dim, (before, after) = x.ndim - 1 - i, pad[2 * i : 2 * i + 2]
        size = x.shape[dim] - max(0, -before) - max(0, -after)
        source = source.narrow(dim, max(0, -before), size)
    # Outer dimensions first, so that the blocks beside them are whole.
    for i in reversed(range(len(pad) // 2)):
        dim, (before, after) = x.ndim - 1 - i, pad[2 * i : 2 * i + 2]
        size = source.shape[dim]
        for start, length in ((0, before), (max(0, before) + size, after)):
            if length > 0:
                yield Piece(inside.narrow(dim, start, length))
        inside = inside.narrow(dim, max(0, before), size)
    yield Piece(inside, "x", source)


def _number(b: Bindings) -> float:
    """The number as the result has it."""
    return torch.tensor(b.value, dtype=b.x.dtype).item()


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, something to copy, a number that the dtype has."""
    del hw
    if reject := reject_copies(b, ("x",)):
        return reject
    sizes = [0, *b.x.shape][: -len(b.pad) // 2 - 1 : -1] if b.pad else []
    for size, before, after in zip(sizes, b.pad[::2], b.pad[1::2], strict=True):
        if size + min(before, 0) + min(after, 0) <= 0 or size + before + after <= 0:
            return Reject(f"padding {list(b.pad)} leaves nothing of x{b.x.shape}")
    if not isinstance(b.value, (bool, int, float)):
        return Reject(f"value {b.value!r} is no real number")
    floating = b.x.dtype.is_floating_point
    if not floating and not (math.isfinite(b.value) and b.value == int(b.value)):
        return Reject(f"value {b.value} is no {b.x.dtype}")
    limits = torch.finfo(b.x.dtype) if floating else None
    if limits and math.isfinite(b.value) and abs(b.value) > limits.max:
        return Reject(f"value {b.value} is beyond {b.x.dtype}")
    if b.x.dtype in (torch.int64, torch.int32, torch.uint8, torch.int8):
        whole = torch.iinfo(b.x.dtype)
        if not whole.min <= b.value <= whole.max:
            return Reject(f"value {b.value} is beyond {b.x.dtype}")
    return None


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, both sides, images, long and short rows, cuts, numbers, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        pad: list[int],
        value: float = 0.0,
        dtype: torch.dtype = torch.float32,
        swapped: bool = False,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        return Sample({"x": x.transpose(0, -1) if swapped else x, "pad": pad, "value": value}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 3), [1, 2], 0.5)
        yield sample(f"{size} columns", (3, size), [0, 1, 1, 0])
    yield sample("images", (4, 40, 30, 31), [1, 1, 2, 0])
    yield sample("small images", (2, 3, 5, 6), [1, 1, 1, 1], float("-inf"))
    yield sample("volumes", (2, 3, 5, 6, 7), [1, 0, 0, 2, 3, 1])
    yield sample("positions", (2, 130, 64), [0, 0, 7, 0])
    yield sample("many new rows", (1, 2, 2100), [0, 0, 5, 3], -1.0)
    yield sample("cut on one side", (70, 50), [-3, 4, 2, -1])
    yield sample("no padding", (7, 5), [0, 0], 1.0)
    yield sample("transposed", (3, 4, 130), [1, 1, 0, 2], swapped=True)
    for dtype in (torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (130, 7), [1, 2], 1, dtype)
    for value in (-100, -1, 1 << 40, (-7 << 32) + 5):
        yield sample(f"labels and {value}", (2, 130), [0, 1], value, torch.int64)
        yield sample(f"rows of {value}", (3, 2000), [0, 0, 1, 2], value, torch.int64)


def _pad(x: torch.Tensor, pad: list[int], value: float) -> Any:
    return aten.constant_pad_nd.default(x, pad, value)


register(
    copies_spec(
        "constant_pad",
        (Pattern(_pad),),
        ("x",),
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
        value=_number,
    )
)
