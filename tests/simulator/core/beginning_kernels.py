"""Kernels of `test_beginnings.py`; loaded as twins."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def tiles(x):
    """x * 2, 128 rows at a time; the tiles of a grid are shared."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    step = 128 * nl.num_programs(0) if nl.num_programs(0) > 1 else 128
    first = 128 * nl.program_id(0) if nl.num_programs(0) > 1 else 0
    for start in range(first, x.shape[0], step):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + 128])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[start : start + 128], src=tile)
    return out


@nki.jit
def turns(x, count):
    """x, `count` times more than it was, in a register loop."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=total, src=tile)
    for _ in nl.dynamic_range(count):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
    nisa.dma_copy(dst=out, src=total)
    return out


@nki.jit
def reads_nothing(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def meets(x):
    """Two programs that meet behind more instructions of the first one."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    if nl.program_id(0) == 0:
        for _ in range(5):
            nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
    nisa.core_barrier(data=out, cores=(0, 1))
    return out
