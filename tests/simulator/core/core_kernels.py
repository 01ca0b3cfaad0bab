"""Kernels of the tests of the simulator's core; loaded as a twin."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul(lhs_t, rhs):
    k, m = lhs_t.shape
    _, n = rhs.shape
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.psum)
    for start in nl.affine_range(0, k, nl.tile_size.pmax):
        size = min(nl.tile_size.pmax, k - start)
        a = nl.ndarray((size, m), dtype=lhs_t.dtype, buffer=nl.sbuf)
        b = nl.ndarray((size, n), dtype=rhs.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=a, src=lhs_t[start : start + size, :])
        nisa.dma_copy(dst=b, src=rhs[start : start + size, :])
        nisa.nc_matmul(dst=acc, stationary=a, moving=b)
    result = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def copy(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0]
    for start in range(0, rows, 128):
        size = min(128, rows - start)
        tile = nl.ndarray((size,) + x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[start : start + size])
        nisa.dma_copy(dst=out[start : start + size], src=tile)
    return out


@nki.jit
def cast(x, dtype):
    out = nl.ndarray(x.shape, dtype=dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    narrow = nl.ndarray(x.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_copy(dst=narrow, src=tile)
    nisa.dma_copy(dst=out, src=narrow)
    return out


@nki.jit
def low_words(x):
    """The low 32-bit words of an int64 vector, and a bool argument as it arrives."""
    out = nl.ndarray((x.shape[0],), dtype=nl.int32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x[:, 0])
    return out


@nki.jit
def gather(table, ids):
    out = nl.ndarray((ids.shape[0], table.shape[1]), dtype=table.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((ids.shape[0], 1), dtype=nl.int32, buffer=nl.sbuf)
    rows = nl.ndarray((ids.shape[0], table.shape[1]), dtype=table.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.reshape((ids.shape[0], 1)))
    nisa.dma_copy(dst=rows, src=table.vector_select(0, index))
    nisa.dma_copy(dst=out, src=rows)
    return out


@nki.jit
def gather_by_pattern(table, ids, skip):
    count, width = ids.shape[0], table.shape[1]
    out = nl.ndarray((count, width), dtype=table.dtype, buffer=nl.shared_hbm)
    index = nl.ndarray((count, 1), dtype=nl.int32, buffer=nl.sbuf)
    rows = nl.ndarray((count, width), dtype=table.dtype, buffer=nl.sbuf)
    nisa.memset(dst=rows, value=-1.0)
    nisa.dma_copy(dst=index, src=ids.reshape((count, 1)))
    source = table.ap([[width, count], [1, width]], vector_offset=index)
    mode = nisa.oob_mode.skip if skip else nisa.oob_mode.error
    nisa.dma_copy(dst=rows, src=source, oob_mode=mode)
    nisa.dma_copy(dst=out, src=rows)
    return out


@nki.jit
def scatter(x, ids, rows):
    out = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    zero = nl.zeros((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=out, src=zero)
    index = nl.ndarray((x.shape[0], 1), dtype=nl.int32, buffer=nl.sbuf)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.reshape((x.shape[0], 1)))
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out.vector_select(0, index), src=tile)
    return out


@nki.jit
def pick_column(x, column):
    out = nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.shared_hbm)
    at = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=at, src=column.reshape((1, 1)))
    tile = nl.ndarray((x.shape[0], 1), dtype=x.dtype, buffer=nl.sbuf)
    pattern = [[x.shape[1], x.shape[0]], [1, 1]]
    nisa.dma_copy(dst=tile, src=x.ap(pattern, scalar_offset=at, indirect_dim=1))
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def reads_unwritten(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile[:, 0:3], src=x[:, 0:3])
    nisa.dma_copy(dst=out, src=tile)  # the finding's line
    return out


@nki.jit
def returns_unwritten(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[0:1], src=x[0:1])
    return out


@nki.jit
def writes_in_halves(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    half = x.shape[1] // 2
    nisa.dma_copy(dst=tile[:, :half], src=x[:, :half])
    nisa.dma_copy(dst=tile[:, half:], src=x[:, half:])
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def holds_tiles(tiles, width, rows=128):
    """Keeps `tiles` tiles of `width` float32 alive, then reads all of them."""
    out = nl.ndarray((tiles, rows, width), dtype=nl.float32, buffer=nl.shared_hbm)
    held = []
    for _ in range(tiles):
        tile = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0)
        held.append(tile)
    for i in range(tiles):
        nisa.dma_copy(dst=out[i], src=held[i])
    return out


@nki.jit
def streams_tiles(tiles, width):
    """The same work, but each tile dies before the next is made."""
    out = nl.ndarray((tiles, 128, width), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in range(tiles):
        tile = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=tile, value=0.0)
        nisa.dma_copy(dst=out[i], src=tile)
    return out


@nki.jit
def writes_argument(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=7.0)
    nisa.dma_copy(dst=x, src=tile)
    return x


@nki.jit
def two_results(x):
    both = nl.ndarray((2,) + x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=both[0], src=tile)
    nisa.memset(dst=tile, value=1.0)
    nisa.dma_copy(dst=both[1], src=tile)
    return both[0], both[1]


@nki.jit
def transposes(x, how):
    out = nl.ndarray((x.shape[1], x.shape[0]), dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((x.shape[1], x.shape[0]), dtype=x.dtype, buffer=nl.sbuf)
    if how == "dma":
        nisa.dma_transpose(dst=tile, src=x)
    else:
        data = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=data, src=x)
        if how == "tensor":
            turned = nl.ndarray(tile.shape, dtype=x.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned, data=data)
            nisa.tensor_copy(dst=tile, src=turned)
        else:
            nisa.nc_transpose(dst=tile, data=data, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def accumulates(a, b, flags, is_transpose=False):
    """One product per flag into the same PSUM tile."""
    out = nl.ndarray((a.shape[1], b.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    for flag in flags:
        nisa.nc_matmul(
            dst=acc, stationary=left, moving=right, accumulate=flag, is_transpose=is_transpose
        )
    result = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def accumulates_on_overlap(a, b):
    """Columns 0:64 and 32:96: the overlap accumulates, the rest is overwritten."""
    out = nl.ndarray((a.shape[1], 96), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.nc_matmul(dst=acc[:, 0:64], stationary=left, moving=right)
    nisa.nc_matmul(dst=acc[:, 32:96], stationary=left, moving=right)
    result = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def accumulates_on_windows(a, b):
    """A product of 6x8 columns, and one of 4x4 columns onto rows 1:5 and columns 2:6 of it."""
    out = nl.ndarray((a.shape[1], 6, 8), dtype=nl.float32, buffer=nl.shared_hbm)
    acc = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.psum)
    left = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    nisa.nc_matmul(dst=acc, stationary=left, moving=right)
    nisa.nc_matmul(dst=acc[:, 1:5, 2:6], stationary=left, moving=right[:, 0:4, 0:4])
    result = nl.ndarray(out.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=acc)
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def repeats(x, count):
    """Copies x into row i of the result for i below a count that only the run knows."""
    out = nl.ndarray((8, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=nl.zeros((8, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf))
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    limit = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=limit, src=count.reshape((1, 1)))
    bound = nisa.register_alloc()
    nisa.register_load(bound, limit)

    def body(i):
        nisa.dma_copy(dst=out.select(0, i), src=tile)

    nl.fori_loop(0, bound, body)
    return out


@nki.jit
def per_program(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs()
    start = nl.program_id() * rows
    tile = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(start, rows)])
    nisa.dma_copy(dst=out[nl.ds(start, rows)], src=tile)
    return out


@nki.jit
def add_rmw(dst, src, ids):
    """out = dst with src added to the rows `ids`."""
    out = nl.ndarray(dst.shape, dtype=dst.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=dst)
    index = nl.ndarray((src.shape[0], 1), dtype=nl.int32, buffer=nl.sbuf)
    tile = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=index, src=ids.reshape((src.shape[0], 1)))
    nisa.dma_copy(dst=tile, src=src)
    rows = out.vector_select(0, index)
    nisa.dma_compute(dst=rows, srcs=[rows, tile], reduce_op=nl.add)
    return out


@nki.jit
def bad(x, what):
    """One broken rule of the device per name."""
    tile = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    if what == "partitions":
        nl.ndarray((129, 4), dtype=nl.float32, buffer=nl.sbuf)
    elif what == "start_partition":
        nisa.memset(dst=tile[4:8, :], value=1.0)
    elif what == "slice":
        tile.slice(1, 1000, 1025)
    elif what == "bank":
        acc = nl.ndarray((128, 1024), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc[:, 256:768], stationary=tile[:, :128], moving=tile[:, :512])
    elif what == "dma_psum":
        acc = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=acc, src=tile[:, :512])
    elif what == "sizes":
        nisa.tensor_copy(dst=tile[:, :4], src=tile[:, :5])
    elif what == "matmul_dtypes":
        half = nl.ndarray((128, 128), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=half, value=0.0)
        acc = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=half, moving=tile[:, :128])
    elif what == "keyword":
        nisa.tensor_copy(dst=tile, src=tile, dtype=nl.float32)
    elif what == "broadcast_dst":
        nisa.memset(dst=tile[:, 0:1].broadcast(1, 4), value=0.0)
    elif what == "partition_stride":
        tile.ap([[2048, 64], [1, 8]])
    elif what == "pattern_end":
        nisa.memset(dst=tile.ap([[1024, 128], [1, 8]], offset=1020), value=0.0)
    elif what == "register_value":
        int(nisa.register_alloc(3))
    elif what == "private_result":
        out = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.hbm)
        nisa.dma_copy(dst=out, src=tile[:4, :4])
        return out
    elif what == "tensor_value" and tile[:1, :1]:
        return x
    return x


@nki.jit
def exchanges(x):
    """Each of two cores sends its row to the other; row i of the result is what core i got."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(me, 1)])
    nisa.sendrecv(src=tile, dst=tile, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.dma_copy(dst=out[nl.ds(me, 1)], src=tile)
    return out


@nki.jit
def reads_the_other_half(x, ordered):
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(me, 1)])
    nisa.dma_copy(dst=shared[nl.ds(me, 1)], src=tile)
    if ordered or me == 0:
        nisa.core_barrier(shared, (0, 1))
    nisa.dma_copy(dst=tile, src=shared[nl.ds(1 - me, 1)])
    nisa.dma_copy(dst=out[nl.ds(me, 1)], src=tile)
    return out


@nki.jit
def meets_for(x, what):
    """Program 1 reads what program 0 wrote, after a meeting of one kind or another."""
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    other = nl.ndarray((2, 2), dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    if me == 0:
        nisa.dma_copy(dst=shared, src=tile)
    if what == "its own tensor" or what == "both":
        nisa.core_barrier(data=shared, cores=(0, 1))
    if what == "another tensor" or what == "both":
        nisa.core_barrier(data=other, cores=(0, 1))
    if what == "a tile":
        nisa.core_barrier(data=tile, cores=(0, 1))
    if what == "an exchange":
        nisa.sendrecv(tile, tile, 1 - me, 1 - me, 0)
    if me == 1:
        for _ in range(2):
            nisa.dma_copy(dst=tile, src=shared)
    return shared


@nki.jit
def gathers_rows_of_its_own(x, rows):
    """Each program writes its half and gathers from it: no meeting is needed."""
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    half = x.shape[0] // 2
    tile = nl.ndarray((half, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    index = nl.ndarray((half, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(half * me, half)])
    nisa.dma_copy(dst=index, src=rows[nl.ds(half * me, half)])
    nisa.dma_copy(dst=shared[nl.ds(half * me, half)], src=tile)
    nisa.dma_copy(dst=tile, src=shared.vector_select(0, index))
    nisa.dma_copy(dst=out[nl.ds(half * me, half)], src=tile)
    return out


@nki.jit
def reads_back_rows_of_a_loop(x, count, twice):
    """Both programs fill the result row by row and copy it onto itself; or only the first fills."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if twice or nl.program_id() == 0:
        for i in nl.dynamic_range(count):
            nisa.dma_copy(dst=out[nl.ds(i, 1)], src=x[nl.ds(i, 1)])
    nisa.dma_copy(dst=out, src=out)
    return out


@nki.jit
def swaps_in_a_loop(x, count):
    """The body reads the tile from before the loop each time, whatever names do meanwhile."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    previous = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=previous, src=x)
    for _ in nl.dynamic_range(count):
        fresh = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=fresh, src=previous)
        previous = fresh
        other = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.memset(dst=other, value=0.0)
        nisa.dma_copy(dst=out, src=previous)
    return out


@nki.jit
def dynamic_columns(x, column):
    """Column `column` of x goes to column 0 of the result, ones to that column; on chip."""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    result = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    at = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=at, src=column.reshape((1, 1)))
    register = nisa.register_alloc()
    nisa.register_load(register, at)
    pitch = x.shape[1]
    nisa.tensor_copy(dst=result, src=tile)
    nisa.memset(
        dst=result.ap([[pitch, x.shape[0]], [1, 1]], scalar_offset=at, indirect_dim=1), value=1
    )
    nisa.tensor_copy(dst=result[:, 0:1], src=tile[:, nl.ds(register, 1)])
    nisa.dma_copy(dst=out, src=result)
    return out


@nki.jit
def scatters_all(x, ids):
    """Every row of the result is written by one of two scatters."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    half = x.shape[0] // 2
    for start in (0, half):
        index = nl.ndarray((half, 1), dtype=nl.int32, buffer=nl.sbuf)
        tile = nl.ndarray((half, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=index, src=ids.reshape((x.shape[0], 1))[nl.ds(start, half)])
        nisa.dma_copy(dst=tile, src=x[nl.ds(start, half)])
        nisa.dma_copy(dst=out.vector_select(0, index), src=tile)
    return out


@nki.jit
def takes_turns(x):
    """Two manual tensors of 32 bytes that share 16: each is written again before it is read."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf, address=(0, 0))
    b = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf, address=(0, 16))
    for _ in range(2):
        nisa.dma_copy(dst=a, src=x)
        nisa.tensor_scalar(dst=a, data=a, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out, src=a)
        nisa.dma_copy(dst=b, src=out)
        nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out, src=b)
    return out


@nki.jit
def writes_interleaved_columns(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    half = x.shape[1] // 2
    tile = nl.ndarray((x.shape[0], half), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[:, me : x.shape[1] : 2])
    nisa.dma_copy(dst=out[:, me : x.shape[1] : 2], src=tile)
    return out


@nki.jit
def prints_and_stops(x, what):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = x.shape[0] // nl.num_programs()
    mine = nl.ds(rows * nl.program_id(), rows)
    tile = nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    print("shape", x.shape)
    if what == "stops":
        breakpoint()
    if what == "fails":
        hook_that_fails("two")
    nisa.dma_copy(dst=tile, src=x[mine])
    nisa.dma_copy(dst=out[mine], src=tile)
    return out


def hook_that_fails(message):
    assert message == "", message
