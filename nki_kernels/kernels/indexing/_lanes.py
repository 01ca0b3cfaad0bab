"""Lanes: what gathers and scatters along one dimension that stay inside of partitions work on.
Gathers, `out[..., k, ...] = x[..., index[..., k, ...], ...]`, by GpSimd.

A *lane* is what one partition holds: a line of x along the dimension, or several side by side. The
dimensions before it (or, where they are fewer, those after it) lie on partitions, what remains is
looped over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.indexing._addresses import checked, no_bad_index, refuse
from trnx.nki_kernels.kernels.indexing._terms import words_of
from trnx.simulator.memory.tensor_spec import TensorSpec

_TILE_BYTES = 32768  # of the lanes in one partition
_LANE_BYTES = 65536  # the longest lane
_MOST_LOOPS = 256
_LANES = 128

Steps = tuple[int, int, int]  # strides in x, in the index, in what is given for each index
Pattern = tuple[tuple[int, int], ...]


class Lanes(NamedTuple):
    """`total` lanes, `fold` of them in a partition at a time, for each of the `offsets` in x, index
    and the third tensor: the result of a gather, the values of a scatter. A lane has `extent` lines
    of `inner` elements, and `chosen` of them are read or written."""

    total: int
    fold: int
    steps: Steps
    offsets: tuple[Steps, ...]
    line: tuple[Steps, Steps]  # along the dimension, and inside of it
    extent: int
    chosen: int
    inner: int


@nki.jit
def gather_lanes_kernel(
    shape: tuple[int, ...],
    lanes: tuple[int, int, Any],
    sizes: tuple[int, int, int, int],
    patterns: tuple[Pattern, Pattern, Pattern],
    offsets: tuple[Steps, ...],
    x: nl.NkiTensor,
    index: nl.NkiTensor,
    cores: int = 1,
) -> nl.NkiTensor:
    """The result of `shape`. `lanes`: how many, how many in a partition, and their strides in x,
    index and result; `sizes`: lines of a lane, of the index, elements of a line, words of one;
    `patterns`: of a lane in x, index and result. `cores` share the lanes.
    """
    count, fold, steps = lanes
    extent, chosen, inner, width = sizes
    line = inner * width
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    places = nl.ndarray((nl.tile_size.pmax, fold, chosen, line), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(
        dst=places,
        pattern=[[extent * line, fold], [0, chosen], [1, line]],
        offset=0,
        channel_multiplier=0,
    )
    words = patterns[1][-1][1]
    bad = no_bad_index()
    first, end = share_of(count, cores)
    for at_x, at_index, at_result in offsets:
        done = first
        while done < end:
            partitions = min(nl.tile_size.pmax, end - done)
            length = min(fold, (end - done) // partitions)
            full = (partitions, length * chosen * inner, width)
            tile = nl.ndarray((partitions, full[1], words), dtype=nl.int32, buffer=nl.sbuf)
            own = ((steps[1] * length, partitions), (steps[1], length))
            source = index.ap(pattern=own + patterns[1], offset=at_index + done * steps[1])
            nisa.dma_copy(dst=tile, src=source)
            table = nl.ndarray((partitions, length * extent * line), dtype=x.dtype, buffer=nl.sbuf)
            own = ((steps[0] * length, partitions), (steps[0], length))
            source = x.ap(pattern=own + patterns[0], offset=at_x + done * steps[0])
            nisa.dma_copy(dst=table, src=source)
            inside = checked(tile, extent, False, bad)
            elements = nl.ndarray(full, dtype=nl.uint32, buffer=nl.sbuf)
            nisa.scalar_tensor_tensor(
                dst=elements,
                data=inside.ap(pattern=[[full[1], partitions], [1, full[1]], [0, width]]),
                op0=nl.multiply,
                operand0=float(line),
                op1=nl.add,
                operand1=places[0:partitions, 0:length].reshape(full),
            )
            found = nl.ndarray(full, dtype=x.dtype, buffer=nl.sbuf)
            nisa.nc_n_gather(dst=found, data=table, indices=elements)
            own = ((steps[2] * length, partitions), (steps[2], length))
            goal = out.ap(pattern=own + patterns[2], offset=at_result + done * steps[2])
            nisa.dma_copy(dst=goal, src=found)
            done = done + partitions * length
    refuse(bad)
    return out


def lanes_of(
    x: TensorSpec,
    dim: int,
    index: TensorSpec,
    third: TensorSpec,
    bytes_of: Callable[[int, int, int], int],
) -> Lanes | None:
    """How a gather from x or a scatter into it runs in lanes; None where they are too long or too
    many loops are left. `third` has the strides of the result of a gather, or of the values of a
    scatter; `bytes_of` says what a lane takes of a partition, by extent, chosen lines, inner size.
    """
    steps = list(zip(x.strides, index.strides, third.strides, strict=True))
    axes = [(n, s) for n, s in zip(index.shape, steps, strict=True)]
    before, after = _merged(axes[:dim]), _merged(axes[dim + 1 :])
    extent, chosen = x.shape[dim], index.shape[dim]
    forms = []
    if len(after) <= 1:
        inner, step = after[0] if after else (1, (1, 1, 1))
        forms.append((before or [(1, (0, 0, 0))], inner, step))
    if after:
        forms.append(([*before, *after], 1, (1, 1, 1)))
    best = None
    for loops, inner, step in forms:
        each = bytes_of(extent, chosen, inner)
        if each > _LANE_BYTES or math.prod(n for n, _ in loops[:-1]) > _MOST_LOOPS:
            continue
        count, lane = loops[-1]
        fold = max(1, min(_TILE_BYTES // each, -(-count // _LANES)))
        offsets = _offsets(loops[:-1])
        found = Lanes(count, fold, lane, offsets, (steps[dim], step), extent, chosen, inner)
        if best is None or found.total > best.total:
            best = found
    return best


def gather_lanes_of(x: TensorSpec, dim: int, index: TensorSpec) -> Lanes | None:
    """The lanes of a gather."""

    def bytes_of(extent: int, chosen: int, inner: int) -> int:
        # The tiles of the addresses, too.
        read = index.dtype.itemsize + 6 * 4 + words_of(x.dtype) * (4 + 4) + x.dtype.itemsize
        return inner * (extent * x.dtype.itemsize + chosen * read)

    return lanes_of(x, dim, index, TensorSpec.dense(index.shape, x.dtype), bytes_of)


def _merged(axes: list[tuple[int, Steps]]) -> list[tuple[int, Steps]]:
    merged: list[tuple[int, Steps]] = []
    for size, steps in axes:
        if size == 1:
            continue
        if merged and merged[-1][1] == tuple(size * step for step in steps):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    return merged


def _offsets(loops: list[tuple[int, Steps]]) -> tuple[Steps, ...]:
    found = []
    for places in itertools.product(*(range(n) for n, _ in loops)):
        moved = [sum(p * s[i] for p, (_, s) in zip(places, loops, strict=True)) for i in range(3)]
        found.append((moved[0], moved[1], moved[2]))
    return tuple(found)


def lanes_constants(lanes: Lanes, x: TensorSpec, index: TensorSpec) -> tuple[Any, ...]:
    """The constants of `gather_lanes_kernel`, in words of memory."""
    widths = (words_of(x.dtype), words_of(index.dtype), words_of(x.dtype))
    shape = (*index.shape, 2) if widths[0] == 2 else index.shape or (1,)
    patterns = []
    for operand, width in enumerate(widths):
        size = lanes.extent if operand == 0 else lanes.chosen
        pattern = [(lanes.line[0][operand] * width, size)]
        if lanes.inner > 1:
            pattern.append((lanes.line[1][operand] * width, lanes.inner))
        if operand == 1 or width == 2:
            pattern.append((1, width))
        patterns.append(tuple(pattern))
    steps = _scaled(lanes.steps, widths)
    return (
        shape,
        (lanes.total, lanes.fold, steps),
        (lanes.extent, lanes.chosen, lanes.inner, widths[0]),
        tuple(patterns),
        tuple(_scaled(offset, widths) for offset in lanes.offsets),
    )


def _scaled(steps: Steps, widths: tuple[int, int, int]) -> Steps:
    return (steps[0] * widths[0], steps[1] * widths[1], steps[2] * widths[2])
