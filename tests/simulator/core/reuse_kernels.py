"""Kernels of the tests of what instructions share: copies of operands, buffers, steps."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def products_around_a_write(x, y, z):
    """x.T @ y, then x.T @ z from the tile that held y, then that again."""
    n = y.shape[1]
    out = nl.ndarray((3, x.shape[1], n), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.load(y)
    for i in range(3):
        if i == 1:
            nisa.dma_copy(dst=b[:, 0 : n // 2], src=z[:, 0 : n // 2])
            nisa.dma_copy(dst=b[:, n // 2 : n], src=z[:, n // 2 : n])
        bank = nl.ndarray((x.shape[1], n), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=a, moving=b)
        result = nl.copy(bank)
        nisa.dma_copy(dst=out[i], src=result)
    return out


@nki.jit
def products_in_a_loop(x, y, turns):
    """x.T @ y; in each turn y is halved after its product, and the last product is returned."""
    out = nl.ndarray((2, x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.load(x)
    b = nl.load(y)
    bank = nl.ndarray((x.shape[1], y.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=a, moving=b)
    first = nl.copy(bank)
    nisa.dma_copy(dst=out[0], src=first)
    nisa.dma_copy(dst=out[1], src=first)

    def turn(_):
        nisa.nc_matmul(dst=bank, stationary=a, moving=b, accumulate=False)
        result = nl.copy(bank)
        nisa.dma_copy(dst=out[1], src=result)
        nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0=0.5)

    nl.fori_loop(0, turns, turn)
    return out


@nki.jit
def transposes(x):
    """x.T by nc_transpose and by dma_transpose."""
    rows, columns = x.shape
    out = nl.ndarray((2, columns, rows), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((rows, 2 * columns), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, columns : 2 * columns], src=x)
    bank = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=tile[:, columns : 2 * columns], engine=nisa.engine.tensor)
    turned = nl.copy(bank)
    nisa.dma_copy(dst=out[0], src=turned)
    moved = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_transpose(dst=moved, src=x)
    nisa.dma_copy(dst=out[1], src=moved)
    return out


@nki.jit
def planes(x):
    """x[rows, planes, columns] reversed by dma_transpose."""
    out = nl.ndarray(x.shape[::-1], dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape[::-1], dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_transpose(dst=tile, src=x, axes=(2, 1, 0))
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def zeros(x):
    """x * -0.0 and x * 0.0, rounded to nothing else."""
    out = nl.ndarray((2,) + x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    for i in range(2):
        result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        factor = 0.0 if i else -0.0
        nisa.tensor_scalar(dst=result, data=tile, op0=nl.multiply, operand0=factor)
        nisa.dma_copy(dst=out[i], src=result)
    return out


@nki.jit
def turns(x, count):
    """x through `count` equal turns on tiles of their own."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for _ in range(count):
        tile = nl.load(x)
        nisa.activation(dst=tile, op=nl.exp, data=tile)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nl.store(out, tile)
    return out


@nki.jit
def products_around_an_exchange(x, y):
    """Program i: x.T @ y[i], then x.T @ y[1 - i], which the other program sends into the tile."""
    n = y.shape[2]
    out = nl.ndarray((2, 2, x.shape[1], n), dtype=nl.float32, buffer=nl.shared_hbm)
    me = nl.program_id()
    a = nl.load(x)
    b = nl.load(y[me])
    for i in range(2):
        bank = nl.ndarray((x.shape[1], n), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=a, moving=b)
        result = nl.copy(bank)
        nisa.dma_copy(dst=out[me, i], src=result)
        if i == 0:
            nisa.sendrecv(src=b, dst=b, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    return out


@nki.jit
def nested_turns(x, outer, inner):
    """Turns in turns: `held` is read in all of them, `first` in those of one outer turn; the other
    tiles come and go.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    held = nl.load(x)
    for _ in nl.dynamic_range(outer):
        first = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=first, data1=held, data2=total, op=nl.subtract)
        for k in range(3):
            gone = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=gone, data=first, op0=nl.multiply, operand0=float(k))
            nisa.tensor_tensor(dst=total, data1=total, data2=gone, op=nl.add)
        for _ in nl.dynamic_range(inner):
            one = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=one, data1=first, data2=held, op=nl.add)
            other = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=other, data=one, op0=nl.multiply, operand0=0.5)
            one = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=one, data=other, op0=nl.add, operand0=1.0)
            nisa.tensor_tensor(dst=total, data1=total, data2=one, op=nl.add)
        last = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=last, data=first, op0=nl.multiply, operand0=0.25)
        nisa.tensor_tensor(dst=total, data1=total, data2=last, op=nl.subtract)
    held = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=total)
    nl.store(out, held)
    return out


@nki.jit
def many_tiles_in_a_turn(x, tiles):
    """x with 1 added `tiles` times in each of two turns, to a fresh tile each."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.load(x)
    for _ in nl.dynamic_range(2):
        for _ in range(tiles):
            tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=tile, data=total, op0=nl.add, operand0=1.0)
            nisa.tensor_copy(dst=total, src=tile)
    nl.store(out, total)
    return out


@nki.jit
def dropped_in_turns(x, outer, inner):
    """Turns that read tiles which nothing refers to when their body ends."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    tile = nl.load(x)
    for _ in nl.dynamic_range(outer):
        first = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=first, data1=tile, data2=total, op=nl.subtract)
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=tile, data=first, op0=nl.multiply, operand0=0.5)
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
        for _ in nl.dynamic_range(inner):
            nisa.tensor_tensor(dst=total, data1=total, data2=first, op=nl.add)
            first = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=first, data=total, op0=nl.multiply, operand0=0.125)
            other = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=other, data=first, op0=nl.add, operand0=1.0)
            nisa.tensor_tensor(dst=total, data1=total, data2=other, op=nl.subtract)
    nl.store(out, total)
    return out


@nki.jit
def turns_that_meet(x, turns):
    """Program i adds up `2 * x[1 - i] + 1`, `turns` times; it gets that anew in each turn. A tile
    of the turn is gone when the programs meet.
    """
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mine = nl.load(x[me])
    total = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    for _ in nl.dynamic_range(turns):
        tile = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=tile, data=mine, op0=nl.multiply, operand0=2.0)
        result = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=tile, op0=nl.add, operand0=1.0)
        got = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
        tile = result
        nisa.sendrecv(src=tile, dst=got, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.tensor_tensor(dst=total, data1=total, data2=got, op=nl.add)
    nl.store(out[me], total)
    return out
