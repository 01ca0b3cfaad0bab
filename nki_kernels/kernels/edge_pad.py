"""`edge_pad`: a tensor with a frame of its own elements, mirrored (`reflection_pad1d` to `3d`) or
those of its edges repeated (`replication_pad1d` to `3d`).

Any strides, floats, integers and bools. A mirrored frame is one copy for each of its columns,
because access patterns go forwards; one that repeats an edge is one copy a side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from trnx.nki_kernels.kernels._copies import Piece, reject_copies
from trnx.nki_kernels.kernels._copy_spec import copies_spec
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

_MOST_PIECES = 512
_OPS = {
    (True, 1): aten.reflection_pad1d.default,
    (True, 2): aten.reflection_pad2d.default,
    (True, 3): aten.reflection_pad3d.default,
    (False, 1): aten.replication_pad1d.default,
    (False, 2): aten.replication_pad2d.default,
    (False, 3): aten.replication_pad3d.default,
}


class _Span(NamedTuple):
    """`length` elements of a dimension of the result from `place` on, and where they come from; an
    element `repeated` stands for all of them."""

    place: int
    start: int
    length: int
    repeated: bool = False


def reference(x: torch.Tensor, padding: list[int], mirrored: bool) -> torch.Tensor:
    """aten.reflection_pad1d to 3d, aten.replication_pad1d to 3d"""
    result: torch.Tensor = _OPS[mirrored, len(padding) // 2](x, padding)
    return result


def _spans(size: int, before: int, after: int, mirrored: bool) -> list[_Span]:
    """How a dimension of `size` is put together; negative paddings cut."""
    start = max(0, -before)
    length = size - start - max(0, -after)
    spans = [_Span(max(0, before), start, length)] if length > 0 else []
    behind = before + size
    if mirrored:
        spans += [_Span(i, before - i, 1) for i in range(before)]
        spans += [_Span(behind + i, size - 2 - i, 1) for i in range(after)]
        return spans
    if before > 0:
        spans.append(_Span(0, 0, before, repeated=True))
    if after > 0:
        spans.append(_Span(behind, size - 1, after, repeated=True))
    return spans


def _pieces(
    result: torch.Tensor, x: torch.Tensor, padding: list[int], mirrored: bool
) -> Iterator[Piece]:
    """Every combination of spans, one of each dimension."""
    pieces = [(result, x)]
    for i in range(len(padding) // 2):
        dim, (before, after) = x.ndim - 1 - i, padding[2 * i : 2 * i + 2]
        spans = _spans(x.shape[dim], before, after, mirrored)
        pieces = [_narrowed(piece, dim, span) for piece in pieces for span in spans]
    for target, source in pieces:
        yield Piece(target, "x", source)


def _narrowed(
    piece: tuple[torch.Tensor, torch.Tensor], dim: int, span: _Span
) -> tuple[torch.Tensor, torch.Tensor]:
    target, source = piece
    part = source.narrow(dim, span.start, 1 if span.repeated else span.length)
    if span.repeated:
        part = part.expand([span.length if i == dim else n for i, n in enumerate(part.shape)])
    return target.narrow(dim, span.place, span.length), part


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, something to copy, and not more copies than a kernel should have."""
    del hw
    if reject := reject_copies(b, ("x",)):
        return reject
    sizes = b.x.shape[: -len(b.padding) // 2 - 1 : -1]
    counts = []
    for size, before, after in zip(sizes, b.padding[::2], b.padding[1::2], strict=True):
        if b.mirrored and max(before, after) > 0 and min(before, after) < 0:
            return Reject(f"padding {list(b.padding)} mirrors on one side and cuts on the other")
        if min(size + min(before, 0) + min(after, 0), size + before + after) <= 0:
            return Reject(f"padding {list(b.padding)} leaves nothing of x{b.x.shape}")
        counts.append(len(_spans(size, before, after, b.mirrored)))
    if math.prod(counts) > _MOST_PIECES:
        return Reject(f"a frame of {math.prod(counts)} copies is more than {_MOST_PIECES}")
    return None


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Both kinds, one to three dimensions, short and long rows, cuts, strides, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        padding: list[int],
        mirrored: bool,
        dtype: torch.dtype = torch.float32,
        swapped: bool = False,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        x = x.transpose(0, 1) if swapped else x
        return Sample({"x": x, "padding": padding, "mirrored": mirrored}, note)

    for mirrored in (True, False):
        kind = "mirrored" if mirrored else "repeated"
        for size in (1, 127, 128, 129):
            yield sample(f"{kind}, {size} rows", (size, 1, 6), [2, 3], mirrored)
        yield sample(f"{kind}, long rows", (2, 3, 2050), [1, 4], mirrored)
        yield sample(f"{kind}, images", (2, 3, 30, 31), [1, 2, 3, 0], mirrored)
        yield sample(f"{kind}, volumes", (2, 3, 5, 6, 7), [1, 1, 0, 2, 1, 0], mirrored)
        yield sample(f"{kind}, no batch", (3, 5, 6), [1, 1, 2, 2], mirrored)
        yield sample(f"{kind}, transposed", (3, 4, 9, 8), [1, 1, 0, 2], mirrored, swapped=True)
        yield sample(f"{kind}, no padding", (2, 3, 7), [0, 0], mirrored)
        yield sample(f"{kind}, bfloat16", (2, 3, 13, 7), [3, 3, 3, 3], mirrored, torch.bfloat16)
        yield sample(f"{kind}, int64", (2, 13, 7), [3, 3], mirrored, torch.int64)


def _reflection_pad1d(x: torch.Tensor, padding: list[int]) -> Any:
    return aten.reflection_pad1d.default(x, padding)


def _reflection_pad2d(x: torch.Tensor, padding: list[int]) -> Any:
    return aten.reflection_pad2d.default(x, padding)


def _reflection_pad3d(x: torch.Tensor, padding: list[int]) -> Any:
    return aten.reflection_pad3d.default(x, padding)


def _replication_pad1d(x: torch.Tensor, padding: list[int]) -> Any:
    return aten.replication_pad1d.default(x, padding)


def _replication_pad2d(x: torch.Tensor, padding: list[int]) -> Any:
    return aten.replication_pad2d.default(x, padding)


def _replication_pad3d(x: torch.Tensor, padding: list[int]) -> Any:
    return aten.replication_pad3d.default(x, padding)


_MIRRORED, _REPEATED = {"mirrored": True}, {"mirrored": False}

register(
    copies_spec(
        "edge_pad",
        (
            Pattern(_reflection_pad1d, _MIRRORED),
            Pattern(_reflection_pad2d, _MIRRORED),
            Pattern(_reflection_pad3d, _MIRRORED),
            Pattern(_replication_pad1d, _REPEATED),
            Pattern(_replication_pad2d, _REPEATED),
            Pattern(_replication_pad3d, _REPEATED),
        ),
        ("x",),
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
    )
)
