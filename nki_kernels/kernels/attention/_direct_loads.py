"""NKI helpers of attention of long sequences: what `_direct` loads, and when."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._direct import DirectGroup, DirectHead, DirectProblem
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
    """Load the queries of a group, and the keys and values that it sees where they are not there;
    gives these values."""
    q, k, v = tensors
    pmax = nl.tile_size.pmax
    shared = q.shape[1] // k.shape[1]
    rows = q[place.batch, place.head, place.first * pmax : (place.first + place.blocks) * pmax]
    head = place.head // shared
    before = groups[len(groups) - 1] if len(groups) > 0 else None
    is_first = before is None
    if before is not None and (before.batch, before.head // shared) == (place.batch, head):
        source = before.source
        queries = load_turned(rows, p.cuts, source.keys.shape[0] > q.shape[3] // p.cuts)
    else:
        # The first scores lead TensorE to its full rate, for which products need all rows.
        padded = is_first and p.pairs
        queries = load_turned(rows, p.cuts, padded)
        keys = room_for_turned(k[place.batch, head], p.cuts, padded)
        source = DirectHead(keys, room_for_values(v[place.batch, head]), [])
    row = (place.batch * q.shape[1] + place.head) * (q.shape[2] // pmax) + place.first
    groups.append(
        DirectGroup(
            place.batch, place.head, place.first, place.blocks, row, source, queries, [], [], []
        )
    )
    return _load_parts(source, k[place.batch, head], v[place.batch, head], place, is_first)


def _load_parts(
    source: DirectHead, k: nl.NkiTensor, v: nl.NkiTensor, place: Place, is_first: bool
) -> list[nl.NkiTensor]:
    """Load the parts of a head's keys and values that a group sees, where they are not there; gives
    these values. Those of the first group begin with what the first scores need, and its first
    values are from the queue of stores, of which there are none yet."""
    pmax = nl.tile_size.pmax
    src = v.reshape_dim(0, (v.shape[0] // pmax, pmax)).permute((1, 0, 2))
    loaded: list[nl.NkiTensor] = []
    done = source.parts[len(source.parts) - 1] if len(source.parts) > 0 else 0
    start = done
    if is_first:
        start = min(FIRST_KEYS * pmax, k.shape[0])
        turn_rows(source.keys, k, 0, start)
    while done < place.seen * pmax:
        end = min(k.shape[0], _end_of_part(done, is_first))
        if end > start:
            turn_rows(source.keys, k, start, end)
        blocks = nl.ds(done // pmax, (end - done) // pmax)
        dst = source.values[:, blocks, 0 : v.shape[1]]
        if is_first and done == 0:
            nisa.dma_copy(
                dst=dst, src=src[:, blocks], dge_mode=nisa.dge_mode.hwdge,
                engine=nisa.engine.scalar,
            )  # fmt: skip
        else:
            nisa.dma_copy(dst=dst, src=src[:, blocks])
        source.parts.append(end)
        loaded.append(source.values[:, blocks])
        start = end
        done = end
    return loaded


def _end_of_part(done: int, is_first: bool) -> int:
    """Where the part ends that follows the first `done` keys of a head; those of the first group
    grow."""
    return max(PART // 2, 2 * done) if is_first else done + PART
