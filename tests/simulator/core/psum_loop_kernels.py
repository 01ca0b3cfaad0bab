"""Products in register loops, into a PSUM tile that is older than the loop.

Each takes (a, b, count): float32 [t, k, m] and [t, k, n], int32 [1].
"""

import nki
import nki.isa as nisa
import nki.language as nl
from kernel_parts import register_of


def _product(total, a, b, i, accumulate):
    left = nl.ndarray(a.shape[1:], dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape[1:], dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a.select(0, i))
    nisa.dma_copy(dst=right, src=b.select(0, i))
    nisa.nc_matmul(dst=total, stationary=left, moving=right, accumulate=accumulate)


def _stored(total):
    held = nl.ndarray(total.shape, dtype=total.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=total)
    out = nl.ndarray(total.shape, dtype=total.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=held)
    return out


@nki.jit
def inferred(a, b, count):
    """Whether a turn adds to the ones before is left open."""
    total = nl.ndarray((a.shape[2], b.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for i in nl.dynamic_range(register_of(count)):
        _product(total, a, b, i, None)
    return _stored(total)


@nki.jit
def started_before(a, b, count):
    """The first product starts the group, those of the loop add to it."""
    total = nl.ndarray((a.shape[2], b.shape[2]), dtype=nl.float32, buffer=nl.psum)
    _product(total, a, b, 0, False)
    for i in nl.dynamic_range(1, register_of(count)):
        _product(total, a, b, i, True)
    return _stored(total)


@nki.jit
def read_in_each_turn(a, b, count):
    """Each turn reads its own product, and adds up in SBUF."""
    total = nl.ndarray((a.shape[2], b.shape[2]), dtype=nl.float32, buffer=nl.psum)
    summed = nl.zeros(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    for i in nl.dynamic_range(register_of(count)):
        _product(total, a, b, i, None)
        nisa.tensor_tensor(dst=summed, data1=summed, data2=total, op=nl.add)
    return _stored(summed)


@nki.jit
def added_behind(a, b, count):
    """Each turn overwrites the tile; the product behind the loop adds to the last one."""
    total = nl.ndarray((a.shape[2], b.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for i in nl.dynamic_range(register_of(count)):
        _product(total, a, b, i, False)
    _product(total, a, b, 0, True)
    return _stored(total)
