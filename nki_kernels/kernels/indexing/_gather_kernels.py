"""Kernels that read rows of an operand at addresses which index tensors give; `_terms.py` says how
a result is divided into rows."""

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
def gather_rows_kernel(
    shape: tuple[int, ...],
    rows: tuple[int, int, int],
    tile: tuple[int, int, int],
    terms: tuple[Term, ...],
    x: nl.NkiTensor,
    i0: nl.NkiTensor | None = None,
    i1: nl.NkiTensor | None = None,
    i2: nl.NkiTensor | None = None,
    i3: nl.NkiTensor | None = None,
    i4: nl.NkiTensor | None = None,
    i5: nl.NkiTensor | None = None,
    cores: int = 1,
) -> nl.NkiTensor:
    """The result of `shape`, which is `rows`: how many, elements of one, and of the unit of
    addresses in x. `tile`: partitions, rows in each, and elements of a row at a time.

    A transfer gathers a row for each partition. `cores` share the rows.
    """
    operands = (i0, i1, i2, i3, i4, i5)
    positions, width, unit = rows
    lanes, run, cols = tile
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    target = out.reshape((positions, width))
    units = x.reshape((x.size // unit, unit))
    indices = []  # type: list[nl.NkiTensor]
    for term in terms:
        indices.append(by_position(term, operands, positions, lanes * run == positions))
    bad = no_bad_index()
    done, end = _own_rows(positions, lanes * run, cores)
    while done < end:
        partitions = min(lanes, end - done)
        length = min(run, (end - done) // partitions)
        count = partitions * length
        chosen = addresses(
            terms, indices, done, (partitions, length), bad, x.size // unit >= 1 << 24, False
        )
        goal = target[done : done + count].reshape_dim(0, (partitions, length))
        for col in range(0, width, cols):
            size = min(cols, width - col)
            found = nl.ndarray((partitions, length, size), dtype=x.dtype, buffer=nl.sbuf)
            for i in range(length):
                source = units.ap(
                    pattern=[[unit, partitions], [1, size]],
                    offset=col,
                    vector_offset=chosen[:, i : i + 1],
                    indirect_dim=0,
                )
                nisa.dma_copy(dst=found[:, i, :], src=source)
            nisa.dma_copy(dst=goal[:, :, col : col + size], src=found)
        done = done + count
    refuse(bad)
    return out


@nki.jit
def gather_table_kernel(
    shape: tuple[int, ...],
    rows: tuple[int, int, int],
    tile: tuple[int, int, int],
    terms: tuple[Term, ...],
    x: nl.NkiTensor,
    i0: nl.NkiTensor | None = None,
    i1: nl.NkiTensor | None = None,
    i2: nl.NkiTensor | None = None,
    i3: nl.NkiTensor | None = None,
    i4: nl.NkiTensor | None = None,
    i5: nl.NkiTensor | None = None,
    cores: int = 1,
) -> nl.NkiTensor:
    """As `gather_rows_kernel`, for an x of which every partition holds a copy: GpSimd gathers the
    elements of short rows, which take a descriptor each otherwise.
    """
    operands = (i0, i1, i2, i3, i4, i5)
    positions, width, unit = rows
    lanes, run, _ = tile
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    target = out.reshape((positions, width))
    indices = []  # type: list[nl.NkiTensor]
    for term in terms:
        indices.append(by_position(term, operands, positions, lanes * run == positions))
    table = nl.ndarray((lanes, x.size), dtype=x.dtype, buffer=nl.sbuf)
    flat = x.reshape((1, x.size))
    copies = flat.ap(pattern=[[0, lanes], [1, x.size]])
    nisa.dma_copy(dst=table, src=copies, dge_mode=nisa.dge_mode.none)
    columns = nl.ndarray((lanes, width), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=columns, pattern=[[1, width]], offset=0, channel_multiplier=0)
    bad = no_bad_index()
    done, end = _own_rows(positions, lanes * run, cores)
    while done < end:
        partitions = min(lanes, end - done)
        length = min(run, (end - done) // partitions)
        full = (partitions, length, width)
        chosen = addresses(terms, indices, done, (partitions, length), bad, False, False)
        elements = nl.ndarray(full, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=elements,
            data=chosen.ap(pattern=[[length, partitions], [1, length], [0, width]]),
            op0=nl.multiply,
            operand0=float(unit),
            op1=nl.add,
            operand1=columns.ap(pattern=[[width, partitions], [0, length], [1, width]]),
        )
        found = nl.ndarray(full, dtype=x.dtype, buffer=nl.sbuf)
        nisa.nc_n_gather(dst=found, data=table[0:partitions, :], indices=elements)
        goal = target[done : done + partitions * length]
        goal = goal.reshape_dim(0, (partitions, length))
        nisa.dma_copy(dst=goal, src=found, dge_mode=nisa.dge_mode.none)
        done = done + partitions * length
    refuse(bad)
    return out


def _own_rows(positions: int, tile: int, cores: int) -> tuple[int, int]:
    """This program's rows; what one tile has is not cut, as its index may be read in one piece."""
    return share_of(positions, cores, positions if tile == positions else 1)
