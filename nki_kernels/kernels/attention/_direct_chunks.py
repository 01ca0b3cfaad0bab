"""NKI helpers of attention of long sequences: the chunks in which `_direct` does its work."""

from __future__ import annotations

from typing import NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels.attention._direct import DirectProblem, Piece, columns_of
from trnx.nki_kernels.kernels.attention._direct_loads import FIRST_KEYS
from trnx.nki_kernels.kernels.attention._long import GROUP, together
from trnx.nki_kernels.kernels.attention._long_schedule import Place

# Columns of the first chunks, and of the last one.
_FIRST_COLUMNS = (256, 384, 384, 512, 1024)
_LAST_COLUMNS = 512
_BANKS = 8  # of PSUM


class Step(NamedTuple):
    """A block of keys and the `blocks` from `query` on of a group that see it, or `pairs` of blocks
    on the diagonal."""

    key: int
    query: int
    blocks: int
    pairs: int


def _steps_of(p: DirectProblem, place: Place, ahead: int) -> list[Step]:
    """All that a group meets, `ahead` blocks of keys that all of its queries see before others. A
    block on the diagonal, which are more work for TensorE where it hides keys, is between two that
    are not; pairs come first, for GpSimd to hide keys in time. The keys of the span with the
    diagonal come before those of other spans."""
    steps: list[Step] = []
    first = place.first if p.causal else place.seen
    others = min(first, place.seen)
    turned = others // p.span * p.span if p.span > 0 else 0
    for key in range(min(ahead, others)):
        steps.append(Step((turned + key) % others, 0, place.blocks, 0))
    own = max(0, min(place.blocks, place.seen - first))
    paired = own // 2 * 2 if p.pairs else 0
    if paired > 0:
        steps.append(Step(first, 0, 0, paired // 2))
    for key in range(max(others, own)):
        if key < own:
            query = key + 1 if key < paired else key
            if query < place.blocks:
                steps.append(Step(first + key, query, place.blocks - query, 0))
        if ahead <= key < others:
            steps.append(Step((turned + key) % others, 0, place.blocks, 0))
    return steps


def _columns_left(steps: list[Step]) -> int:
    """Columns of the scores of all of `steps`."""
    columns = 0
    for step in steps:
        columns += columns_of(step.blocks, step.pairs)
    return columns


def _limit_of(number: int, most: int) -> int:
    """Columns of chunk `number`."""
    return min(most, _FIRST_COLUMNS[number]) if number < len(_FIRST_COLUMNS) else most


def chunks_of(p: DirectProblem, places: list[Place], width: int) -> list[list[Piece]]:
    """All pieces in order, in chunks two of which fill the banks that the products leave; the first
    ones are small, for ScalarE to begin soon."""
    bank = nl.tile_size.psum_bank_fmax
    products = (GROUP + together(width) - 1) // together(width)
    if 2 * products <= _BANKS // 2:
        products = 2 * products  # of the next group, too
    most = (_BANKS - products) // 2 * bank
    chunks: list[list[Piece]] = []
    chunk: list[Piece] = []
    column = 0
    limit = _FIRST_COLUMNS[0]
    for number in range(len(places)):
        steps = _steps_of(p, places[number], FIRST_KEYS if number == 0 else 0)
        if number + 1 == len(places):
            left = column + _columns_left(steps)
            limit = min(limit, max(_LAST_COLUMNS, left - _LAST_COLUMNS))
        for at in range(len(steps)):
            step = steps[at]
            done = 0
            while done < step.blocks + step.pairs:
                if limit - column < columns_of(min(1, step.blocks), min(1, step.pairs)):
                    chunks.append(chunk)
                    chunk = []
                    column = 0
                    limit = _limit_of(len(chunks), most)
                    if number + 1 == len(places):
                        left = _columns_left(steps[at:])
                        limit = min(limit, max(_LAST_COLUMNS, left - _LAST_COLUMNS))
                room = limit - column
                count = min(step.blocks - done, room // columns_of(1, 0))
                pairs = min(step.pairs - done, room // columns_of(0, 1))
                start = 2 * done if step.pairs > 0 else done
                done += max(count, pairs)
                chunk.append(
                    Piece(
                        group=number,
                        key=step.key + (start if step.pairs > 0 else 0),
                        query=step.query + start,
                        blocks=max(0, count),
                        pairs=max(0, pairs),
                        column=column,
                        end=column + columns_of(max(0, count), max(0, pairs)),
                        begins=at == 0 and start == 0,
                        ends=at + 1 == len(steps) and done == step.blocks + step.pairs,
                    )
                )
                column = chunk[len(chunk) - 1].end
    chunks.append(chunk)
    return chunks
