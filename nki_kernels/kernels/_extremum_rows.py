"""`extremum` of rows: each is searched in parts, and few rows are divided among the partitions.

VectorE passes over a part twice: its extremum, and where that is. Of parts whose extrema are equal
the first counts; places are compared as what they lack of `2^23`, in float32, which holds them. Few
rows lie in segments on the partitions, which overlap where the size is no multiple of their number;
TensorE brings what the segments have found to one partition. NaN equals nothing and is not found: a
core whose rows have one searches all of them once more, with two passes that look for NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._repairs import column_of_ones, repairs_of

SHORTEST = 8  # elements of a row: what a search takes
LONGEST = 2**23  # places and what they lack of it are exact in float32
_INF = float("inf")
_FIRST, _PART = 512, 2048  # elements of the first part, so that VectorE has work early; of others
_SEGMENT = 256  # elements of a segment at least
_FOUND = 512  # parts whose places a partition holds


class _Tile(NamedTuple):
    """`run` rows from `first` on in each of `partitions`; or, where `segments` is not 1, each of
    `partitions` rows in as many segments, `step` elements apart. `parts` are (first, count)."""

    first: int
    partitions: int
    run: int
    segments: int
    step: int
    parts: list[tuple[int, int]]


@nki.jit
def extremum_rows_kernel(
    x: nl.NkiTensor,
    rows: int,
    size: int,
    shape: tuple[int, ...],
    largest: bool,
    gives_values: bool,
    cores: int = 1,
) -> Any:
    """Results of `shape` of `rows` rows of `size` elements: values where asked for, int64 indices.
    `cores` share the rows."""
    indices = nl.ndarray(shape + (2,), dtype=nl.int32, buffer=nl.shared_hbm)
    flat_indices = indices.reshape((rows, 2))
    flat_values = None
    if gives_values:
        values = nl.ndarray(shape if shape else (1,), dtype=x.dtype, buffer=nl.shared_hbm)
        flat_values = values.reshape((rows, 1))
    out = (flat_values, flat_indices)
    tiles = _tiles(rows, size, cores)
    if len(tiles) > 0:
        good = nl.ndarray((nl.tile_size.pmax, len(tiles)), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=good, value=1.0, engine=nisa.engine.gpsimd)
        ones = column_of_ones()
        for i, tile in enumerate(tiles):
            best = _search_tile(out, x, tile, size, largest, False)
            here = good[0 : best.shape[0], i : i + 1]
            _mark_numbers(here, best)
        for _ in nl.dynamic_range(repairs_of(good, ones)):
            for tile in tiles:
                _search_tile(out, x, tile, size, largest, True)
    if gives_values:
        return values, indices
    return indices


def _tiles(rows: int, size: int, cores: int) -> list[_Tile]:
    """Those of this program."""
    pmax = nl.tile_size.pmax
    first, end = share_of(rows, cores)
    tiles = []  # type: list[_Tile]
    while first < end:
        partitions = min(pmax, end - first)
        segments = _segments(partitions, size)
        step = size // segments
        parts = _parts(size - (segments - 1) * step)
        run = min((end - first) // partitions, max(1, _FOUND // len(parts)))
        tiles.append(_Tile(first, partitions, run, segments, step, parts))
        first = first + partitions * run
    return tiles


def _segments(rows: int, size: int) -> int:
    """Of each of `rows` rows: no more than partitions, and places of all in one line exact."""
    if rows * size > LONGEST:
        return 1
    pmax = nl.tile_size.pmax  # type: int
    return max(1, min(pmax // rows, size // _SEGMENT))


def _parts(size: int) -> list[tuple[int, int]]:
    """(first, count) of the parts of a row or segment."""
    parts = []  # type: list[tuple[int, int]]
    first, most = 0, _FIRST
    while first < size:
        count = min(most, size - first)
        if size - first - count < SHORTEST:
            count = size - first
        parts.append((first, count))
        first, most = first + count, min(2 * most, _PART)
    return parts


def _search_tile(
    out: tuple[Any, nl.NkiTensor], x: nl.NkiTensor, tile: _Tile, size: int, largest: bool,
    finds_nan: bool,
) -> nl.NkiTensor:  # fmt: skip
    """Stores the results of a tile; the extrema of its partitions, `[P, 1]`."""
    p, run, n = tile.partitions * tile.segments, tile.run, len(tile.parts)
    extrema = nl.ndarray((p, run, n), dtype=nl.float32, buffer=nl.sbuf)
    lacking = nl.ndarray((p, run, n), dtype=nl.float32, buffer=nl.sbuf)
    places = nl.ndarray((p, run, n, SHORTEST), dtype=nl.uint32, buffer=nl.sbuf)
    _search_parts((extrema, places), x, tile, size, largest, finds_nan)
    for i, part in enumerate(tile.parts):
        step = -tile.step if tile.segments > 1 else 0
        nisa.iota(
            dst=lacking[:, :, i : i + 1], pattern=[[0, run], [0, 1]], offset=LONGEST - part[0],
            channel_multiplier=step,
        )  # fmt: skip
    nisa.scalar_tensor_tensor(
        dst=lacking, data=places[:, :, :, 0], op0=nl.multiply, operand0=-1.0, op1=nl.add,
        operand1=lacking,
    )  # fmt: skip
    best, place = _first_of(extrema, lacking, largest, finds_nan)
    worst = best
    if run > 1:
        worst = nl.ndarray((p, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=worst, op=_operator(largest), data=best, axis=1)
    if tile.segments > 1:
        form = (1, tile.partitions, tile.segments)
        best, place = _first_of(_in_line(best, form), _in_line(place, form), largest, finds_nan)
    _store(out, tile, best, place)
    return worst


def _search_parts(
    found: tuple[nl.NkiTensor, nl.NkiTensor], x: nl.NkiTensor, tile: _Tile, size: int,
    largest: bool, finds_nan: bool,
) -> None:  # fmt: skip
    """The extremum of each part `[P, run, parts]`, and where it is in the part, `[.., 8]`."""
    extrema, places = found
    p, run, n = extrema.shape
    several = 1  # rows that are loaded together
    if n == 1:
        several = max(1, _PART // size)
    for i, part in enumerate(tile.parts):
        first, count = part
        for row in range(0, run, several):
            rows = min(several, run - row)
            pattern = [[size * run, tile.partitions], [tile.step, tile.segments]]
            pattern = pattern + [[size, rows], [1, count]]
            data = nl.ndarray((p, rows, count), dtype=x.dtype, buffer=nl.sbuf)
            offset = (tile.first + row) * size + first
            nisa.dma_copy(dst=data, src=x.ap(pattern=pattern, offset=offset))
            if not finds_nan:
                some = extrema[:, row : row + rows, i]
                nisa.tensor_reduce(dst=some, op=_operator(largest), data=data, axis=2)
            for r in range(rows):
                here, best = places[:, row + r, i, :], extrema[:, row + r, i : i + 1]
                if finds_nan:
                    search_with_nan(data[:, r, :], best, here[:, 0:1], largest)
                else:
                    nisa.nc_find_index8(dst=here, data=data[:, r, :], vals=best.broadcast(1, 8))


def search_with_nan(
    tile: nl.NkiTensor, best: nl.NkiTensor, place: nl.NkiTensor, largest: bool
) -> None:
    """The extremum of each partition, NaN if there is one, and the first place that has it."""
    partitions, size = tile.shape
    extremum = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=extremum, op=_operator(largest), data=tile, axis=1)
    nisa.tensor_copy(dst=best, src=extremum)
    width = max(size, SHORTEST)
    match = nl.ndarray((partitions, width), dtype=nl.bfloat16, buffer=nl.sbuf)
    if width > size:
        nisa.memset(dst=match, value=0.0)
    here = match[:, 0:size]
    _mark_nan(here, tile)
    nisa.scalar_tensor_tensor(
        dst=here, data=tile, op0=nl.equal, operand0=extremum, op1=nl.maximum, operand1=here
    )
    ones = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    eight = nl.ndarray((partitions, SHORTEST), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.nc_find_index8(dst=eight, data=match, vals=ones.broadcast(1, SHORTEST))
    nisa.tensor_copy(dst=place, src=eight[:, 0:1])


def _mark_nan(marks: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """1 for NaN, which is the one value that is not at least -inf; else 0."""
    nisa.tensor_scalar(
        dst=marks, data=data, op0=nl.greater_equal, operand0=-_INF, op1=nl.equal, operand1=0.0
    )


def _operator(largest: bool) -> object:
    return nl.maximum if largest else nl.minimum


def _first_of(
    extrema: nl.NkiTensor, lacking: nl.NkiTensor, largest: bool, finds_nan: bool
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Of `[P, rows, n]` candidates and what their places lack: the extremum and the first place
    that has it, `[P, rows]`."""
    p, rows, n = extrema.shape
    if n == 1:
        return extrema[:, :, 0], lacking[:, :, 0]
    best = nl.ndarray((p, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=best, op=_operator(largest), data=extrema, axis=2)
    match = nl.ndarray((p, rows, n), dtype=nl.float32, buffer=nl.sbuf)
    every = best.expand_dim(2).broadcast(2, n)
    nisa.tensor_tensor(dst=match, data1=extrema, data2=every, op=nl.equal)
    if finds_nan:
        is_nan = nl.ndarray((p, rows, n), dtype=nl.float32, buffer=nl.sbuf)
        _mark_nan(is_nan, extrema)
        nisa.tensor_tensor(dst=match, data1=match, data2=is_nan, op=nl.maximum)
    nisa.tensor_tensor(dst=match, data1=match, data2=lacking, op=nl.multiply)
    place = nl.ndarray((p, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=place, op=nl.maximum, data=match, axis=2)
    return best, place


def _in_line(column: nl.NkiTensor, form: tuple[int, int, int]) -> nl.NkiTensor:
    """A column `[P, 1]` on one partition, in PSUM."""
    line = nl.ndarray((1, column.shape[0]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=line, data=column, engine=nisa.engine.tensor)
    return line.reshape(form)


def _store(
    out: tuple[Any, nl.NkiTensor], tile: _Tile, best: nl.NkiTensor, place: nl.NkiTensor
) -> None:
    """Results `[P, rows]` of a tile."""
    values, indices = out
    p, rows = best.shape
    end = tile.first + p * rows
    if values is not None:
        given = best
        if values.dtype != nl.float32:
            given = nl.ndarray((p, rows), dtype=values.dtype, buffer=nl.sbuf)
            nisa.activation(dst=given, op=nl.copy, data=best)
        nisa.dma_copy(dst=values[tile.first : end].reshape((p, rows)), src=given)
    words = nl.ndarray((p, rows, 2), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=words, value=0, engine=nisa.engine.gpsimd)
    whole = nl.ndarray((p, rows), dtype=nl.float32, buffer=nl.sbuf)
    before = tile.segments * tile.step if tile.segments > 1 else 0
    nisa.iota(dst=whole, pattern=[[-before, rows]], offset=LONGEST, channel_multiplier=0)
    nisa.tensor_tensor(dst=words[:, :, 0], data1=whole, data2=place, op=nl.subtract)
    nisa.dma_copy(dst=indices[tile.first : end].reshape((p, rows, 2)), src=words)


def _mark_numbers(good: nl.NkiTensor, extrema: nl.NkiTensor) -> None:
    """1 where an extremum is no NaN."""
    nisa.tensor_tensor(
        dst=good, data1=extrema, data2=extrema, op=nl.equal, engine=nisa.engine.gpsimd
    )
