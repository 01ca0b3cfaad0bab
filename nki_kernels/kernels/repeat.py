"""`repeat`: a tensor several times along any dimensions, new leading ones too, as transfers alone.

Floats, integers and bools, any strides. A short row is loaded once for all its places.
"""

from __future__ import annotations

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


def reference(x: torch.Tensor, repeats: list[int]) -> torch.Tensor:
    """Tensor.repeat"""
    return x.repeat(repeats)


def _pieces(result: torch.Tensor, x: torch.Tensor, repeats: list[int]) -> Iterator[Piece]:
    shape = (1,) * (len(repeats) - x.ndim) + tuple(x.shape)
    pairs = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    every = result.view(pairs)
    single = x.expand(shape)
    for dim in range(len(repeats)):
        single = single.unsqueeze(2 * dim)
    yield Piece(every, "x", single.expand(pairs))


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, and that something is left."""
    del hw
    if 0 in b.repeats:
        return Reject(f"repeats {list(b.repeats)} leave nothing")
    return reject_copies(b, ("x",))


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, several, new ones, short rows, strides, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        *repeats: int,
        dtype: torch.dtype = torch.float32,
        swapped: bool = False,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        x = x.transpose(0, -1) if swapped else x
        return Sample({"x": x, "repeats": list(repeats)}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 3), 1, 4)
        yield sample(f"{size} columns", (3, size), 3, 1)
    yield sample("many short rows", (40000, 3), 1, 5)
    yield sample("both dimensions", (30, 20), 2, 3)
    yield sample("new dimensions", (4, 70), 2, 3, 1, 1)
    yield sample("positions for a batch", (1, 130, 64), 4, 1, 1, dtype=torch.bfloat16)
    yield sample("once", (4, 70), 1, 1)
    yield sample("transposed", (7, 5, 130), 1, 2, 1, swapped=True)
    for dtype in (torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (130, 7), 2, 2, dtype=dtype)


def _repeat(x: torch.Tensor, repeats: list[int]) -> Any:
    return aten.repeat.default(x, repeats)


register(
    copies_spec(
        "repeat",
        (Pattern(_repeat),),
        ("x",),
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
    )
)
