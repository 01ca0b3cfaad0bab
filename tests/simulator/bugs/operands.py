"""Seeded bugs: types, engines, generations, values that only a run knows. The line is marked."""

import nki
import nki.isa as nisa
import nki.language as nl


def _loaded(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile


def _filled(shape, dtype, value, buffer):
    tile = nl.ndarray(shape, dtype=dtype, buffer=buffer)
    nisa.memset(dst=tile, value=value)
    return tile


# ---- types ----


@nki.jit
def bounds_a_range_with_integers(x):
    tile = _loaded(x)
    bound = _filled((128, 1), nl.int32, 3, nl.sbuf)
    total = _filled((128, 1), nl.float32, 0.0, nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.range_select(  # BUG
        dst=out,
        on_true_tile=tile,
        comp_op0=nl.greater,
        comp_op1=nl.less,
        bound0=bound,
        bound1=bound,
        reduce_res=total,
    )
    return x


@nki.jit
def allocates_a_type_that_is_none(x):
    nl.ndarray((4, 4), dtype="float64", buffer=nl.sbuf)  # BUG
    return x


@nki.jit
def selects_with_a_float_predicate(x):
    tile = _loaded(x)
    nisa.tensor_copy_predicated(dst=tile, src=tile, predicate=tile)  # BUG
    return x


@nki.jit
def selects_another_type(x):
    tile = _loaded(x)
    mask = _filled((128, 64), nl.uint8, 1, nl.sbuf)
    half = _filled((128, 64), nl.bfloat16, 0.0, nl.sbuf)
    nisa.tensor_copy_predicated(dst=half, src=tile, predicate=mask)  # BUG
    return x


# ---- engines and generations ----


@nki.jit
def adds_on_the_scalar_engine(x):
    tile = _loaded(x)
    nisa.tensor_tensor(tile, tile, tile, op=nl.add, engine=nisa.engine.scalar)  # BUG
    return x


@nki.jit
def multiplies_by_a_tile_on_scalar(x):
    tile = _loaded(x)
    nisa.tensor_scalar(  # BUG
        dst=tile, data=tile, op0=nl.maximum, operand0=0.0, engine=nisa.engine.scalar
    )
    return x


@nki.jit
def fills_psum_on_gpsimd(x):
    bank = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.tensor_tensor(  # BUG
        dst=bank, data1=_loaded(x), data2=_loaded(x), op=nl.add, engine=nisa.engine.gpsimd
    )
    return x


@nki.jit
def doubles_rows_on_trn1(x):
    a = _filled((128, 2, 64), nl.float8_e5m2, 0.0, nl.sbuf)
    bank = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank, a, a, perf_mode=nisa.matmul_perf_mode.double_row)  # BUG
    return x


@nki.jit
def takes_an_exponential_on_trn2(x):
    tile = _loaded(x)
    nisa.exponential(dst=tile, src=tile)  # BUG
    return x


@nki.jit
def gathers_on_chip_on_trn2(x):
    tile = _loaded(x)
    index = _filled((128, 1), nl.uint16, 0, nl.sbuf)
    nisa.tensor_copy(dst=_loaded(x)[:, 0:16], src=tile.indirect(index, 16))  # BUG
    return x


@nki.jit
def exchanges_on_one_core(x):
    tile = _loaded(x)
    nisa.sendrecv(tile, tile, 1, 1, 0)  # BUG
    return x


# ---- matrix products ----


@nki.jit
def asks_for_a_tile_beyond_the_array(x):
    a = _filled((64, 64), nl.bfloat16, 0.0, nl.sbuf)
    bank = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank, a, a, tile_position=(96, 0), tile_size=(64, 128))  # BUG
    return x


@nki.jit
def doubles_rows_of_bfloat16(x):
    a = _filled((128, 2, 64), nl.bfloat16, 0.0, nl.sbuf)
    bank = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank, a, a, perf_mode=nisa.matmul_perf_mode.double_row)  # BUG
    return x


@nki.jit
def writes_a_product_across_banks(x):
    a = _filled((128, 128), nl.bfloat16, 0.0, nl.sbuf)
    b = _filled((128, 256), nl.bfloat16, 0.0, nl.sbuf)
    banks = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(banks[:, 384:640], a, b)  # BUG
    return x


@nki.jit
def continues_a_group_on_more_columns(x):
    a = _filled((128, 128), nl.bfloat16, 0.0, nl.sbuf)
    bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank[:, 0:64], a, a[:, 0:64], accumulate=False)
    nisa.nc_matmul(bank, a, a, accumulate=True)  # BUG
    return x


@nki.jit
def fills_a_bank_between_two_products(x):
    a = _filled((128, 128), nl.bfloat16, 0.0, nl.sbuf)
    bank = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(bank, a, a)
    nisa.memset(dst=bank[:, 5:6], value=0.0)
    nisa.nc_matmul(bank, a, a)  # BUG
    return x


# ---- what only a run knows ----


@nki.jit
def takes_a_column_that_is_not_there(x, ids):
    tile = _loaded(x)
    index = nl.ndarray((128, 64), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids)
    picked = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.nc_n_gather(dst=picked, data=tile, indices=index)  # BUG
    return x


@nki.jit
def adds_to_a_row_twice(x, ids):
    tile = _loaded(x)
    index = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids)
    rows = x.vector_select(0, index)
    nisa.dma_compute(dst=rows, srcs=[rows, tile], reduce_op=nl.add)  # BUG
    return x


@nki.jit
def takes_a_row_by_register_that_is_not_there(x, ids):
    at = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=ids[0:1, 0:1])
    register = nisa.register_alloc()
    nisa.register_load(register, at)
    row = nl.ndarray((1, 64), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=x.select(0, register).reshape((1, 64)))  # BUG
    return x


@nki.jit
def counts_beyond_the_tensor(x, ids):
    """The last turn's row is not there."""
    bound = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=bound, src=ids[0:1, 0:1])
    register = nisa.register_alloc()
    nisa.register_load(register, bound)
    row = nl.ndarray((1, 64), dtype=x.dtype, buffer=nl.sbuf)
    for i in nl.dynamic_range(register):
        nisa.dma_copy(dst=row, src=x.select(0, i).reshape((1, 64)))  # BUG
    return x


# ---- loops ----


@nki.jit
def reads_what_the_first_turn_has_not(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    total = _filled(x.shape, x.dtype, 0.0, nl.sbuf)
    for _ in nl.dynamic_range(4):
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)  # BUG
        nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=total)
    return out


@nki.jit
def counts_downwards(x):
    for _ in nl.dynamic_range(4, 0, -1):  # BUG
        nisa.dma_copy(dst=x, src=_filled(x.shape, x.dtype, 0.0, nl.sbuf))
    return x


# ---- Python values ----


@nki.jit
def asks_whether_a_tensor_is_zero(x):
    tile = _loaded(x)
    if tile[0:1, 0:1] == 0:  # BUG
        nisa.memset(dst=tile, value=1.0)
    return x


@nki.jit
def counts_up_to_a_tensor(x):
    tile = _filled((1, 1), nl.int32, 3, nl.sbuf)
    for _ in range(tile):  # BUG
        nisa.memset(dst=tile, value=1)
    return x


@nki.jit
def asks_whether_a_register_is_three(x):
    register = nisa.register_alloc(3)
    if register == 3:  # BUG
        return x
    return x


@nki.jit
def slices_by_a_tensor(x):
    tile = _filled((1, 1), nl.int32, 3, nl.sbuf)
    _loaded(x[0:tile])  # BUG
    return x


@nki.jit
def holds_a_wide_integer(x):
    return x if x.shape[0] < 5_000_000_000 else None  # BUG


@nki.jit
def deletes_a_name(x):
    tile = _loaded(x)
    del tile  # BUG
    return x


# ---- launches ----


@nki.jit
def runs_on_four_cores(x):  # BUG
    return x


@nki.jit
def runs_on_two_cores_of_trn1(x):  # BUG
    return x


@nki.jit
def waits_for_a_barrier_and_for_a_pipe(x):
    tile = _loaded(x)
    if nl.program_id() == 0:
        nisa.core_barrier(data=x, cores=(0, 1))  # BUG
    else:
        nisa.sendrecv(tile, tile, 0, 0, 0)
    return x
