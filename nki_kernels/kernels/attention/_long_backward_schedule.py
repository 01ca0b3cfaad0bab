"""NKI helpers of the gradients of long attention: in which order the work of `_long_backward` is
done."""

from __future__ import annotations

import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.attention._long_backward import (
    LongGradients,
    QuerySide,
    Scored,
    Turned,
    clear_unseen_keys,
    finish_pair,
    finish_queries,
    load_key_side,
    load_query_side,
    pairs_of,
    prepare_block,
    score_pair,
)


def _load(
    g: LongGradients,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    keys: tuple[nl.NkiTensor, nl.NkiTensor],
    number: int,
    before: QuerySide | None,
) -> QuerySide:
    """Load query head `number` of all batch entries, and its keys where they are not those of
    `before`."""
    heads = tensors[0].shape[1]
    shared = heads // keys[0].shape[1]
    batch = number // heads
    head = number % heads
    if before is None or head % shared == 0:
        source = load_key_side(g, keys[0], keys[1], batch, head // shared, shared > 1)
        if g.causal:
            clear_unseen_keys(g, source, tensors[0].shape[2])
    else:
        source = before.source
    return load_query_side(tensors, source, head, shared)


def differentiate(
    g: LongGradients,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor, nl.NkiTensor],
    keys: tuple[nl.NkiTensor, nl.NkiTensor],
    ahead: bool,
    cores: int,
) -> None:
    """All heads of q, grad_out, out and lse, with their keys and values; `ahead`: the next head is
    loaded while one is computed. `cores` share the heads of keys."""
    shared = tensors[0].shape[1] // keys[0].shape[1]
    first, heads = share_of(tensors[0].shape[0] * tensors[0].shape[1], cores, shared)
    blocks = tensors[0].shape[2] // nl.tile_size.pmax
    waiting: list[Turned] = []
    scored: Scored | None = None
    side = None
    following = None
    for number in range(first, heads):
        if following is None:
            side = _load(g, tensors, keys, number, side)
            for block in range(blocks):
                prepare_block(side, block)
        else:
            side = following
        following = None
        if ahead and number + 1 < heads:
            following = _load(g, tensors, keys, number + 1, side)
        pairs = pairs_of(g, side)
        for step in range(len(pairs)):
            before = scored
            scored = score_pair(g, pairs[step])
            if before is not None:
                finish_pair(g, before, waiting)
            block = step + blocks - len(pairs)
            if following is not None and block >= 0:
                prepare_block(following, block)
    if scored is not None:
        finish_pair(g, scored, waiting)
    for turned in waiting:
        finish_queries(g, turned)
