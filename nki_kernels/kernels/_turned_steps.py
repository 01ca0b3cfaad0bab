"""NKI helpers of `_turned_layer_norm_backward.py`: its stages, a step of all of them at a time, in
the order in which engines take turns."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._rows import rows_of
from trnx.nki_kernels.kernels._turned_gradients import (
    Chunk,
    Lines,
    Part,
    add_slope,
    diagonals_of,
    finish,
    lines_of,
    multiply_columns,
    total_columns,
    total_turned,
    weigh_columns,
    with_slope,
)
from trnx.nki_kernels.kernels._turned_parameters import Numbers, Parameters
from trnx.nki_kernels.kernels._turned_sums import RowSums, add_products, add_straight, add_turned

_T = TypeVar("_T")

_AHEAD = 2  # rows whose diagonal matrices are there before they are needed
LAG = 2  # steps from the load of a chunk to its result
_NARROW = 1024  # columns of a row that engines need not take turns in
_PART = 512  # columns of the others that they do at a turn


class Result(NamedTuple):
    """What ScalarE makes a part of the result of, and the result of the chunk in SBUF."""

    part: Part
    lines: Lines
    total: nl.NkiTensor
    chunk: nl.NkiTensor


class Work(NamedTuple):
    """`starts` of all tiles, the number of the chunk and the row of all rows in order, what rows
    share, `totals[128, 2, rows]` of all rows of a partition, sums over rows, room for what nobody
    reads. Of each chunk so far: itself, its lines; of each row the diagonal matrices. What waits
    for its turn, at most one part each: `grad * weight`, its products, results. `on_vector` as the
    kernel's."""

    starts: list[tuple[int, int, int]]
    rows: list[tuple[int, int]]
    parameters: Parameters
    numbers: Numbers
    totals: nl.NkiTensor
    sums: RowSums
    ones: nl.NkiTensor
    unused: nl.NkiTensor
    chunks: list[Chunk]
    lines: list[Lines]
    diagonals: list[nl.NkiTensor]
    weighed: list[tuple[Part, nl.NkiTensor]]
    multiplied: list[tuple[Part, nl.NkiTensor]]
    results: list[Result]
    on_vector: int


class Slots(NamedTuple):
    """A chunk whose parts take turns, and the row that its first one is."""

    chunk: list[Chunk]
    first: int
    width: int
    parts: int


def width_of(columns: int) -> int:
    """Columns of a part of a row."""
    return columns if columns <= _NARROW else _PART


def run_step(dx: nl.NkiTensor, work: Work, number: int) -> None:
    """All stages, part by part of a row of each partition, as engines take turns. What VectorE
    multiplied and what leaves PSUM was computed a part before."""
    begun, finished = _slots_of(work, number), _slots_of(work, number - LAG)
    for chunk in finished.chunk:
        result = nl.ndarray(chunk.x.shape, dtype=dx.dtype, buffer=nl.sbuf)
    if number == 0:
        _weigh(work, _part_of(begun, 0))
    for slot in range(max(_count(begun), _count(finished), 1)):
        multiplied, left = _taken(work.multiplied), _taken(work.results)
        if slot < _count(begun):
            _begin(work, number, begun, slot)
        if slot < _count(finished):
            _finish(work, finished, slot, result, number - LAG)
        _sum_up(work, multiplied)
        _leave(dx, left)
        if slot == 0:
            for chunk in begun.chunk:
                add_turned(work.sums, chunk.turned, number > 0)
        if slot < _count(finished):
            _prepare(work, finished.first + slot // finished.parts + 1 + _AHEAD)
    if number == LAG - 1:
        _prepare(work, _AHEAD)


def _slots_of(work: Work, number: int) -> Slots:
    """Those of a chunk; none where there is no such."""
    chunks = []  # type: list[Chunk]
    if number < 0 or number >= len(work.starts):
        return Slots(chunks, 0, 1, 1)
    first = 0
    for start in work.starts[0:number]:
        first += start[2]
    chunk = work.chunks[number]
    chunks.append(chunk)
    width = width_of(chunk.x.shape[2])
    return Slots(chunks, first, width, (chunk.x.shape[2] + width - 1) // width)


def _count(slots: Slots) -> int:
    """Of all parts."""
    count = 0
    for chunk in slots.chunk:
        count = chunk.x.shape[1] * slots.parts
    return count


def _part_of(slots: Slots, slot: int) -> Part:
    chunk, start = slots.chunk[0], slot % slots.parts * slots.width
    return Part(chunk, slot // slots.parts, (start, min(chunk.x.shape[2], start + slots.width)))


def _taken(waiting: list[_T]) -> list[_T]:
    """What waits, which no longer does."""
    taken = []  # type: list[_T]
    while len(waiting) > 0:
        taken.append(waiting.pop())
    return taken


def _weigh(work: Work, part: Part) -> None:
    """By TensorE, a part before VectorE needs it."""
    work.weighed.append((part, weigh_columns(part, work.parameters)))


def _begin(work: Work, number: int, slots: Slots, slot: int) -> None:
    """The product of a part of the newest chunk."""
    part, weighted = work.weighed.pop()
    if slot + 1 < _count(slots):
        _weigh(work, _part_of(slots, slot + 1))
    elif number + 1 < len(work.starts):
        _weigh(work, _part_of(_slots_of(work, number + 1), 0))
    product = multiply_columns(part, weighted)
    total_turned(part, work.parameters)
    turned, identity = part.chunk.turned[:, part.row], work.parameters.identity
    add_straight(work.sums, turned, identity, part.columns, _is_started(work, part))
    work.multiplied.append((part, product))


def _sum_up(work: Work, multiplied: list[tuple[Part, nl.NkiTensor]]) -> None:
    """Over columns and over rows; behind the last part of a chunk, what its sums are for."""
    for part, product in multiplied:
        chunk, r = part.chunk, part.row
        total_columns(part, product, work.unused)
        rstd = chunk.numbers.rstd[:, r : r + 1]
        add_products(work.sums, product, rstd, part.columns, _is_started(work, part))
        if r + 1 == chunk.x.shape[1] and part.columns[1] == chunk.x.shape[2]:
            work.lines.append(lines_of(chunk, work.on_vector < 100))


def _is_started(work: Work, part: Part) -> bool:
    """Whether sums over rows have some already."""
    return part.row > 0 or part.chunk.row > work.starts[0][0]


def _is_by_vector(work: Work, row: int) -> bool:
    """Whether VectorE adds the slopes of a row."""
    return (row + 1) * work.on_vector // 100 > row * work.on_vector // 100


def _prepare(work: Work, until: int) -> None:
    """The diagonal matrices of the first rows, as far as there are lines; the identity matrix in
    their place where VectorE adds the slopes."""
    for row in range(len(work.diagonals), min(until, len(work.rows))):
        number, r = work.rows[row]
        if number < len(work.lines):
            diagonals = work.parameters.identity
            if not _is_by_vector(work, row):
                diagonals = diagonals_of(work.lines[number], work.parameters, r)
            work.diagonals.append(diagonals)


def _finish(work: Work, slots: Slots, slot: int, result: nl.NkiTensor, number: int) -> None:
    """A part of the result of the oldest chunk, without its shift."""
    part, lines = _part_of(slots, slot), work.lines[number]
    row = slots.first + part.row
    total = weigh_columns(part, work.parameters)
    if _is_by_vector(work, row):
        total = with_slope(total, part, lines)
    else:
        _prepare(work, row + 1)
        add_slope(total, part, work.diagonals[row])
    work.results.append(Result(part, lines, total, result))


def _leave(dx: nl.NkiTensor, results: list[Result]) -> None:
    """A part of the result, which is stored behind the last one of a chunk."""
    for result in results:
        part = result.part
        (start, end), r = part.columns, part.row
        finish(result.chunk[:, r, start:end], part, result.lines, result.total)
        partitions, run, columns = result.chunk.shape
        if r + 1 == run and end == columns:
            nisa.dma_copy(dst=rows_of(dx, part.chunk.row, partitions, run), src=result.chunk)


def leave_last(dx: nl.NkiTensor, work: Work) -> None:
    """What is left behind the last step."""
    _leave(dx, _taken(work.results))
