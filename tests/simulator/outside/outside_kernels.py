"""Kernels that use an instruction declared outside of trnx."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def cubes(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.cube(tile, tile)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def cubes_on_scalar(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.cube(tile, tile, engine=nisa.engine.scalar)
    return x


@nki.jit
def cubes_a_half(x):
    """The right half of the tile was never written; the left half of the result is returned."""
    rows, columns = x.shape
    tile = nl.ndarray((rows, 2 * columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0:columns], src=x)
    cubed = nl.ndarray((rows, 2 * columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.cube(cubed, tile)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=cubed[:, 0:columns])
    return out


@nki.jit
def returns_what_is_missing(x):
    rows, columns = x.shape
    tile = nl.ndarray((rows, 2 * columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0:columns], src=x)
    nisa.cube(tile, tile)  # the finding is here
    out = nl.ndarray((rows, 2 * columns), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def clips_on_three_ways(x, y):
    tile = nl.load(x)
    on_tiles = nl.clip(tile)
    by_vector = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(by_vector, tile, op0=nl.clip, operand0=None)
    by_scalar = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.activation(by_scalar, op=nl.clip, data=tile)
    lengths = nl.hypot(tile, nl.load(y))
    norms = nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(norms, op=nl.hypot, data=tile, axis=1)
    outs = []
    for tile in (on_tiles, by_vector, by_scalar, lengths, norms):
        out = nl.ndarray(tile.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        outs.append(out)
    return tuple(outs)


@nki.jit
def copies_in_hbm(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out
