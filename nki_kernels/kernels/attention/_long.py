"""NKI helpers of attention of long sequences: groups of 512 queries against blocks of 128 keys.

TensorE computes the scores of a group twice: once with queries on the partitions, for the maxima of
the rows, and once transposed, `[128 keys, 512 queries]`, so that the weights multiply the values as
they are. The maximum of a query, which lies along the free dimension there, is subtracted by a
product too: of ones and the negated maxima, cut into three bfloat16 terms that add up to the
float32. Such products use three rows of the array, so four of them run at the same time. The sum of
a row is one more column of the values.

While one group is weighed, the maxima of the next are found, and the weights of four blocks of keys
meet their values while those of the next four are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

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
_LEAST = -3.4028234663852886e38


class LongProblem(NamedTuple):
    """What the kernel computes. `ones` in bfloat16, `[128, 128]`; `terms` is where those of the
    maxima of a group are laid out, of four groups in turn: `[128, GROUP, 128]`. `positions[128,
    GROUP]`: the last key that a query sees, where its block is on the diagonal; `zeros[128, 1]`."""

    causal: bool
    scale: float
    cuts: int
    ones: nl.NkiTensor
    terms: list[nl.NkiTensor]
    positions: nl.NkiTensor
    zeros: nl.NkiTensor


class KeyHead(NamedTuple):
    """Keys `[d / cuts, cuts, S]`, and values with a column of ones `[128, S / 128, Dv + 1]`."""

    keys: nl.NkiTensor
    values: nl.NkiTensor


class QueryGroup(NamedTuple):
    """Queries `[d / cuts, cuts, blocks * 128]` from block `first` of head `head`, which see `seen`
    blocks of keys. `maxima[128, blocks, columns]`: of the keys of each step of the search; `shift`:
    the negated maxima in terms, `[128, blocks * 128]`. `number` of the group among all, `row` of
    its first block among all heads'."""

    batch: int
    head: int
    first: int
    blocks: int
    seen: int
    number: int
    row: int
    source: KeyHead
    queries: nl.NkiTensor
    maxima: nl.NkiTensor
    shift: nl.NkiTensor


class Search(NamedTuple):
    """A step of the search for the maxima of query block `block` of a group: scores of the keys
    `start .. start + width`, the last of them on the diagonal where `crossed`. `last` of its
    group."""

    group: QueryGroup
    block: int
    start: int
    width: int
    crossed: bool
    last: bool


class Quad(NamedTuple):
    """Weights of up to four blocks of keys from `key`, in the order of the blocks, each `[128 keys,
    queries]` from query `skipped` of the group on. `products` of the group: `[128, its
    blocks that share a bank, Dv + 1]`, filled from the first block of keys on."""

    group: QueryGroup
    key: int
    weights: list[nl.NkiTensor]
    skipped: list[int]
    products: list[nl.NkiTensor]
    last: bool


class LongOutputs(NamedTuple):
    """Results; inverse sums and negated maxima of all blocks of queries, `[128, blocks]`."""

    out: nl.NkiTensor
    inverses: nl.NkiTensor
    negmaxes: nl.NkiTensor


def long_problem(causal: bool, scale: float, cuts: int) -> LongProblem:
    """The constant tiles."""
    pmax = nl.tile_size.pmax
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
    return LongProblem(causal, scale, cuts, ones, terms, positions, zeros)


def load_turned(x: nl.NkiTensor, cuts: int) -> nl.NkiTensor:
    """`x[rows, width]` of 2-byte elements as `[width / cuts, cuts, rows]`."""
    width = x.shape[1] // cuts
    tile = nl.ndarray((width, cuts, x.shape[0]), dtype=x.dtype, buffer=nl.sbuf)
    for cut in range(cuts):
        nisa.dma_transpose(dst=tile[:, cut, :], src=x[:, cut * width : (cut + 1) * width])
    return tile


def load_key_head(k: nl.NkiTensor, v: nl.NkiTensor, cuts: int) -> KeyHead:
    """Keys and values of one head, `k[S, d]` and `v[S, Dv]`."""
    pmax = nl.tile_size.pmax
    blocks = v.shape[0] // pmax
    values = nl.ndarray((pmax, blocks, v.shape[1] + 1), dtype=v.dtype, buffer=nl.sbuf)
    nisa.memset(dst=values[:, :, v.shape[1] : v.shape[1] + 1], value=1.0, engine=nisa.engine.gpsimd)
    keys = load_turned(k, cuts)
    src = v.reshape_dim(0, (blocks, pmax)).permute((1, 0, 2))
    nisa.dma_copy(dst=values[:, :, 0 : v.shape[1]], src=src)
    return KeyHead(keys, values)


def searches_of(group: QueryGroup, causal: bool) -> list[Search]:
    """The steps of the search for the maxima of a group."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    depth = group.source.keys.shape[2]
    steps: list[Search] = []
    for block in range(group.blocks):
        diagonal = (group.first + block + 1) * pmax
        seen = min(depth, diagonal) if causal else depth
        for start in range(0, seen, bank):
            width = min(bank, seen - start)
            last = block + 1 == group.blocks and start + width == seen
            steps.append(Search(group, block, start, width, start + width == diagonal, last))
    return steps


def search(p: LongProblem, outputs: LongOutputs, s: Search) -> None:
    """One step; the last one of a group lays out its maxima."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    group = s.group
    scores = nl.ndarray((pmax, s.width), dtype=nl.float32, buffer=nl.psum)
    for cut in range(p.cuts):
        nisa.nc_matmul(
            dst=scores,
            stationary=group.queries[:, cut, s.block * pmax : (s.block + 1) * pmax],
            moving=group.source.keys[:, cut, s.start : s.start + s.width],
        )
    column = s.start // bank
    most = group.maxima[:, s.block, column : column + 1]
    if p.causal and s.crossed:
        seen = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        behind = s.width // pmax - 1
        nisa.range_select(
            dst=seen,
            on_true_tile=scores,
            comp_op0=nl.less_equal,
            bound0=p.positions[:, behind : behind + 1],
            comp_op1=nl.greater_equal,
            bound1=p.zeros,
            reduce_res=most,
            reduce_op=nl.maximum,
            on_false_value=_LEAST,
        )
    else:
        nisa.tensor_reduce(dst=most, op=nl.maximum, data=scores, axis=1)
    if s.last:
        _lay_out(p, outputs, group)


def _lay_out(p: LongProblem, outputs: LongOutputs, group: QueryGroup) -> None:
    """The negated maxima of a group as terms along the free dimension: column 32 i + j of a block
    is its term j. GpSimd has time for that."""
    pmax = nl.tile_size.pmax
    negmax = outputs.negmaxes[:, group.row : group.row + group.blocks]
    nisa.tensor_reduce(dst=negmax, op=nl.maximum, data=group.maxima, axis=2, negate=True)
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


def turn_terms(p: LongProblem, group: QueryGroup) -> None:
    """The terms that are laid out become rows of `shift`."""
    pmax = nl.tile_size.pmax
    turned = nl.ndarray(group.shift.shape, dtype=nl.bfloat16, buffer=nl.psum)
    for block in range(group.blocks):
        nisa.nc_transpose(
            dst=turned[:, block * pmax : (block + 1) * pmax],
            data=p.terms[group.number % TERM_TILES][:, block, :],
            engine=nisa.engine.tensor,
        )
    nisa.activation(dst=group.shift, op=nl.copy, data=turned)


def score_quad(
    p: LongProblem,
    outputs: LongOutputs,
    group: QueryGroup,
    key: int,
    steps: list[Search],
    products: list[nl.NkiTensor],
) -> Quad:
    """Weights of the blocks of keys from `key` on. Who asks for memory gets what was left first, so
    `steps` of a search are done in between: the next scores get what these leave."""
    pmax = nl.tile_size.pmax
    queries = group.blocks * pmax
    count = min(QUAD, group.seen - key)
    scores = []
    skipped = []
    for block in range(count):
        skip = 0
        if p.causal:
            skip = max(0, key + block - group.first) * pmax
        tile = nl.ndarray((pmax, queries - skip), dtype=nl.float32, buffer=nl.psum)
        first = (key + block) * pmax
        for cut in range(p.cuts):
            nisa.nc_matmul(
                dst=tile,
                stationary=group.source.keys[:, cut, first : first + pmax],
                moving=group.queries[:, cut, skip:queries],
            )
        scores.append(tile)
        skipped.append(skip)
    for block in range(count):
        row = block * _ROWS
        nisa.nc_matmul(
            dst=scores[block],
            stationary=p.ones[row : row + _TERMS, :],
            moving=group.shift[row : row + _TERMS, skipped[block] : queries],
            tile_position=(row, 0),
            tile_size=(_ROWS, pmax),
        )
    weights = []
    for block in range(count):
        tile = nl.ndarray(scores[block].shape, dtype=group.queries.dtype, buffer=nl.sbuf)
        nisa.activation(dst=tile, op=nl.exp, data=scores[block], scale=p.scale)
        if p.causal and key + block >= group.first:
            _hide(tile[:, 0:pmax])
        weights.append(tile)
        if block + 1 == (count + 1) // 2:
            for step in steps:
                search(p, outputs, step)
    return Quad(group, key, weights, skipped, products, key + count == group.seen)


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


def _together(width: int) -> int:
    """Blocks of queries whose products of so many columns share a PSUM bank."""
    bank = nl.tile_size.psum_bank_fmax
    if GROUP * width <= bank:
        return GROUP
    return 2 if 2 * width <= bank else 1


def combine_block(quad: Quad, block: int) -> None:
    """Weights of one block of keys times its values, for each block of queries."""
    pmax = nl.tile_size.pmax
    if quad.key + block == 0:
        width = quad.group.source.values.shape[2]
        together = _together(width)
        for first in range(0, quad.group.blocks, together):
            count = min(together, quad.group.blocks - first)
            tile = nl.ndarray((pmax, count, width), dtype=nl.float32, buffer=nl.psum)
            quad.products.append(tile)
    together = quad.products[0].shape[1]
    skip = quad.skipped[block]
    values = quad.group.source.values[:, quad.key + block, :]
    for query in range(skip // pmax, quad.group.blocks):
        first = query * pmax - skip
        nisa.nc_matmul(
            dst=quad.products[query // together][:, query % together, :],
            stationary=quad.weights[block][:, first : first + pmax],
            moving=values,
        )


def store_group(outputs: LongOutputs, quad: Quad) -> None:
    """Normalise and store the queries of a group."""
    pmax = nl.tile_size.pmax
    group = quad.group
    width = outputs.out.shape[3]
    inverse = outputs.inverses[:, group.row : group.row + group.blocks]
    result = nl.ndarray((pmax, group.blocks, width), dtype=outputs.out.dtype, buffer=nl.sbuf)
    together = quad.products[0].shape[1]
    for first in range(0, group.blocks, together):
        sums = quad.products[first // together][:, :, width]
        nisa.reciprocal(dst=inverse[:, first : first + sums.shape[1]], data=sums)
    for query in range(group.blocks):
        data = quad.products[query // together][:, query % together, 0:width]
        factor = inverse[:, query : query + 1]
        if query // 2 == 0:
            nisa.activation(dst=result[:, query, :], op=nl.copy, data=data, scale=factor)
        else:
            nisa.tensor_scalar(dst=result[:, query, :], data=data, op0=nl.multiply, operand0=factor)
    first = group.first * pmax
    target = outputs.out[group.batch, group.head, first : first + group.blocks * pmax]
    nisa.dma_copy(dst=target.reshape_dim(0, (group.blocks, pmax)).permute((1, 0, 2)), src=result)


def store_long_logs(p: LongProblem, outputs: LongOutputs, lse: nl.NkiTensor) -> None:
    """Store the logarithms of the sums of all rows: `lse[blocks, 128]`."""
    pmax = nl.tile_size.pmax
    for first in range(0, lse.shape[0], pmax):
        count = min(pmax, lse.shape[0] - first)
        logs = nl.ndarray((pmax, count), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=logs, op=nl.log, data=outputs.inverses[:, first : first + count])
        nisa.scalar_tensor_tensor(
            dst=logs, data=outputs.negmaxes[:, first : first + count], op0=nl.multiply,
            operand0=-p.scale, op1=nl.subtract, operand1=logs,
        )  # fmt: skip
        turned = nl.ndarray((count, pmax), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=logs, engine=nisa.engine.tensor)
        rows = nl.ndarray((count, pmax), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=rows, src=turned)
        nisa.dma_copy(dst=lse[first : first + count], src=rows)
