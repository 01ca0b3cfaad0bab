"""NKI helpers of attention of long sequences whose scores are weighed as they are, without the
maxima of the rows: groups of 512 queries against blocks of 128 keys.

Weights are exponentials of the scaled scores and a constant, which float32 and bfloat16 hold
wherever the scores of a row end between about -25 and 58. TensorE computes the scores once, with
the keys on the partitions, so that the weights multiply the values as they are; the sum of a row is
one more column of the values. The sums tell whether a row was in that range (`flag_sums`), and
values must not be so large that such sums overflow (`flag_values`).

Scores fill several PSUM banks in turn, and ScalarE takes them all in one instruction, of whichever
blocks and groups they are. Heads so narrow that it is what all wait for leave it less to do where
attention is causal: `_direct_diagonal`.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._identity import identity_of, triangle
from trnx.nki_kernels.kernels._transfers import store_late
from trnx.nki_kernels.kernels.attention._direct_diagonal import (
    PAIR_COLUMNS,
    combine_pair,
    hide_block,
    hide_pairs,
    raise_values,
    score_pair,
)
from trnx.nki_kernels.kernels.attention._long import together

# Added to all scaled scores: -24 log(2). Sums of weights from 2^-60 to 2^60 are those of rows whose
# scores end between -25 and 58. The logarithm of ScalarE reaches to 2^64 (NKI's table of activation
# functions), and such weights times values up to 2^60 do not overflow float32.
SHIFT = -16.635532333438686
_LEAST_SUM = 2.0**-60
_MOST_SUM = 2.0**60
_MOST_VALUE = 2.0**60
# Added to the scores of hidden keys.
_HIDDEN = -3.0e38


class DirectProblem(NamedTuple):
    """What the kernel computes, of heads in `cuts` pieces. `span`: blocks of keys that a group
    loads together, a multiple of `GROUP`, or 0 where all keys of a head stay in SBUF. `bias[128,
    1]` is the shift. Where attention is causal, blocks on the diagonal are in `pairs`, or else the
    product of `identity` and `hidden`, `[128, 128]` in bfloat16, hides keys (rows) after the
    query."""

    causal: bool
    scale: float
    cuts: int
    span: int
    pairs: bool
    bias: nl.NkiTensor
    identity: nl.NkiTensor | None
    hidden: nl.NkiTensor | None


class KeySpan(NamedTuple):
    """Keys `[d / cuts, cuts, blocks * 128]` of a head from block `first` on, and their values with
    a column of ones `[128, blocks, Dv + 1]`; `parts`: how many keys there were after each load."""

    first: int
    keys: nl.NkiTensor
    values: nl.NkiTensor
    parts: list[int]


class DirectHead(NamedTuple):
    """Keys and values of a head: one span of all of them, for all groups, or those that a group has
    loaded."""

    spans: list[KeySpan]


class DirectGroup(NamedTuple):
    """Queries `[d / cuts, cuts, blocks * 128]` from block `first` of a head on; `row`: its first
    block among those of all heads. `products`: of weights and values, `[128, banks,
    columns]`, Dv + 1 columns for each of the blocks that share a bank; `raised`: what
    `raise_values` gives; once there are any. `flags[128, 2 * blocks]`: where `_flag_late` goes."""

    batch: int
    head: int
    first: int
    blocks: int
    row: int
    source: DirectHead
    queries: nl.NkiTensor
    products: list[nl.NkiTensor]
    raised: list[nl.NkiTensor]
    flags: list[nl.NkiTensor]


class Piece(NamedTuple):
    """Scores of block `key` of the keys with blocks `query .. query + blocks` of a group, at
    `column .. end` of a chunk; or of `pairs` of it and those that follow with the same blocks of
    queries. `begins`, `ends`: the first and the last of the group."""

    group: int
    key: int
    query: int
    blocks: int
    pairs: int
    column: int
    end: int
    begins: bool
    ends: bool


class DirectOutputs(NamedTuple):
    """Results in HBM; inverse sums of all blocks of queries, `[128, blocks]`; and 1 where a sum is
    in the range, and where a part of the values is: `good[128, blocks + parts]`."""

    out: nl.NkiTensor
    inverses: nl.NkiTensor
    good: nl.NkiTensor


def direct_problem(causal: bool, scale: float, width: int, span: int, pairs: bool) -> DirectProblem:
    """The constant tiles, for heads of this width."""
    pmax = nl.tile_size.pmax
    bias = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=bias, value=SHIFT)
    identity = None
    hidden = None
    if causal and not pairs:
        identity = identity_of(nl.bfloat16)
        hidden = triangle(_HIDDEN, 0.0, nl.greater, nl.bfloat16)
    cuts = (width + pmax - 1) // pmax
    return DirectProblem(causal, scale, cuts, span, pairs, bias, identity, hidden)


def has_block(head: DirectHead, block: int) -> bool:
    """Whether a block of keys is in a span."""
    found = False
    for span in head.spans:
        found = found or span.first <= block < span.first + span.values.shape[1]
    return found


def _span_of(head: DirectHead, block: int) -> KeySpan:
    """Where a block of keys is."""
    found = head.spans[0]
    for span in head.spans:
        if span.first <= block < span.first + span.values.shape[1]:
            found = span
    return found


def _keys_of(head: DirectHead, block: int, count: int) -> nl.NkiTensor:
    """`count` blocks of keys, `[d / cuts, cuts, count * 128]`, of one span."""
    pmax = nl.tile_size.pmax
    span = _span_of(head, block)
    start = (block - span.first) * pmax
    return span.keys[:, :, start : start + count * pmax]


def _values_of(head: DirectHead, block: int) -> nl.NkiTensor:
    """A block of values, `[128, Dv + 1]`."""
    span = _span_of(head, block)
    return span.values[:, block - span.first, :]


def weigh(p: DirectProblem, groups: list[DirectGroup], chunk: list[Piece]) -> nl.NkiTensor:
    """The weights of a chunk, `[128 keys, columns]`."""
    pmax = nl.tile_size.pmax
    last = chunk[len(chunk) - 1]
    shape = (pmax, last.end)
    scores = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    for piece in chunk:
        group = groups[piece.group]
        for pair in range(piece.pairs):
            _score_pair(group, piece, pair, scores)
        if piece.pairs == 0:
            _score(p, group, piece, scores)
    weights = nl.ndarray(shape, dtype=groups[last.group].queries.dtype, buffer=nl.sbuf)
    nisa.activation(dst=weights, op=nl.exp, data=scores, scale=p.scale, bias=p.bias)
    for piece in chunk:
        group = groups[piece.group]
        if piece.pairs > 0:
            hide_pairs(weights[:, piece.column : piece.end], piece.pairs)
        elif p.pairs and _is_diagonal(group, piece):
            hide_block(weights[:, piece.column : piece.column + pmax])
    return weights


def raise_chunk(groups: list[DirectGroup], chunk: list[Piece]) -> None:
    """`raise_values` of the groups whose first pairs are in a chunk."""
    for piece in chunk:
        group = groups[piece.group]
        if piece.pairs > 0 and len(group.raised) == 0:
            values = group.source.spans[0].values  # of all keys, as there are pairs
            group.raised.append(raise_values(values, group.first, group.blocks))


def _is_diagonal(group: DirectGroup, piece: Piece) -> bool:
    """Whether the first block of queries is that of the keys."""
    return piece.key == group.first + piece.query


def _score_pair(group: DirectGroup, piece: Piece, pair: int, scores: nl.NkiTensor) -> None:
    """Scores of one pair of a piece."""
    pmax = nl.tile_size.pmax
    query = piece.query + 2 * pair
    start = query * pmax
    column = piece.column + pair * PAIR_COLUMNS
    score_pair(
        scores[:, column : column + PAIR_COLUMNS],
        _keys_of(group.source, group.first + query, 2)[:, 0, :],
        group.queries[:, 0, start : start + 2 * pmax],
    )


def _score(p: DirectProblem, group: DirectGroup, piece: Piece, scores: nl.NkiTensor) -> None:
    """Scores of a piece that is no pair, in each bank that it reaches."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    keys = _keys_of(group.source, piece.key, 1)
    column = piece.column
    while column < piece.end:
        end = min(piece.end, (column // bank + 1) * bank)
        start = piece.query * pmax + column - piece.column
        queries = group.queries[:, :, start : start + end - column]
        for cut in range(p.cuts):
            nisa.nc_matmul(
                dst=scores[:, column:end], stationary=keys[:, cut, :], moving=queries[:, cut, :]
            )
        if column == piece.column and p.identity is not None and _is_diagonal(group, piece):
            part = scores[:, column : column + pmax]
            nisa.nc_matmul(dst=part, stationary=p.identity, moving=p.hidden)
        column = end


def combine(
    groups: list[DirectGroup], chunk: list[Piece], weights: nl.NkiTensor, outputs: DirectOutputs
) -> None:
    """The weights of a chunk times their values; stores the groups that end with it, but for the
    last one of all."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    for piece in chunk:
        group = groups[piece.group]
        width = outputs.out.shape[3] + 1
        shared = together(width)
        if piece.begins:
            banks = (group.blocks + shared - 1) // shared
            shape = (pmax, banks, bank if banks > 1 else shared * width)
            group.products.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
        products = group.products[0]
        for number in range(2 * piece.pairs):
            query = piece.query + number
            start = query % shared * width
            column = piece.column + number // 2 * PAIR_COLUMNS
            combine_pair(
                products[:, query // shared, start : start + width],
                weights[:, column : column + PAIR_COLUMNS],
                number % 2,
                _values_of(group.source, piece.key + number),
                group.raised[0][:, query // 2, :],
            )
        for number in range(piece.blocks):
            query = piece.query + number
            start = query % shared * width
            column = piece.column + number * pmax
            nisa.nc_matmul(
                dst=products[:, query // shared, start : start + width],
                stationary=weights[:, column : column + pmax],
                moving=_values_of(group.source, piece.key),
            )
        if piece.ends and piece.group + 1 < len(groups):
            _finish(group, outputs)


def columns_of(blocks: int, pairs: int) -> int:
    """Columns of the scores of a piece."""
    pmax: int = nl.tile_size.pmax
    return pairs * PAIR_COLUMNS + blocks * pmax


def _finish(group: DirectGroup, outputs: DirectOutputs) -> None:
    """Normalise and store a group: whole banks together, and what is left."""
    pmax = nl.tile_size.pmax
    width = outputs.out.shape[3]
    shared = together(width + 1)
    full = group.blocks // shared
    rows = nl.ndarray((pmax, group.blocks, width), dtype=outputs.out.dtype, buffer=nl.sbuf)
    if full > 0:
        _normalise(group, outputs, rows, 0, full, shared)
    if group.blocks % shared > 0:
        _normalise(group, outputs, rows, full, full + 1, group.blocks % shared)
    start = group.first * pmax
    target = outputs.out[group.batch, group.head, start : start + group.blocks * pmax]
    target = target.reshape_dim(0, (group.blocks, pmax)).permute((1, 0, 2))
    store_late(target, rows, len(group.flags) > 0)


def finish_last(group: DirectGroup, outputs: DirectOutputs) -> None:
    """The same of the last group, whose one block all wait for where keys stay in SBUF."""
    if group.blocks > 1:
        _finish(group, outputs)
        return
    pmax = nl.tile_size.pmax
    width = outputs.out.shape[3]
    products = group.products[0]
    sums = products[:, :, width : width + 1]
    inverse = outputs.inverses[:, group.row : group.row + 1]
    nisa.reciprocal(dst=inverse, data=sums[:, 0, :])
    _flag_late(group, sums, 0)
    rows = nl.ndarray((pmax, width), dtype=outputs.out.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=rows, data=products[:, 0, 0:width], op0=nl.multiply, operand0=inverse)
    start = group.first * pmax
    nisa.dma_copy(dst=outputs.out[group.batch, group.head, start : start + pmax], src=rows)


def _flag_late(group: DirectGroup, sums: nl.NkiTensor, block: int) -> None:
    """1 where `sums`, of the blocks from `block` on, are in the range, for either end of that; if
    the group has flags. VectorE has nothing else to do before it has their inverses."""
    if len(group.flags) == 0:
        return
    flags = group.flags[0].reshape_dim(1, (2, group.blocks))
    banks, count = sums.shape[1:]
    end = block + banks * count
    nisa.tensor_scalar(
        dst=flags[:, 0, block:end].reshape_dim(1, (banks, count)), data=sums, op0=nl.less_equal,
        operand0=_MOST_SUM,
    )  # fmt: skip
    nisa.tensor_scalar(
        dst=flags[:, 1, block:end].reshape_dim(1, (banks, count)), data=sums,
        op0=nl.greater_equal, operand0=_LEAST_SUM,
    )  # fmt: skip


def _normalise(
    group: DirectGroup, outputs: DirectOutputs, rows: nl.NkiTensor, bank: int, end: int, count: int
) -> None:
    """`count` blocks in each of the banks `bank .. end` of a group's products, to `rows`."""
    width = outputs.out.shape[3]
    first = bank * together(width + 1)
    last = first + (end - bank) * count
    products = group.products[0][:, bank:end, 0 : count * (width + 1)]
    products = products.reshape_dim(2, (count, width + 1))
    inverse = outputs.inverses[:, group.row + first : group.row + last]
    inverse = inverse.reshape_dim(1, (end - bank, count))
    sums = products[:, :, :, width]
    nisa.reciprocal(dst=inverse, data=sums)
    _flag_late(group, sums, first)
    nisa.tensor_tensor(
        dst=rows[:, first:last].reshape_dim(1, (end - bank, count)),
        data1=products[:, :, :, 0:width],
        data2=inverse.expand_dim(3).broadcast(3, width),
        op=nl.multiply,
    )


def flag_values(values: nl.NkiTensor, good: nl.NkiTensor) -> None:
    """1 in `good[128, 1]` where the values of a partition are small enough; what is no number is
    not."""
    pmax = nl.tile_size.pmax
    sizes = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar_reduce(
        dst=sizes, data=values, op0=nl.abs, operand0=0.0, reduce_op=nl.add, reduce_res=total
    )
    nisa.tensor_scalar(dst=good, data=total, op0=nl.less_equal, operand0=_MOST_VALUE)


def flag_sums(inverses: nl.NkiTensor, good: nl.NkiTensor) -> None:
    """1 in `good`, which is like `inverses`, where a sum is in the range; what is no number is
    not."""
    nisa.tensor_scalar(dst=good, data=inverses, op0=nl.greater_equal, operand0=1.0 / _MOST_SUM)
    nisa.scalar_tensor_tensor(
        dst=good, data=inverses, op0=nl.less_equal, operand0=1.0 / _LEAST_SUM,
        op1=nl.multiply, operand1=good,
    )  # fmt: skip
