"""NKI helpers of attention of long sequences: the weights of the blocks on the diagonal.

Half of the scores there are hidden, and `range_select`, which leaves them out of the search for the
maxima, writes them to SBUF. So they are not computed again: with queries on the partitions the
negated maxima are the bias of the exponential, and DMA turns the weights. TensorE does neither.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._host import LEAST_SCALE
from trnx.nki_kernels.kernels.attention._long import LongProblem, Quad, QueryGroup

# DMA turns what this block of queries and those before have, and then the rest: a transfer for each
# would keep the ring busy.
_TURNED_FIRST = 2


def keeps_diagonal(
    causal: bool, window: int, scale: float, first: int, blocks: int, depth: int
) -> bool:
    """Whether `blocks` blocks of queries from `first` on are weighed so, of `depth` keys: each has
    its last keys on the diagonal, in blocks that begin with the group."""
    is_square = (first + blocks) * nl.tile_size.pmax <= depth
    # The first group of a head has DMA load its keys and values, which takes as long as its scores.
    return causal and window == 0 and scale >= LEAST_SCALE and is_square and first > 0


def weigh_diagonal(p: LongProblem, group: QueryGroup, products: list[nl.NkiTensor]) -> Quad:
    """Weights of a group's last blocks of keys, whose scores and maxima are known."""
    pmax = nl.tile_size.pmax
    dtype = group.queries.dtype
    count = group.blocks
    tiles = count * (count + 1) // 2
    rows = nl.ndarray((pmax, tiles, pmax), dtype=dtype, buffer=nl.sbuf)
    turned = nl.ndarray((pmax, tiles, pmax), dtype=dtype, buffer=nl.sbuf)
    first = 0
    begin = 0
    for block in range(count):
        part = rows[:, first : first + block + 1, :]
        bias = group.bias[:, block : block + 1]
        scores = group.diagonal[block].reshape_dim(1, (block + 1, pmax))
        nisa.activation(dst=part, op=nl.exp, data=scores, scale=p.scale, bias=bias)
        first += block + 1
        if block == _TURNED_FIRST or block + 1 == count:
            nisa.dma_transpose(dst=turned[:, begin:first, :], src=rows[:, begin:first, :])
            begin = first
    quad = Quad(group, group.first, [], [], [], [], products, True)
    for block in range(count):
        weights: list[nl.NkiTensor] = []
        for query in range(block, count):
            weights.append(turned[:, query * (query + 1) // 2 + block, :])
        quad.weights.append(weights)
        quad.skipped.append(block)
        quad.stopped.append(count)
    return quad
