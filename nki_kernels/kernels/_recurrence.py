"""What the kernels of recurrent layers share: where a block of steps lies in HBM, and products with
the state.

A tensor `[rows * H, T, B]` is in SBUF `[P, slots, chunks, steps, columns]`: P = min(H, 128), and
element `[p, s, c, t, b]` is row `128 * c + p` of the s-th H rows. Where H is above 128 and no
multiple of it, the last chunk has zeros behind its rows, which stay zeros in every step.

Steps are done in blocks: a loop of the device, one turn for a block, and what is left after it.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._blocking import ROWS
from trnx.nki_kernels.kernels._operands import MatmulOperand, fill_operand


class Block(NamedTuple):
    """`steps` steps of `columns` sequences from `column` on. The first step in memory is `start`
    and, in a loop of the device, the number in the tile `at` besides."""

    start: int
    steps: int
    column: int
    columns: int
    at: nl.NkiTensor | None


def chunks_of(hidden: int) -> int:
    """Chunks of 128 rows of a state."""
    pmax = nl.tile_size.pmax  # type: int
    return (hidden + pmax - 1) // pmax


def zeros(shape: tuple[int, ...], dtype: object) -> nl.NkiTensor:
    """A tile of zeros."""
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    return tile


def load_state(state: nl.NkiTensor, column: int, columns: int, dtype: object) -> nl.NkiTensor:
    """`[P, chunks, columns]` <- columns of `state[B, H]`."""
    hidden = state.shape[1]
    pmax = nl.tile_size.pmax
    shape = (min(hidden, pmax), chunks_of(hidden), columns)
    tile = zeros(shape, state.dtype)
    fill_operand(tile, MatmulOperand([state], ROWS), column, 0, hidden)
    if dtype == state.dtype:
        return tile
    wide = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=tile)
    return wide


def _parts(hidden: int) -> list[tuple[int, int, int, int]]:
    """The whole chunks and the rest: first chunk, chunks, partitions, first row."""
    pmax = nl.tile_size.pmax
    full = hidden // pmax
    parts = []  # type: list[tuple[int, int, int, int]]
    if full > 0:
        parts.append((0, full, pmax, 0))
    if hidden % pmax > 0:
        parts.append((full, 1, hidden % pmax, full * pmax))
    return parts


def _place(
    tensor: nl.NkiTensor, row: int, chunks: int, partitions: int, block: Block
) -> nl.NkiTensor:
    """`[partitions, chunks, steps, columns]` of `tensor[rows, T, B]` in HBM."""
    times = tensor.shape[1] * tensor.shape[2]
    batch = tensor.shape[2]
    pattern = [
        [times, partitions],
        [times * nl.tile_size.pmax, chunks],
        [batch, block.steps],
        [1, block.columns],
    ]
    offset = row * times + block.start * batch + block.column
    if block.at is None:
        return tensor.ap(pattern=pattern, offset=offset)
    return tensor.ap(pattern=pattern, offset=offset, scalar_offset=block.at, indirect_dim=1)


def load_steps(
    tensor: nl.NkiTensor, slots: tuple[int, ...], hidden: int, block: Block
) -> nl.NkiTensor:
    """A block of steps; slot s holds the `slots[s]`-th H rows."""
    tile = empty_steps(tensor.dtype, len(slots), hidden, block)
    for s in range(len(slots)):
        fill_steps(tile[:, s], tensor, slots[s], hidden, block)
    return tile


def empty_steps(dtype: object, slots: int, hidden: int, block: Block) -> nl.NkiTensor:
    """`[P, slots, chunks, steps, columns]`, zeros where no rows will be."""
    pmax = nl.tile_size.pmax
    shape = (min(hidden, pmax), slots, chunks_of(hidden), block.steps, block.columns)
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    if hidden > pmax and hidden % pmax > 0:
        nisa.memset(dst=tile[:, :, hidden // pmax], value=0.0)
    return tile


def fill_steps(
    dst: nl.NkiTensor, tensor: nl.NkiTensor, slot: int, hidden: int, block: Block
) -> None:
    """`dst[P, chunks, steps, columns]` <- the `slot`-th H rows of `tensor`."""
    for first, chunks, partitions, row in _parts(hidden):
        nisa.dma_copy(
            dst=dst[0:partitions, first : first + chunks],
            src=_place(tensor, slot * hidden + row, chunks, partitions, block),
        )


def store_steps(
    tensor: nl.NkiTensor, slot: int, hidden: int, block: Block, tile: nl.NkiTensor
) -> None:
    """The `slot`-th H rows of `tensor` <- `tile[P, chunks, steps, columns]`."""
    for first, chunks, partitions, row in _parts(hidden):
        nisa.dma_copy(
            dst=_place(tensor, slot * hidden + row, chunks, partitions, block),
            src=tile[0:partitions, first : first + chunks],
        )


def store_state(tensor: nl.NkiTensor, column: int, tile: nl.NkiTensor) -> None:
    """Columns of `tensor[H, B]` <- `tile[P, chunks, columns]`."""
    columns = tile.shape[2]
    batch = tensor.shape[1]
    for first, chunks, partitions, row in _parts(tensor.shape[0]):
        pattern = [[batch, partitions], [batch * nl.tile_size.pmax, chunks], [1, columns]]
        nisa.dma_copy(
            dst=tensor.ap(pattern=pattern, offset=row * batch + column),
            src=tile[0:partitions, first : first + chunks],
        )


def add_product(
    dst: nl.NkiTensor,
    stationary: nl.NkiTensor,
    first: int,
    moving: nl.NkiTensor,
    added: nl.NkiTensor,
) -> None:
    """`dst[P, n, columns] = stationary.T @ moving + added`: the chunks of rows `first ..` of the
    result; stationary `[P, k, rows]`, moving `[P, k, columns]`."""
    p, count, columns = dst.shape
    most = nl.tile_size.psum_bank_fmax // columns
    for start in range(0, count, most):
        here = min(most, count - start)
        bank = nl.ndarray((p, here, columns), dtype=nl.float32, buffer=nl.psum)
        for m in range(here):
            row = (first + start + m) * p
            for k in range(stationary.shape[1]):
                nisa.nc_matmul(
                    dst=bank[:, m, :],
                    stationary=stationary[:, k, row : row + p],
                    moving=moving[:, k, :],
                )
        nisa.tensor_tensor(
            dst=dst[:, start : start + here, :],
            data1=bank,
            data2=added[:, start : start + here, :],
            op=nl.add,
        )


def halve(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """`dst = src / 2` on ScalarE, which needs no table for it."""
    nisa.activation(dst=dst, op=nl.copy, data=src, scale=0.5)


def counter(value: int) -> nl.NkiTensor:
    """A number in SBUF that moves with the turns of a loop."""
    tile = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile


def move(tile: nl.NkiTensor, steps: int) -> None:
    """Add to a counter."""
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=steps)
