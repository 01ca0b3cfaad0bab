"""Statistics of long rows in half precision, and the turned blocks that TensorE takes them from.

A block is 128 columns of one row of each partition. VectorE takes the statistics of the first
columns with `bn_stats`. Those of the last ones come from a product of a turned block with itself,
which has the squares of a row on its diagonal, and with ones, which has the sum. The rows are in
two halves: of a product of all rows, half of what VectorE would search for the diagonal is unused.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._half_rows import (
    HalfRows,
    Sums,
    new_sums,
    pieces_of,
    take_statistics,
)
from trnx.nki_kernels.kernels._rows import load_rows

TOGETHER = 8  # turned blocks that leave PSUM together: a bank of 2-byte elements
_ONES = 2  # columns of ones behind the rows of a half; two, so that halves begin at 4 bytes


class Chunk(NamedTuple):
    """Rows from `row` on: as they are; turned, `[128, run * blocks, halves, rows of a half and
    ones]`, with one half where not all partitions have rows; and what their statistics come from:
    `squares[partitions, run, rows of a half and 1]` in PSUM."""

    row: int
    data: nl.NkiTensor
    turned: nl.NkiTensor
    sums: Sums
    squares: nl.NkiTensor


def begin_chunk(h: HalfRows, start: tuple[int, int, int]) -> Chunk:
    """The rows of a tile; all but its `last` columns are VectorE's."""
    pmax = nl.tile_size.pmax
    row, partitions, run = start
    data = load_rows(h.x, row, partitions, run)
    halves = 2 if partitions == pmax else 1
    size = partitions // halves
    shape = (pmax, run * (h.x.shape[1] // pmax), halves, size + _ONES)
    turned = nl.ndarray(shape, dtype=h.x.dtype, buffer=nl.sbuf)
    ones = turned[:, :, :, size : size + _ONES]
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    squares = nl.ndarray((partitions, run, size + 1), dtype=nl.float32, buffer=nl.psum)
    return Chunk(row, data, turned, new_sums(h, start), squares)


def rows_of_block(chunk: Chunk, block: int) -> nl.NkiTensor:
    """A turned block without the ones, `[128, halves, rows of a half]`."""
    return chunk.turned[:, block, :, 0 : chunk.squares.shape[2] - 1]


def take_and_turn(chunk: Chunk, r: int, part: int, shares: bool) -> None:
    """A part of VectorE's statistics of row `r`, and of the blocks that leave PSUM together of
    which the last is one of this row: in turn, as GpSimd waits while VectorE copies. Where ScalarE
    `shares` the copies, it has the last one and every other before."""
    run, columns = chunk.data.shape[1], chunk.data.shape[2]
    blocks = columns // nl.tile_size.pmax
    pieces = pieces_of(columns - chunk.sums.last)
    if part < pieces:
        take_statistics(chunk.data, chunk.sums, r * pieces + part, run * pieces)
    number = r * blocks // TOGETHER + part
    start, end = number * TOGETHER, min(run * blocks, (number + 1) * TOGETHER)
    if start < end and end <= (r + 1) * blocks:
        behind = (run * blocks - end + TOGETHER - 1) // TOGETHER
        _turn(chunk, start, end, shares and behind % 2 == 0)


def _turn(chunk: Chunk, start: int, end: int, on_scalar: bool) -> None:
    """Blocks `start .. end` of a chunk."""
    pmax = nl.tile_size.pmax
    partitions, _, columns = chunk.data.shape
    blocks = columns // pmax
    bank = nl.ndarray((pmax, end - start, partitions), dtype=chunk.data.dtype, buffer=nl.psum)
    for number in range(start, end):
        first = number % blocks * pmax
        part = chunk.data[:, number // blocks, first : first + pmax]
        nisa.nc_transpose(dst=bank[:, number - start], data=part, engine=nisa.engine.tensor)
    nisa.tensor_copy(
        dst=chunk.turned[:, start:end, :, 0 : chunk.squares.shape[2] - 1],
        src=bank,
        engine=nisa.engine.scalar if on_scalar else nisa.engine.vector,
    )


def add_squares(chunk: Chunk, part: int, parts: int) -> None:
    """Part `part` of `parts` of the sums and sums of squares of TensorE's columns."""
    pmax = nl.tile_size.pmax
    run = chunk.data.shape[1]
    blocks, own = chunk.data.shape[2] // pmax, chunk.sums.last // pmax
    halves = chunk.turned.shape[2]
    size = chunk.squares.shape[2] - 1
    for number in range(part * run * own // parts, (part + 1) * run * own // parts):
        r, block = number // own, blocks - own + number % own
        for half in range(halves):
            rows = chunk.turned[:, r * blocks + block, half]
            nisa.nc_matmul(
                dst=chunk.squares[half * size : (half + 1) * size, r],
                stationary=rows[:, 0:size], moving=rows[:, 0 : size + 1],
                tile_position=(0, half * size) if halves > 1 else (),
                tile_size=(pmax, size) if halves > 1 else (),
            )  # fmt: skip


def place_of_rows() -> nl.NkiTensor:
    """`[128, 2]`: where a row is in the one half that there is, and in its half of two."""
    pmax = nl.tile_size.pmax
    places = nl.ndarray((pmax, 2), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=places, pattern=[[0, 2]], offset=0, channel_multiplier=1)
    lower = places[pmax // 2 : pmax, 1:2]
    nisa.iota(dst=lower, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    return places


def take_squares(chunk: Chunk, places: nl.NkiTensor) -> None:
    """The sums of squares from the diagonal, and the means of TensorE's columns to their place."""
    s = chunk.sums
    partitions, run, _ = chunk.squares.shape
    size = chunk.squares.shape[2] - 1
    halves = chunk.turned.shape[2]
    place = places[0:partitions, halves - 1 : halves]
    for r in range(run):
        unused = nl.ndarray((partitions, size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.range_select(
            dst=unused, on_true_tile=chunk.squares[:, r, 0:size],
            comp_op0=nl.greater_equal, bound0=place, comp_op1=nl.less_equal, bound1=place,
            reduce_res=s.sums[:, 1, r : r + 1], reduce_op=nl.maximum,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
    means = s.parts[:, :, s.parts.shape[2] - 2]
    nisa.activation(dst=means, op=nl.copy, data=chunk.squares[:, :, size], scale=1.0 / s.last)


def centre_squares(chunk: Chunk) -> None:
    """The sums of squared distances from the means of TensorE's columns to their place."""
    s = chunk.sums
    size = s.parts.shape[2]
    shift = s.sums[:, 0]
    nisa.activation(dst=shift, op=nl.square, data=s.parts[:, :, size - 2], scale=math.sqrt(s.last))
    nisa.tensor_tensor(
        dst=s.parts[:, :, size - 1], data1=s.sums[:, 1], data2=shift, op=nl.subtract,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip
