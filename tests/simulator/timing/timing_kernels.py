"""Kernels of the tests of the timing model; loaded as twins."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def scale(x, is_double_buffered):
    """x * 2, 128 rows of 2048 columns at a time; one tile for all, or a fresh tile each."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows, columns = x.shape
    tile = nl.ndarray((128, columns), dtype=x.dtype, buffer=nl.sbuf)
    for start in range(0, rows, 128):
        if is_double_buffered:
            tile = nl.ndarray((128, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + 128])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[start : start + 128], src=tile)
    return out


@nki.jit
def matmul(lhs_t, rhs):
    k, m = lhs_t.shape
    _, n = rhs.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    for column in range(0, n, 512):
        acc = nl.ndarray((m, 512), dtype=nl.float32, buffer=nl.psum)
        for start in range(0, k, 128):
            a = nl.ndarray((128, m), dtype=lhs_t.dtype, buffer=nl.sbuf)
            b = nl.ndarray((128, 512), dtype=rhs.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=a, src=lhs_t[start : start + 128, :])
            nisa.dma_copy(dst=b, src=rhs[start : start + 128, column : column + 512])
            nisa.nc_matmul(dst=acc, stationary=a, moving=b)
        result = nl.ndarray((m, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=acc)
        nisa.dma_copy(dst=out[:, column : column + 512], src=result)
    return out


@nki.jit
def products(lhs_t, rhs, count):
    """One load, then `count` products: TensorE without any wait."""
    _, m = lhs_t.shape
    n = rhs.shape[1]
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray(lhs_t.shape, dtype=lhs_t.dtype, buffer=nl.sbuf)
    b = nl.ndarray(rhs.shape, dtype=rhs.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=lhs_t)
    nisa.dma_copy(dst=b, src=rhs)
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    for _ in range(count):
        nisa.nc_matmul(dst=acc, stationary=a, moving=b)
    result = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def chain(x, ops):
    """Activations of one tile in place, one after the other."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for op in ops:
        nisa.activation(dst=tile, op=op, data=tile)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def loop(x, trips):
    """An addition in a register loop."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)

    def body(_):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)

    nl.fori_loop(0, trips, body)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def columns(x):
    """Stores by columns: neighbours in the rows of the result must not wait for each other."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for start in range(0, x.shape[1], 512):
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, start : start + 512])
        nisa.dma_copy(dst=out[:, start : start + 512], src=tile)
    return out


@nki.jit
def through_hbm(x):
    """Store, then load what was stored: the load waits for the store."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    held = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    first = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    second = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=first, src=x)
    nisa.dma_copy(dst=held, src=first)
    nisa.dma_copy(dst=second, src=held)
    nisa.dma_copy(dst=out, src=second)
    return out


@nki.jit
def unknown_loop(x, count):
    """An addition as often as a value in memory says."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    held = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=held, src=count)
    trips = nisa.register_alloc(0)
    nisa.register_load(trips, held)

    def body(_):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)

    nl.fori_loop(0, trips, body)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def uneven_cores(x):
    """The second core does more before both exchange a tile and meet."""
    out = nl.ndarray((2, x.shape[0], x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    core = nl.program_id(0)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    other = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range(1 + 20 * core):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.sendrecv(src=tile, dst=other, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    nisa.dma_copy(dst=out[core], src=other)
    nisa.core_barrier(data=out, cores=(0, 1))
    return out


@nki.jit
def shared_scale(x):
    """x * 2, rows shared out to the programs."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    share = x.shape[0] // nl.num_programs(0)
    own = nl.program_id(0) * share
    for start in range(own, own + share, 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + 128])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[start : start + 128], src=tile)
    return out


@nki.jit
def two_classes(x, priority):
    """Large loads, then a small one of another class."""
    out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    for _ in range(3):
        tile = nl.ndarray((128, 4096), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[:, 0:4096])
    small = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=small, src=x[:, 0:128], priority=priority)
    nisa.tensor_scalar(dst=small, data=small, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=small, priority=3)
    return out


@nki.jit
def two_readers(x, is_shared):
    """VectorE and ScalarE read PSUM at the same time, from one bank or from two."""
    out = nl.ndarray((256, 128), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    first = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    second = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=first[:, 0:128], stationary=tile, moving=tile)
    nisa.nc_matmul(dst=second[:, 0:128], stationary=tile, moving=tile)
    source = first if is_shared else second
    a = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
    for _ in range(8):
        nisa.tensor_copy(dst=a, src=first[:, 0:128], engine=nisa.vector_engine)
        nisa.activation(dst=b, op=nl.copy, data=source[:, 0:128])
    nisa.dma_copy(dst=out[0:128], src=a)
    nisa.dma_copy(dst=out[128:256], src=b)
    return out


@nki.jit
def row_tiles(lhs_t, rhs, count, tiles):
    """`count` products of 128 / tiles rows each, in as many row tiles of the array in turn."""
    rows = 128 // tiles
    out = nl.ndarray((tiles, lhs_t.shape[1], rhs.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray(lhs_t.shape, dtype=lhs_t.dtype, buffer=nl.sbuf)
    b = nl.ndarray(rhs.shape, dtype=rhs.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=lhs_t)
    nisa.dma_copy(dst=b, src=rhs)
    sums = []
    for _ in range(tiles):
        sums.append(nl.ndarray(out.shape[1:], dtype=nl.float32, buffer=nl.psum))
    for i in range(count):
        start = i % tiles * rows
        nisa.nc_matmul(
            dst=sums[i % tiles],
            stationary=a[start : start + rows],
            moving=b[start : start + rows],
            tile_position=(start, 0),
            tile_size=(rows, 128),
        )
    for i in range(tiles):
        held = nl.ndarray(out.shape[1:], dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=held, src=sums[i])
        nisa.dma_copy(dst=out[i], src=held)
    return out


@nki.jit
def meets_in_a_loop(x, trips):
    """Program 1 does more before the loop than program 0, and less in it."""
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((x.shape[0] // 2, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    half = nl.ds(me * tile.shape[0], tile.shape[0])
    nisa.dma_copy(dst=tile, src=x[half])
    for _ in range(3 * me):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)

    def body(_):
        nisa.core_barrier(out, (0, 1))
        for _ in range(2 - me):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nisa.core_barrier(out, (0, 1))

    nl.fori_loop(0, trips, body)
    nisa.dma_copy(dst=out[half], src=tile)
    return out


@nki.jit
def block_sums(x, weights, is_cleared, is_fresh):
    """x [K, rows] by weights [K, 512], 128 rows at a time; one PSUM tile for all, or one each."""
    depth, rows = x.shape
    out = nl.ndarray((rows, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    moving = nl.ndarray((128, depth // 128, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=moving, src=weights.reshape((depth // 128, 128, 512)).permute((1, 0, 2)))
    acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    for row in range(0, rows, 128):
        if is_fresh:
            acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        if is_cleared:
            nisa.memset(dst=acc, value=0.0)
        for k in range(0, depth, 128):
            stationary = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=stationary, src=x[k : k + 128, row : row + 128])
            nisa.nc_matmul(
                dst=acc, stationary=stationary, moving=moving[:, k // 128], accumulate=k > 0
            )
        nisa.tensor_copy(dst=result, src=acc)
        nisa.dma_copy(dst=out[row : row + 128], src=result)
    return out


@nki.jit
def running_sum(x):
    """Adds 128 rows at a time to one tile, which each turn reads."""
    out = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + 128])
        nisa.tensor_tensor(dst=total, data1=total, data2=tile, op=nl.add)
    nisa.dma_copy(dst=out, src=total)
    return out


@nki.jit
def by_halves(x):
    """One tile whose halves are written apart, and then stored."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    half = x.shape[1] // 2
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    for row in range(0, x.shape[0], 128):
        nisa.dma_copy(dst=tile[:, 0:half], src=x[row : row + 128, 0:half])
        nisa.dma_copy(dst=tile[:, half:], src=x[row : row + 128, half:])
        nisa.dma_copy(dst=out[row : row + 128], src=tile)
    return out


@nki.jit
def placed(x):
    """`scale` with a tile whose address the kernel chose."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
    for start in range(0, x.shape[0], 128):
        nisa.dma_copy(dst=tile, src=x[start : start + 128])
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[start : start + 128], src=tile)
    return out


@nki.jit
def cleared_twice(x):
    """The first memset is never read, the second is."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=1.0)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def loads_of_rows(x, rows, first, width):
    """A load of `rows` rows for each `width` columns, into partitions from `first` on."""
    out = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    for start in range(0, x.shape[1], width):
        end = start + width
        nisa.dma_copy(dst=tile[first : first + rows, start:end], src=x[0:rows, start:end])
    nisa.dma_copy(dst=out, src=tile[first : first + rows])
    return out


@nki.jit
def scattered_columns(x, first, second):
    """Half of the columns written from column `first` on, and then from `second` on, to rows that
    values name."""
    rows, width = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=index, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    tile = nl.ndarray((rows, width // 2), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[:, 0 : width // 2])
    for start in (first, second):
        goal = out.ap(
            pattern=[[width, rows], [1, width // 2]],
            offset=start,
            vector_offset=index,
            indirect_dim=0,
        )
        nisa.dma_copy(dst=goal, src=tile)
    return out


@nki.jit
def spread(row):
    """A row on 128 partitions."""
    out = nl.ndarray((128, row.shape[1]), dtype=row.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.broadcast_to(nl.load(row), out.shape))
    return out


@nki.jit
def added_rows(x, rows):
    """The rows that `rows` [N, 1] names of x [N, D] added up in place, and x + x."""
    count, width = x.shape
    index = nl.load(rows)
    total = nl.load(x)
    named = x.ap(pattern=[[width, count], [1, width]], vector_offset=index, indirect_dim=0)
    nisa.dma_compute(dst=total, srcs=[named, total], reduce_op=nl.add)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_compute(dst=out, srcs=[total, x], reduce_op=nl.add)
    return out


@nki.jit
def cleared_parts(parts):
    """Parts of one tile of bfloat16, (first and end row, first, end and step of the columns), each
    cleared.
    """
    tile = nl.ndarray((128, 256), dtype=nl.bfloat16, buffer=nl.sbuf)
    for top, bottom, left, right, step in parts:
        nisa.memset(dst=tile[top:bottom, left:right:step], value=0.0)


@nki.jit
def cleared_heads(parts):
    """First and end columns of each of 8 heads of 32 columns, cleared."""
    tile = nl.ndarray((128, 8, 32), dtype=nl.bfloat16, buffer=nl.sbuf)
    for left, right in parts:
        nisa.memset(dst=tile[:, :, left:right], value=0.0)


@nki.jit
def column_of_value(x, position, column):
    """A column of x that a value names is written, then another one is read."""
    out = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    copy = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    value = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=value, src=position)
    ones = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    nisa.dma_copy(dst=copy, src=x)
    first = nisa.register_alloc(0)
    nisa.register_load(first, value)
    target = copy.ap([[x.shape[1], 128], [1, 1]], scalar_offset=first, indirect_dim=1)
    nisa.dma_copy(dst=target, src=ones)
    nisa.dma_copy(dst=out, src=copy[:, column : column + 1])
    return out
