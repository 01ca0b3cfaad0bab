"""`select_scatter`: a tensor with another one in the place of one index, as transfers alone.

What `x[:, 3] = y` is in a graph. Floats, integers and bools of one dtype, any strides.
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
_NAMES = ("base", "source")


def reference(base: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """torch.select_scatter"""
    return torch.select_scatter(base, source, dim, index)


def _pieces(
    result: torch.Tensor, base: torch.Tensor, source: torch.Tensor, dim: int, index: int
) -> Iterator[Piece]:
    size = base.shape[dim]
    index %= size
    yield Piece(result.select(dim, index), "source", source)
    for start, length in ((0, index), (index + 1, size - index - 1)):
        if length:
            yield Piece(result.narrow(dim, start, length), "base", base.narrow(dim, start, length))


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes."""
    del hw
    if not b.base.numel:
        return Reject(f"base{b.base.shape} has no elements")
    return reject_copies(b, _NAMES)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, both ends, short rows, strides, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int,
        index: int,
        dtype: torch.dtype = torch.float32,
    ) -> Sample:
        def draw(size: tuple[int, ...]) -> torch.Tensor:
            return torch.randn(size, generator=generator).mul(9).to(dtype)

        base = draw(shape)
        source = draw(tuple(base.select(dim, index).shape))
        return Sample({"base": base, "source": source, "dim": dim, "index": index}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 9), 1, 4)
        yield sample(f"{size} columns", (5, size), 0, -2)
    yield sample("a token", (4, 130, 64), 1, 0, torch.bfloat16)
    yield sample("the last", (3, 7, 70), 1, 6)
    yield sample("the only one", (30, 1, 20), 1, 0)
    yield sample("many short rows", (50000, 4), 1, 2)
    for dtype in (torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (130, 7), 1, 3, dtype)


def _select_scatter(base: torch.Tensor, source: torch.Tensor, dim: int, index: int) -> Any:
    return aten.select_scatter.default(base, source, dim, index)


register(
    copies_spec(
        "select_scatter",
        (Pattern(_select_scatter),),
        _NAMES,
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
    )
)
