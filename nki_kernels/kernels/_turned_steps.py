"""NKI helpers of `_turned_layer_norm_backward.py`: its stages, a step of all of them at a time, in
the order in which engines take turns."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._rows import rows_of
from trnx.nki_kernels.kernels._turned_gradients import (
    Chunk,
    Lines,
    Result,
    Turned,
    add_row,
    add_slope,
    diagonals_of,
    finish,
    keep_turned,
    line_of_columns,
    lines_of,
    multiply_columns,
    total_columns,
    total_turned,
    turn_columns,
    weigh_columns,
    weigh_product,
)
from trnx.nki_kernels.kernels._turned_parameters import Numbers, Parameters, spread_weights

LAG = 3  # steps from the load of a chunk to its result
_NARROW = 1024  # columns of a row that engines need not take turns in
_PART = 512  # columns of the others that they do at a turn
SPAN = 1024  # columns of an instruction that need not wait for others, in a bank of PSUM
_TOGETHER = 4  # rows of a partition that follow each other in the sums over rows


class Work(NamedTuple):
    """`starts` of all tiles, what rows share, `totals[128, 2, rows]` of all rows of a partition,
    `sums` over rows and the factors of the gradient in them. Of each chunk so far: itself, its
    lines, the diagonal matrices of its rows. Percent by engines: as the kernel's."""

    starts: list[tuple[int, int, int]]
    parameters: Parameters
    numbers: Numbers
    totals: nl.NkiTensor
    sums: nl.NkiTensor
    ones: nl.NkiTensor
    chunks: list[Chunk]
    lines: list[Lines]
    diagonals: list[list[nl.NkiTensor]]
    on_scalar: int
    on_vector: int


class Step(NamedTuple):
    """The chunks that are begun, summed up and finished in a step, at most one each; sums of the
    second one in PSUM, `[partitions, run]`, and the result of the last one."""

    number: int
    begun: list[Chunk]
    summed: list[Chunk]
    finished: list[Chunk]
    bank: list[nl.NkiTensor]
    results: list[nl.NkiTensor]


class Place(NamedTuple):
    """Part `part` of `parts` of row `row` of each partition, of `width` columns or fewer."""

    row: int
    part: int
    parts: int
    width: int
    columns: int


def run_step(dx: nl.NkiTensor, work: Work, number: int) -> None:
    """All stages, part by part of a row of each partition, as engines take turns. What leaves PSUM
    was computed a part before."""
    step = _new_step(work, number, dx.dtype)
    columns = dx.shape[1]
    width = columns if columns <= _NARROW else _PART
    parts = (columns + width - 1) // width
    turned, pending = _no_turned(), _no_results()
    for slot in range(_rows_of_step(step) * parts + 1):
        place = Place(slot // parts, slot % parts, parts, width, columns)
        _begin(work, step, place, turned)
        following = _no_results()
        _finish(work, step, place, following)
        _sum_rows(work, step, place)
        if len(pending) > 0:
            _leave(work, step, pending.pop())
        if len(following) > 0:
            pending.append(following[0])
        _total(work, step, place, turned)
    if len(step.summed) > 0:
        nisa.activation(dst=step.summed[0].totals[:, 0], op=nl.copy, data=step.bank[0])
        work.lines.append(lines_of(step.summed[0]))
        work.diagonals.append([])
        if number == LAG - 1:
            _prepare(work, 0, 0, parts)
    if len(step.finished) > 0:
        old, result = step.finished[0], step.results[0]
        nisa.dma_copy(dst=rows_of(dx, old.row, result.shape[0], result.shape[1]), src=result)


def _no_turned() -> list[Turned]:
    return []


def _no_results() -> list[Result]:
    return []


def _new_step(work: Work, number: int, dtype: str) -> Step:
    step = Step(number, [], [], [], [], [])
    count = len(work.starts)
    for stage, chunks in ((0, step.begun), (1, step.summed), (LAG, step.finished)):
        if number >= stage and number - stage < count:
            chunks.append(work.chunks[number - stage])
    for chunk in step.summed:
        shape = chunk.numbers.mean.shape
        step.bank.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    for chunk in step.finished:
        step.results.append(nl.ndarray(chunk.x.shape, dtype=dtype, buffer=nl.sbuf))
    return step


def _rows_of_step(step: Step) -> int:
    """The most of a partition."""
    most = 0
    for chunks in (step.begun, step.summed, step.finished):
        for chunk in chunks:
            most = max(most, chunk.x.shape[1])
    return most


def _span_at(place: Place, size: int) -> tuple[int, int]:
    """The columns of what begins with this part and has `size` of them; none if nothing begins."""
    start = place.part * place.width
    if start % size > 0:
        return 0, 0
    return start, min(place.columns, start + size)


def _is_in(chunks: list[Chunk], place: Place) -> bool:
    return len(chunks) > 0 and place.row < chunks[0].x.shape[1]


def _begin(work: Work, step: Step, place: Place, turned: list[Turned]) -> None:
    """The products of the newest chunk, and its turned gradient, which stays in PSUM."""
    span = _span_at(place, SPAN)
    if not _is_in(step.begun, place) or span[1] == 0:
        return
    chunk, r = step.begun[0], place.row
    multiply_columns(chunk, r, span)
    turned.append(turn_columns(chunk, r, span))
    if step.number == 0 and r == 0:
        spread_weights(work.parameters, span)
    if place.parts > 1:
        weigh_product(chunk, work.parameters, (r, r + 1), span)
    elif r % 2 == 1 or r + 1 == chunk.x.shape[1]:
        weigh_product(chunk, work.parameters, (r - r % 2, r + 1), span)


def _sum_rows(work: Work, step: Step, place: Place) -> None:
    """By TensorE: a row of the chunk that is summed up, and over rows."""
    if not _is_in(step.summed, place):
        return
    chunk, r = step.summed[0], place.row
    total_turned(step.bank[0], chunk, work.parameters, r, _span_at(place, place.width))
    is_due = (r + 1) % _TOGETHER == 0 or r + 1 == chunk.x.shape[1]
    first = r - r % _TOGETHER
    if place.parts > 1:
        is_due, first = place.part == place.parts // 2, r
    if is_due:
        for row in range(first, r + 1):
            add_row(chunk, work.sums, work.ones, row, step.number > 1 or row > 0)


def _is_by_vector(work: Work, chunk: Chunk, r: int, part: int, parts: int) -> bool:
    """Whether VectorE adds the line of a part: of the last ones of a row, or the only ones of the
    last rows."""
    number, count = part, parts
    if parts == 1:
        number, count = r, chunk.x.shape[1]
    return number >= count - count * work.on_vector // 100


def _prepare(work: Work, number: int, r: int, parts: int) -> None:
    """The diagonal matrices of row `r` of a chunk, or of the first row of the next one behind its
    last; the identity matrix in their place where VectorE adds the line of every part."""
    if r == work.chunks[number].x.shape[1]:
        number, r = number + 1, 0
    if number >= len(work.lines):
        return
    for part in range(parts):
        if not _is_by_vector(work, work.chunks[number], r, part, parts):
            work.diagonals[number].append(diagonals_of(work.lines[number], work.parameters, r))
            return
    work.diagonals[number].append(work.parameters.identity)


def _finish(work: Work, step: Step, place: Place, following: list[Result]) -> None:
    """A part of the result of the oldest chunk, which stays in PSUM."""
    if not _is_in(step.finished, place):
        return
    chunk, r, number = step.finished[0], place.row, step.number - LAG
    span = _span_at(place, place.width)
    line = []  # type: list[nl.NkiTensor]
    is_by_vector = _is_by_vector(work, chunk, r, place.part, place.parts)
    if is_by_vector:
        line.append(line_of_columns(chunk, work.lines[number], r, span))
    total = weigh_columns(chunk, work.parameters, r, span)
    if not is_by_vector:
        add_slope(total, chunk, work.diagonals[number][r], r, span)
    following.append(Result(total, line, r, span))


def _leave(work: Work, step: Step, result: Result) -> None:
    """A part of the result, from PSUM."""
    start, end = result.columns
    dst = step.results[0][:, result.row, start:end]
    finish(dst, step.finished[0], work.lines[step.number - LAG], result)


def _total(work: Work, step: Step, place: Place, turned: list[Turned]) -> None:
    """What ScalarE has time for behind a part of the result, and the turned blocks, from PSUM."""
    is_end = place.part + 1 == place.parts
    if len(turned) > 0 and (place.part % 2 == 1 or is_end):
        spans = (place.columns + SPAN - 1) // SPAN
        number = (step.number * step.begun[0].x.shape[1] + place.row) * spans + place.part // 2
        by_scalar = (number + 1) * work.on_scalar // 100 > number * work.on_scalar // 100
        keep_turned(turned.pop(), by_scalar)
    if _is_in(step.finished, place) and place.part == max(0, place.parts - 2):
        _prepare(work, step.number - LAG, place.row + 1, place.parts)
    span = _span_at(place, SPAN)
    if _is_in(step.summed, place) and span[1] > 0:
        total_columns(step.summed[0], place.row, span)
