"""Layer norm of long rows in half precision, where DMA takes half of the time and no engine has
time for all columns.

A tile is `[partitions, run, columns]`. VectorE takes the statistics of the first columns with
`bn_stats`, ScalarE those of the last ones. Of the result, ScalarE standardises the first columns
and GpSimd multiplies them with the weight and adds the bias; VectorE does all of it with the last
ones. The shares are the same for every tile, so that a row has the same result wherever it stands.

TensorE has no part here. Where it multiplies with the weight (`_turned_rows.py`), infinite weights
and numbers near the end of float32 spoil more than their columns, and this does all again.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._long_rows import load_parameters, store_statistics
from trnx.nki_kernels.kernels._rows import add_rows, load_rows, over_rows, rows_of

_TRIPLE = 3  # count, mean and variance * count, as `bn_stats` gives and `bn_aggr` takes them


class HalfRows(NamedTuple):
    """HBM: x, the residual or None and the result `[rows, columns]`, the statistics `[rows]`;
    `epsilon` `[128, 1]` in SBUF. VectorE takes the statistics of all but the last `last` columns,
    GpSimd scales and shifts the first `on_gpsimd`.
    """

    x: nl.NkiTensor
    residual: nl.NkiTensor | None
    out: nl.NkiTensor
    mean: nl.NkiTensor
    rstd: nl.NkiTensor
    epsilon: nl.NkiTensor
    last: int
    on_gpsimd: int


class Sums(NamedTuple):
    """Statistics of a tile in parts: `bn_stats` of VectorE's columns with a triple behind them for
    ScalarE's `last` columns, of which `sums`, `[partitions, 2, run]`, are those of the distances
    from a mean of the others, and of their squares, so that neither a large mean nor an outlier
    costs accuracy.
    """

    parts: nl.NkiTensor
    sums: nl.NkiTensor
    last: int


class Moments(NamedTuple):
    """Of the rows of a tile, in float32: mean and variance `[partitions, run, 2]`; rstd, -mean and
    -mean * rstd, `[partitions, run]`."""

    both: nl.NkiTensor
    rstds: nl.NkiTensor
    negmeans: nl.NkiTensor
    shifts: nl.NkiTensor


def normalise_half_rows(
    h: HalfRows,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    starts: list[tuple[int, int, int]],
    lags: bool,
) -> None:
    """The tiles of `starts`: first rows, partitions and rows a partition. Where there is room, a
    tile `lags`, so that no engine waits for what another one does now: its statistics are put
    together when the next one is loaded, its result is computed when the one behind that is.
    """
    if lags:
        _in_stages(h, weight, bias, starts)
        return
    vectors = load_parameters(weight, bias, h.x.shape[1], h.x.dtype)
    for start in starts:
        data = _load(h, start)
        sums = new_sums(h, start)
        take_statistics(data, sums, 0, 1)
        _sum_up(data, sums, False)
        _sum_up(data, sums, True)
        add_product(sums, fill_triple(sums))
        moments = _moments_of(aggregate(sums), h.epsilon)
        _fill_shifts(moments)
        _store_moments(h, moments, start[0])
        standard = _standardise(data, moments, h.on_gpsimd)
        _multiply_on_gpsimd(standard, vectors[0])
        _finish(h, start, data, standard, moments, vectors)


def _in_stages(
    h: HalfRows,
    weight: nl.NkiTensor | None,
    bias: nl.NkiTensor | None,
    starts: list[tuple[int, int, int]],
) -> None:
    """Stage s has the tile that is s behind the one that is loaded. What an engine needs of another
    one comes in the order in which that has it."""
    data = []  # type: list[nl.NkiTensor]
    sums = []  # type: list[Sums]
    moments = []  # type: list[Moments]
    count = len(starts)
    for step in range(count + 2 if count > 0 else 0):
        i, j = step - 1, step - 2
        is_begun, is_due, is_last = step < count, i >= 0 and i < count, j >= 0
        if is_begun:
            data.append(_load(h, starts[step]))
            if step == 0:
                sums.append(new_sums(h, starts[step]))
            take_statistics(data[step], sums[step], 0, 3)
        if step == 1:  # behind the tiles with which the engines begin
            vectors = load_parameters(weight, bias, h.x.shape[1], h.x.dtype)
        # Each of these needs the one before, of whose result VectorE need not wait then.
        if is_due:
            product = fill_triple(sums[i])
        if is_begun:
            take_statistics(data[step], sums[step], 1, 3)
        if is_due:
            add_product(sums[i], product)
        if is_begun:
            take_statistics(data[step], sums[step], 2, 3)
        if is_due:
            both = aggregate(sums[i])
        if is_last:
            standard = _standardise(data[j], moments[j], h.on_gpsimd)
        if is_due:
            moments.append(_moments_of(both, h.epsilon))
        if is_begun:
            _sum_up(data[step], sums[step], False)
        if is_due:
            _store_moments(h, moments[i], starts[i][0])
        if is_begun:
            _sum_up(data[step], sums[step], True)
        if step + 1 < count:
            sums.append(new_sums(h, starts[step + 1]))
        if is_last:
            _multiply_on_gpsimd(standard, vectors[0])
        if is_due:
            _fill_shifts(moments[i])
        if is_last:
            _finish(h, starts[j], data[j], standard, moments[j], vectors)


def _load(h: HalfRows, start: tuple[int, int, int]) -> nl.NkiTensor:
    data = load_rows(h.x, start[0], start[1], start[2])
    if h.residual is None:
        return data
    return add_rows(data, load_rows(h.residual, start[0], start[1], start[2]))


def new_sums(h: HalfRows, start: tuple[int, int, int]) -> Sums:
    """Unfilled ones of a tile."""
    _, partitions, run = start
    size = 2 * _TRIPLE * pieces_of(h.x.shape[1] - h.last) + _TRIPLE
    parts = nl.ndarray((partitions, run, size), dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((partitions, 2, run), dtype=nl.float32, buffer=nl.sbuf)
    count = parts[:, :, size - 3]
    nisa.memset(dst=count, value=float(h.last), engine=nisa.engine.gpsimd)
    return Sums(parts, sums, h.last)


def pieces_of(columns: int) -> int:
    most = nl.tile_size.bn_stats_fmax  # type: int
    return (columns + most - 1) // most


def take_statistics(data: nl.NkiTensor, s: Sums, part: int, parts: int) -> None:
    """`bn_stats` of part `part` of `parts` of the pieces of VectorE's columns of all rows."""
    columns = data.shape[2] - s.last
    pieces = pieces_of(columns)
    count = pieces * data.shape[1]
    first, last = (part * count + parts - 1) // parts, ((part + 1) * count + parts - 1) // parts
    for number in range(first, last):
        r, i = number // pieces, number % pieces
        start, end = i * columns // pieces, (i + 1) * columns // pieces
        place = s.parts[:, r, 2 * _TRIPLE * i : 2 * _TRIPLE * (i + 1)]
        nisa.bn_stats(dst=place, data=data[:, r, start:end])


def _sum_up(data: nl.NkiTensor, s: Sums, squares: bool) -> None:
    """ScalarE's sums, of distances or of their squares."""
    for r in range(data.shape[1]):
        sum_up_row(data, s, r, squares)


def sum_up_row(data: nl.NkiTensor, s: Sums, r: int, squares: bool) -> None:
    """ScalarE's sums of row `r` of each partition."""
    partitions, _, columns = data.shape
    unused = nl.ndarray((partitions, s.last), dtype=data.dtype, buffer=nl.sbuf)
    i = 1 if squares else 0
    nisa.activation(
        dst=unused, op=nl.square if squares else nl.copy,
        data=data[:, r, columns - s.last : columns], scale=-1.0, bias=s.parts[:, r, 1:2],
        reduce_op=nl.add, reduce_res=s.sums[:, i, r : r + 1],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip


def fill_triple(s: Sums) -> nl.NkiTensor:
    """The mean of ScalarE's columns to its place, and what their squared distances from it lack,
    `[partitions, run]`."""
    size = s.parts.shape[2]
    nisa.scalar_tensor_tensor(
        dst=s.parts[:, :, size - 2], data=s.sums[:, 0], op0=nl.multiply, operand0=-1.0 / s.last,
        op1=nl.add, operand1=s.parts[:, :, 1],
    )  # fmt: skip
    product = nl.ndarray((s.sums.shape[0], s.sums.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=product, data=s.sums[:, 0], op0=nl.multiply, operand0=-1.0 / s.last,
        op1=nl.multiply, operand1=s.sums[:, 0],
    )  # fmt: skip
    return product


def add_product(s: Sums, product: nl.NkiTensor) -> None:
    """The squared distances from their mean to their place."""
    size = s.parts.shape[2]
    nisa.tensor_tensor(dst=s.parts[:, :, size - 1], data1=s.sums[:, 1], data2=product, op=nl.add)


def aggregate(s: Sums) -> nl.NkiTensor:
    """Mean and variance of each row, `[partitions, run, 2]`."""
    partitions, run, _ = s.parts.shape
    both = nl.ndarray((partitions, run, 2), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        nisa.bn_aggr(dst=both[:, r], data=s.parts[:, r])
    return both


def _moments_of(both: nl.NkiTensor, epsilon: nl.NkiTensor) -> Moments:
    """With unfilled shifts."""
    partitions, run, _ = both.shape
    rstds = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=rstds, op=nl.rsqrt, data=both[:, :, 1], bias=epsilon[0:partitions])
    negmeans = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=negmeans, op=nl.copy, data=both[:, :, 0], scale=-1.0)
    shifts = nl.ndarray((partitions, run), dtype=nl.float32, buffer=nl.sbuf)
    return Moments(both, rstds, negmeans, shifts)


def _fill_shifts(m: Moments) -> None:
    """By GpSimd, which uses them itself."""
    nisa.tensor_tensor(
        dst=m.shifts, data1=m.negmeans, data2=m.rstds, op=nl.multiply, engine=nisa.engine.gpsimd
    )


def _standardise(data: nl.NkiTensor, m: Moments, end: int) -> nl.NkiTensor:
    """(data - mean) * rstd of the first `end` columns, in float32, as data * rstd - mean * rstd:
    what that costs in accuracy is below the rounding to half precision, unless the mean is so large
    that the elements of x were rounded to more.
    """
    partitions, run, _ = data.shape
    result = nl.ndarray((partitions, run, end), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        nisa.activation(
            dst=result[:, r], op=nl.copy, data=data[:, r, 0:end],
            scale=m.rstds[:, r : r + 1], bias=m.shifts[:, r : r + 1],
        )  # fmt: skip
    return result


def _multiply_on_gpsimd(standard: nl.NkiTensor, weights: nl.NkiTensor) -> None:
    """standard * weights, in its place."""
    part = over_rows(weights[:, 0 : standard.shape[2]], standard)
    nisa.tensor_tensor(
        dst=standard, data1=standard, data2=part, op=nl.multiply, engine=nisa.engine.gpsimd
    )


def _finish(
    h: HalfRows,
    start: tuple[int, int, int],
    data: nl.NkiTensor,
    scaled: nl.NkiTensor,
    m: Moments,
    vectors: tuple[nl.NkiTensor, nl.NkiTensor],
) -> None:
    """Store the result: `scaled` + bias by GpSimd, the rest by VectorE."""
    result = nl.ndarray(data.shape, dtype=data.dtype, buffer=nl.sbuf)
    # First, as GpSimd is late where it has waited for ScalarE.
    _scale_and_shift(result, data, m, vectors[0], vectors[1], h.on_gpsimd)
    nisa.tensor_tensor(
        dst=result[:, :, 0 : h.on_gpsimd], data1=scaled,
        data2=over_rows(vectors[1][:, 0 : h.on_gpsimd], scaled), op=nl.add,
        engine=nisa.engine.gpsimd,
    )  # fmt: skip
    nisa.dma_copy(dst=rows_of(h.out, start[0], start[1], start[2]), src=result)


def _store_moments(h: HalfRows, m: Moments, start: int) -> None:
    rows = h.x.shape[0]
    store_statistics(h.mean, m.both[:, :, 0], rows, start)
    store_statistics(h.rstd, m.rstds, rows, start)


def _scale_and_shift(
    dst: nl.NkiTensor,
    data: nl.NkiTensor,
    m: Moments,
    weights: nl.NkiTensor,
    bias: nl.NkiTensor,
    first: int,
) -> None:
    """Columns `first ..` of `dst`: (data - mean) * weights * rstd + bias, by VectorE."""
    partitions, run, columns = data.shape
    scaled = nl.ndarray((partitions, run, columns - first), dtype=nl.float32, buffer=nl.sbuf)
    for r in range(run):
        nisa.scalar_tensor_tensor(
            dst=scaled[:, r], data=data[:, r, first:columns], op0=nl.subtract,
            operand0=m.both[:, r, 0:1], op1=nl.multiply,
            operand1=weights[0:partitions, first:columns],
        )  # fmt: skip
    for r in range(run):
        nisa.scalar_tensor_tensor(
            dst=dst[:, r, first:columns], data=scaled[:, r], op0=nl.multiply,
            operand0=m.rstds[:, r : r + 1], op1=nl.add, operand1=bias[0:partitions, first:columns],
        )  # fmt: skip
