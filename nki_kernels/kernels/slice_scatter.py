"""`slice_scatter`: a tensor with one slice of another's values, as transfers alone.

What `x[:, 3:9] = y` is in a graph. Floats, integers and bools of one dtype, any strides, steps of
up to 64. Each element of the result is written once: the slice from `source`, the rest from `base`.
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
_STEPS = 64  # the elements between those of the slice are so many pieces


def reference(
    base: torch.Tensor,
    source: torch.Tensor,
    dim: int,
    start: int | None,
    end: int | None,
    step: int,
) -> torch.Tensor:
    """torch.slice_scatter"""
    return torch.slice_scatter(base, source, dim, start, end, step)


def _pieces(
    result: torch.Tensor,
    base: torch.Tensor,
    source: torch.Tensor,
    dim: int,
    start: int | None,
    end: int | None,
    step: int,
) -> Iterator[Piece]:
    size = base.shape[dim]
    first, stop, _ = slice(start, end).indices(size)
    stop = max(first, stop)

    def part(x: torch.Tensor, begin: int, finish: int, by: int = 1) -> torch.Tensor:
        found: torch.Tensor = aten.slice.Tensor(x, dim, begin, finish, by)
        return found

    if stop > first:
        yield Piece(part(result, first, stop, step), "source", source)
    kept = [(0, first, 1), (stop, size, 1), *((first + i, stop, step) for i in range(1, step))]
    for begin, finish, by in kept:
        if begin < finish:
            yield Piece(part(result, begin, finish, by), "base", part(base, begin, finish, by))


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and the step."""
    del hw
    if b.step > _STEPS:
        return Reject(f"a step of {b.step} is above {_STEPS}")
    if not b.base.numel:
        return Reject(f"base{b.base.shape} has no elements")
    return reject_copies(b, _NAMES)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each dimension, ends and steps, short rows, strides, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int,
        start: int | None,
        end: int | None,
        step: int = 1,
        dtype: torch.dtype = torch.float32,
        swapped: bool = False,
    ) -> Sample:
        def draw(size: tuple[int, ...]) -> torch.Tensor:
            return torch.randn(size, generator=generator).mul(9).to(dtype)

        base = draw(shape)
        size = tuple(aten.slice.Tensor(base, dim, start, end, step).shape)
        source = draw(size[::-1]).permute(*reversed(range(len(size)))) if swapped else draw(size)
        place = {"dim": dim, "start": start, "end": end, "step": step}
        return Sample({"base": base, "source": source, **place}, note)

    for size in (1, 2, 127, 128, 129, 513):
        yield sample(f"{size} rows", (size, 9), 1, 2, 5)
        yield sample(f"{size} columns", (5, size), 0, 1, 3)
    yield sample("a position of a cache", (2, 3, 130, 64), 2, 77, 78, dtype=torch.bfloat16)
    yield sample("every other column", (300, 12), 1, 1, None, 2)
    yield sample("every third row", (130, 70), 0, None, 2**63 - 1, 3)
    yield sample("from the end", (70, 30), 1, -5, None)
    yield sample("nothing", (70, 30), 1, 9, 4)
    yield sample("all", (70, 30), 1, 0, 30)
    yield sample("a transposed source", (7, 5, 130), 1, 2, 4, swapped=True)
    for dtype in (torch.float16, torch.int32, torch.bool, torch.uint8):
        yield sample(f"{dtype}", (130, 7), 1, 2, 4, dtype=dtype)


def _slice_scatter(
    base: torch.Tensor,
    source: torch.Tensor,
    dim: int,
    start: int | None,
    end: int | None,
    step: int,
) -> Any:
    return aten.slice_scatter.default(base, source, dim, start, end, step)


register(
    copies_spec(
        "slice_scatter",
        (Pattern(_slice_scatter),),
        _NAMES,
        supports=supports,
        reference=reference,
        pieces=_pieces,
        samples=samples,
    )
)
