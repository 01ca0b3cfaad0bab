"""Where rows lie that indices name: checked, wrapped and summed up to one address each, on chip.

A *position* is one row of the result; positions are counted in the order of memory. A term of the
address is one index tensor (or a count of positions) times a factor, in units of the operand that
is read or written. An index outside of its dimension counts as 0, and is remembered: `refuse` makes
an access out of bounds of it, which stops the kernel. VectorE computes in float32, so that a
dimension that is indexed has fewer than 2^24 elements; GpSimd adds exact 32-bit integers.
"""

from __future__ import annotations

from typing import Any

import nki.isa as nisa
import nki.language as nl

# (operand, or -1 for a count; words of an index; size of its dimension; factor; whether a negative
# index counts from the end; the access pattern of each position's index, () for memory's own order)
Term = tuple[int, int, int, int, bool, tuple[tuple[int, int], ...]]

EXACT = 1 << 24  # of the integers below, float32 has every one


def no_bad_index() -> nl.NkiTensor:
    """What `addresses` remembers wrong indices in."""
    bad = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=bad, value=0)
    return bad


def refuse(bad: nl.NkiTensor) -> None:
    """An access out of bounds where an index was wrong."""
    pmax = nl.tile_size.pmax
    zeros = nl.ndarray((pmax, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0)
    single = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=single, src=zeros[0:1, :])
    source = single.ap(pattern=[[1, pmax], [1, 1]], offset=0, vector_offset=bad, indirect_dim=0)
    nisa.dma_copy(dst=zeros, src=source)


def by_position(term: Any, operands: Any, positions: int, is_whole: bool) -> nl.NkiTensor:
    """HBM `[positions, words]`: the index of each position, as it is where memory has that order.
    Else a pattern of that size where one tile takes all of them, or a copy in that order.
    """
    number, words, extent, _, _, pattern = term
    index = _counted(extent) if number < 0 else operands[number]
    if len(pattern) == 0:
        return index.reshape((positions, words))
    spread = index.ap(pattern=pattern, offset=0)
    if is_whole:
        return spread
    copy = nl.ndarray((positions, words), dtype=nl.int32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=copy, src=spread)
    return copy


def _counted(count: int) -> nl.NkiTensor:
    """0, 1, 2, ... in HBM."""
    table = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.private_hbm)
    done = 0
    while done < count:
        partitions = min(nl.tile_size.pmax, count - done)
        length = min(1024, (count - done) // partitions)
        tile = nl.ndarray((partitions, length), dtype=nl.int32, buffer=nl.sbuf)
        nisa.iota(dst=tile, pattern=[[1, length]], offset=done, channel_multiplier=length)
        part = table[done : done + partitions * length].reshape((partitions, length))
        nisa.dma_copy(dst=part, src=tile)
        done = done + partitions * length
    return table


def addresses(
    terms: Any,
    indices: Any,
    done: int,
    shape: tuple[int, int],
    bad: nl.NkiTensor,
    exact: bool,
    by_column: bool,
) -> nl.NkiTensor:
    """int32 `[partitions, length]`: the addresses of positions from `done` on, consecutive ones in
    a partition, or in a column. `indices` are those of `by_position`; `exact` where sums need all
    32 bits.
    """
    partitions, length = shape
    total = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
    for i in range(len(terms)):
        number, words, extent, factor, wraps, _ = terms[i]
        tile = nl.ndarray((partitions, length, words), dtype=nl.int32, buffer=nl.sbuf)
        here = indices[i]
        if here.size > partitions * length * words:
            here = here[done : done + partitions * length]
        if by_column:
            here = here.reshape((length, partitions, words)).permute((1, 0, 2))
        nisa.dma_copy(dst=tile, src=here, dge_mode=nisa.dge_mode.none)
        value = tile[:, :, 0]
        if number >= 0:
            value = checked(tile, extent, wraps, bad)
        if len(terms) == 1 and factor == 1:
            return value
        _add(total, value, factor, i == 0, exact)
    return total


def checked(tile: nl.NkiTensor, extent: int, wraps: bool, bad: nl.NkiTensor) -> nl.NkiTensor:
    """int32 `[P, L]`: indices `tile[P, L, words]` from 0 to `extent - 1`; `bad` becomes 1 where
    there is another one."""
    partitions, length, words = tile.shape
    shape = (partitions, length)
    low = tile[:, :, 0]
    value = low
    negative = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=low, op0=nl.less, operand0=0.0)
    if wraps:
        value = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=value, data=negative, op0=nl.multiply, operand0=float(extent), op1=nl.add,
            operand1=low,
        )  # fmt: skip
    inside = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=inside, data=value, op0=nl.maximum, operand0=0.0, op1=nl.minimum,
        operand1=float(extent - 1),
    )  # fmt: skip
    wrong = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=wrong, data1=value, data2=inside, op=nl.not_equal)
    if words == 2:
        # The high word must be the sign of the low one.
        high = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(
            dst=high, data1=tile[:, :, 1], data2=negative, op=nl.add, engine=nisa.engine.vector
        )
        nisa.scalar_tensor_tensor(
            dst=wrong, data=high, op0=nl.not_equal, operand0=0.0, op1=nl.maximum, operand1=wrong
        )
    worst = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=worst, op=nl.maximum, data=wrong, axis=1)
    kept = bad[0:partitions, :]
    nisa.tensor_scalar(dst=kept, data=kept, op0=nl.maximum, operand0=worst)
    return inside


def _add(
    total: nl.NkiTensor, value: nl.NkiTensor, factor: int, is_first: bool, exact: bool
) -> None:
    """total (0 where it is the first) + value * factor."""
    if not exact:
        if is_first:
            nisa.tensor_scalar(dst=total, data=value, op0=nl.multiply, operand0=float(factor))
        else:
            nisa.scalar_tensor_tensor(
                dst=total, data=value, op0=nl.multiply, operand0=float(factor), op1=nl.add,
                operand1=total,
            )  # fmt: skip
        return
    if factor != 1:
        factors = nl.ndarray(total.shape, dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=factors, value=factor)
        nisa.tensor_tensor(
            dst=factors, data1=value, data2=factors, op=nl.multiply, engine=nisa.engine.gpsimd
        )
        value = factors
    if is_first:
        nisa.tensor_copy(dst=total, src=value)
    else:
        nisa.tensor_tensor(
            dst=total, data1=total, data2=value, op=nl.add, engine=nisa.engine.gpsimd
        )
