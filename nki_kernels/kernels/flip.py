"""`flip`: a tensor with some of its dimensions backwards.

Any strides, floats, integers and bools. Access patterns go forwards (SDK
nki/deep-dives/nki-aps.rst), so each position along the flipped dimensions is a copy of its own.
Where those would be of few bytes, rows that hold all flipped dimensions are loaded, and GpSimdE
gathers their elements backwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.kernels._copies import Piece, launch_copies, reject_copies
from trnx.nki_kernels.kernels._copy_spec import copies_spec
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten

_MOST_PIECES = 1024
_SHORT_BYTES = 512  # runs below which DMA is slower than a gather
_IOTA_DIMS = 3  # of nisa.iota, besides the rows of a partition
_MOST_GATHERED = 8192  # elements of a partition: tile, places and result


@nki.jit
def flip_rows_kernel(
    x: nl.NkiTensor,
    shape: tuple[int, ...],
    rows: int,
    fold: int,
    offset: int,
    pattern: tuple[tuple[int, int], ...],
    cores: int = 1,
) -> nl.NkiTensor:
    """Each of the `rows` rows of dense `x` with its elements in another order: those that are
    `offset` and the sums of steps `pattern` from its first; `fold` rows in a partition. `cores`
    share the rows."""
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    size = x.size // rows
    source, target = x.reshape((rows, size)), out.reshape((rows, size))
    steps = [[size, fold]]  # type: list[list[int]]
    for step, count in pattern:
        steps.append([step, count])
    pmax = nl.tile_size.pmax
    numbers = nl.ndarray((pmax, fold * size), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=numbers, pattern=steps, offset=offset, channel_multiplier=0)
    places = nl.ndarray((pmax, fold * size), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=places, src=numbers)
    done, end = share_of(rows, cores)
    while done < end:
        partitions = min(pmax, end - done)
        length = min(fold, (end - done) // partitions)
        full = (partitions, length * size)
        part = done + partitions * length
        tile = nl.ndarray(full, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=source[done:part, :].reshape(full))
        found = nl.ndarray(full, dtype=x.dtype, buffer=nl.sbuf)
        nisa.nc_n_gather(dst=found, data=tile, indices=places[0:partitions, 0 : length * size])
        nisa.dma_copy(dst=target[done:part, :].reshape(full), src=found)
        done = part
    return out


class _Rows(NamedTuple):
    """The constants of `flip_rows_kernel` behind the result's shape."""

    rows: int
    fold: int
    offset: int
    pattern: tuple[tuple[int, int], ...]


def _rows(b: Bindings) -> _Rows | None:
    """How x is flipped by rows; None where it is not dense, its rows are too long, or what lies
    side by side is long enough for DMA."""
    flipped = {d % b.x.ndim for d in b.dims if b.x.shape[d] > 1}
    if not b.x.is_contiguous or not flipped:
        return None
    words = 2 if b.x.dtype is torch.int64 else 1
    run = math.prod(b.x.shape[max(flipped) + 1 :]) * b.x.dtype.itemsize
    first = min(flipped)
    size = math.prod(b.x.shape[first:]) * words
    if run >= _SHORT_BYTES or size > _MOST_GATHERED:
        return None
    offset, dims = 0, []
    for d in range(first, b.x.ndim):
        step = b.x.strides[d] * words
        if d in flipped:
            offset += (b.x.shape[d] - 1) * step
        dims.append((-step if d in flipped else step, b.x.shape[d]))
    steps = _merged([*dims, *[(1, words)] * (words > 1)])
    if len(steps) > _IOTA_DIMS:
        return None
    rows = b.x.numel * words // size
    fold = max(1, min(_MOST_GATHERED // 4 // size, -(-rows // 128)))
    return _Rows(rows, fold, offset, steps)


def _merged(dims: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """(step, count) of dimensions, neighbours that are one sequence as one."""
    kept: list[tuple[int, int]] = []
    for step, count in dims:
        if kept and kept[-1][0] == count * step:
            kept[-1] = (step, kept[-1][1] * count)
        elif count > 1:
            kept.append((step, count))
    return tuple(kept)


def launch(b: Bindings, hw: Hardware) -> Launch:
    """By rows, or by copies."""
    del hw
    rows = _rows(b)
    if rows is None:
        return launch_copies(b, ("x",), reference, _pieces)
    shape = (*b.x.shape, 2) if b.x.dtype is torch.int64 else b.x.shape
    return Launch.of(flip_rows_kernel, b, ("x",), shape, *rows)


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
    if _rows(b) is None and count > _MOST_PIECES:
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
    yield sample("long rows", (3, 4000), [1])
    yield sample("a long block", (2, 60, 100), [1, 2])
    yield sample("a dimension between", (130, 3, 5, 2), [1, 3])
    yield sample("more than iota has", (4, 3, 5, 2, 3, 2), [1, 3, 5])
    yield sample("neighbours", (4, 3, 5, 2), [2, 3], torch.int64)
    yield sample("nothing", (5, 9), [])
    for dtype in (torch.bfloat16, torch.int64, torch.bool):
        yield sample(f"{dtype}", (130, 7), [0, 1], dtype)


def _flip(x: torch.Tensor, dims: list[int]) -> Any:
    return aten.flip.default(x, dims)


register(
    replace(
        copies_spec(
            "flip",
            (Pattern(_flip),),
            ("x",),
            supports=supports,
            reference=reference,
            pieces=_pieces,
            samples=samples,
        ),
        launch=launch,
    )
)
