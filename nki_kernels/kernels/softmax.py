"""`softmax`: softmax and log-softmax over the last dimension.

Patterns `aten._softmax(x, dim, half_to_float)` and `aten._log_softmax` of float32, bfloat16 or
float16; float32 inside. A row is read once where it fits in a partition, in pieces if it is long (a
vocabulary); a longer one is read twice: for its maximum and the sum of its exponentials, and for
the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.descriptors import MOST_DESCRIPTORS
from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._pieces import (
    PIECE,
    load_piece,
    merge_pieces,
    minus_piece_maximum,
    piece_of,
    pieces_of,
    sum_exponentials,
)
from trnx.nki_kernels.kernels._rows import (
    by_row,
    combine_rows,
    fold_of,
    load_rows,
    rows_of,
    run_of,
)
from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels._transfers import transfer
from trnx.nki_kernels.registry import register
from trnx.nki_kernels.spec import Bindings, Cost, KernelSpec, Launch, Pattern, Sample
from trnx.simulator.errors import Reject
from trnx.simulator.hardware import Hardware

_WORKING_PIECES = 3  # in SBUF besides those that are kept
_LARGEST_GROUP = 4
aten = torch.ops.aten

# Groups of tiles (target, data, -maximum, exponentials) with their row sums.
_Groups = list[tuple[list[tuple[nl.NkiTensor, ...]], nl.NkiTensor]]


@nki.jit
def softmax_kernel(
    x: nl.NkiTensor,
    is_log: bool,
    to_float32: bool,
    fold: int,
    group: int,
    is_kept: bool,
    is_static: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[..., D]` -> the same shape; `fold` rows per partition, 0 where a row must be cut.

    The results of `group` tiles are computed while the next ones are reduced. `is_kept`: the pieces
    of a row that must be cut stay in SBUF, else they are read again. `is_static`, of rows that need
    not be cut, as in `transfer`. `cores` share the rows.
    """
    dtype = nl.float32 if to_float32 else x.dtype
    out = nl.ndarray(x.shape, dtype=dtype, buffer=nl.shared_hbm)
    columns = x.shape[-1]
    rows = x.size // columns
    flat = x.reshape((rows, columns))
    flat_out = out.reshape((rows, columns))
    done, end = share_of(rows, cores)
    load_table(nl.exp)
    if fold == 0:
        _long_rows(flat, flat_out, done, end, is_log, is_kept)
        return out
    groups = []  # type: _Groups
    while done < end:
        partitions = min(nl.tile_size.pmax, end - done)
        run = min(fold, (end - done) // partitions)
        count = min(group, (end - done) // (partitions * run))
        totals = nl.ndarray((partitions, count, run), dtype=nl.float32, buffer=nl.sbuf)
        tiles = []
        scales = None
        for i in range(count):
            start = done + i * partitions * run
            data = load_rows(flat, start, partitions, run, is_static)
            lowest = _minus_maximum(data)
            weights = _exponentials(data, lowest, totals[:, i], not is_log)
            tiles.append((rows_of(flat_out, start, partitions, run), data, lowest, weights))
            if i == 0:
                scales = _group_scales(groups, is_log)
            _finish(groups, scales, i, i + 1, is_log, is_static)
        _finish(groups, scales, count, group, is_log, is_static)
        groups.append((tiles, totals))
        done = done + count * partitions * run
    _finish(groups, _group_scales(groups, is_log), 0, group, is_log, is_static)
    return out


def _group_scales(groups: _Groups, is_log: bool) -> nl.NkiTensor | None:
    """The scales of the latest group, if there is one."""
    if len(groups) == 0:
        return None
    return _scales(groups[-1][1], is_log)


def _scales(totals: nl.NkiTensor, is_log: bool) -> nl.NkiTensor:
    """The logarithms of row sums, or their reciprocals: one instruction for a group of tiles,
    because ScalarE loads a table each time that it changes from exp to log.
    """
    scales = nl.ndarray(totals.shape, dtype=nl.float32, buffer=nl.sbuf)
    if is_log:
        nisa.activation(dst=scales, op=nl.log, data=totals)
    else:
        nisa.reciprocal(dst=scales, data=totals)
    return scales


def _finish(
    groups: _Groups,
    scales: nl.NkiTensor | None,
    first: int,
    end: int,
    is_log: bool,
    is_static: bool,
) -> None:
    """Store the results of tiles `first` to `end` of the latest group."""
    if scales is None:
        return
    tiles = groups[-1][0]
    for i in range(first, min(end, len(tiles))):
        target, data, lowest, weights = tiles[i]
        result = data if is_log else weights  # in its place, where it has the dtype
        if result.dtype != target.dtype:
            result = nl.ndarray(data.shape, dtype=target.dtype, buffer=nl.sbuf)
        if is_log:
            _shift(result, data, lowest, scales[:, i])
        else:
            combine_rows(result, weights, scales[:, i], nl.multiply)
        transfer(target, result, is_static)


def _per_row(data: nl.NkiTensor) -> nl.NkiTensor:
    return nl.ndarray((data.shape[0], data.shape[1]), dtype=nl.float32, buffer=nl.sbuf)


def _minus_maximum(data: nl.NkiTensor) -> nl.NkiTensor:
    """The negative maximum of each row, of the dtype of data: VectorE reduces short types to
    short types at twice the rate, and a maximum is not rounded.
    """
    lowest = nl.ndarray((data.shape[0], data.shape[1]), dtype=data.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=lowest, op=nl.maximum, data=data, axis=2, negate=True)
    return lowest


def _exponentials(
    data: nl.NkiTensor, lowest: nl.NkiTensor, totals: nl.NkiTensor, are_kept: bool = True
) -> nl.NkiTensor:
    """exp(data + lowest), whose row sums go to `totals`. What is kept may take the place of data,
    what is not needs no precision.
    """
    if by_row(data):
        weights = data
        if not are_kept:
            weights = nl.ndarray(data.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        elif data.dtype != nl.float32:
            weights = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        for r in range(data.shape[1]):
            sum_exponentials(weights[:, r], data[:, r], lowest[:, r : r + 1], totals[:, r : r + 1])
    else:
        weights = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        shifted = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        combine_rows(shifted, data, lowest, nl.add)
        nisa.activation(dst=weights, op=nl.exp, data=shifted)
        nisa.tensor_reduce(dst=totals, op=nl.add, data=weights, axis=2)
    return weights


def _shift(dst: nl.NkiTensor, data: nl.NkiTensor, lowest: nl.NkiTensor, logs: nl.NkiTensor) -> None:
    """dst = (data + lowest) - logs; their sum first would round away small logarithms."""
    if by_row(data):
        wide = _per_row(data)
        nisa.tensor_copy(dst=wide, src=lowest)
        for r in range(data.shape[1]):
            nisa.tensor_scalar(
                dst=dst[:, r], data=data[:, r], op0=nl.add, operand0=wide[:, r : r + 1],
                op1=nl.subtract, operand1=logs[:, r : r + 1],
            )  # fmt: skip
    else:
        shifted = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        combine_rows(shifted, data, lowest, nl.add)
        combine_rows(dst, shifted, logs, nl.subtract)


def _long_rows(
    x: nl.NkiTensor, out: nl.NkiTensor, first: int, last: int, is_log: bool, is_kept: bool
) -> None:
    """Rows `first .. last` that are cut into pieces, each with a maximum and a sum of its own."""
    columns = x.shape[1]
    before = []  # type: list[tuple[Any, ...]]
    for start in range(first, last, nl.tile_size.pmax):
        end = min(last, start + nl.tile_size.pmax)
        lowest = nl.ndarray((end - start, 1, pieces_of(columns)), dtype=nl.float32, buffer=nl.sbuf)
        sums = nl.ndarray(lowest.shape, dtype=nl.float32, buffer=nl.sbuf)
        tiles = []
        for i in range(pieces_of(columns)):
            if len(before) > 0:
                _finish_piece(before[-1], i, is_log, is_kept)
            data = load_piece(x[start:end], i)
            minus_piece_maximum(lowest[:, :, i], data)
            weights = _exponentials(data, lowest[:, :, i], sums[:, :, i], not is_log)
            tiles.append(data if is_log else weights)
        bottom, factors, total = merge_pieces(lowest, sums)
        scales = _piece_scales(factors, total, is_log, is_kept)
        before.append((x[start:end], out[start:end], tiles, bottom, scales))
    if len(before) > 0:
        for i in range(pieces_of(columns)):
            _finish_piece(before[-1], i, is_log, is_kept)


def _piece_scales(
    factors: nl.NkiTensor, total: nl.NkiTensor, is_log: bool, is_kept: bool
) -> nl.NkiTensor:
    """The logarithm of the sum, or what each piece's exponentials are multiplied by."""
    scales = _scales(total, is_log)
    if is_log or not is_kept:
        return scales
    products = nl.ndarray(factors.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=products, data=factors, op0=nl.multiply, operand0=scales)
    return products


def _finish_piece(state: tuple[Any, ...], i: int, is_log: bool, is_kept: bool) -> None:
    """Store the results of piece `i`."""
    x, out, tiles, bottom, scales = state
    data = tiles[i] if is_kept else load_piece(x, i)
    result = data
    if data.dtype != out.dtype:
        result = nl.ndarray(data.shape, dtype=out.dtype, buffer=nl.sbuf)
    if is_log:
        _shift(result, data, bottom, scales)
    elif is_kept:
        combine_rows(result, data, scales[:, :, i], nl.multiply)
    else:
        weights = _exponentials(data, bottom, _per_row(data))
        combine_rows(result, weights, scales, nl.multiply)
    nisa.dma_copy(dst=piece_of(out, i), src=result)


def supports(b: Bindings, hw: Hardware) -> Reject | None:
    """dtype, and that the dimension is the last."""
    del hw
    if reject := reject_dtypes(b, "x"):
        return reject
    if b.x.ndim == 0 or b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no rows")
    if b.dim % b.x.ndim != b.x.ndim - 1:
        return Reject(f"dim {b.dim} is not the last dimension of x{b.x.shape}")
    return None


def launch(b: Bindings, hw: Hardware) -> Launch:
    """Rows per partition from the size of a row, and what stays in SBUF."""
    columns, itemsize = b.x.shape[-1], b.x.dtype.itemsize
    room = hw.sbuf_partition_bytes * 7 // 8
    fold = run_of(columns, hw, 8, 0) if 2 * 8 * columns <= room else 0
    if fold > 1:
        fold = fold_of(fold, b.x.numel // columns, hw)
    group = 1
    if b.is_log:
        group = _log_group(
            columns * max(fold, 1), itemsize, 4 if b.half_to_float else itemsize, room
        )
    is_kept = columns * (itemsize if b.is_log else 4) + _WORKING_PIECES * 4 * PIECE <= room
    is_static = 2 * (b.x.numel // columns) <= MOST_DESCRIPTORS
    plan = (fold, group, is_kept, is_static)
    return Launch.of(softmax_kernel, b, ("x", "is_log", "half_to_float"), *plan)


def _log_group(elements: int, itemsize: int, result: int, room: int) -> int:
    """Tiles of so many elements a partition that wait for one logarithm: two groups, what is
    loaded next, and two of the exponentials (bfloat16) and of the result are in SBUF at once.
    """
    rest = room - 2 * (2 + result) * elements
    return max(1, min(_LARGEST_GROUP, (rest // (elements * itemsize) - 1) // 2))


def cost(b: Bindings) -> Cost:
    """Five operations an element."""
    result = b.x.numel * (4 if b.half_to_float else b.x.dtype.itemsize)
    return Cost(vector_flops=5 * b.x.numel, hbm_bytes=b.x.nbytes + result)


def reference(x: torch.Tensor, dim: int, half_to_float: bool, is_log: bool) -> torch.Tensor:
    """The same in float32, rounded once (eager on the CPU rounds x - max to bfloat16)."""
    op = aten._log_softmax.default if is_log else aten._softmax.default
    result: torch.Tensor = op(x.float(), dim, False)
    return result if half_to_float else result.to(x.dtype)


def samples(generator: torch.Generator) -> Iterator[Sample]:
    """Edges of rows and columns, rows longer than SBUF, masked rows, halves."""

    def sample(
        note: str,
        *shape: int,
        is_log: bool,
        dtype: torch.dtype = torch.float32,
        masked: bool = False,
    ) -> Sample:
        x = (torch.randn(shape, generator=generator) * 4).to(dtype)
        if masked:
            x[..., x.shape[-1] // 2 :] = -float("inf")
        values = {"x": x, "dim": len(shape) - 1, "half_to_float": False, "is_log": is_log}
        return Sample(values, f"log, {note}" if is_log else note)

    for is_log in (False, True):
        for rows in (1, 127, 128, 129, 513):
            yield sample(f"{rows} rows", rows, 70, is_log=is_log)
        for columns in (1, 2, 511, 513, 3000):
            yield sample(f"{columns} columns", 130, columns, is_log=is_log)
        for columns in (39, 40, 130):
            yield sample(f"several rows of {columns} a partition", 2100, columns, is_log=is_log)
        yield sample("a vocabulary", 2, 3, 30011, is_log=is_log)
        yield sample("masked", 2, 3, 40, 50, is_log=is_log, masked=True)
        for dtype in (torch.bfloat16, torch.float16):
            yield sample(f"{dtype}", 2, 70, 600, is_log=is_log, dtype=dtype)


def _softmax_pattern(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    return aten._softmax.default(x, dim, half_to_float)


def _log_softmax_pattern(x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    return aten._log_softmax.default(x, dim, half_to_float)


register(
    KernelSpec(
        name="softmax",
        patterns=(
            Pattern(_softmax_pattern, {"is_log": False}),
            Pattern(_log_softmax_pattern, {"is_log": True}),
        ),
        supports=supports,
        reference=reference,
        cost=cost,
        samples=samples,
        kernel=softmax_kernel,
        launch=launch,
    )
)
