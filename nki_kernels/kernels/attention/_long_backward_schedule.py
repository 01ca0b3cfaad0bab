"""NKI helpers of the gradients of long attention: in which order the work of `_long_backward` is
done, and when its operands are loaded."""

from __future__ import annotations

import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
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
    load_keys,
    load_queries,
    negate_logs,
    pairs_of,
    query_side,
    score_pair,
)

# Pairs before the first that needs them, when operands are loaded.
_AHEAD = 12


def differentiate(
    g: LongGradients,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    keys: tuple[nl.NkiTensor, nl.NkiTensor],
    cores: int,
) -> None:
    """All heads of q, grad_out, out and lse, with their keys and values. `cores` share the heads of
    keys."""
    q, _, _, lse = tensors
    pmax = nl.tile_size.pmax
    heads = q.shape[1]
    shared = heads // keys[0].shape[1]
    first, end = share_of(q.shape[0] * heads, cores, shared)
    dq = nl.ndarray((pmax, q.shape[2] // pmax, q.shape[3]), dtype=nl.float32, buffer=nl.sbuf)
    sums = _sums_of_heads(g, shared)
    waiting: list[Turned] = []
    scored: Scored | None = None
    source = None
    ahead: list[Pair] = []
    for number in range(first, end):
        batch = number // heads
        head = number % heads
        if source is None or head % shared == 0:
            source = KeySide(batch, head // shared, sums[0], sums[1])
            if g.causal:
                clear_unseen_keys(g, source, q.shape[2])
        side = query_side(lse, source, head, shared, dq)
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


def _sums_of_heads(
    g: LongGradients, shared: int
) -> tuple[nl.NkiTensor | None, nl.NkiTensor | None]:
    """Where the gradients of keys and values are summed over the query heads that share them."""
    if shared == 1:
        return None, None
    pmax = nl.tile_size.pmax
    blocks = g.dk.shape[2] // pmax
    dk = nl.ndarray((pmax, blocks, g.dk.shape[3]), dtype=nl.float32, buffer=nl.private_hbm)
    dv = nl.ndarray((pmax, blocks, g.dv.shape[3]), dtype=nl.float32, buffer=nl.private_hbm)
    return dk, dv


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
