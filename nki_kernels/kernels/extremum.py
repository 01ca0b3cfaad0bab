"""`extremum`: the largest or smallest element along a dimension and where it is.

`max` and `min` with indices, `argmax` and `argmin`.

Of equal elements the first counts, and the first NaN before any number, as in eager. Without a
`dim` the whole tensor is one line. Lines whose elements are neighbours are searched in parts
(`_extremum_rows.py`), short ones and others at once: these have at most 16,384 elements (what one
search instruction takes). float32, bfloat16, float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._extremum_rows import (
    LONGEST,
    SHORTEST,
    extremum_rows_kernel,
    search_with_nan,
)
from trnx.nki_kernels.kernels._lines import Lines, lines_of, reject_lines
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

aten = torch.ops.aten
_LONGEST = 16384
_RUN = 64  # lines whose results are stored together


@nki.jit
def extremum_kernel(
    x: nl.NkiTensor,
    loops: tuple[int, int],
    lines: tuple[int, int],
    line: tuple[int, int],
    shape: tuple[int, ...],
    largest: bool,
    gives_values: bool,
    turns: bool,
    cores: int = 1,
) -> Any:
    """`loops`, `lines` and `line` are (count, stride): groups of lines, lines of a group on
    partitions, elements of a line. Results of `shape`: values where asked for, int64 indices.
    `turns`: lines are neighbours in memory, and DMA transposes them. `cores` share the lines of a
    group.
    """
    count, step = lines
    indices = nl.ndarray(shape + (2,), dtype=nl.int32, buffer=nl.shared_hbm)
    flat_indices = indices.reshape((loops[0] * count, 2))
    if gives_values:
        size = shape
        if len(shape) == 0:
            size = (1,)
        values = nl.ndarray(size, dtype=x.dtype, buffer=nl.shared_hbm)
        flat_values = values.reshape((loops[0] * count, 1))
    first_line, end_line = share_of(count, cores)
    for group in range(loops[0]):
        done = first_line
        while done < end_line:
            partitions = min(nl.tile_size.pmax, end_line - done)
            run = min(_RUN, (end_line - done) // partitions)
            found = nl.ndarray((partitions, run, 2), dtype=nl.int32, buffer=nl.sbuf)
            nisa.memset(dst=found, value=0)
            best = nl.ndarray((partitions, run), dtype=x.dtype, buffer=nl.sbuf)
            for i in range(run):
                tile = nl.ndarray((partitions, line[0]), dtype=x.dtype, buffer=nl.sbuf)
                offset = group * loops[1] + (done + i) * step
                rows = [step * run, partitions]
                columns = [line[1], line[0]]
                if turns:
                    # Neighbours of neighbours: line `done + i * partitions + p` in partition p.
                    offset = group * loops[1] + done + i * partitions
                    across = x.ap(pattern=[columns, [1, partitions]], offset=offset)
                    nisa.dma_transpose(dst=tile, src=across, axes=(1, 0))
                else:
                    nisa.dma_copy(dst=tile, src=x.ap(pattern=[rows, columns], offset=offset))
                search_with_nan(tile, best[:, i : i + 1], found[:, i, 0:1], largest)
            first = group * count + done
            places = flat_indices[first : first + partitions * run]
            if turns:
                places = places.reshape_dim(0, (run, partitions)).permute((1, 0, 2))
            else:
                places = places.reshape_dim(0, (partitions, run))
            nisa.dma_copy(dst=places, src=found)
            if gives_values:
                part = flat_values[first : first + partitions * run]
                if turns:
                    part = part.reshape((run, partitions)).permute((1, 0))
                else:
                    part = part.reshape((partitions, run))
                nisa.dma_copy(dst=part, src=best)
            done = done + partitions * run
    if gives_values:
        return values, indices
    return indices


def reference(
    x: torch.Tensor, dim: int | None, keepdim: bool, largest: bool, gives_values: bool
) -> Any:
    """torch's max, min, argmax or argmin"""
    if dim is not None and gives_values:
        return tuple((torch.max if largest else torch.min)(x, dim, keepdim))
    return (torch.argmax if largest else torch.argmin)(x, dim, keepdim)


def _lines(b: Bindings) -> Lines:
    if b.dim is None:
        return (1, 0), (1, 0), (b.x.numel, 1)
    return lines_of(b.x.shape, b.dim % b.x.ndim)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtypes and sizes."""
    del hw
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.numel == 0 or b.x.ndim == 0:
        return Reject(f"x{b.x.shape} has no dimensions or no elements")
    lines = _lines(b)
    return reject_lines(lines, LONGEST if _are_rows(lines) else _LONGEST, "a search")


def _are_rows(lines: Lines) -> bool:
    """Whether elements of a line are neighbours in memory."""
    return lines[2][1] == 1 and lines[2][0] >= SHORTEST


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Where lines lie, and whether they are transposed on their way, which trn1 does slowly."""
    shape = list(b.x.shape)
    if b.dim is None:
        shape = [1] * len(shape) if b.keepdim else []
    elif b.keepdim:
        shape[b.dim] = 1
    else:
        del shape[b.dim]
    lines = _lines(b)
    if _are_rows(lines):
        sizes = (lines[1][0], lines[2][0], tuple(shape), b.largest, b.gives_values)
        return replace(Launch.of(extremum_rows_kernel, b, ("x",), *sizes), unknown_trips=0)
    turns = hw.generation >= 3 and lines[1][1] == 1 and lines[2][1] > 1 and lines[1][0] > 1
    constants = (*lines, tuple(shape), b.largest, b.gives_values, turns)
    return Launch.of(extremum_kernel, b, ("x",), *constants)


def cost(b: Bindings) -> Cost:
    """Four passes of VectorE; x is read once."""
    results = b.x.numel // _lines(b)[2][0]
    written = results * (8 + (b.x.dtype.itemsize if b.gives_values else 0))
    return Cost(vector_flops=4 * b.x.numel, hbm_bytes=b.x.nbytes + written)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Each op and dimension, ties, infinities, short and long lines, dtypes."""

    def sample(
        note: str,
        shape: tuple[int, ...],
        dim: int | None,
        keepdim: bool = False,
        dtype: torch.dtype = torch.float32,
        special: bool = False,
    ) -> Iterator[Sample]:
        x = torch.randint(-20, 20, shape, generator=generator).to(dtype)
        if special:
            x[..., 1::2] = float("inf")
            x[0] = float("-inf")
        for largest in (True, False):
            for gives_values in (True, False) if dim is not None else (False,):
                given = {"x": x, "dim": dim, "keepdim": keepdim, "largest": largest}
                kind = f"{'max' if largest else 'min'}{' with values' if gives_values else ''}"
                yield Sample({**given, "gives_values": gives_values}, f"{kind} of {note}")

    for size in (1, 2, 127, 128, 129, 513):
        yield from sample(f"{size} rows", (size, 24), 1)
        yield from sample(f"{size} columns", (5, size), -1, keepdim=True)
    yield from sample("the middle", (4, 9, 70), 1)
    yield from sample("the first", (30, 140), 0)
    yield from sample("many columns", (2, 30, 70, 9), 1)
    yield from sample("infinities", (5, 30), 1, special=True)
    yield from sample("columns with infinities", (30, 5), 0, special=True)
    yield from sample("everything", (7, 30), None)
    yield from sample("everything, kept", (7, 30), None, keepdim=True)
    yield from sample("one dimension", (300,), 0, keepdim=True)
    yield from sample("long lines", (3, 16384), 1)
    for dtype in (torch.bfloat16, torch.float16):
        yield from sample(f"{dtype}", (130, 33), 1, dtype=dtype)


def _max(x: torch.Tensor, dim: int, keepdim: bool) -> Any:
    return aten.max.dim(x, dim, keepdim)


def _min(x: torch.Tensor, dim: int, keepdim: bool) -> Any:
    return aten.min.dim(x, dim, keepdim)


def _argmax(x: torch.Tensor, dim: int | None, keepdim: bool) -> Any:
    return aten.argmax.default(x, dim, keepdim)


def _argmin(x: torch.Tensor, dim: int | None, keepdim: bool) -> Any:
    return aten.argmin.default(x, dim, keepdim)


register(
    KernelSpec(
        name="extremum",
        patterns=(
            Pattern(_max, {"largest": True, "gives_values": True}),
            Pattern(_min, {"largest": False, "gives_values": True}),
            Pattern(_argmax, {"largest": True, "gives_values": False}),
            Pattern(_argmin, {"largest": False, "gives_values": False}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=extremum_kernel,
        launch=launch,
    )
)
