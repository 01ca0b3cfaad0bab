"""Kernels that repeat one instruction, for `probes.py`. AWS's package and the simulator run them
alike.
"""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def repeat(x, kind, count, is_chain):
    """`count` instructions on tiles like x [128, columns]; in a chain each needs the one before,
    else eight tiles take turns.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    tiles = []
    for _ in range(1 if is_chain else 8):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=source)
        tiles.append(tile)
    for i in range(count):
        tile = tiles[i % len(tiles)]
        if kind == "copy":
            nisa.tensor_copy(dst=tile, src=tile if is_chain else source, engine=nisa.vector_engine)
        elif kind == "add":
            nisa.tensor_tensor(dst=tile, data1=tile, data2=source, op=nl.add)
        elif kind == "add on gpsimd":
            nisa.tensor_tensor(
                dst=tile, data1=tile, data2=source, op=nl.add, engine=nisa.gpsimd_engine
            )
        elif kind == "exp":
            nisa.activation(dst=tile, op=nl.exp, data=tile if is_chain else source)
        elif kind == "tables":
            function = nl.exp if i % 2 == 0 else nl.gelu
            nisa.activation(dst=tile, op=function, data=source)
        else:
            nisa.dma_copy(dst=tile, src=x)
    for tile in tiles:
        nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def products(lhs_t, rhs, count):
    """`count` products into one sum."""
    out = nl.ndarray((lhs_t.shape[1], rhs.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray(lhs_t.shape, dtype=lhs_t.dtype, buffer=nl.sbuf)
    b = nl.ndarray(rhs.shape, dtype=rhs.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=lhs_t)
    nisa.dma_copy(dst=b, src=rhs)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    for _ in range(count):
        nisa.nc_matmul(dst=acc, stationary=a, moving=b)
    held = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=acc)
    nisa.dma_copy(dst=out, src=held)
    return out
