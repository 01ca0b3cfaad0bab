"""Rows in half precision that DMA turns while it loads them, and their statistics.

A block is 128 columns of one row of each partition. Statistics come from a product of a turned
block with itself, which has the squares of a row on its diagonal, and with ones, which has the sum.
The rows are in two halves: of a product of all rows, half of what VectorE would search for the
diagonal is unused.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

_HALVES = 2
_ONES = 2  # columns of ones behind the rows of a half; two, so that halves begin at 4 bytes


class Chunk(NamedTuple):
    """Rows from `row` on, turned: `[128, run * blocks, halves, rows of a half and ones]`; and what
    their statistics come from: `squares[128, run, rows of a half and 1]` in PSUM, of which
    `sums[128, run]` are those on the diagonal."""

    row: int
    turned: nl.NkiTensor
    squares: nl.NkiTensor
    sums: nl.NkiTensor


def begin_chunk(x: nl.NkiTensor, start: tuple[int, int, int]) -> Chunk:
    """The rows of a tile of `x[rows, columns]`, of all partitions."""
    pmax = nl.tile_size.pmax
    row, _, run = start
    blocks = x.shape[1] // pmax
    size = pmax // _HALVES
    shape = (pmax, run * blocks, _HALVES, size + _ONES)
    turned = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    ones = turned[:, :, :, size : size + _ONES]
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    rows = x[row : row + pmax * run].reshape_dim(0, (_HALVES, size, run))
    for r in range(run):
        source = rows[:, :, r].reshape_dim(2, (blocks, pmax)).permute((1, 2, 0, 3))
        target = turned[:, r * blocks : (r + 1) * blocks, :, 0:size]
        nisa.dma_transpose(dst=target, src=source, axes=(3, 1, 2, 0))
    squares = nl.ndarray((pmax, run, size + 1), dtype=nl.float32, buffer=nl.psum)
    sums = nl.ndarray((pmax, run), dtype=nl.float32, buffer=nl.sbuf)
    return Chunk(row, turned, squares, sums)


def rows_of_block(chunk: Chunk, block: int) -> nl.NkiTensor:
    """A turned block without the ones, `[128, halves, rows of a half]`."""
    return chunk.turned[:, block, :, 0 : chunk.squares.shape[2] - 1]


def add_squares(chunk: Chunk, part: int, parts: int) -> None:
    """Part `part` of `parts` of the sums and sums of squares."""
    pmax, count, _, _ = chunk.turned.shape
    size = chunk.squares.shape[2] - 1
    blocks = count // chunk.squares.shape[1]
    for number in range(part * count // parts, (part + 1) * count // parts):
        for half in range(_HALVES):
            rows = chunk.turned[:, number, half]
            nisa.nc_matmul(
                dst=chunk.squares[half * size : (half + 1) * size, number // blocks],
                stationary=rows[:, 0:size], moving=rows[:, 0 : size + 1],
                tile_position=(0, half * size), tile_size=(pmax, size),
            )  # fmt: skip


def place_of_rows() -> nl.NkiTensor:
    """`[128, 1]`: where a row is in its half."""
    pmax = nl.tile_size.pmax
    size = pmax // _HALVES
    places = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    for half in range(_HALVES):
        part = places[half * size : (half + 1) * size]
        nisa.iota(dst=part, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    return places


def take_squares(chunk: Chunk, places: nl.NkiTensor, means: nl.NkiTensor, columns: int) -> None:
    """The sums of squares from the diagonal, and the means of rows of `columns` to their place."""
    partitions, run, _ = chunk.squares.shape
    size = chunk.squares.shape[2] - 1
    for r in range(run):
        unused = nl.ndarray((partitions, size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.range_select(
            dst=unused, on_true_tile=chunk.squares[:, r, 0:size],
            comp_op0=nl.greater_equal, bound0=places, comp_op1=nl.less_equal, bound1=places,
            reduce_res=chunk.sums[:, r : r + 1], reduce_op=nl.maximum,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
    nisa.activation(dst=means, op=nl.copy, data=chunk.squares[:, :, size], scale=1.0 / columns)


def centre_squares(chunk: Chunk, both: nl.NkiTensor, columns: int) -> None:
    """The variances behind the means of `both[partitions, run, 2]`."""
    shift = nl.ndarray(chunk.sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shift, op=nl.square, data=both[:, :, 0])
    nisa.scalar_tensor_tensor(
        dst=both[:, :, 1], data=chunk.sums, op0=nl.multiply, operand0=1.0 / columns,
        op1=nl.subtract, operand1=shift,
    )  # fmt: skip
