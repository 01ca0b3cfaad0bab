"""Two programs that use shared HBM in register loops; loaded as a twin."""

import nki
import nki.isa as nisa
import nki.language as nl
from kernel_parts import register_of


@nki.jit
def stores_rows(x, ids, counts, reads_back):
    """Each program stores its row of x to the rows of `out` that its row of `ids` names."""
    me = nl.program_id()
    out = nl.ndarray((8, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    index = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    if me == 0:
        zero = nl.ndarray((8, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=zero, value=0.0)
        nisa.dma_copy(dst=out, src=zero)
    nisa.core_barrier(out, (0, 1))
    nisa.dma_copy(dst=row, src=x[nl.ds(me, 1)])
    for i in nl.dynamic_range(register_of(counts[nl.ds(me, 1)])):
        nisa.dma_copy(dst=index, src=ids[nl.ds(me, 1)].reshape((ids.shape[1], 1))[nl.ds(i, 1)])
        at = nisa.register_alloc()
        nisa.register_load(at, index)
        nisa.dma_copy(dst=out[nl.ds(at, 1)], src=row)
        if reads_back:
            nisa.dma_copy(dst=row, src=out[nl.ds(at, 1)])
    return out


@nki.jit
def gathers_what_the_other_scatters(x, ids):
    """Program 0 scatters rows, in a loop; program 1 gathers rows, in a loop."""
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    held = nl.ndarray((8, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    index = nl.ndarray((x.shape[0], 1), dtype=nl.int32, buffer=nl.sbuf)
    zero = nl.ndarray((8, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    if me == 0:
        nisa.memset(dst=zero, value=0.0)
        nisa.dma_copy(dst=held, src=zero)
    nisa.core_barrier(held, (0, 1))
    for i in nl.dynamic_range(2):
        nisa.dma_copy(dst=index, src=ids[me].reshape((2, x.shape[0]))[nl.ds(i, 1)])
        rows = held.ap(
            pattern=[[x.shape[1], x.shape[0]], [1, x.shape[1]]], vector_offset=index, indirect_dim=0
        )
        if me == 0:
            nisa.dma_copy(dst=rows, src=tile)
        else:
            nisa.dma_copy(dst=tile, src=rows)
    if me == 1:
        nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def reads_before_it_waits(x, count, barriers):
    """A turn reads the other's row, waits, and stores its own; with one barrier a turn nothing lies
    between a store and the other's read in the next turn.
    """
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x[nl.ds(me, 1)])
    nisa.dma_copy(dst=out[nl.ds(me, 1)], src=row)
    nisa.core_barrier(out, (0, 1))

    def turn(_):
        nisa.dma_copy(dst=row, src=out[nl.ds(1 - me, 1)])
        nisa.core_barrier(out, (0, 1))
        nisa.dma_copy(dst=out[nl.ds(me, 1)], src=row)
        if barriers == 2:
            nisa.core_barrier(out, (0, 1))

    nl.fori_loop(0, register_of(count), turn)
    return out
