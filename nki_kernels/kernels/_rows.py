"""What the row-wise kernels (norms, softmax) share: how rows are cut, loaded, and how vectors
spread.

A tile is `[partitions, run, columns]`: each partition holds `run` consecutive rows, so that narrow
rows still make long transfers. Where rows are wide enough, an instruction has one row of each
partition: per-row values are `[partitions, 1]` operands then, which it broadcasts for nothing, and
ScalarE sums what it computes. Narrower ones are computed by the tile, with a pass more for each.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._transfers import transfer
from trnx.simulator.hardware import Hardware

# From this many elements per partition on, the fixed cost of an instruction does not matter.
_ENOUGH_ELEMENTS = 2048
# From so many columns on a row has instructions of its own (by schedule).
WIDE = 40
# So many tiles at least, where there are rows for them: the first and the last one overlap with
# nothing.
_TILES = 4


def run_of(columns: int, hw: Hardware, row_bytes: int, vector_bytes: int) -> int:
    """Rows per partition for rows of `columns`; 0 where not even one fits.

    `row_bytes` is the size of the tiles that are live at once, per column of one row, and
    `vector_bytes` that of the vectors that all rows share.
    """
    room = hw.sbuf_partition_bytes * 7 // 8 - columns * vector_bytes
    fitting = room // (2 * columns * row_bytes)  # two, so that loads overlap with work
    if fitting <= 0:
        return int(columns * row_bytes <= room)
    run = _ENOUGH_ELEMENTS // columns
    return min(run, fitting) if run >= 4 else 1


def tiles_of(done: int, end: int, fold: int) -> list[tuple[int, int, int]]:
    """The tiles of rows `done .. end`: their first rows, partitions and rows a partition."""
    starts = []  # type: list[tuple[int, int, int]]
    while done < end:
        partitions = min(nl.tile_size.pmax, end - done)
        run = min(fold, (end - done) // partitions)
        starts.append((done, partitions, run))
        done = done + partitions * run
    return starts


def load_rows(
    x: nl.NkiTensor, start: int, partitions: int, run: int, is_static: bool = False
) -> nl.NkiTensor:
    """Rows `start` to `start + partitions * run` of `x[rows, columns]` as a tile; `is_static` as in
    `transfer`."""
    columns = x.shape[1]
    tile = nl.ndarray((partitions, run, columns), dtype=x.dtype, buffer=nl.sbuf)
    transfer(tile, rows_of(x, start, partitions, run), is_static)
    return tile


def rows_of(x: nl.NkiTensor, start: int, partitions: int, run: int) -> nl.NkiTensor:
    """The same rows as a view `[partitions, run, columns]` of HBM."""
    return x[start : start + partitions * run].reshape_dim(0, (partitions, run))


def load_vector(vector: nl.NkiTensor, is_static: bool = False) -> nl.NkiTensor:
    """`vector[columns]` in every partition; `is_static` as in `transfer`."""
    columns = vector.size
    tile = nl.ndarray((nl.tile_size.pmax, columns), dtype=vector.dtype, buffer=nl.sbuf)
    row = vector.reshape((1, columns))
    transfer(tile, row.broadcast(0, nl.tile_size.pmax), is_static)
    return tile


def offset_vector(tile: nl.NkiTensor, offset: float) -> nl.NkiTensor:
    """`tile + offset` in float32; the tile itself where there is nothing to add."""
    if offset == 0.0:
        return tile
    total = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=total, data=tile, op0=nl.add, operand0=offset)
    return total


def add_rows(data: nl.NkiTensor, other: nl.NkiTensor) -> nl.NkiTensor:
    """data + other, in their dtype as the addition of a pattern rounds it."""
    total = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=total, data1=data, data2=other, op=nl.add)
    return total


def over_rows(vector: nl.NkiTensor, tile: nl.NkiTensor) -> nl.NkiTensor:
    """A vector tile as an operand of the shape of `tile`."""
    rows = vector[0 : tile.shape[0]].expand_dim(1)
    return rows.broadcast(1, tile.shape[1])


def over_columns(per_row: nl.NkiTensor, tile: nl.NkiTensor) -> nl.NkiTensor:
    """One value per row, `[partitions, run]`, as an operand of the shape of `tile`."""
    return per_row.expand_dim(2).broadcast(2, tile.shape[2])


def fold_of(run: int, rows: int, hw: Hardware) -> int:
    """`run` rows per partition, or fewer where there are so few `rows` that each core would have
    few tiles."""
    return max(1, min(run, rows // (hw.partitions * hw.cores * _TILES)))


def by_row(tile: nl.NkiTensor) -> bool:
    """Whether each row of a tile has instructions of its own."""
    return bool(tile.shape[1] == 1 or tile.shape[2] >= WIDE)


def combine_rows(dst: nl.NkiTensor, data: nl.NkiTensor, per_row: nl.NkiTensor, op: object) -> None:
    """dst = data <op> per_row."""
    if by_row(data):
        for r in range(data.shape[1]):
            value = per_row[:, r : r + 1]
            nisa.tensor_scalar(dst=dst[:, r], data=data[:, r], op0=op, operand0=value)
    else:
        nisa.tensor_tensor(dst=dst, data1=data, data2=over_columns(per_row, data), op=op)


def sum_of_squares(total: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """total[partitions, run] = the sum of squares of each row."""
    squares = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
    if by_row(data):
        for r in range(data.shape[1]):
            nisa.activation(
                dst=squares[:, r], op=nl.square, data=data[:, r], reduce_op=nl.add,
                reduce_res=total[:, r : r + 1], reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )  # fmt: skip
    else:
        nisa.tensor_tensor(dst=squares, data1=data, data2=data, op=nl.multiply)
        nisa.tensor_reduce(dst=total, op=nl.add, data=squares, axis=2)


def scale_rows(
    dst: nl.NkiTensor,
    data: nl.NkiTensor,
    per_row: nl.NkiTensor,
    weight: nl.NkiTensor | None,
    rounds: bool = False,
) -> None:
    """dst = data * per_row, times the vector tile `weight` if there is one; what that multiplies is
    rounded to the dtype of dst where it `rounds`."""
    if weight is None:
        combine_rows(dst, data, per_row, nl.multiply)
    elif by_row(data) and not rounds:
        for r in range(data.shape[1]):
            nisa.scalar_tensor_tensor(
                dst=dst[:, r], data=data[:, r], op0=nl.multiply, operand0=per_row[:, r : r + 1],
                op1=nl.multiply, operand1=weight[0 : data.shape[0]],
            )  # fmt: skip
    else:
        dtype = dst.dtype if rounds else nl.float32
        scaled = nl.ndarray(data.shape, dtype=dtype, buffer=nl.sbuf)
        combine_rows(scaled, data, per_row, nl.multiply)
        nisa.tensor_tensor(dst=dst, data1=scaled, data2=over_rows(weight, data), op=nl.multiply)
