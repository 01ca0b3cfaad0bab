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
        elif kind == "copy on gpsimd":
            nisa.tensor_copy(dst=tile, src=source, engine=nisa.gpsimd_engine)
        elif kind == "load by software":
            nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.swdge)
        elif kind == "load by scalar":
            nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.hwdge, engine=nisa.scalar_engine)
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


@nki.jit
def alternate(x, second, count):
    """`count` activations of x [128, columns], exp and `second` in turns."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    other = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    for i in range(count):
        if i % 2 == 0:
            nisa.activation(dst=tile, op=nl.exp, data=source)
        elif second == "gelu":
            nisa.activation(dst=other, op=nl.gelu, data=source)
        elif second == "silu":
            nisa.activation(dst=other, op=nl.silu, data=source)
        elif second == "tanh":
            nisa.activation(dst=other, op=nl.tanh, data=source)
        elif second == "rsqrt":
            nisa.activation(dst=other, op=nl.rsqrt, data=source)
        else:
            nisa.activation(dst=other, op=nl.square, data=source)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=other, op=nl.add)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def strided(x, step, count):
    """`count` copies of every `step`th column of x [128, columns]."""
    columns = x.shape[1] // step
    out = nl.ndarray((x.shape[0], columns), dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    tile = nl.ndarray((x.shape[0], columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    for _ in range(count):
        nisa.tensor_copy(dst=tile, src=source[:, 0 : x.shape[1] : step], engine=nisa.vector_engine)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def out_of_psum(x, count):
    """`count` copies of float32 sums like x [128, columns] to tiles of x's dtype."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    sums = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.psum)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=sums, src=tile, engine=nisa.vector_engine)
    for _ in range(count):
        nisa.tensor_copy(dst=tile, src=sums, engine=nisa.vector_engine)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def turns(x, count, is_anew):
    """`count` times load, exp and store of x [128, columns]; one tile for all, or one a turn."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    for _ in range(count):
        if is_anew:
            tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def sums(x, y, count, is_cleared):
    """`count` products of x [128, 128] and y [128, columns] into one tile of PSUM, each copied out;
    a cleared one is set to 0 in front of its product, which needs no zeros.
    """
    out = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.shared_hbm)
    stationary = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    moving = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    result = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.sbuf)
    total = nl.ndarray(y.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=stationary, src=x)
    nisa.dma_copy(dst=moving, src=y)
    for _ in range(count):
        if is_cleared:
            nisa.memset(dst=total, value=0.0)
        nisa.nc_matmul(dst=total, stationary=stationary, moving=moving, accumulate=False)
        nisa.tensor_copy(dst=result, src=total, engine=nisa.vector_engine)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def assigned(x, count, is_made):
    """`count` times exp of x [128, columns] for eight tiles in turns: made by nl.exp and assigned,
    or written into the tile.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    source = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    tiles = []
    for _ in range(8):
        tiles.append(nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf))
    for i in range(count):
        tile = tiles[i % 8]
        if is_made:
            tile[...] = nl.exp(source)
        else:
            nisa.activation(dst=tile, op=nl.exp, data=source)
    nisa.dma_copy(dst=out, src=tiles[0])
    return out


@nki.jit
def both(x, kind, count):
    """On two cores, each with half of x [256, columns]: `count` loads, exchanges or barriers."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tiles = []
    for _ in range(8):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[nl.ds(128 * me, 128)])
        tiles.append(tile)
    for i in range(count):
        tile = tiles[i % 8]
        if kind == "load":
            nisa.dma_copy(dst=tile, src=x[nl.ds(128 * me, 128)])
        elif kind == "exchange":
            nisa.sendrecv(
                src=tiles[(i + 1) % 8],
                dst=tile,
                send_to_rank=1 - me,
                recv_from_rank=1 - me,
                pipe_id=0,
            )
        else:
            nisa.core_barrier(data=out, cores=(0, 1))
    nisa.dma_copy(dst=out[nl.ds(128 * me, 128)], src=tiles[0])
    return out
