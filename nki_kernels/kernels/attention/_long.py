"""NKI helpers of attention of long sequences: groups of 512 queries against blocks of 128 keys.

TensorE computes the scores of a group twice: once with queries on the partitions, for the maxima of
the rows, and once transposed, `[128 keys, 512 queries]`, so that the weights multiply the values as
they are. The maximum of a query, which lies along the free dimension there, is subtracted by a
product too: of ones and the negated maxima, cut into three bfloat16 terms that add up to the
float32. Such products use three rows of the array, so four of them run at the same time; those of
heads of at most 64 elements use half of the rows, so two of them do. The sum of
a row is one more column of the values. A mask of keys hides them from the search, and is the bias
of the exponential, which has the keys on the partitions.

While one group is weighed, the maxima of the next are found, and the weights of four blocks of keys
meet their values while those of the next four are computed. The scores on the diagonal, which the
search leaves in SBUF, are weighed as they are: `_long_diagonal`.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._transfers import store_late
from trnx.nki_kernels.kernels.attention._long_keys import KeyHead, key_span
from trnx.nki_kernels.kernels.attention._masks import CLAMP_FALSE

# Blocks of 128 queries of a group: the scores of a block of keys fill a PSUM bank.
GROUP = 4
# Blocks of keys whose maxima are subtracted at the same time.
QUAD = 4
# Rows of the array from one block of a quad to the next.
_ROWS = 32
# Terms of a maximum.
_TERMS = 3
# Groups whose terms may be laid out at the same time.
TERM_TILES = 4
# What range_select gives for the others: the lowest float32.
LEAST = -3.4028234663852886e38
# The sum of a row that sees anything is about 1 at least; this stands for that of the others.
_TINY = 1.0e-10
_HIDDEN = 1.0e9  # the inverse of such a sum is above it


class LongProblem(NamedTuple):
    """What the kernel computes. `ones` in bfloat16, `[128, 128]`; `terms` is where those of the
    maxima of a group are laid out, of four groups in turn: `[128, GROUP, 128]`. `positions[128,
    GROUP]`: the last key that a query sees, where its block is on the diagonal; `zeros[128, 1]`.
    `firsts[128, 3]`: the first key of a window, from the first block that it reaches, or where this
    one would be the block before the first of all; and what is behind all keys. `masked`: there is
    a mask of keys. `narrow`: the elements of a head that leaves half of the array's rows free, or
    0."""

    causal: bool
    window: int
    masked: bool
    scale: float
    cuts: int
    narrow: int
    ones: nl.NkiTensor
    terms: list[nl.NkiTensor]
    positions: nl.NkiTensor
    zeros: nl.NkiTensor
    firsts: nl.NkiTensor


class QueryGroup(NamedTuple):
    """Queries `[d / cuts, cuts, blocks * 128]`, twice as keys are, from block `first` of head
    `head`, which see the blocks `start .. seen` of keys. `maxima[128, blocks, columns]`: of the
    keys of each step of the search; `shift`: the negated maxima in terms, `[128, blocks * 128]`.
    `number` of the group among all, `row` of its first block among all heads'. `keeps`: `diagonal`
    gets the scores of each block of queries with the keys from its group on, `[128, keys]`, and
    `bias` is the scaled and negated maxima, `[128, blocks]`."""

    batch: int
    head: int
    first: int
    blocks: int
    start: int
    seen: int
    number: int
    row: int
    source: KeyHead
    queries: nl.NkiTensor
    maxima: nl.NkiTensor
    shift: nl.NkiTensor
    scored: int
    keeps: bool
    diagonal: list[nl.NkiTensor]
    bias: nl.NkiTensor


class Search(NamedTuple):
    """A step of the search for the maxima of query block `block` of a group, for `column` of them:
    scores of the keys `start .. start + width`, the last of them on the diagonal where `crossed`.
    `first`: the column of `firsts`, or -1 where all of the keys are in the window. `last` of its
    group; `number` in it."""

    group: QueryGroup
    block: int
    column: int
    start: int
    width: int
    crossed: bool
    first: int
    last: bool
    number: int


class Quad(NamedTuple):
    """Weights of up to four blocks of keys from `key`, in the order of the blocks, each `[128 keys,
    blocks of queries, 128]` from block `skipped` of the group on, up to block `stopped`. `products`
    of the group: `[128, its blocks that share a bank, Dv + 1]`, filled from the first block of keys
    on."""

    group: QueryGroup
    key: int
    scores: list[nl.NkiTensor]
    weights: list[list[nl.NkiTensor]]
    skipped: list[int]
    stopped: list[int]
    products: list[nl.NkiTensor]
    last: bool


class LongOutputs(NamedTuple):
    """Results; inverse sums and negated maxima of all blocks of queries, `[128, blocks]`."""

    out: nl.NkiTensor
    inverses: nl.NkiTensor
    negmaxes: nl.NkiTensor


def long_problem(causal: bool, window: int, masked: bool, scale: float, width: int) -> LongProblem:
    """The constant tiles, for heads of this width."""
    pmax = nl.tile_size.pmax
    cuts = (width + pmax - 1) // pmax
    narrow = width if width <= pmax // 2 else 0
    ones = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    terms = []
    for _ in range(TERM_TILES):
        tile = nl.ndarray((pmax, GROUP, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0)
        terms.append(tile)
    positions = nl.ndarray((pmax, GROUP), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=positions, pattern=[[pmax, GROUP]], offset=0, channel_multiplier=1)
    zeros = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    firsts = nl.ndarray((pmax, 3), dtype=nl.float32, buffer=nl.sbuf)
    if window > 0:
        nisa.iota(
            dst=firsts[:, 0:2],
            pattern=[[-pmax, 2]],
            offset=(1 - window) % pmax,
            channel_multiplier=1,
        )
        nisa.memset(dst=firsts[:, 2:3], value=nl.tile_size.psum_bank_fmax)
    return LongProblem(
        causal, window, masked, scale, cuts, narrow, ones, terms, positions, zeros, firsts
    )


def _multiply(
    p: LongProblem,
    dst: nl.NkiTensor,
    stationary: nl.NkiTensor,
    moving: nl.NkiTensor,
    number: int,
) -> None:
    """Scores of operands that `load_rows` gave, `[.., cuts, ..]`. Neighbours by `number` run at the
    same time where heads are narrow."""
    pmax = nl.tile_size.pmax
    if p.narrow > 0:
        rows = pmax // 2
        row = number % 2 * rows
        nisa.nc_matmul(
            dst=dst,
            stationary=stationary[row : row + p.narrow, 0, :],
            moving=moving[row : row + p.narrow, 0, :],
            tile_position=(row, 0),
            tile_size=(rows, pmax),
        )
        return
    for cut in range(stationary.shape[1]):
        nisa.nc_matmul(dst=dst, stationary=stationary[:, cut, :], moving=moving[:, cut, :])


def searches_of(p: LongProblem, group: QueryGroup) -> list[Search]:
    """The steps of the search for the maxima of a group."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    depth = group.source.first * pmax + group.source.keys.shape[2]
    steps: list[Search] = []
    for block in range(group.blocks):
        diagonal = (group.first + block + 1) * pmax
        first, seen = key_span(group.first + block, depth, p.causal, p.window)
        for start in range(first, seen, bank):
            width = min(bank, seen - start)
            last = block + 1 == group.blocks and start + width == seen
            cut = -1
            if p.window > 0 and start == first:
                cut = _first_column(diagonal - pmax - p.window + 1)
            crossed = p.causal and start + width == diagonal
            column = (start - first) // bank
            steps.append(Search(group, block, column, start, width, crossed, cut, last, len(steps)))
    return steps


def _first_column(first: int) -> int:
    """The column of `firsts` for a block whose first query sees the keys from `first` on."""
    if first >= 0:
        return 0
    return 1 if first > 1 - nl.tile_size.pmax else -1


def search(p: LongProblem, outputs: LongOutputs, s: Search) -> None:
    """One step; the last one of a group lays out its maxima."""
    pmax = nl.tile_size.pmax
    group = s.group
    start = s.start - group.source.first * pmax
    scores = nl.ndarray((pmax, s.width), dtype=nl.float32, buffer=nl.psum)
    _multiply(
        p,
        scores,
        group.queries[:, :, s.block * pmax : (s.block + 1) * pmax],
        group.source.keys[:, :, start : start + s.width],
        s.number,
    )
    most = group.maxima[:, s.block, s.column : s.column + 1]
    mask = group.source.mask
    if s.crossed or s.first >= 0:
        seen = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        behind = s.width // pmax - 1
        nisa.range_select(
            dst=seen,
            on_true_tile=scores,
            comp_op0=nl.less_equal,
            bound0=p.positions[:, behind : behind + 1] if s.crossed else p.firsts[:, 2:3],
            comp_op1=nl.greater_equal,
            bound1=p.firsts[:, s.first : s.first + 1] if s.first >= 0 else p.zeros,
            reduce_res=most,
            reduce_op=nl.maximum,
            on_false_value=LEAST,
        )
        scores = seen
    elif mask is None:
        nisa.tensor_reduce(dst=most, op=nl.maximum, data=scores, axis=1)
    if mask is not None:
        kept = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.select_reduce(
            dst=kept,
            predicate=mask.flags[:, start : start + s.width],
            on_true=scores,
            on_false=LEAST,
            reduce_res=most,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_op=nl.maximum,
        )
        scores = kept
    if s.crossed and group.keeps:
        group.diagonal.append(scores)
    if s.last:
        _lay_out(p, outputs, group)


def _lay_out(p: LongProblem, outputs: LongOutputs, group: QueryGroup) -> None:
    """The negated maxima of a group as terms along the free dimension: column 32 i + j of a block
    is its term j. GpSimd has time for that."""
    pmax = nl.tile_size.pmax
    negmax = outputs.negmaxes[:, group.row : group.row + group.blocks]
    nisa.tensor_reduce(dst=negmax, op=nl.maximum, data=group.maxima, axis=2, negate=True)
    if p.masked:
        # Where a query sees no key: the scaled maximum stays far above what hides the scores.
        clamp = -CLAMP_FALSE / max(1.0, p.scale)
        nisa.tensor_scalar(dst=negmax, data=negmax, op0=nl.minimum, operand0=clamp)
    if group.keeps:
        nisa.tensor_scalar(dst=group.bias, data=negmax, op0=nl.multiply, operand0=p.scale)
    if group.scored == 0:
        return
    tile = p.terms[group.number % TERM_TILES][:, 0 : group.blocks, :]
    rest = negmax
    for term in range(_TERMS):
        nisa.tensor_copy(
            dst=tile[:, :, term:pmax:_ROWS],
            src=rest.expand_dim(2).broadcast(2, QUAD),
            engine=nisa.engine.gpsimd,
        )
        if term + 1 < _TERMS:
            less = nl.ndarray((pmax, group.blocks), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_tensor(
                dst=less,
                data1=rest,
                data2=tile[:, :, term],
                op=nl.subtract,
                engine=nisa.engine.gpsimd,
            )
            rest = less
    nisa.dma_transpose(dst=group.shift.reshape_dim(1, (group.blocks, pmax)), src=tile)


def begin_quad(p: LongProblem, group: QueryGroup, key: int, products: list[nl.NkiTensor]) -> Quad:
    """The blocks of keys from `key` on: the negated maxima stand where the scores will be."""
    pmax = nl.tile_size.pmax
    count = min(QUAD, group.seen - key)
    quad = Quad(group, key, [], [], [], [], products, key + count == group.seen)
    for block in range(count):
        skip = 0
        stop = group.blocks
        if p.causal:
            skip = max(0, key + block - group.first)
        if p.window > 0:
            last = ((key + block + 1) * pmax + p.window - 2) // pmax + 1 - group.first
            stop = min(group.blocks, last)
        tile = nl.ndarray((pmax, (stop - skip) * pmax), dtype=nl.float32, buffer=nl.psum)
        row = block * _ROWS
        nisa.nc_matmul(
            dst=tile,
            stationary=p.ones[row : row + _TERMS, :],
            moving=group.shift[row : row + _TERMS, skip * pmax : stop * pmax],
            tile_position=(row, 0),
            tile_size=(_ROWS, pmax),
        )
        quad.scores.append(tile)
        quad.skipped.append(skip)
        quad.stopped.append(stop)
    return quad


def weigh_block(p: LongProblem, quad: Quad, block: int) -> None:
    """Weights of one block of keys."""
    pmax = nl.tile_size.pmax
    group = quad.group
    key = quad.key + block
    skip = quad.skipped[block]
    scores = quad.scores[block]
    place = key - group.source.first
    keys = group.source.keys[:, :, place * pmax : (place + 1) * pmax]
    queries = group.queries[:, :, skip * pmax : quad.stopped[block] * pmax]
    _multiply(p, scores, keys, queries, block)
    tile = nl.ndarray(scores.shape, dtype=group.queries.dtype, buffer=nl.sbuf)
    bias = p.zeros
    if group.source.mask is not None:
        bias = group.source.mask.bias[:, place : place + 1]
    nisa.activation(dst=tile, op=nl.exp, data=scores, scale=p.scale, bias=bias)
    if p.causal and key >= group.first:
        _hide(tile[:, 0:pmax])
    if p.window > 0:
        _hide_before(tile, (key - group.first - skip) * pmax + p.window)
    weights: list[nl.NkiTensor] = []
    for first in range(0, tile.shape[1], pmax):
        weights.append(tile[:, first : first + pmax])
    quad.weights.append(weights)


def _hide(weights: nl.NkiTensor) -> None:
    """No weight for the keys (partitions) after a query, in a block on the diagonal."""
    nisa.affine_select(
        dst=weights,
        pattern=[[1, weights.shape[1]]],
        offset=0,
        channel_multiplier=-1,
        on_true_tile=weights,
        on_false_value=0.0,
        cmp_op=nl.greater_equal,
    )


def _hide_before(weights: nl.NkiTensor, first: int) -> None:
    """No weight for the keys before the window of a query; `first`: the first query that does not
    see the first key."""
    column = max(0, first)
    if column < weights.shape[1]:
        tile = weights[:, column : weights.shape[1]]
        nisa.affine_select(
            dst=tile,
            pattern=[[-1, tile.shape[1]]],
            offset=first - 1 - column,
            channel_multiplier=1,
            on_true_tile=tile,
            on_false_value=0.0,
            cmp_op=nl.greater_equal,
        )


def together(width: int) -> int:
    """Blocks of queries whose products of so many columns share a PSUM bank."""
    bank = nl.tile_size.psum_bank_fmax
    if GROUP * width <= bank:
        return GROUP
    return 2 if 2 * width <= bank else 1


def combine_block(quad: Quad, block: int) -> None:
    """Weights of one block of keys times its values, for each block of queries."""
    pmax = nl.tile_size.pmax
    if quad.key + block == quad.group.start:
        width = quad.group.source.values.shape[2]
        shared = together(width)
        for first in range(0, quad.group.blocks, shared):
            count = min(shared, quad.group.blocks - first)
            tile = nl.ndarray((pmax, count, width), dtype=nl.float32, buffer=nl.psum)
            quad.products.append(tile)
    shared = quad.products[0].shape[1]
    skip = quad.skipped[block]
    source = quad.group.source
    values = source.values[:, quad.key + block - source.first, :]
    for query in range(skip, quad.stopped[block]):
        nisa.nc_matmul(
            dst=quad.products[query // shared][:, query % shared, :],
            stationary=quad.weights[block][query - skip],
            moving=values,
        )


class Result(NamedTuple):
    """The products of a group, and where they go once they are normalised: `[128, blocks, Dv]`."""

    group: QueryGroup
    products: list[nl.NkiTensor]
    rows: nl.NkiTensor


def invert_sums(p: LongProblem, outputs: LongOutputs, quad: Quad) -> Result:
    """The sums of the rows of a group are complete."""
    pmax = nl.tile_size.pmax
    group = quad.group
    width = outputs.out.shape[3]
    inverse = outputs.inverses[:, group.row : group.row + group.blocks]
    shared = quad.products[0].shape[1]
    for first in range(0, group.blocks, shared):
        sums = quad.products[first // shared][:, :, width]
        part = inverse[:, first : first + sums.shape[1]]
        if p.masked:
            nisa.tensor_scalar(dst=part, data=sums, op0=nl.maximum, operand0=_TINY)
            sums = part
        nisa.reciprocal(dst=part, data=sums)
    rows = nl.ndarray((pmax, group.blocks, width), dtype=outputs.out.dtype, buffer=nl.sbuf)
    return Result(group, quad.products, rows)


def normalise_block(outputs: LongOutputs, result: Result, query: int) -> None:
    """One block of queries; the last one stores the group."""
    pmax = nl.tile_size.pmax
    group = result.group
    width = outputs.out.shape[3]
    shared = result.products[0].shape[1]
    data = result.products[query // shared][:, query % shared, 0:width]
    factor = outputs.inverses[:, group.row + query : group.row + query + 1]
    nisa.activation(dst=result.rows[:, query, :], op=nl.copy, data=data, scale=factor)
    if query + 1 == group.blocks:
        first = group.first * pmax
        target = outputs.out[group.batch, group.head, first : first + group.blocks * pmax]
        target = target.reshape_dim(0, (group.blocks, pmax)).permute((1, 0, 2))
        nisa.dma_copy(dst=target, src=result.rows)


def store_long_logs(
    p: LongProblem, outputs: LongOutputs, lse: nl.NkiTensor, start: int, end: int
) -> None:
    """Store the logarithms of the sums of the rows of blocks `start .. end`: `lse[blocks, 128]`."""
    pmax = nl.tile_size.pmax
    for first in range(start, end, pmax):
        count = min(pmax, end - first)
        logs = nl.ndarray((pmax, count), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=logs, op=nl.log, data=outputs.inverses[:, first : first + count])
        nisa.scalar_tensor_tensor(
            dst=logs, data=outputs.negmaxes[:, first : first + count], op0=nl.multiply,
            operand0=-p.scale, op1=nl.subtract, operand1=logs,
        )  # fmt: skip
        if p.masked:
            # A row that attends to nothing has lse 0, as torch's CPU kernel gives it.
            nisa.scalar_tensor_tensor(
                dst=logs, data=outputs.inverses[:, first : first + count], op0=nl.less,
                operand0=_HIDDEN, op1=nl.multiply, operand1=logs,
            )  # fmt: skip
        turned = nl.ndarray((count, pmax), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=logs, engine=nisa.engine.tensor)
        rows = nl.ndarray((count, pmax), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=rows, src=turned)
        store_late(lse[first : first + count], rows, True)
