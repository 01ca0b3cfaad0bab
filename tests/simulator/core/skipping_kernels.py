"""Kernels whose gathers may skip rows of tiles that nothing else has filled."""

import nki
import nki.isa as nisa
import nki.language as nl


def fetch(dst, table, ids):
    """Gather rows of `table` by `ids`; those out of bounds are left out."""
    count, width = ids.shape[0], table.shape[1]
    index = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.reshape((count, 1)))
    rows = table.ap([[width, count], [1, width]], vector_offset=index)
    nisa.dma_copy(dst=dst, src=rows, oob_mode=nisa.oob_mode.skip)


@nki.jit
def doubles_rows(table, ids, used):
    """Gathers, doubles all rows, returns the first `used`."""
    tile = nl.ndarray((ids.shape[0], table.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    fetch(tile, table, ids)
    doubled = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(doubled, tile, op0=nl.multiply, operand0=2.0)
    out = nl.ndarray((used, table.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=doubled[0:used])
    return out


@nki.jit
def sums_rows(table, ids, more):
    """Two gathers into one tile, added up over its rows."""
    tile = nl.ndarray((ids.shape[0], table.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    fetch(tile, table, ids)
    fetch(tile, table, more)
    ones = nl.ndarray((ids.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(ones, value=1.0)
    total = nl.ndarray((1, table.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(total, stationary=ones, moving=tile)
    held = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(held, total)
    out = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=held)
    return out


@nki.jit
def gathers_to_the_result(table, ids, fills):
    """Gathers straight into what the kernel returns."""
    out = nl.ndarray((ids.shape[0], table.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    if fills:
        zero = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(zero, value=0.0)
        nisa.dma_copy(dst=out, src=zero)
    fetch(out, table, ids)
    return out


@nki.jit
def gathers_converted(table, ids, used):
    """Gathers with another type."""
    tile = nl.ndarray((ids.shape[0], table.shape[1]), dtype=nl.bfloat16, buffer=nl.sbuf)
    fetch(tile, table, ids)
    out = nl.ndarray((used, table.shape[1]), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile[0:used])
    return out


@nki.jit
def transposes_rows(table, ids, used, fills):
    """Gathers the rows as columns, and returns the first `used`."""
    count, width = ids.shape[0], table.shape[1]
    index = nl.ndarray((count, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.reshape((count, 1)))
    tile = nl.ndarray((width, count), dtype=table.dtype, buffer=nl.sbuf)
    if fills:
        nisa.memset(tile, value=7.0)
    rows = table.ap([[width, count], [1, width]], vector_offset=index)
    nisa.dma_transpose(dst=tile, src=rows, oob_mode=nisa.oob_mode.skip)
    out = nl.ndarray((width, used), dtype=table.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile[:, 0:used])
    return out


@nki.jit
def gathers_from_gathered(table, ids, chosen):
    """Gathers to HBM, and from there again."""
    held = nl.ndarray((ids.shape[0], table.shape[1]), dtype=nl.float32, buffer=nl.private_hbm)
    fetch(held, table, ids)
    tile = nl.ndarray((chosen.shape[0], table.shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    fetch(tile, held, chosen)
    out = nl.ndarray(tile.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out
