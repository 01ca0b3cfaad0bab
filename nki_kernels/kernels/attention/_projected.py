"""NKI helpers of `self_attention`: heads are projected and attended to in groups of 128 columns.

Queries and keys of a group come out of their products with the head's elements on the partitions
and the rows of several batch entries along the free dimension, values with the keys on the
partitions: each as TensorE reads it next. While TensorE projects a group, the other engines weigh
the scores of the group before, and the group before that meets its values, so that no engine waits
for what it has just asked of another.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._matmul import multiply
from trnx.nki_kernels.kernels._operands import MatmulOperand, fill_operand, load_operand
from trnx.nki_kernels.kernels.attention._heads import column, matmul_slot
from trnx.nki_kernels.kernels.attention._layout import HeadLayout
from trnx.nki_kernels.kernels.attention._masks import Hidden
from trnx.nki_kernels.kernels.attention._maxima import is_power_of_two, with_maxima

# What a product adds to the scores of hidden keys, and the least maximum of a row: exact powers of
# two in bfloat16, so that exp of their difference is 0, also where all keys of a row are hidden.
HIDDEN = -(2.0**126)
_LEAST = -(2.0**120)
# The sum of a row that attends to anything is about 1 at least; this stands for that of the others.
_TINY = 1.0e-10


class Problem(NamedTuple):
    """`[entries, length, depth]` rows in heads of `layout`; `biases` of queries and keys `[128,
    groups]`, that of values `[length, columns]` or None; `hidden`: a row of `HIDDEN` or 0 for each
    key of all entries, or None; `ones` of one partition. `first`: the first group of this core."""

    x: MatmulOperand
    weights: list[MatmulOperand]
    length: int
    depth: int
    scale: float
    layout: HeadLayout
    first: int
    biases: list[nl.NkiTensor | None]
    hidden: nl.NkiTensor | None
    ones: nl.NkiTensor


class Block(NamedTuple):
    """Batch entries `entry .. entry+entries`: their rows `[128, chunks of depth, rows]`."""

    entry: int
    entries: int
    data: nl.NkiTensor


class Projected(NamedTuple):
    """Queries and keys of a group of heads of a block, `[128, rows]`; `weight` is that of its
    values."""

    block: Block
    group: int
    queries: nl.NkiTensor
    keys: nl.NkiTensor
    weight: nl.NkiTensor


class Turned(NamedTuple):
    """Weights of a group with the keys on the partitions, a tile `[length, heads, length]` for each
    chunk of its entries, and its values `[length, entries, slots, width + 1]`, the last of which is
    1."""

    source: Projected
    tiles: list[nl.NkiTensor]
    values: nl.NkiTensor


class Pipeline(NamedTuple):
    """The groups that are under way."""

    projected: Projected | None
    turned: Turned | None


def entries_at_once(length: int) -> int:
    """Batch entries of a block: the rows of which fit a bank of PSUM."""
    bank = nl.tile_size.psum_bank_fmax  # type: int
    return bank // length


def load_rows(p: Problem, entry: int, entries: int, weights: list[nl.NkiTensor]) -> Block:
    """A block. `weights`, where there are none yet, get those of the first group, in between."""
    pmax = nl.tile_size.pmax
    chunks = (p.depth + pmax - 1) // pmax
    rows = entries * p.length
    dtype = p.x.segments[0].dtype
    data = nl.ndarray((min(p.depth, pmax), chunks, rows), dtype=dtype, buffer=nl.sbuf)
    row = entry * p.length
    if len(weights) > 0:
        fill_operand(data, p.x, row, 0, p.depth)
        return Block(entry, entries, data)
    head = min(p.depth, pmax)
    fill_operand(data[:, 0:1, :], p.x, row, 0, head)
    weights.append(_load_weights(p, 0, p.first))
    if head < p.depth:
        fill_operand(data[:, 1:chunks, :], p.x, row, head, p.depth - head)
    for kind in range(1, 3):
        weights.append(_load_weights(p, kind, p.first))
    return Block(entry, entries, data)


def load_more_weights(p: Problem, weights: list[nl.NkiTensor], end: int) -> None:
    """Those of the other groups up to `end`: three tiles for each."""
    for group in range(p.first + 1, end):
        for kind in range(3):
            weights.append(_load_weights(p, kind, group))


def _load_weights(p: Problem, kind: int, group: int) -> nl.NkiTensor:
    pmax = nl.tile_size.pmax
    return load_operand(p.weights[kind], group * pmax, pmax, 0, p.depth)


def attend_group(
    p: Problem,
    out: nl.NkiTensor,
    block: Block,
    group: int,
    weights: list[nl.NkiTensor],
    pipeline: Pipeline,
) -> Pipeline:
    """Advance each group by a stage: queries and keys of this one are projected while the one
    before is weighed and its values are projected, and the one before that is finished."""
    before = pipeline.projected
    after = None
    queries = _project_turned(p, block, weights[0], 0, group)
    weighed = []
    if before is not None:
        weighed = _weigh(p, before)
    keys = _project_turned(p, block, weights[1], 1, group)
    if pipeline.turned is not None:
        _combine(p, out, pipeline.turned)
    if before is not None:
        values = _project_values(p, before)
        after = Turned(before, _turn(weighed), values)
    return Pipeline(Projected(block, group, queries, keys, weights[2]), after)


def finish(p: Problem, out: nl.NkiTensor, last: Projected, turned: Turned | None) -> None:
    """The groups that are under way, behind the last one."""
    weighed = _weigh(p, last)
    values = _project_values(p, last)
    if turned is not None:
        _combine(p, out, turned)
    _combine(p, out, Turned(last, _turn(weighed), values))


def _project_turned(
    p: Problem, block: Block, weight: nl.NkiTensor, kind: int, group: int
) -> nl.NkiTensor:
    """Queries (`kind` 0) or keys (1) of a group: `[128, rows]`."""
    shape = (nl.tile_size.pmax, block.data.shape[2])
    bank = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    multiply(bank, weight, 0, block.data, 0, p.depth)
    result = nl.ndarray(shape, dtype=block.data.dtype, buffer=nl.sbuf)
    bias = p.biases[kind]
    if bias is None:
        nisa.activation(dst=result, op=nl.copy, data=bank)
    else:
        place = group - p.first
        nisa.activation(dst=result, op=nl.copy, data=bank, bias=bias[:, place : place + 1])
    return result


def _project_values(p: Problem, source: Projected) -> nl.NkiTensor:
    """Values of a group, `[length, entries, slots, width + 1]`, the last of which is 1."""
    block = source.block
    pmax = nl.tile_size.pmax
    slots, width = p.layout.slots, p.layout.size
    bank = nl.ndarray((p.length, block.entries, pmax), dtype=nl.float32, buffer=nl.psum)
    for entry in range(block.entries):
        multiply(bank[:, entry, :], block.data, entry * p.length, source.weight, 0, p.depth)
    shape = (p.length, block.entries, slots, width + 1)
    result = nl.ndarray(shape, dtype=block.data.dtype, buffer=nl.sbuf)
    nisa.memset(dst=result[:, :, :, width : width + 1], value=1.0, engine=nisa.engine.gpsimd)
    target = result[:, :, :, 0:width]
    products = bank.reshape_dim(2, (slots, width))
    bias = p.biases[2]
    if bias is None:
        nisa.tensor_copy(dst=target, src=products)
        return result
    place = (source.group - p.first) * pmax
    added = bias[:, place : place + pmax].expand_dim(1).broadcast(1, block.entries)
    nisa.tensor_tensor(
        dst=target, data1=products, data2=added.reshape_dim(2, (slots, width)), op=nl.add
    )
    return result


def _chunk_entries(p: Problem) -> int:
    """Batch entries whose heads of a group share an instruction: scores, and products with values,
    of one bank."""
    bank = nl.tile_size.psum_bank_fmax  # type: int
    heads = min(bank // p.length, bank // (p.layout.size + 1))  # type: int
    return max(1, heads // p.layout.slots)


def _weigh(p: Problem, source: Projected) -> list[nl.NkiTensor]:
    """The weights of a group, a tile `[length, heads, length]` for each chunk of its entries."""
    tiles = []
    step = _chunk_entries(p)
    for start in range(0, source.block.entries, step):
        count = min(step, source.block.entries - start)
        tiles.append(_weigh_chunk(p, source, start, count))
    return tiles


def _weigh_chunk(p: Problem, source: Projected, start: int, count: int) -> nl.NkiTensor:
    slots = p.layout.slots
    heads = count * slots
    shape = (p.length, heads, p.length)
    scores = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    for head in range(heads):
        row = (start + head // slots) * p.length
        first = head % slots * p.layout.pitch
        matmul_slot(
            scores[:, head, :],
            source.queries[first : first + p.layout.size, row : row + p.length],
            source.keys[first : first + p.layout.size, row : row + p.length],
            first,
            p.layout,
        )
        if p.hidden is not None:
            key = (source.block.entry + start + head // slots) * p.length % p.hidden.shape[1]
            nisa.nc_matmul(
                dst=scores[:, head, :],
                stationary=p.ones[:, 0 : p.length],
                moving=p.hidden[:, key : key + p.length],
            )
    clamp = None if p.hidden is None else _LEAST * p.scale
    data, negmax = with_maxima(Hidden(scores, p.scale), is_power_of_two(p.scale), clamp)
    weights = nl.ndarray(shape, dtype=source.queries.dtype, buffer=nl.sbuf)
    for head in range(heads):
        nisa.activation(
            dst=weights[:, head, :],
            op=nl.exp,
            data=data.scores[:, head, :],
            bias=negmax[:, head : head + 1],
            scale=data.scale,
        )
    return weights


def _turn(weighed: list[nl.NkiTensor]) -> list[nl.NkiTensor]:
    """The weights of a group with the keys on the partitions."""
    tiles = []
    for weights in weighed:
        rows, heads, cols = weights.shape
        bank = nl.ndarray((cols, heads, rows), dtype=weights.dtype, buffer=nl.psum)
        for head in range(heads):
            nisa.nc_transpose(
                dst=bank[:, head, :], data=weights[:, head, :], engine=nisa.engine.tensor
            )
        turned = nl.ndarray(bank.shape, dtype=weights.dtype, buffer=nl.sbuf)
        nisa.activation(dst=turned, op=nl.copy, data=bank)
        tiles.append(turned)
    return tiles


def _combine(p: Problem, out: nl.NkiTensor, turned: Turned) -> None:
    """The products of a group with its values, normalised, in `out[B, H, length, width]`."""
    source = turned.source
    block = source.block
    slots, width = p.layout.slots, p.layout.size
    shape = (p.length, block.entries, slots, width)
    result = nl.ndarray(shape, dtype=out.dtype, buffer=nl.sbuf)
    step = _chunk_entries(p)
    for number in range(len(turned.tiles)):
        start = number * step
        heads = turned.tiles[number].shape[1]
        product = nl.ndarray((p.length, heads, width + 1), dtype=nl.float32, buffer=nl.psum)
        for head in range(heads):
            nisa.nc_matmul(
                dst=product[:, head, :],
                stationary=turned.tiles[number][:, head, :],
                moving=turned.values[:, start + head // slots, head % slots, :],
            )
        inverse = nl.ndarray((p.length, heads), dtype=nl.float32, buffer=nl.sbuf)
        total = product[:, :, width]
        if p.hidden is not None:
            total = nl.ndarray((p.length, heads), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=total, data=product[:, :, width], op0=nl.maximum, operand0=_TINY)
        nisa.reciprocal(dst=inverse, data=total)
        nisa.tensor_tensor(
            dst=result[:, start : start + heads // slots],
            data1=product[:, :, 0:width].reshape_dim(1, (heads // slots, slots)),
            data2=column(inverse, width).reshape_dim(1, (heads // slots, slots)),
            op=nl.multiply,
        )
    first = source.group * slots
    target = out[block.entry : block.entry + block.entries, first : first + slots]
    nisa.dma_copy(dst=target.permute((2, 0, 1, 3)), src=result)


def load_hidden(mask: nl.NkiTensor) -> nl.NkiTensor:
    """`[1, B * S]` of a mask `[B, 1, 1, S]` of 0 and 1: what is added to the scores of each key."""
    loaded = nl.ndarray((1, mask.size), dtype=mask.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded, src=mask.reshape((1, mask.size)))
    hidden = nl.ndarray(loaded.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=hidden,
        data=loaded,
        op0=nl.subtract,
        operand0=1.0,
        op1=nl.multiply,
        operand1=-HIDDEN,
    )
    return hidden
