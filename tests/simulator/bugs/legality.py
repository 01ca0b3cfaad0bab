"""Seeded bugs: partitions, limits, dtypes, buffers, engines, PSUM. The wrong line is marked."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def has_129_partitions(x):
    nl.ndarray((129, 4), dtype=nl.float32, buffer=nl.sbuf)  # BUG
    return x


@nki.jit
def starts_at_partition_16(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile[16:32], value=0.0)  # BUG
    return x


@nki.jit
def starts_64_rows_at_partition_32(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile[32:96], value=0.0)  # BUG
    return x


@nki.jit
def starts_100_rows_at_partition_28(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.activation(dst=tile[28:128], op=nl.exp, data=tile[28:128])  # BUG
    return x


@nki.jit
def is_placed_at_partition_8(x):
    tile = nl.ndarray((8, 64), dtype=nl.float32, buffer=nl.sbuf, address=(8, 0))
    nisa.memset(dst=tile, value=0.0)  # BUG
    return x


@nki.jit
def strides_over_partitions(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile.ap([[128, 64], [1, 64]]), value=0.0)  # BUG
    return x


@nki.jit
def splits_the_partition_dimension(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    tile.reshape((64, 128))  # BUG
    return x


@nki.jit
def permutes_the_partition_dimension(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    tile.permute((1, 0))  # BUG
    return x


@nki.jit
def reshapes_what_has_gaps(x):
    tile = nl.ndarray((128, 8, 8), dtype=nl.float32, buffer=nl.sbuf)
    tile[:, :, 0:4].reshape((128, 32))  # BUG
    return x


@nki.jit
def writes_to_a_broadcast(x):
    tile = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile.broadcast(1, 64), src=x)  # BUG
    return x


# ---- shapes and tile limits ----


@nki.jit
def adds_unequal_tiles(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=a, value=0.0)
    nisa.memset(dst=b, value=0.0)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)  # BUG
    return x


@nki.jit
def copies_unequal_sizes(x):
    tile = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)  # BUG
    return x


@nki.jit
def adds_a_row_of_scalars(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    row = nl.ndarray((1, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=row, src=x[0:1])
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=row)  # BUG
    return x


@nki.jit
def multiplies_different_depths(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.memset(dst=b, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=b)  # BUG
    return x


@nki.jit
def has_a_stationary_that_is_too_wide(x):
    a = nl.ndarray((128, 129), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=a[:, :64])  # BUG
    return x


@nki.jit
def has_a_moving_that_is_too_wide(x):
    a = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a[:, :128], moving=a)  # BUG
    return x


@nki.jit
def transposes_64_columns_on_vector(x):
    a = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_transpose(dst=b, data=a, engine=nisa.engine.vector)  # BUG
    return x


@nki.jit
def gives_a_tile_size_without_position(x):
    a = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=a, tile_size=(32, 32))  # BUG
    return x


@nki.jit
def takes_statistics_of_too_much(x):
    tile = nl.ndarray((128, 600), dtype=nl.float32, buffer=nl.sbuf)
    stats = nl.ndarray((128, 6), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.bn_stats(dst=stats, data=tile)  # BUG
    return x


@nki.jit
def looks_for_the_largest_of_four(x):
    tile = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
    best = nl.ndarray((128, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.max8(dst=best, src=tile)  # BUG
    return x


@nki.jit
def reduces_a_middle_axis(x):
    tile = nl.ndarray((128, 4, 16), dtype=nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((128, 16), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.tensor_reduce(dst=total, op=nl.add, data=tile, axis=1)  # BUG
    return x


@nki.jit
def transposes_to_the_wrong_shape(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_transpose(dst=tile, src=x)  # BUG
    return x


@nki.jit
def has_an_unknown_keyword(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, source=x)  # BUG
    return x


# ---- dtypes ----


@nki.jit
def mixes_float32_with_bfloat16(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.memset(dst=b, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=b)  # BUG
    return x


@nki.jit
def multiplies_integers(x):
    a = nl.ndarray((128, 64), dtype=nl.int32, buffer=nl.sbuf)
    acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=a)  # BUG
    return x


@nki.jit
def accumulates_in_bfloat16(x):
    a = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    acc = nl.ndarray((64, 64), dtype=nl.bfloat16, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=a)  # BUG
    return x


@nki.jit
def transposes_to_another_type(x):
    a = nl.ndarray((32, 32), dtype=nl.bfloat16, buffer=nl.sbuf)
    b = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_transpose(dst=b, data=a)  # BUG
    return x


@nki.jit
def fills_integers_with_a_half(x):
    tile = nl.ndarray((128, 64), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.5)  # BUG
    return x


@nki.jit
def converts_in_the_hardware_dge(x):
    tile = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.hwdge)  # BUG
    return x


@nki.jit
def shifts_floats(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=1.0)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.left_shift, operand0=1)  # BUG
    return x


# ---- buffers and engines ----


@nki.jit
def loads_to_psum(x):
    acc = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=acc, src=x)  # BUG
    return x


@nki.jit
def computes_in_hbm(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.activation(dst=out, op=nl.exp, data=x)  # BUG
    return out


@nki.jit
def multiplies_into_sbuf(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    result = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_matmul(dst=result, stationary=a, moving=a)  # BUG
    return x


@nki.jit
def multiplies_out_of_psum(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.memset(dst=b, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=b)  # BUG
    return x


@nki.jit
def adds_two_tiles_of_psum(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    b = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.memset(dst=b, value=0.0)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)  # BUG
    return x


@nki.jit
def copies_from_psum_on_gpsimd(x):
    acc = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=acc, value=0.0)
    nisa.tensor_copy(dst=tile, src=acc, engine=nisa.engine.gpsimd)  # BUG
    return x


@nki.jit
def fills_on_the_tensor_engine(x):
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0, engine=nisa.engine.tensor)  # BUG
    return x


@nki.jit
def copies_on_scalar(x):
    """NeuronCore-v2 cannot."""
    tile = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.tensor_copy(dst=tile, src=tile, engine=nisa.engine.scalar)  # BUG
    return x


@nki.jit
def quantizes_too_early(x):
    """NeuronCore-v4 alone."""
    tile = nl.ndarray((128, 64), dtype=nl.bfloat16, buffer=nl.sbuf)
    packed = nl.ndarray((128, 16), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    scale = nl.ndarray((128, 16), dtype=nl.uint8, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.quantize_mx(dst=packed, src=tile, dst_scale=scale)  # BUG
    return x


@nki.jit
def writes_a_constant(x):
    identity = nl.shared_identity_matrix(32, dtype=nl.float32)
    nisa.memset(dst=identity, value=0.0)  # BUG
    return x


# ---- PSUM ----


@nki.jit
def crosses_a_bank(x):
    a = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_matmul(dst=acc[:, 256:768], stationary=a[:, :128], moving=a)  # BUG
    return x


@nki.jit
def accumulates_onto_nothing(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    for _ in range(2):
        nisa.nc_matmul(dst=acc, stationary=a, moving=a, accumulate=True)  # BUG
    return x


@nki.jit
def accumulates_onto_a_constant(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.memset(dst=acc, value=1.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=a, accumulate=True)  # BUG
    return x


@nki.jit
def scales_between_two_products(x):
    a = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)
    acc = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=a, value=0.0)
    nisa.nc_matmul(dst=acc, stationary=a, moving=a)
    nisa.tensor_scalar(dst=acc, data=acc, op0=nl.multiply, operand0=0.5)
    nisa.nc_matmul(dst=acc, stationary=a, moving=a)  # BUG
    return x
