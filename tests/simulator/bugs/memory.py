"""Seeded bugs: content, bounds, capacity, addresses. The wrong line of a kernel is marked."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def reads_an_unwritten_tile(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=out, src=tile)  # BUG
    return out


@nki.jit
def misses_the_last_column(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, : x.shape[1] - 1], src=x[:, : x.shape[1] - 1])
    nisa.activation(dst=tile, op=nl.exp, data=tile)  # BUG
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def writes_even_columns_alone(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0 : x.shape[1] : 2], src=x[:, 0 : x.shape[1] : 2])
    nisa.dma_copy(dst=out, src=tile)  # BUG
    return out


@nki.jit
def forgets_the_remainder_rows(x):
    """The last rows of a tensor that is no multiple of the tile."""
    out = nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[0], 128):
        rows = min(96, x.shape[0] - start)
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile[:rows], src=x[nl.ds(start, rows)])
        total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1)  # BUG
        nisa.dma_copy(dst=out[nl.ds(start, 128)], src=total)
    return out


@nki.jit
def reads_psum_without_a_product(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    acc = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.psum)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=acc)  # BUG
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def uses_a_bias_that_is_unset(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    bias = nl.ndarray((x.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.activation(dst=tile, op=nl.relu, data=tile, bias=bias)  # BUG
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def returns_half_a_result(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out[0:64], src=tile[0:64])
    return out  # BUG


@nki.jit
def returns_private_memory(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out  # BUG


@nki.jit
def returns_a_number(x):
    return x.shape[0]  # BUG


@nki.jit
def reads_hbm_that_nobody_wrote(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scratch = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=scratch)  # BUG
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def uses_a_register_without_value(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    row = nisa.register_alloc()
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(row, 1)])  # BUG
    nisa.dma_copy(dst=out[0:1], src=tile)
    return out


@nki.jit
def loops_to_a_register_without_value(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    count = nisa.register_alloc()
    for _ in nl.dynamic_range(count):  # BUG
        nisa.memset(dst=tile, value=0.0)
    return x


# ---- out of bounds ----


@nki.jit
def slices_past_the_end(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile.slice(1, 60, 65), value=0.0)  # BUG
    return x


@nki.jit
def starts_past_the_end(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile[:, 64:80], value=0.0)  # BUG
    return x


@nki.jit
def takes_a_row_that_is_not_there(x):
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[x.shape[0]])  # BUG
    return x


@nki.jit
def has_a_pattern_that_is_too_long(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x.ap([[64, 128], [1, 64]], offset=1))  # BUG
    return x


@nki.jit
def has_a_pattern_beyond_the_partition(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile.ap([[64, 128], [2, 33]]), value=0.0)  # BUG
    return x


@nki.jit
def has_a_pattern_beyond_the_last_partition(x):
    tile = nl.ndarray((64, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile.ap([[64, 64], [1, 8]], offset=64 * 32), value=0.0)  # BUG
    return x


@nki.jit
def selects_past_the_end(x):
    tile = nl.ndarray((128, 4, 16), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile.select(1, 4), value=0.0)  # BUG
    return x


@nki.jit
def gathers_a_row_that_is_not_there(x, ids):
    out = nl.ndarray((ids.shape[0], x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((ids.shape[0], 1), dtype=nl.int32, buffer=nl.sbuf)
    rows = nl.ndarray((ids.shape[0], x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.reshape((ids.shape[0], 1)))
    nisa.dma_copy(dst=rows, src=x.vector_select(0, index))  # BUG
    nisa.dma_copy(dst=out, src=rows)
    return out


@nki.jit
def scatters_to_a_row_that_is_not_there(x, ids):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((ids.shape[0], 1), dtype=nl.int32, buffer=nl.sbuf)
    rows = nl.ndarray((ids.shape[0], x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=rows, value=0.0)
    nisa.dma_copy(dst=index, src=ids.reshape((ids.shape[0], 1)))
    nisa.dma_copy(dst=out.vector_select(0, index), src=rows)  # BUG
    return out


# ---- capacity ----


@nki.jit
def holds_too_much_sbuf(x):
    held = []
    for _ in range(3):
        tile = nl.ndarray((128, 20 * 1024), dtype=nl.float32, buffer=nl.sbuf)  # BUG
        nisa.memset(dst=tile, value=0.0)
        held.append(tile)
    for tile in held:
        nisa.dma_copy(dst=x, src=tile[:, :64])
    return x


@nki.jit
def holds_too_many_banks(x):
    held = []
    for _ in range(9):
        acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)  # BUG
        nisa.memset(dst=acc, value=0.0)
        held.append(acc)
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    for acc in held:
        nisa.tensor_copy(dst=tile, src=acc[:, :64])
        nisa.dma_copy(dst=x, src=tile)
    return x


@nki.jit
def carries_too_much_through_a_loop(x):
    """The tile from before the loop is used in every turn, so it lives beside the loop's own."""
    first = nl.ndarray((128, 30 * 1024), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=first, value=0.0)

    def body(_):
        nisa.dma_copy(dst=x, src=first[:, :64])
        second = nl.ndarray((128, 30 * 1024), dtype=nl.float32, buffer=nl.sbuf)  # BUG
        nisa.memset(dst=second, value=0.0)
        nisa.dma_copy(dst=x, src=second[:, :64])

    nl.fori_loop(0, 4, body)
    return x


@nki.jit
def asks_for_more_than_a_partition(x):
    nl.ndarray((128, 80 * 1024), dtype=nl.float32, buffer=nl.sbuf)  # BUG
    return x


@nki.jit
def asks_for_more_than_psum(x):
    nl.ndarray((128, 4097), dtype=nl.float32, buffer=nl.psum)  # BUG
    return x


# ---- addresses ----


@nki.jit
def places_a_tile_outside_of_sbuf(x):
    nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, 229300))  # BUG
    return x


@nki.jit
def places_a_tile_past_the_last_partition(x):
    nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf, address=(96, 0))  # BUG
    return x


@nki.jit
def places_a_tile_between_banks(x):
    nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum, address=(0, 1024))  # BUG
    return x


@nki.jit
def overwrites_a_neighbour(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, 252))
    nisa.dma_copy(dst=a, src=x)
    nisa.memset(dst=b, value=0.0)
    nisa.dma_copy(dst=out, src=a)  # BUG
    nisa.dma_copy(dst=out, src=b)
    return out


@nki.jit
def reuses_a_buffer_too_early(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    first = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf, address=(0, 1024))
    nisa.dma_copy(dst=first, src=x)
    second = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf, address=(0, 1024))
    nisa.activation(dst=second, op=nl.exp, data=first)
    nisa.tensor_tensor(dst=second, data1=first, data2=second, op=nl.add)  # BUG
    nisa.dma_copy(dst=out, src=second)
    return out


@nki.jit
def overlaps_in_psum(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum, address=(0, 2048))
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum, address=(0, 2048))
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=a, src=tile)
    nisa.memset(dst=b[:, 0:1], value=0.0)
    nisa.tensor_copy(dst=tile, src=a)  # BUG
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def gathers_a_row_that_nothing_wrote(x, ids):
    held = nl.ndarray((8, x.shape[1]), dtype=x.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=held[0:4], src=x[0:4])
    index = nl.ndarray((3, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.reshape((3, 1)))
    rows = nl.ndarray((3, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=held.vector_select(0, index))  # BUG
    return x
