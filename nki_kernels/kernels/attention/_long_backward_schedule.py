"""NKI helpers of the gradients of long attention: in which order the work of `_long_backward` is
done, and when its operands are loaded."""

from __future__ import annotations

from typing import NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels._cores import is_first, share_of
from trnx.nki_kernels.kernels.attention._long_backward import (
    KeySide,
    LongGradients,
    Pair,
    Scored,
    Turned,
    clear_unseen_keys,
    find_delta,
    finish_pair,
    finish_queries,
    join_key_gradients,
    load_keys,
    load_queries,
    negate_logs,
    pairs_of,
    query_side,
    score_pair,
)

# Pairs before the first that needs them, when operands are loaded.
_AHEAD = 12


class Share(NamedTuple):
    """The heads of this program: key heads `first .. end` of all batch entries, and of the query
    heads that share one those in `queries`. `sums[heads, 128, S / 128, d + Dv]` in HBM: of the
    gradients of keys and values over the query heads so far, None where there is one query head.
    Where programs share query heads, they are those of all key heads, and one of the `parts`, in a
    list of one, which are added up at the end; else one place for all key heads."""

    first: int
    end: int
    queries: tuple[int, int]
    sums: nl.NkiTensor | None
    parts: list[nl.NkiTensor]


def differentiate(
    g: LongGradients,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    keys: tuple[nl.NkiTensor, nl.NkiTensor],
    cores: int,
) -> None:
    """All heads of q, grad_out, out and lse, with their keys and values. `cores` share the heads of
    keys, or where these are no multiple of the cores, the query heads of each."""
    q, _, _, lse = tensors
    pmax = nl.tile_size.pmax
    share = _share_of(g, q.shape[1] // keys[0].shape[1], cores)
    dq = nl.ndarray((pmax, q.shape[2] // pmax, q.shape[3]), dtype=nl.float32, buffer=nl.sbuf)
    waiting: list[Turned] = []
    scored: Scored | None = None
    ahead: list[Pair] = []
    for number in range(share.first, share.end):
        source = _source(g, share, number)
        for query in range(share.queries[0], share.queries[1]):
            head = source.head * (q.shape[1] // keys[0].shape[1]) + query
            is_last = query + 1 == share.queries[1] and len(share.parts) == 0
            side = query_side(lse, source, head, (query == share.queries[0], is_last), dq)
            for pair in pairs_of(g, side):
                _load(g, tensors, keys, pair)
                ahead.append(pair)
                if len(ahead) > _AHEAD:
                    scored = _advance(g, scored, ahead, waiting)
    while len(ahead) > 0:
        scored = _advance(g, scored, ahead, waiting)
    if scored is not None:
        finish_pair(g, scored, waiting)
    for turned in waiting:
        finish_queries(g, turned)
    for parts in share.parts:
        join_key_gradients(g, parts)


def _share_of(g: LongGradients, shared: int, cores: int) -> Share:
    """`shared`: query heads of a key head."""
    heads = g.dk.shape[0] * g.dk.shape[1]
    shape = (nl.tile_size.pmax, g.dk.shape[2] // nl.tile_size.pmax, g.dk.shape[3] + g.dv.shape[3])
    if heads % cores > 0 and shared % cores == 0:
        parts = nl.ndarray((cores, heads) + shape, dtype=nl.float32, buffer=nl.shared_hbm)
        queries = share_of(shared, cores)
        return Share(0, heads, queries, parts[nl.program_id(0)], [parts])
    first, end = share_of(heads, cores)
    sums = None
    if shared > 1:
        sums = nl.ndarray((1,) + shape, dtype=nl.float32, buffer=nl.private_hbm)
    return Share(first, end, (0, shared), sums, [])


def _source(g: LongGradients, share: Share, number: int) -> KeySide:
    """Key head `number` of all batch entries."""
    heads = g.dk.shape[1]
    dk = None
    dv = None
    if share.sums is not None:
        sums = share.sums[number if len(share.parts) > 0 else 0]
        dk = sums[:, :, 0 : g.dk.shape[3]]
        dv = sums[:, :, g.dk.shape[3] : sums.shape[2]]
    source = KeySide(number // heads, number % heads, dk, dv)
    if g.causal and (len(share.parts) == 0 or is_first()):
        clear_unseen_keys(g, source, g.dq.shape[2])
    return source


def _load(
    g: LongGradients,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    keys: tuple[nl.NkiTensor, nl.NkiTensor],
    pair: Pair,
) -> None:
    """What a pair needs and is not there."""
    if len(pair.tile.loaded) == 0:
        load_keys(g, pair.tile, keys[0], keys[1], pair.side.source)
    if len(pair.queries.loaded) == 0:
        load_queries(pair.queries, tensors[0:3], pair.side)


def _advance(
    g: LongGradients, before: Scored | None, ahead: list[Pair], waiting: list[Turned]
) -> Scored:
    """Score the first of the pairs `ahead`, finish the one before, and prepare the next."""
    pair = ahead.pop(0)
    if before is None:
        _prepare(pair)
    scored = score_pair(g, pair)
    if before is not None:
        finish_pair(g, before, waiting)
    if len(ahead) > 0:
        _prepare(ahead[0])
    return scored


def _prepare(pair: Pair) -> None:
    """What the pairs of a block of queries need of `out` and `lse`."""
    if pair.opens and pair.tile.start == 0:
        negate_logs(pair.side)
    if pair.begins:
        find_delta(pair)
