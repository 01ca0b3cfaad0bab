"""The kernel that writes rows at addresses which index tensors give.

Writes have the order of the rows, so that programs that share the work have columns of all of them.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.indexing._addresses import (
    Term,
    addresses,
    by_position,
    no_bad_index,
    refuse,
)


@nki.jit
def put_rows_kernel(
    shape: tuple[int, ...],
    rows: tuple[int, int, int],
    tile: tuple[int, int],
    terms: tuple[Term, ...],
    spread: tuple[tuple[int, int], ...],
    base: nl.NkiTensor,
    values: nl.NkiTensor,
    i0: nl.NkiTensor | None = None,
    i1: nl.NkiTensor | None = None,
    i2: nl.NkiTensor | None = None,
    i3: nl.NkiTensor | None = None,
    i4: nl.NkiTensor | None = None,
    i5: nl.NkiTensor | None = None,
    cores: int = 1,
) -> nl.NkiTensor:
    """`base` with rows of `values` at the addresses; `rows`: how many, elements of one, and of the
    unit of addresses. `tile`: rows in a partition, and elements of a row at a time. `spread` is the
    pattern of the values of all rows, () where memory has that order.

    Of rows with one address the last is written last. `cores` share the columns of rows that are
    whole units.
    """
    out = nl.ndarray(shape, dtype=base.dtype, buffer=nl.shared_hbm)
    positions, width, unit = rows
    first, last = share_of(width, cores)
    if first < last:
        operands = (i0, i1, i2, i3, i4, i5)
        run, cols = tile
        own = (unit, first, last) if cores > 1 else None
        nisa.dma_copy(dst=part_of(out, own), src=part_of(base, own))
        units = out.reshape((base.size // unit, unit))
        source = rows_in_order(values, spread, positions, width)
        indices = []  # type: list[nl.NkiTensor]
        for term in terms:
            indices.append(by_position(term, operands, positions, False))
        bad = no_bad_index()
        exact = base.size // unit >= 1 << 24
        done = 0
        while done < positions:
            partitions = min(nl.tile_size.pmax, positions - done)
            length = min(run, (positions - done) // partitions)
            chosen = addresses(terms, indices, done, (partitions, length), bad, exact, True)
            for i in range(length):
                here = source[done + i * partitions : done + (i + 1) * partitions]
                for col in range(first, last, cols):
                    size = min(cols, last - col)
                    found = nl.ndarray((partitions, size), dtype=base.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=found, src=here[:, col : col + size])
                    goal = units.ap(
                        pattern=[[unit, partitions], [1, size]],
                        offset=col,
                        vector_offset=chosen[:, i : i + 1],
                        indirect_dim=0,
                    )
                    nisa.dma_copy(dst=goal, src=found)
            done = done + partitions * length
        refuse(bad)
    return out


def rows_in_order(
    values: nl.NkiTensor, spread: tuple[tuple[int, int], ...], positions: int, width: int
) -> nl.NkiTensor:
    """HBM `[positions, width]`"""
    if len(spread) == 0:
        return values.reshape((positions, width))
    copy = nl.ndarray((positions, width), dtype=values.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=copy, src=values.ap(pattern=spread, offset=0))
    return copy


def part_of(tensor: nl.NkiTensor, own: tuple[int, int, int] | None) -> nl.NkiTensor:
    """`[size]`; or `[units, columns]`, the columns of each unit from the first to the last of `own`
    (size of a unit, first, end)."""
    if own is None:
        return tensor.reshape((tensor.size,))
    return tensor.reshape((tensor.size // own[0], own[0]))[:, own[1] : own[2]]
