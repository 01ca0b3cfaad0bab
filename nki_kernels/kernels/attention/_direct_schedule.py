"""NKI helpers of attention of long sequences: in which order the work of `_direct` is done, and
what is done where scores are out of its range."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._repairs import repairs_of
from trnx.nki_kernels.kernels._scalar_table import load_table
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.attention._direct import (
    SHIFT,
    DirectGroup,
    DirectHead,
    DirectOutputs,
    DirectProblem,
    Piece,
    combine,
    direct_problem,
    flag_sums,
    flag_values,
    weigh,
)
from trnx.nki_kernels.kernels.attention._heads import store_late
from trnx.nki_kernels.kernels.attention._long import GROUP, LongOutputs, long_problem, together
from trnx.nki_kernels.kernels.attention._long_keys import load_turned, room_for_values
from trnx.nki_kernels.kernels.attention._long_schedule import (
    Place,
    attend,
    own_places,
    places_of,
    rows_of,
)

# Chunks from the one that is weighed to the one that meets its values: TensorE has those to do
# while ScalarE still takes the scores of its banks.
_LAG = 3
# Chunks before its first one that a group is loaded.
_AHEAD = 4
_BANKS = 8  # of PSUM
# Products, at half rate: as long as DMA takes for the first keys and queries.
_WARM_UP = 22
# Elements of values in a partition that VectorE flags between two results.
_FLAGGED = 1040


class Unflagged(NamedTuple):
    """A part of a head's values, which are there from `turn` on; `column` of `good`."""

    values: nl.NkiTensor
    column: int
    turn: int


def _keys_of(p: DirectProblem, place: Place) -> list[tuple[int, int]]:
    """The blocks of keys that a group meets, with the first of its blocks of queries that sees
    them. One on the diagonal, which are more work for TensorE, is between two that are not."""
    keys: list[tuple[int, int]] = []
    first = place.first if p.causal else place.seen
    for key in range(max(min(first, place.seen), place.seen - first)):
        if first + key < place.seen:
            keys.append((first + key, key))
        if key < min(first, place.seen):
            keys.append((key, 0))
    return keys


def chunks_of(p: DirectProblem, places: list[Place], width: int) -> list[list[Piece]]:
    """All pieces in order, in chunks two of which fill the banks that the products leave; the first
    ones are small, for ScalarE to begin soon."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    products = (GROUP + together(width) - 1) // together(width)
    if 2 * products <= _BANKS // 2:
        products = 2 * products  # of the next group, too
    most = (_BANKS - products) // 2 * bank
    chunks: list[list[Piece]] = []
    chunk: list[Piece] = []
    column = 0
    limit = bank
    for number in range(len(places)):
        place = places[number]
        keys = _keys_of(p, place)
        for at in range(len(keys)):
            query = keys[at][1]
            while query < place.blocks:
                count = min(place.blocks - query, (bank - column % bank) // pmax)
                begins = at == 0 and query == keys[at][1]
                ends = at + 1 == len(keys) and query + count == place.blocks
                chunk.append(Piece(number, keys[at][0], query, count, column, begins, ends))
                query += count
                column += count * pmax
                if column == limit:
                    chunks.append(chunk)
                    chunk = []
                    column = 0
                    limit = min(most, limit + (bank if len(chunks) % 2 == 0 else 0))
    if len(chunk) > 0:
        chunks.append(chunk)
    return chunks


def attend_directly(
    causal: bool,
    scale: float,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    out: nl.NkiTensor,
    lse: nl.NkiTensor,
    cores: int,
) -> None:
    """All groups of all heads that are this program's; `lse[blocks of queries of all, 128]`. Where
    a row is out of range, all of them once more by `attend`."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    places = own_places(places_of(causal, 0, scale, q, k), cores)
    if len(places) == 0:
        return
    warm_up(_WARM_UP)
    load_table(nl.exp)
    p = direct_problem(causal, scale, q.shape[3])
    blocks = lse.shape[0]
    inverses = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
    parts = k.shape[0] * k.shape[1] * _parts_of(v)
    good = nl.ndarray((pmax, blocks + parts), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=good, value=1.0, engine=nisa.engine.gpsimd)
    outputs = DirectOutputs(out, inverses, good)
    ones = nl.ndarray((pmax, 1), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    _attend(p, tensors, places, outputs, lse)
    repairs = repairs_of(good, ones)
    for _ in nl.dynamic_range(repairs):
        negmaxes = nl.ndarray((pmax, blocks), dtype=nl.float32, buffer=nl.sbuf)
        exact = long_problem(causal, 0, False, scale, q.shape[3])
        attend(exact, (q, k, v, None), LongOutputs(out, inverses, negmaxes), lse, cores)


def _attend(
    p: DirectProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    places: list[Place],
    outputs: DirectOutputs,
    lse: nl.NkiTensor,
) -> None:
    """All groups of `places`, once."""
    chunks = chunks_of(p, places, tensors[2].shape[3] + 1)
    groups: list[DirectGroup] = []
    weights: list[nl.NkiTensor] = []
    unflagged: list[Unflagged] = []
    heads = 0
    for turn in range(len(chunks) + _LAG):
        ahead = chunks[min(turn + _AHEAD, len(chunks) - 1)]
        while len(groups) <= ahead[len(ahead) - 1].group:
            if _load(p, tensors, groups, places[len(groups)]):
                column = lse.shape[0] + heads * _parts_of(tensors[2])
                values = groups[len(groups) - 1].source.values
                unflagged = unflagged + _unflagged(values, column, turn + _AHEAD)
                heads += 1
        if len(unflagged) > 0 and (unflagged[0].turn <= turn or turn >= len(chunks)):
            _flag(unflagged.pop(0), outputs)
        if turn >= _LAG:
            combine(groups, chunks[turn - _LAG], weights.pop(0), outputs)
        if turn < len(chunks):
            weights.append(weigh(p, groups, chunks[turn]))
        if turn + 1 == len(chunks):
            load_table(nl.log, outputs.good[0:1, 0:1])
    for one in unflagged:
        _flag(one, outputs)
    start, end = rows_of(places, tensors[0])
    flag_sums(outputs.inverses[:, start:end], outputs.good[:, start:end])
    last = groups[len(groups) - 1].row
    _store_logs(outputs, lse, start, last)
    _store_last_logs(outputs, lse, last, end)


def _load(
    p: DirectProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    groups: list[DirectGroup],
    place: Place,
) -> bool:
    """Load the queries of a group, and the keys and values of its head where they are new; says
    whether they are."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    shared = q.shape[1] // k.shape[1]
    rows = q[place.batch, place.head, place.first * pmax : (place.first + place.blocks) * pmax]
    head = place.head // shared
    before = groups[len(groups) - 1] if len(groups) > 0 else None
    is_new = True
    if before is not None and (before.batch, before.head // shared) == (place.batch, head):
        source = before.source
        is_new = False
        queries = load_turned(rows, p.cuts)
    else:
        keys = load_turned(k[place.batch, head], p.cuts)
        queries = load_turned(rows, p.cuts)
        source = DirectHead(keys, _load_values(v[place.batch, head]))
    row = (place.batch * q.shape[1] + place.head) * (q.shape[2] // pmax) + place.first
    groups.append(
        DirectGroup(place.batch, place.head, place.first, place.blocks, row, source, queries, [])
    )
    return is_new


def _blocks_flagged(width: int) -> int:
    """Blocks of values of so many columns that are flagged together."""
    return max(1, _FLAGGED // (width + 1))


def _parts_of(v: nl.NkiTensor) -> int:
    """The parts in which the values of a head are flagged."""
    blocks: int = v.shape[2] // nl.tile_size.pmax
    each = _blocks_flagged(v.shape[3])
    return (blocks + each - 1) // each


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


def _load_values(v: nl.NkiTensor) -> nl.NkiTensor:
    """`v[S, Dv]` with a column of ones, `[128, S / 128, Dv + 1]`."""
    pmax = nl.tile_size.pmax
    values = room_for_values(v)
    src = v.reshape_dim(0, (v.shape[0] // pmax, pmax)).permute((1, 0, 2))
    nisa.dma_copy(dst=values[:, :, 0 : v.shape[1]], src=src)
    return values


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
