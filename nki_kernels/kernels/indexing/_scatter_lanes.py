"""Scatters inside of partitions, by VectorE: lines of a lane that an index names are written, or
combined with values, one index of each lane after the other.

What an index names is found by comparing it with the place of every line of its lane, so that work
grows with the product of both sizes; equal indices come in their order, as in eager.
"""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.indexing._addresses import checked, no_bad_index, refuse
from trnx.nki_kernels.kernels.indexing._lanes import Lanes, Pattern, Steps, lanes_of
from trnx.nki_kernels.kernels.indexing._terms import words_of
from trnx.simulator.memory.tensor_spec import TensorSpec


@nki.jit
def scatter_lanes_kernel(
    shape: tuple[int, ...],
    lanes: tuple[int, int, Any],
    sizes: tuple[int, int, int, int],
    patterns: tuple[Pattern, Pattern, Pattern],
    offsets: tuple[Steps, ...],
    combine: tuple[Any, float] | None,
    number: float | None,
    is_whole: bool,
    base: nl.NkiTensor,
    index: nl.NkiTensor,
    values: nl.NkiTensor | None = None,
) -> nl.NkiTensor:
    """`base`, of `shape`, with the `values`, or the `number`, at the indices; the constants up to
    `offsets` are those of `gather_lanes_kernel`, values in the place of its result.

    `combine`: an operator, and the value that changes nothing under it; the number is written
    without one. `is_whole`: the lanes have every element of the base.
    """
    count, fold, steps = lanes
    extent, chosen, inner, _ = sizes
    out = nl.ndarray(shape, dtype=base.dtype, buffer=nl.shared_hbm)
    if not is_whole:
        nisa.dma_copy(dst=out.reshape((out.size,)), src=base.reshape((out.size,)))
    form = (nl.tile_size.pmax, fold, extent, inner)
    places = nl.ndarray(form, dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(
        dst=places, pattern=[[0, fold], [1, extent], [0, inner]], offset=0, channel_multiplier=0
    )
    words = patterns[1][-1][1]
    bad = no_bad_index()
    for at_base, at_index, at_values in offsets:
        done = 0
        while done < count:
            p = min(nl.tile_size.pmax, count - done)
            length = min(fold, (count - done) // p)
            tile = nl.ndarray((p, length * chosen * inner, words), dtype=nl.int32, buffer=nl.sbuf)
            own = ((steps[1] * length, p), (steps[1], length))
            source = index.ap(pattern=own + patterns[1], offset=at_index + done * steps[1])
            nisa.dma_copy(dst=tile, src=source)
            where = checked(tile, extent, False, bad).reshape((p, length, chosen, inner))
            own = ((steps[0] * length, p), (steps[0], length))
            pattern = own + patterns[0]
            table = nl.ndarray((p, length, extent, inner), dtype=base.dtype, buffer=nl.sbuf)
            start = at_base + done * steps[0]
            nisa.dma_copy(dst=table, src=base.ap(pattern=pattern, offset=start))
            given = None
            if values is not None:
                given = nl.ndarray((p, length, chosen, inner), dtype=base.dtype, buffer=nl.sbuf)
                own = ((steps[2] * length, p), (steps[2], length))
                source = values.ap(pattern=own + patterns[2], offset=at_values + done * steps[2])
                nisa.dma_copy(dst=given, src=source)
            here = places[0:p, 0:length]
            if combine is None:
                _put(table, here, where, given, number)
            else:
                table = _combined(table, here, where, given, combine)
            nisa.dma_copy(dst=out.ap(pattern=pattern, offset=start), src=table)
            done = done + p * length
    refuse(bad)
    return out


def _named(places: nl.NkiTensor, where: nl.NkiTensor, i: int) -> nl.NkiTensor:
    """uint8 `[P, lanes, extent, inner]`: 1 for the lines that the i-th index of its lane names."""
    named = nl.ndarray(places.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=named, data1=places, data2=_spread(where, i, places.shape[2]), op=nl.equal
    )
    return named


def _spread(tile: nl.NkiTensor, i: int, extent: int) -> nl.NkiTensor:
    """Line i of every lane of `[P, lanes, chosen, inner]`, repeated `extent` times."""
    return tile[:, :, i : i + 1, :].broadcast(2, extent)


def _put(
    table: nl.NkiTensor,
    places: nl.NkiTensor,
    where: nl.NkiTensor,
    given: nl.NkiTensor | None,
    number: float | None,
) -> None:
    """Write into the table `[P, lanes, extent, inner]`."""
    for i in range(where.shape[2]):
        value = number
        if given is not None:
            value = _spread(given, i, places.shape[2])
        nisa.tensor_copy_predicated(dst=table, src=value, predicate=_named(places, where, i))


def _combined(
    table: nl.NkiTensor,
    places: nl.NkiTensor,
    where: nl.NkiTensor,
    given: nl.NkiTensor,
    combine: tuple[Any, float],
) -> nl.NkiTensor:
    """The table with values combined in float32, rounded once."""
    op, neutral = combine
    total = nl.ndarray(table.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=total, src=table)
    for i in range(where.shape[2]):
        part = nl.ndarray(table.shape, dtype=table.dtype, buffer=nl.sbuf)
        nisa.memset(dst=part, value=neutral)
        value = _spread(given, i, places.shape[2])
        nisa.tensor_copy_predicated(dst=part, src=value, predicate=_named(places, where, i))
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=op)
    if table.dtype == nl.float32:
        return total
    result = nl.ndarray(table.shape, dtype=table.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=total)
    return result


def scatter_lanes_of(
    base: TensorSpec, dim: int, index: TensorSpec, values: TensorSpec | None
) -> Lanes | None:
    """The lanes of a scatter; None where an element has two words, too."""
    if words_of(base.dtype) == 2:
        return None

    def bytes_of(extent: int, chosen: int, inner: int) -> int:
        itemsize = base.dtype.itemsize
        # places, the table, what is named and a part of two indices, the total, the result
        line = 4 + itemsize + 2 * (1 + itemsize) + 4 + itemsize
        return inner * (extent * line + chosen * (index.dtype.itemsize + 6 * 4 + itemsize))

    steps = index.strides if values is None else values.strides
    return lanes_of(base, dim, index, TensorSpec(index.shape, base.dtype, steps), bytes_of)
