"""What kernels of these tests share."""

import nki.isa as nisa
import nki.language as nl


def register_of(source):
    """A register with the one element of an int32 tensor in HBM."""
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=held, src=source.reshape((1, 1)))
    register = nisa.register_alloc()
    nisa.register_load(register, held)
    return register


def stored(tile):
    """A result with the elements of a tile in SBUF."""
    out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
