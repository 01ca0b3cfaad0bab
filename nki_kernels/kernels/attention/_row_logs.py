"""NKI helpers of the forward pass of attention: the logarithms of the sums of rows.

They are computed many at a time, because ScalarE loads a table when it goes from exp to log, and
stored with the queries innermost, as `lse[B, H, L]` has them: a DMA that took them from the
partitions would move 4 bytes at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels._transfers import store_late
from trnx.nki_kernels.kernels.attention._layout import Chunk, heads_of, span_of, split_heads

# The sum of a row that attends to anything is at least 1; this keeps the others finite.
TINY = 1.0e-10
_MOST = 32  # sums of rows that wait to be stored


class RowSums(NamedTuple):
    """Of the rows from `row` of a chunk, `[rows, heads]`: the sums of their weights, and the
    negated maxima that these are relative to."""

    total: nl.NkiTensor
    negmax: nl.NkiTensor
    chunk: Chunk
    row: int


class Rectangle(NamedTuple):
    """The rows from `row` of some heads of some batch entries."""

    chunk: Chunk
    row: int


class RowLogs(NamedTuple):
    """`lse[B, H, L]` in HBM, None where nobody reads it, and the sums whose logarithms are not
    there yet; `masked`: a mask may hide all keys of a row."""

    lse: nl.NkiTensor | None
    masked: bool
    sums: list[RowSums]


def add_sums(logs: RowLogs, sums: RowSums) -> None:
    """More sums; stores those before where there are enough."""
    if logs.lse is None:
        return
    logs.sums.append(sums)
    if len(logs.sums) == _MOST:
        store_logs(logs, False)


def store_logs(logs: RowLogs, final: bool) -> None:
    """Store the logarithms of all sums that are not stored yet; the `final` ones from both queues,
    since no loads follow."""
    if logs.lse is None:
        return
    if final:
        load_table(nl.log)  # after the last exponentials, while others work
    number = 0
    for run in _runs_of(logs.sums):
        tile = _logs_of(run, logs.masked)
        rows, columns = tile.shape
        turns = columns <= nl.tile_size.pmax and nisa.get_nc_version() != nisa.nc_version.gen2
        if turns:
            tile = _turned(tile)
        done = 0
        for part in _rectangles_of(run):
            end = done + part.chunk.pairs
            dst = heads_of(logs.lse, part.chunk)[:, :, part.row : part.row + rows]
            late = final and number % 2 == 1
            if turns:
                store_late(dst, tile[done:end], late)
            else:
                src = split_heads(tile[:, done:end], part.chunk)
                store_late(dst.permute((2, 0, 1)), src, late)
            done = end
            number = number + 1
    for _ in range(len(logs.sums)):
        logs.sums.pop()


def _runs_of(sums: list[RowSums]) -> list[list[RowSums]]:
    """Sums in order, in lists of those of as many rows that can be transposed together."""
    runs = []  # type: list[list[RowSums]]
    columns = 0
    for s in sums:
        columns = columns + s.chunk.pairs
        follows = len(runs) > 0 and columns <= nl.tile_size.pmax
        if follows and runs[len(runs) - 1][0].total.shape[0] == s.total.shape[0]:
            runs[len(runs) - 1].append(s)
        else:
            runs.append([s])
            columns = s.chunk.pairs
    return runs


def _rectangles_of(run: list[RowSums]) -> list[Rectangle]:
    """The chunks of a run in order, those that together are some heads of some batch entries, of
    the same rows, as one."""
    heads = []  # type: list[Rectangle]
    for s in run:
        last = None if len(heads) == 0 else heads[len(heads) - 1]
        if last is not None and last.row == s.row and _is_beside(last.chunk, s.chunk):
            heads[len(heads) - 1] = Rectangle(span_of([last.chunk, s.chunk]), s.row)
        else:
            heads.append(Rectangle(s.chunk, s.row))
    found = []  # type: list[Rectangle]
    for one in heads:
        last = None if len(found) == 0 else found[len(found) - 1]
        if last is not None and last.row == one.row and _is_below(last.chunk, one.chunk):
            a, b = last.chunk, one.chunk
            both = Chunk(a.batch, a.batches + b.batches, a.head, a.heads, a.pairs + b.pairs)
            found[len(found) - 1] = Rectangle(both, one.row)
        else:
            found.append(one)
    return found


def _is_beside(a: Chunk, b: Chunk) -> bool:
    """Whether the heads of `b` follow those of `a` in the same batch entry."""
    is_one = a.batches == 1 and b.batches == 1
    return is_one and a.batch == b.batch and a.head + a.heads == b.head


def _is_below(a: Chunk, b: Chunk) -> bool:
    """Whether `b` is the same heads of the batch entries behind those of `a`."""
    return a.batch + a.batches == b.batch and a.head == b.head and a.heads == b.heads


def _logs_of(run: list[RowSums], masked: bool) -> nl.NkiTensor:
    """`[rows, heads of all chunks]`: the lse of each row. GpSimd, which has nothing else to do,
    puts the chunks beside each other."""
    columns = 0
    for s in run:
        columns = columns + s.chunk.pairs
    shape = (run[0].total.shape[0], columns)
    total, negmax = run[0].total, run[0].negmax
    if len(run) > 1:
        total = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        negmax = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        done = 0
        for s in run:
            end = done + s.chunk.pairs
            nisa.tensor_copy(dst=total[:, done:end], src=s.total, engine=nisa.engine.gpsimd)
            nisa.tensor_copy(dst=negmax[:, done:end], src=s.negmax, engine=nisa.engine.gpsimd)
            done = end
    logs = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    if not masked:
        nisa.activation(dst=logs, op=nl.log, data=total)
        nisa.tensor_tensor(dst=logs, data1=logs, data2=negmax, op=nl.subtract)
        return logs
    positive = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=positive, data=total, op0=nl.maximum, operand0=TINY)
    nisa.activation(dst=logs, op=nl.log, data=positive)
    nisa.tensor_tensor(dst=logs, data1=logs, data2=negmax, op=nl.subtract)
    # A row that attends to nothing has lse 0, as torch's CPU kernel gives it.
    nisa.scalar_tensor_tensor(
        dst=logs, data=total, op0=nl.greater, operand0=0.0, op1=nl.multiply, operand1=logs
    )
    return logs


def _turned(logs: nl.NkiTensor) -> nl.NkiTensor:
    """`logs[rows, columns]` as `[columns, rows]`."""
    shape = (logs.shape[1], logs.shape[0])
    bank = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=logs, engine=nisa.engine.tensor)
    turned = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=turned, src=bank)
    return turned
