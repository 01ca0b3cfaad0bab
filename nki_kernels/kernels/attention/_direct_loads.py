"""NKI helpers of attention of long sequences: what `_direct` loads, and when."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._direct import (
    DirectGroup,
    DirectHead,
    DirectProblem,
    KeySpan,
    Piece,
    has_block,
)
from trnx.nki_kernels.kernels.attention._long_keys import (
    load_turned,
    room_for_turned,
    room_for_values,
    turn_rows,
)
from trnx.nki_kernels.kernels.attention._long_schedule import Place

# Blocks of keys that all queries of the first group see, and that it meets first: TensorE and
# ScalarE begin when these are there.
FIRST_KEYS = 2
# Keys of a head that are loaded together, but for those of the first group.
PART = 2048


def load_group(
    p: DirectProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    groups: list[DirectGroup],
    place: Place,
) -> list[nl.NkiTensor]:
    """Load the queries of a group, and the keys and values that it sees where they are not there
    and stay; gives these values."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    shared = q.shape[1] // k.shape[1]
    rows = q[place.batch, place.head, place.first * pmax : (place.first + place.blocks) * pmax]
    head = place.head // shared
    before = groups[len(groups) - 1] if len(groups) > 0 else None
    is_first = before is None
    if before is not None and (before.batch, before.head // shared) == (place.batch, head):
        source = before.source if p.span == 0 else DirectHead([])
        padded = p.span == 0 and source.spans[0].keys.shape[0] > q.shape[3] // p.cuts
        queries = load_turned(rows, p.cuts, padded)
    else:
        # The first scores lead TensorE to its full rate, for which products need all rows.
        padded = is_first and p.pairs
        queries = load_turned(rows, p.cuts, padded)
        source = DirectHead([])
        if p.span == 0:
            keys = room_for_turned(k[place.batch, head], p.cuts, padded)
            source.spans.append(KeySpan(0, keys, room_for_values(v[place.batch, head]), []))
    row = (place.batch * q.shape[1] + place.head) * (q.shape[2] // pmax) + place.first
    groups.append(
        DirectGroup(
            place.batch, place.head, place.first, place.blocks, row, source, queries, [], [], []
        )
    )
    if p.span > 0:
        return []
    span = source.spans[0]
    return _load_parts(span, k[place.batch, head], v[place.batch, head], place.seen, is_first)


def load_spans(
    p: DirectProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    groups: list[DirectGroup],
    places: list[Place],
    chunk: list[Piece],
) -> list[nl.NkiTensor]:
    """Load the spans of keys and values that a chunk needs where its groups do not have them; gives
    the values that no group has had before."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    loaded: list[nl.NkiTensor] = []
    for piece in chunk:
        source = groups[piece.group].source
        if has_block(source, piece.key):
            continue
        place = places[piece.group]
        first = piece.key // p.span * p.span
        end = min(first + p.span, place.seen)
        head = place.head // (q.shape[1] // k.shape[1])
        keys = k[place.batch, head, first * pmax : end * pmax]
        values = v[place.batch, head, first * pmax : end * pmax]
        span = KeySpan(first, room_for_turned(keys, p.cuts, False), room_for_values(values), [])
        is_first = piece.group == 0 and len(source.spans) == 0
        source.spans.append(span)
        known = _seen_before(places, piece.group, q.shape[1] // k.shape[1]) - first
        done = 0
        for part in _load_parts(span, keys, values, end - first, is_first):
            blocks = part.shape[1]
            if known < done + blocks:
                loaded.append(part[:, max(0, known - done) : blocks])
            done += blocks
    return loaded


def _seen_before(places: list[Place], number: int, shared: int) -> int:
    """Blocks of keys that groups before group `number` see of the head of keys that it sees;
    `shared` heads of queries have one of keys."""
    own = places[number]
    seen = 0
    at = number - 1
    while at >= 0 and seen < own.seen and places[at].batch == own.batch:
        if places[at].head // shared != own.head // shared:
            return seen
        seen = max(seen, places[at].seen)
        at -= 1
    return seen


def _load_parts(
    span: KeySpan, k: nl.NkiTensor, v: nl.NkiTensor, seen: int, is_first: bool
) -> list[nl.NkiTensor]:
    """Load the parts of a span's keys `k` and values `v`, of which a group sees so many blocks,
    where they are not there; gives these values. Those of the first group begin with what the first
    scores need, and its first values are from the queue of stores, of which there are none yet."""
    pmax = nl.tile_size.pmax
    src = v.reshape_dim(0, (v.shape[0] // pmax, pmax)).permute((1, 0, 2))
    loaded: list[nl.NkiTensor] = []
    done = span.parts[len(span.parts) - 1] if len(span.parts) > 0 else 0
    start = done
    if is_first:
        start = min(FIRST_KEYS * pmax, k.shape[0])
        turn_rows(span.keys, k, 0, start)
    while done < seen * pmax:
        end = min(k.shape[0], _end_of_part(done, is_first))
        if end > start:
            turn_rows(span.keys, k, start, end)
        blocks = nl.ds(done // pmax, (end - done) // pmax)
        dst = span.values[:, blocks, 0 : v.shape[1]]
        if is_first and done == 0:
            nisa.dma_copy(
                dst=dst, src=src[:, blocks], dge_mode=nisa.dge_mode.hwdge,
                engine=nisa.engine.scalar,
            )  # fmt: skip
        else:
            nisa.dma_copy(dst=dst, src=src[:, blocks])
        span.parts.append(end)
        loaded.append(span.values[:, blocks])
        start = end
        done = end
    return loaded


def _end_of_part(done: int, is_first: bool) -> int:
    """Where the part ends that follows the first `done` keys of a head; those of the first group
    grow."""
    return max(PART // 2, 2 * done) if is_first else done + PART
