"""Kernels that move tiles of which a part is filled, and use that part."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def broadcasts_a_partition(x, row, used):
    """Fills the rows of `x` alone, spreads `row` of each quadrant, returns quadrant `used`."""
    rows, width = x.shape
    tile = nl.ndarray((128, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[0:rows], src=x)
    spread = nl.ndarray((128, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.nc_stream_shuffle(dst=spread, src=tile, shuffle_mask=[row] * 32)
    out = nl.ndarray((32, width), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=spread[used * 32 : (used + 1) * 32])
    return out


@nki.jit
def moves_one_partition(x, used):
    """Fills partitions 0 and 16, brings 16 of each quadrant to its first, keeps the others."""
    width = x.shape[1]
    tile = nl.ndarray((64, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[0:1], src=x[0:1])
    nisa.dma_copy(dst=tile[16:17], src=x[1:2])
    nisa.nc_stream_shuffle(dst=tile, src=tile, shuffle_mask=[16] + [255] * 31)
    out = nl.ndarray((1, width), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile[used : used + 1])
    return out


@nki.jit
def exchanges_unequal_parts(x, takes):
    """Program 0 has three rows, program 1 two; each takes `takes[program]` rows of the other."""
    me = nl.program_id(0)
    rows, width = (3, 2)[me], x.shape[1]
    mine = nl.ndarray((3, width), dtype=x.dtype, buffer=nl.sbuf)
    theirs = nl.ndarray((3, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=mine[0:rows], src=x[3 * me : 3 * me + rows])
    nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    out = nl.ndarray((2, 3, width), dtype=x.dtype, buffer=nl.shared_hbm)
    zeros = nl.ndarray((3, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    nisa.tensor_copy(dst=zeros[0 : takes[me]], src=theirs[0 : takes[me]])
    nisa.dma_copy(dst=out[me], src=zeros)
    return out


@nki.jit
def selects_by_a_partial_mask(x, mask, used):
    """The mask has one element less than the tile; returns `used` elements of each partition."""
    rows, width = x.shape
    tile = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.sbuf)
    flags = nl.ndarray((rows, width), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=flags[:, : width - 1], src=mask)
    source = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=source, src=x)
    nisa.tensor_copy_predicated(dst=tile, src=source, predicate=flags)
    out = nl.ndarray((rows, used), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile[:, :used])
    return out


@nki.jit
def fills_by_two_predicates(x, y, mask, second, changes_mask):
    """Copies x where the mask holds, then y where it does not (`second` True) or does again."""
    a, b, flags = nl.load(x), nl.load(y), nl.load(mask)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy_predicated(dst=tile, src=a, predicate=flags)
    if changes_mask:
        nisa.memset(flags, value=1)
    nisa.tensor_copy_predicated(dst=tile, src=b, predicate=flags, reverse_pred=second)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def shuffles_into_a_new_tile(x, used):
    """Writes the first 16 partitions of a new tile by a shuffle, and returns partition `used`."""
    tile = nl.load(x)
    spread = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.nc_stream_shuffle(dst=spread, src=tile, shuffle_mask=[0] * 16 + [255] * 16)
    out = nl.ndarray((16, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    rows = nl.add(spread, 0.0)
    nisa.dma_copy(dst=out, src=rows[0:16] if used < 16 else rows[16:32])
    return out


@nki.jit
def counts_nonzeros(x, first, fills):
    """Returns 16 rows from row `first` on, of which the instruction writes every sixteenth."""
    rows, width = x.shape
    tile = nl.ndarray((rows, width), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    found = nl.ndarray((rows, width + 1), dtype=nl.int32, buffer=nl.sbuf)
    if fills:
        nisa.memset(found, value=7)
    nisa.nonzero_with_count(dst=found, src=tile)
    count = 16 if fills else 1
    out = nl.ndarray((count, width + 1), dtype=nl.int32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=found[first : first + count])
    return out


@nki.jit
def computes_on_a_part(x, rows, columns, of_rows):
    """Functions of tiles of which a part is filled; returns `rows` x `columns` of the result."""
    filled, width = x.shape
    tile = nl.ndarray((128, width + 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[0:filled, 0:width], src=x)
    if of_rows:
        result = nl.max(tile, axis=1, keepdims=True)
    else:
        result = nl.multiply(nl.floor(tile), nl.cos(tile))
    out = nl.ndarray((rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=result[0:rows, 0:columns])
    return out


@nki.jit
def adds_to_a_partial_product(a, b, rows):
    """The first factor of the first product lacks its last columns; returns `rows` of the sum."""
    depth, count = a.shape
    part = nl.ndarray((depth, count + 1), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=part[:, 0:count], src=a)
    whole = nl.zeros((depth, count + 1), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=whole[:, 0:count], src=a)
    right = nl.load(b)
    total = nl.ndarray((count + 1, b.shape[1]), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=total, stationary=part, moving=right)
    nisa.nc_matmul(dst=total, stationary=whole, moving=right)
    held = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=held, src=total)
    out = nl.ndarray((rows, b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=held[0:rows])
    return out
