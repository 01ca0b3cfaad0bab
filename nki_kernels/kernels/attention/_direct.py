"""NKI helpers of attention of long sequences whose scores are weighed as they are, without the
maxima of the rows: groups of 512 queries against blocks of 128 keys.

Weights are exponentials of the scaled scores and a constant, which float32 and bfloat16 hold
wherever the scores of a row end between about -25 and 58. TensorE computes the scores once, with
the keys on the partitions, so that the weights multiply the values as they are; the sum of a row is
one more column of the values. The sums tell whether a row was in that range (`flag_sums`), and
values must not be so large that such sums overflow (`flag_values`).

Scores fill several PSUM banks in turn, and ScalarE takes them all in one instruction, of whichever
blocks and groups they are.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

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
    """What the kernel computes, of heads in `cuts` pieces. `bias[128, 1]` is the shift. The product
    of `identity` and `hidden`, `[128, 128]` in bfloat16, hides keys (rows) after the query where
    attention is causal."""

    causal: bool
    scale: float
    cuts: int
    bias: nl.NkiTensor
    identity: nl.NkiTensor | None
    hidden: nl.NkiTensor | None


class DirectHead(NamedTuple):
    """Keys `[d / cuts, cuts, S]`, and values with a column of ones `[128, S / 128, Dv + 1]`."""

    keys: nl.NkiTensor
    values: nl.NkiTensor


class DirectGroup(NamedTuple):
    """Queries `[d / cuts, cuts, blocks * 128]` from block `first` of a head on; `row`: its first
    block among those of all heads. `products`: of weights and values, `[128, banks,
    columns]`, Dv + 1 columns for each of the blocks that share a bank; once there are any."""

    batch: int
    head: int
    first: int
    blocks: int
    row: int
    source: DirectHead
    queries: nl.NkiTensor
    products: list[nl.NkiTensor]


class Piece(NamedTuple):
    """Scores of block `key` of the keys with blocks `query .. query + blocks` of a group, at
    `column` of a chunk. `begins`, `ends`: the first and the last of the group."""

    group: int
    key: int
    query: int
    blocks: int
    column: int
    begins: bool
    ends: bool


class DirectOutputs(NamedTuple):
    """Results in HBM; inverse sums of all blocks of queries, `[128, blocks]`; and 1 where a sum is
    in the range, and where a part of the values is: `good[128, blocks + parts]`."""

    out: nl.NkiTensor
    inverses: nl.NkiTensor
    good: nl.NkiTensor


def direct_problem(causal: bool, scale: float, width: int) -> DirectProblem:
    """The constant tiles, for heads of this width."""
    pmax = nl.tile_size.pmax
    bias = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=bias, value=SHIFT)
    identity = None
    hidden = None
    if causal:
        identity = _triangle(1.0, 0.0, nl.equal)
        hidden = _triangle(_HIDDEN, 0.0, nl.greater)
    return DirectProblem(causal, scale, (width + pmax - 1) // pmax, bias, identity, hidden)


def _triangle(inside: float, outside: float, compare: object) -> nl.NkiTensor:
    """`[128, 128]`: `inside` where the partition compares so with the column."""
    pmax = nl.tile_size.pmax
    full = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=full, value=inside)
    tile = nl.ndarray((pmax, pmax), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.affine_select(
        dst=tile,
        pattern=[[-1, pmax]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=full,
        on_false_value=outside,
        cmp_op=compare,
    )
    return tile


def weigh(p: DirectProblem, groups: list[DirectGroup], chunk: list[Piece]) -> nl.NkiTensor:
    """The weights of a chunk, `[128 keys, columns]`."""
    pmax = nl.tile_size.pmax
    last = chunk[len(chunk) - 1]
    shape = (pmax, last.column + last.blocks * pmax)
    scores = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    for piece in chunk:
        group = groups[piece.group]
        keys = group.source.keys[:, :, piece.key * pmax : (piece.key + 1) * pmax]
        end = piece.query + piece.blocks
        queries = group.queries[:, :, piece.query * pmax : end * pmax]
        part = scores[:, piece.column : piece.column + piece.blocks * pmax]
        for cut in range(p.cuts):
            nisa.nc_matmul(dst=part, stationary=keys[:, cut, :], moving=queries[:, cut, :])
        if p.causal and piece.key == group.first + piece.query:
            nisa.nc_matmul(dst=part[:, 0:pmax], stationary=p.identity, moving=p.hidden)
    weights = nl.ndarray(shape, dtype=groups[last.group].queries.dtype, buffer=nl.sbuf)
    nisa.activation(dst=weights, op=nl.exp, data=scores, scale=p.scale, bias=p.bias)
    return weights


def combine(
    groups: list[DirectGroup], chunk: list[Piece], weights: nl.NkiTensor, outputs: DirectOutputs
) -> None:
    """The weights of a chunk times their values; stores the groups that end with it."""
    pmax = nl.tile_size.pmax
    bank = nl.tile_size.psum_bank_fmax
    for piece in chunk:
        group = groups[piece.group]
        width = group.source.values.shape[2]
        shared = together(width)
        if piece.begins:
            banks = (group.blocks + shared - 1) // shared
            shape = (pmax, banks, bank if banks > 1 else shared * width)
            group.products.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
        products = group.products[0]
        for number in range(piece.blocks):
            query = piece.query + number
            start = query % shared * width
            column = piece.column + number * pmax
            nisa.nc_matmul(
                dst=products[:, query // shared, start : start + width],
                stationary=weights[:, column : column + pmax],
                moving=group.source.values[:, piece.key, :],
            )
        if piece.ends:
            _finish(group, outputs)


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
    nisa.dma_copy(dst=target.reshape_dim(0, (group.blocks, pmax)).permute((1, 0, 2)), src=rows)


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
    nisa.reciprocal(dst=inverse, data=products[:, :, :, width])
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
