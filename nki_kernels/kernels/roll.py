"""`roll`: a tensor shifted round along up to four dimensions, as transfers alone.

Floats, integers and bools, any strides. Each dimension is cut in two where its elements turn round,
so that a roll along n dimensions is 2^n copies. Without dimensions the tensor is rolled as it lies
in memory, which must be contiguous.
"""

from __future__ import annotations

import itertools
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
_MOST_DIMS = 4


def reference(x: torch.Tensor, shifts: list[int], dims: list[int]) -> torch.Tensor:
    """torch.roll"""
    return torch.roll(x, tuple(shifts), tuple(dims))


def _pieces(
    result: torch.Tensor, x: torch.Tensor, shifts: list[int], dims: list[int]
) -> Iterator[Piece]:
    if not dims:
        result, x, dims = result.view(-1), x.view(-1), [0]
    total = [0] * x.ndim
    for shift, dim in zip(shifts, dims, strict=True):
        total[dim] += shift
    # Of each dimension: (start in the result, start in x, how many).
    parts = []
    for size, shift in zip(x.shape, total, strict=True):
        turned = shift % size
        both = ((turned, 0, size - turned), (0, size - turned, turned))
        parts.append([part for part in both if part[2]])
    for part in itertools.product(*parts):
        target, source = result, x
        for dim, (goal, start, length) in enumerate(part):
            target = target.narrow(dim, goal, length)
            source = source.narrow(dim, start, length)
        yield Piece(target, "x", source)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes, dimensions, and a layout that can be rolled as it lies."""
    del hw
    if reject := reject_copies(b, ("x",)):
        return reject
    if b.x.ndim == 0 or len({*b.dims}) > _MOST_DIMS:
        return Reject(f"dims {list(b.dims)} of x{b.x.shape} are not 1 to {_MOST_DIMS}")
    if not b.dims and not b.x.is_contiguous:
        return Reject(f"x{b.x.shape} is rolled as it lies, and is not contiguous")
    return None


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, several, shifts of both signs and beyond the size, short rows, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        shifts: list[int],
        dims: list[int],
        dtype: torch.dtype = torch.float32,
    ) -> Sample:
        x = torch.randn(shape, generator=generator).mul(9).to(dtype)
        return Sample({"x": x, "shifts": shifts, "dims": dims}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 3), [1], [1])
        yield sample(f"{size} columns", (3, size), [-1], [-1])
    yield sample("windows", (2, 28, 30, 48), [-3, -3], [1, 2], torch.bfloat16)
    yield sample("many short rows", (50000, 4), [7], [1])
    yield sample("as it lies", (30, 20), [33], [])
    yield sample("once round", (30, 20), [30, -40], [0, 1])
    yield sample("one dimension twice", (30, 20), [5, 7], [0, 0])
    for dtype in (torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (130, 7), [2, 2], [0, 1], dtype)


def _roll(x: torch.Tensor, shifts: list[int], dims: list[int]) -> Any:
    return aten.roll.default(x, shifts, dims)


register(
    copies_spec(
        "roll",
        (Pattern(_roll),),
        ("x",),
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
    )
)
