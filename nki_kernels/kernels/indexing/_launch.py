"""Launches of the kernels that gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trnx.nki_kernels.kernels._copies import empty_result
from trnx.nki_kernels.kernels.indexing._add_rows import add_rows_kernel
from trnx.nki_kernels.kernels.indexing._gather_kernels import (
    gather_rows_kernel,
    gather_table_kernel,
)
from trnx.nki_kernels.kernels.indexing._scatter_kernels import put_rows_kernel
from trnx.nki_kernels.kernels.indexing._terms import (
    Axis,
    Index,
    Rows,
    rows_of,
    values_pattern,
    words_of,
)
from trnx.nki_kernels.spec import Bindings, Launch
from trnx.simulator.hardware import Hardware

_GATHERED_BYTES = 32768  # of a tile of rows in one partition
_LONGEST_RUN = 32  # rows of a tile in one partition
_SUMMED = 1024  # elements of a row that are added at a time: two banks of PSUM, of two tiles
_SHARED_BYTES = 512  # of a row for each core; below, DMA moves no more for a core that has fewer
_TABLE_BYTES = 32768  # of an operand that every partition holds
_TABLE_TILE = 2048  # elements that a partition gathers of it at a time
# What decides between the two kernels, in ns: a transfer of 128 rows, which GpSimd issues; a byte
# to all partitions; a cycle of GpSimd, which takes two for an element.
_LANES = 128
_TRANSFER = 870
_BYTE = 128 / 370
_ELEMENT = 2 / 1.4


def launch_gather(
    b: Bindings,
    source: str,
    names: Sequence[str],
    axes: Sequence[Axis],
    indices: Sequence[Index],
    result: torch.Tensor,
) -> Launch:
    """The launch for the operand `source` and the index tensors `names`.

    `axes` are those of the `result` in row-major order, which it need not have in memory.
    """
    x = b[source]
    words = words_of(x.dtype)
    itemsize = x.dtype.itemsize // words
    order, _ = empty_result(result)
    rows = rows_of([axes[i] for i in order], indices, words)
    shape = tuple(result.shape[i] for i in order)
    full = (*shape, words) if words > 1 else shape or (1,)
    kernel, longest, cols = gather_rows_kernel, _LONGEST_RUN, rows.width
    if _is_table(rows, x.numel * words, itemsize):
        kernel, longest = gather_table_kernel, max(1, _TABLE_TILE // cols)
    else:
        cols = min(cols, _GATHERED_BYTES // itemsize)
        longest = max(1, min(longest, _GATHERED_BYTES // (cols * itemsize)))
    sizes = (rows.positions, rows.width, rows.unit)
    constants = (full, sizes, (*_tile(rows, longest), cols), rows.terms)
    orders = (order,) if order != tuple(range(len(order))) else ()
    operands = (source, *names)
    used = tuple(name for name in operands if b[name] is not None)
    return Launch(kernel, (*constants, *(b[name] for name in operands)), used, orders)


def launch_scatter(
    b: Bindings,
    hw: Hardware,
    shape: tuple[int, ...],
    names: Sequence[str],
    axes: Sequence[Axis],
    indices: Sequence[Index],
    adds: bool,
    skipped: int = -1,
) -> Launch:
    """The launch for the operands `base`, or None for zeros, and `values`, and the index tensors
    `names`: a result of `shape` with the values at the `axes`, in row-major order. Cores share the
    columns of wide rows, else the first does all.
    """
    words = words_of(b["values"].dtype)
    itemsize = b["values"].dtype.itemsize // words
    rows = rows_of(axes, indices, words)
    is_shared = rows.unit == rows.width and rows.width * itemsize >= hw.cores * _SHARED_BYTES
    cols = min(rows.width, _SUMMED)
    if not adds:
        own = -(-rows.width // hw.cores) if is_shared else rows.width
        cols = _put_columns(own, itemsize)
    full = (*shape, words) if words > 1 else shape or (1,)
    sizes = (rows.positions, rows.width, rows.unit)
    spread = values_pattern(b["values"], axes, words)
    constants = (full, sizes, (_LONGEST_RUN, cols), rows.terms, spread)
    operands = ("base", "values", *names)
    used = tuple(name for name in operands if b[name] is not None)
    tensors = (b[name] for name in operands)
    kernel = add_rows_kernel if adds else put_rows_kernel
    more = (skipped,) if adds else ()
    launch = Launch(kernel, (*constants, *more, *tensors), used)
    return launch if is_shared else launch.on_first(hw.cores)


def _put_columns(width: int, itemsize: int) -> int:
    """Columns that are written at a time. Tiles that may write the same rows wait for each other,
    but not for those of other columns: wide rows are written in halves."""
    half = -(-width // 2)
    cols = half if half * itemsize >= _SHARED_BYTES else width
    return min(cols, _GATHERED_BYTES // itemsize)


def transfer_nanoseconds(rows: int) -> float:
    """Time of GpSimd for the transfers that gather so many rows."""
    return -(-rows // _LANES) * _TRANSFER


def _is_table(rows: Rows, size: int, itemsize: int) -> bool:
    """Whether each partition had better hold all `size` elements of the operand."""
    if size * itemsize > _TABLE_BYTES or rows.width > _TABLE_TILE:
        return False
    gathers = transfer_nanoseconds(rows.positions)
    each = rows.positions * rows.width / _LANES * _ELEMENT
    return size * itemsize * _BYTE + each < gathers


def _tile(rows: Rows, longest: int) -> tuple[int, int]:
    """Partitions, and rows in each: all rows where an index is not read as it lies in memory and
    one tile can take them, since that saves copying the index."""
    if any(pattern for *_, pattern in rows.terms):
        lanes = max(n for n in range(1, _LANES + 1) if rows.positions % n == 0)
        if rows.positions // lanes <= longest:
            return lanes, rows.positions // lanes
    return _LANES, longest
