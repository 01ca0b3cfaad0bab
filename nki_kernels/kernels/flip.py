"""`flip`: a tensor with some of its dimensions backwards.

Any strides, floats, integers and bools. Access patterns go forwards (SDK
nki/deep-dives/nki-aps.rst), so each position along the flipped dimensions is a copy of its own.
"""

from __future__ import annotations

import itertools
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

_MOST_PIECES = 1024


def reference(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """aten.flip"""
    result: torch.Tensor = aten.flip.default(x, dims)
    return result


def _pieces(result: torch.Tensor, x: torch.Tensor, dims: list[int]) -> Iterator[Piece]:
    """One position along the flipped dimensions each."""
    flipped = sorted({d % x.ndim for d in dims})
    for place in itertools.product(*(range(x.shape[d]) for d in flipped)):
        target, source = result, x
        for d, i in zip(flipped, place, strict=True):
            target = target.narrow(d, i, 1)
            source = source.narrow(d, x.shape[d] - 1 - i, 1)
        yield Piece(target, "x", source)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, something to copy, and not more copies than a kernel should have."""
    del hw
    if reject := reject_copies(b, ("x",)):
        return reject
    if not b.x.shape:
        return Reject("x has no dimension")
    count = math.prod(b.x.shape[d] for d in {d % b.x.ndim for d in b.dims})
    if count > _MOST_PIECES:
        return Reject(f"{count} positions to flip are more than {_MOST_PIECES} copies")
    return None


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, several, short and long rows, dtypes."""

    def sample(
        note: str, shape: tuple[int, ...], dims: list[int], dtype: torch.dtype = torch.float32
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        return Sample({"x": x, "dims": dims}, note)

    for size in (1, 127, 128, 129):
        yield sample(f"{size} rows", (size, 7), [1])
        yield sample(f"{size} rows backwards", (size, 7), [0])
    yield sample("two dimensions", (5, 9, 8), [0, 2])
    yield sample("images", (2, 3, 20, 21), [3])
    yield sample("many short rows", (20000, 5), [1])
    yield sample("nothing", (5, 9), [])
    for dtype in (torch.bfloat16, torch.int64, torch.bool):
        yield sample(f"{dtype}", (130, 7), [0, 1], dtype)


def _flip(x: torch.Tensor, dims: list[int]) -> Any:
    return aten.flip.default(x, dims)


register(
    copies_spec(
        "flip",
        (Pattern(_flip),),
        ("x",),
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
    )
)
