"""NKI helpers of attention of long sequences: in which order the work of `_direct` is done, and
what is done where scores are out of its range."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._repairs import repairs_of
from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels._warm_up import warm_operand, warm_up
from trnx.nki_kernels.kernels.attention._direct import (
    SHIFT,
    DirectGroup,
    DirectOutputs,
    DirectProblem,
    Piece,
    columns_of,
    combine,
    direct_problem,
    finish_last,
    flag_sums,
    flag_values,
    raise_chunk,
    weigh,
)
from trnx.nki_kernels.kernels.attention._direct_diagonal import is_paired
from trnx.nki_kernels.kernels.attention._direct_loads import FIRST_KEYS, PART, load_group
from trnx.nki_kernels.kernels.attention._heads import store_late
from trnx.nki_kernels.kernels.attention._long import GROUP, LongOutputs, long_problem, together
from trnx.nki_kernels.kernels.attention._long_schedule import (
    Place,
    attend,
    own_places,
    places_of,
)

# Chunks from the one that is weighed to the one that meets its values: TensorE has those to do
# while ScalarE still takes the scores of its banks. One more where GpSimd hides keys in between.
_LAG = 3
_LAG_OF_PAIRS = 4
# Columns of the first chunks, and of the last one.
_FIRST_COLUMNS = (256, 384, 384, 512, 1024)
_LAST_COLUMNS = 512
# Chunks before its first one that a group is loaded.
_AHEAD = 4
# Chunks before the end, when what can be is flagged.
_EARLY = 2
_BANKS = 8  # of PSUM
# Products of 128 columns, at half rate: as long as DMA takes for the first keys and queries.
_WARM_UP = 19
# And while ScalarE takes the first scores: products of 64 features keep the rate as it is, as they
# work on half of the rows.
_WARM_UP_MORE = 6
# Elements of values in a partition that VectorE flags between two results.
_FLAGGED = 1040


class Unflagged(NamedTuple):
    """A part of a head's values, which are there from `turn` on; `column` of `good`."""

    values: nl.NkiTensor
    column: int
    turn: int


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
    are not; pairs come first, for GpSimd to hide keys in time."""
    steps: list[Step] = []
    first = place.first if p.causal else place.seen
    for key in range(min(ahead, first, place.seen)):
        steps.append(Step(key, 0, place.blocks, 0))
    own = max(0, min(place.blocks, place.seen - first))
    paired = own // 2 * 2 if p.pairs else 0
    if paired > 0:
        steps.append(Step(first, 0, 0, paired // 2))
    for key in range(max(min(first, place.seen), own)):
        if key < own:
            query = key + 1 if key < paired else key
            if query < place.blocks:
                steps.append(Step(first + key, query, place.blocks - query, 0))
        if ahead <= key < min(first, place.seen):
            steps.append(Step(key, 0, place.blocks, 0))
    return steps


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
        if number + 1 == len(places):  # of one block
            left = column + columns_of(len(steps), 0)
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
                        left = columns_of(len(steps) - at, 0)
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


def attend_directly(
    causal: bool,
    scale: float,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    out: nl.NkiTensor,
    lse: nl.NkiTensor | None,
    cores: int,
) -> None:
    """All groups of all heads that are this program's; `lse[blocks of queries of all, 128]`, or
    None. Where a row is out of range, all of them once more by `attend`."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    own = own_places(places_of(causal, 0, scale, q, k), cores)
    if len(own) == 0:
        return
    places = _in_order(causal, own)
    operand = warm_operand()
    warm_up(_WARM_UP, operand)
    load_table(nl.exp)
    pairs = causal and is_paired(q.shape[3], k.shape[2], v.shape[3])
    p = direct_problem(causal, scale, q.shape[3], pairs)
    blocks = q.shape[0] * q.shape[1] * q.shape[2] // pmax
    inverses = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    parts = k.shape[0] * k.shape[1] * _most_parts(v)
    good = nl.ndarray((pmax, blocks + parts), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=good, value=1.0, engine=nisa.engine.gpsimd)
    outputs = DirectOutputs(out, inverses, good)
    flags = _attend(p, tensors, places, outputs, lse, operand)
    for _ in nl.dynamic_range(repairs_of(flags, operand[:, 0:1])):
        negmaxes = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
        exact = long_problem(causal, 0, False, scale, q.shape[3])
        attend(exact, (q, k, v, None), LongOutputs(out, inverses, negmaxes), lse, cores)


def _in_order(causal: bool, places: list[Place]) -> list[Place]:
    """The second group of a head first, where it sees keys before its own, and the last block of
    queries by itself."""
    last = places[len(places) - 1]
    ordered = places[: len(places) - 1]
    if last.blocks > 1:
        ordered.append(_part(causal, last, 0, last.blocks - 1))
    ordered.append(_part(causal, last, last.blocks - 1, last.blocks))
    is_swapped = causal and len(ordered) > 2 and ordered[0].first == 0 and ordered[1].first > 0
    return [ordered[1], ordered[0]] + ordered[2:] if is_swapped else ordered


def _part(causal: bool, place: Place, first: int, end: int) -> Place:
    """Blocks `first .. end` of a place."""
    start = place.first + first
    seen = min(place.seen, place.first + end) if causal else place.seen
    return Place(
        place.batch, place.head, start, end - first, place.start, seen, place.quads, place.steps,
        place.keeps,
    )  # fmt: skip


def _attend(
    p: DirectProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    places: list[Place],
    outputs: DirectOutputs,
    lse: nl.NkiTensor | None,
    operand: nl.NkiTensor,
) -> nl.NkiTensor:
    """All groups of `places`, once; flags, 1 where a partition has nothing to be repaired."""
    chunks = chunks_of(p, places, tensors[2].shape[3] + 1)
    groups: list[DirectGroup] = []
    weights: list[nl.NkiTensor] = []
    unflagged: list[Unflagged] = []
    flags: list[nl.NkiTensor] = []
    parts = 0
    ended = 0
    lag = _LAG_OF_PAIRS if p.pairs else _LAG
    for turn in range(len(chunks) + lag):
        ahead = chunks[min(turn + _AHEAD, len(chunks) - 1)]
        while len(groups) <= ahead[len(ahead) - 1].group:
            for values in load_group(p, tensors, groups, places[len(groups)]):
                more = _unflagged(values, outputs.inverses.shape[1] + parts, turn + _AHEAD)
                unflagged = unflagged + more
                parts += len(more)
        if len(unflagged) > 0 and unflagged[0].turn <= turn:
            _flag(unflagged.pop(0), outputs)
        if turn == max(0, len(chunks) - _EARLY):
            for one in unflagged:
                _flag(one, outputs)
            unflagged = []
            flags.append(_early_flags(groups, ended, outputs, parts))
        if turn > 0 and turn <= len(chunks):
            raise_chunk(groups, chunks[turn - 1])
        if turn == lag and turn < len(chunks):  # before values are there
            weights.append(weigh(p, groups, chunks[turn]))
        if turn >= lag:
            combine(groups, chunks[turn - lag], weights.pop(0), outputs)
            for piece in chunks[turn - lag]:
                ended += 1 if piece.ends else 0
        if turn != lag and turn < len(chunks):
            weights.append(weigh(p, groups, chunks[turn]))
        if turn + 1 == len(chunks) and lse is not None:
            load_table(nl.log, operand[0:1, 0:1])
    finish_last(groups[len(groups) - 1], outputs)
    if lse is not None:
        start, end = _rows_of(groups)
        _store_last_logs(outputs, lse, end - 1, end)
        _store_logs(outputs, lse, start, end - 1)
    return flags[0]


def _rows_of(groups: list[DirectGroup]) -> tuple[int, int]:
    """The blocks of queries of neighbouring groups, in any order, among those of all heads."""
    start = groups[0].row
    end = start
    for group in groups:
        start = min(start, group.row)
        end = max(end, group.row + group.blocks)
    return start, end


def _early_flags(
    groups: list[DirectGroup], ended: int, outputs: DirectOutputs, parts: int
) -> nl.NkiTensor:
    """`[128, columns]`: whether all `parts` of the values are small enough, and all sums of the
    groups that `ended` in the range; and two columns for each block of those that did not."""
    pmax = nl.tile_size.pmax
    good = outputs.good
    late = 0
    for group in groups[ended:]:
        late += group.blocks
    flags = nl.ndarray((pmax, 2 + 2 * late), dtype=nl.bfloat16, buffer=nl.sbuf)
    blocks = outputs.inverses.shape[1]
    nisa.tensor_reduce(
        dst=flags[:, 0:1], op=nl.minimum, data=good[:, blocks : blocks + parts], axis=1
    )
    start = 0
    end = 1  # of what is 1 where no group ended
    if ended > 0:
        start, end = _rows_of(groups[:ended])
        flag_sums(outputs.inverses[:, start:end], good[:, start:end])
    nisa.tensor_reduce(dst=flags[:, 1:2], op=nl.minimum, data=good[:, start:end], axis=1)
    column = 2
    for group in groups[ended:]:
        group.flags.append(flags[:, column : column + 2 * group.blocks])
        column += 2 * group.blocks
    return flags


def _blocks_flagged(width: int) -> int:
    """Blocks of values of so many columns that are flagged together."""
    return max(1, _FLAGGED // (width + 1))


def _most_parts(v: nl.NkiTensor) -> int:
    """The parts in which the values of a head are flagged, at most: one more for each load."""
    blocks: int = v.shape[2] // nl.tile_size.pmax
    loads: int = 2 + v.shape[2] // PART
    return blocks // _blocks_flagged(v.shape[3]) + loads


def _unflagged(values: nl.NkiTensor, column: int, turn: int) -> list[Unflagged]:
    """All parts of `values[128, blocks, Dv + 1]`."""
    each = _blocks_flagged(values.shape[2] - 1)
    parts: list[Unflagged] = []
    for first in range(0, values.shape[1], each):
        some = values[:, first : min(values.shape[1], first + each)]
        parts.append(Unflagged(some, column + len(parts), turn))
    return parts


def _flag(part: Unflagged, outputs: DirectOutputs) -> None:
    flag_values(part.values, outputs.good[:, part.column : part.column + 1])


def _store_logs(outputs: DirectOutputs, lse: nl.NkiTensor, start: int, end: int) -> None:
    """Store the logarithms of the sums of the rows of blocks `start .. end`: `lse[blocks, 128]`.
    TensorE turns the sums, before ScalarE has its table of logarithms."""
    pmax = nl.tile_size.pmax
    for first in range(start, end, pmax):
        count = min(pmax, end - first)
        turned = nl.ndarray((count, pmax), dtype=nl.float32, buffer=nl.psum)
        inverses = outputs.inverses[:, first : first + count]
        nisa.nc_transpose(dst=turned, data=inverses, engine=nisa.engine.tensor)
        store_late(lse[first : first + count], _logs(turned), True)


def _store_last_logs(outputs: DirectOutputs, lse: nl.NkiTensor, start: int, end: int) -> None:
    """The same of a few blocks, as they are: DMA takes a descriptor for each row."""
    logs = _logs(outputs.inverses[:, start:end])
    nisa.dma_copy(dst=lse[start:end].permute((1, 0)), src=logs)


def _logs(inverses: nl.NkiTensor) -> nl.NkiTensor:
    """The logarithms of sums of weights whose scores are not shifted."""
    logs = nl.ndarray(inverses.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=logs, op=nl.log, data=inverses)
    nisa.tensor_scalar(
        dst=logs, data=logs, op0=nl.multiply, operand0=-1.0, op1=nl.subtract, operand1=SHIFT
    )
    return logs
