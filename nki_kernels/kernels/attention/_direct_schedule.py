"""NKI helpers of attention of long sequences: in which order the work of `_direct` is done, and
what is done where scores are out of its range."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._repairs import repairs_of
from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels._transfers import store_late
from trnx.nki_kernels.kernels._warm_up import warm_operand, warm_up
from trnx.nki_kernels.kernels.attention._direct import (
    SHIFT,
    DirectGroup,
    DirectOutputs,
    DirectProblem,
    Piece,
    combine,
    direct_problem,
    finish_last,
    flag_sums,
    flag_values,
    raise_chunk,
    weigh,
)
from trnx.nki_kernels.kernels.attention._direct_chunks import chunks_of
from trnx.nki_kernels.kernels.attention._direct_diagonal import is_paired
from trnx.nki_kernels.kernels.attention._direct_loads import PART, load_group, load_spans
from trnx.nki_kernels.kernels.attention._forward_rows import forward_places
from trnx.nki_kernels.kernels.attention._long import GROUP, LongOutputs, long_problem
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
# Chunks before its first one that a group is loaded, and that a span of keys is: this takes DMA
# about 6 microseconds.
_AHEAD = 4
_SPAN_AHEAD = 10
# Chunks before the end, when what can be is flagged.
_EARLY = 2
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


def attend_directly(
    causal: bool,
    scale: float,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    out: nl.NkiTensor,
    lse: nl.NkiTensor | None,
    span: int,
    cores: int,
) -> None:
    """All groups of all heads that are this program's; `lse[blocks of queries of all, 128]`, or
    None. `span`: keys that a group loads together, or 0 where all keys of a head stay in SBUF.
    Where a row is out of range, all of them once more by `attend`, or by `forward_places`."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    own = own_places(places_of(causal, 0, scale, q, k), cores)
    if len(own) == 0:
        return
    places = _in_order(causal, own, span > 0)
    operand = warm_operand()
    warm_up(_WARM_UP, operand)
    load_table(nl.exp)
    pairs = causal and span == 0 and is_paired(q.shape[3], k.shape[2], v.shape[3])
    p = direct_problem(causal, scale, q.shape[3], span // pmax, pairs)
    blocks = q.shape[0] * q.shape[1] * q.shape[2] // pmax
    inverses = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    parts = k.shape[0] * k.shape[1] * _most_parts(v, span)
    good = nl.ndarray((pmax, blocks + parts), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=good, value=1.0, engine=nisa.engine.gpsimd)
    outputs = DirectOutputs(out, inverses, good)
    flags = _attend(p, tensors, places, outputs, lse, operand)
    for _ in nl.dynamic_range(repairs_of(flags, operand[:, 0:1])):
        if span > 0:
            forward_places(causal, scale, tensors, own, (out, lse))
        else:
            negmaxes = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
            exact = long_problem(causal, 0, False, scale, q.shape[3])
            attend(exact, (q, k, v, None), LongOutputs(out, inverses, negmaxes), lse, cores)


def _in_order(causal: bool, places: list[Place], loads_again: bool) -> list[Place]:
    """The second group of a head first, where it sees keys before its own, and the last block of
    queries by itself, but where that `loads_again` all keys."""
    if loads_again:
        return places
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
    ahead = _SPAN_AHEAD if p.span > 0 else _AHEAD
    loaded = 0
    for turn in range(len(chunks) + lag):
        until = min(turn + ahead + 1, len(chunks))
        for values in _load(p, tensors, groups, places, chunks[loaded:until]):
            more = _unflagged(values, outputs.inverses.shape[1] + parts, turn + ahead)
            unflagged = unflagged + more
            parts += len(more)
        loaded = until
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
                if piece.ends and p.span > 0:
                    _forget(groups[piece.group])
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


def _load(
    p: DirectProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    groups: list[DirectGroup],
    places: list[Place],
    chunks: list[list[Piece]],
) -> list[nl.NkiTensor]:
    """Load what `chunks` need; gives the values that are there for the first time."""
    loaded: list[nl.NkiTensor] = []
    for chunk in chunks:
        while len(groups) <= chunk[len(chunk) - 1].group:
            loaded = loaded + load_group(p, tensors, groups, places[len(groups)])
        if p.span > 0:
            loaded = loaded + load_spans(p, tensors, groups, places, chunk)
    return loaded


def _forget(group: DirectGroup) -> None:
    """No more of its keys and values are needed: the simulator keeps what a list holds."""
    for _ in range(len(group.source.spans)):
        group.source.spans.pop()


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


def _most_parts(v: nl.NkiTensor, span: int) -> int:
    """The parts in which the values of a head are flagged, at most: one more for each load."""
    blocks: int = v.shape[2] // nl.tile_size.pmax
    loads: int = 2 + v.shape[2] // PART
    if span > 0:
        # Each group may see keys that none has seen before, in a span, and in the next.
        loads = 3 + 2 * (-(-blocks // GROUP))
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
