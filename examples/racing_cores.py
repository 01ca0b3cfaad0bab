"""The kernels of `debug_a_race.py`: two cores, one scratch tensor in shared HBM."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def swap_halves(x, scratch, waits):
    """Each core writes its half of x to scratch, and reads the half of the other. Without `waits`
    it may read before the other has written.
    """
    rows, columns = x.shape
    core = nl.program_id(0)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    half = rows // 2
    own = nl.ndarray((half, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=own, src=x[core * half : (core + 1) * half])
    nisa.dma_copy(dst=scratch[core * half : (core + 1) * half], src=own)
    if waits:
        nisa.core_barrier(data=scratch, cores=(0, 1))
    other = nl.ndarray((half, columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=other, src=scratch[(1 - core) * half : (2 - core) * half])
    nisa.dma_copy(dst=out[core * half : (core + 1) * half], src=other)
    return out
