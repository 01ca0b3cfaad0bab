"""Seeded bugs: order between cores, meetings, Python values, the subset. The line is marked."""

import time

import nki
import nki.isa as nisa
import nki.language as nl
import torch


@nki.jit
def reads_the_other_half_too_early(x):
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray((64, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(64 * me, 64)])
    nisa.dma_copy(dst=shared[nl.ds(64 * me, 64)], src=tile)
    if me == 1:
        nisa.dma_copy(dst=tile, src=shared[nl.ds(0, 64)])  # BUG
    nisa.dma_copy(dst=out[nl.ds(64 * me, 64)], src=tile)
    return out


@nki.jit
def writes_the_same_rows_twice(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray((65, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    start = 63 * me
    nisa.dma_copy(dst=tile, src=x[nl.ds(start, 65)])
    nisa.dma_copy(dst=out[nl.ds(start, 65)], src=tile)  # BUG
    return out


@nki.jit
def writes_what_the_other_reads(x):
    me = nl.program_id()
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    if me == 0:
        nisa.dma_copy(dst=tile, src=x)
    else:
        nisa.dma_copy(dst=x, src=tile)  # BUG
    return x


@nki.jit
def writes_again_after_the_barrier(x):
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray((64, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=shared[nl.ds(64 * me, 64)], src=tile)
    nisa.core_barrier(data=shared, cores=(0, 1))
    if me == 0:
        nisa.dma_copy(dst=tile, src=shared[nl.ds(64, 64)])  # BUG
    else:
        nisa.dma_copy(dst=shared[nl.ds(64, 64)], src=tile)
    return shared


@nki.jit
def gathers_what_the_other_writes(x, rows):
    """Which rows is a matter of values: program 1 gathers rows 0 to 63, which program 0 writes."""
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray((64, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    index = nl.ndarray((64, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(64 * me, 64)])
    nisa.dma_copy(dst=index, src=rows)
    nisa.dma_copy(dst=shared[nl.ds(64 * me, 64)], src=tile)
    if me == 1:
        nisa.dma_copy(dst=tile, src=shared.vector_select(0, index))  # BUG
    return shared


@nki.jit
def writes_a_row_that_the_other_writes(x, rows):
    shared = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me = nl.program_id()
    tile = nl.ndarray((64, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    at = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(64 * me, 64)])
    nisa.dma_copy(dst=at, src=rows[7:8])
    nisa.dma_copy(dst=shared[nl.ds(64 * me, 64)], src=tile)
    if me == 1:
        register = nisa.register_alloc()
        nisa.register_load(register, at)
        nisa.dma_copy(dst=shared.select(0, register), src=tile[0:1])  # BUG
    return shared


@nki.jit
def skips_a_barrier(x):
    if nl.program_id() == 0:
        nisa.core_barrier(data=x, cores=(0, 1))  # BUG
    return x


@nki.jit
def names_different_pipes(x):
    me = nl.program_id()
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.sendrecv(  # BUG
        src=tile, dst=tile, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=me
    )
    return x


@nki.jit
def sends_once_more_than_the_other_receives(x):
    me = nl.program_id()
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in range(3 - me):
        nisa.sendrecv(  # BUG
            src=tile, dst=tile, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0
        )
    return x


@nki.jit
def sends_to_itself(x):
    me = nl.program_id()
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.sendrecv(src=tile, dst=tile, send_to_rank=me, recv_from_rank=me, pipe_id=0)  # BUG
    return x


@nki.jit
def exchanges_different_shapes(x):
    me = nl.program_id()
    tile = nl.ndarray((32, 32 + 32 * me), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    peer = 1 - me
    nisa.sendrecv(src=tile, dst=tile, send_to_rank=peer, recv_from_rank=peer, pipe_id=0)  # BUG
    return x


@nki.jit
def sends_too_much_with_gpsimd(x):
    me = nl.program_id()
    tile = nl.ndarray((32, 512), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    engine = nisa.dma_engine.gpsimd_dma
    peer = 1 - me
    nisa.sendrecv(tile, tile, peer, peer, 0, dma_engine=engine)  # BUG
    return x


@nki.jit
def meets_alone(x):
    nisa.core_barrier(data=x, cores=(0, 1))  # BUG
    return x


@nki.jit
def allocates_differently_per_core(x):
    me = nl.program_id()
    nl.ndarray((4, 4 + me), dtype=x.dtype, buffer=nl.shared_hbm)  # BUG
    return x


# ---- Python values ----


@nki.jit
def branches_on_a_tensor(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    if tile[0:1, 0:1]:  # BUG
        nisa.memset(dst=tile, value=0.0)
    return x


@nki.jit
def branches_on_a_comparison(x):
    tile = nl.load(x)
    if nl.equal(tile, 0.0):  # BUG
        nl.store(x, nl.add(tile, 1.0))
    return x


@nki.jit
def compares_a_tensor(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile > 0  # BUG


@nki.jit
def converts_a_tensor(x):
    tile = nl.ndarray((1, 1), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[0:1, 0:1])
    return int(tile)  # BUG


@nki.jit
def adds_with_an_operator(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    return tile + 1.0  # BUG


@nki.jit
def iterates_over_a_tensor(x):
    for row in x:  # BUG
        nisa.dma_copy(dst=row, src=x[0])
    return x


@nki.jit
def uses_a_register_in_if(x):
    register = nisa.register_alloc(1)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    if register:  # BUG
        nisa.memset(dst=tile, value=0.0)
    return x


@nki.jit
def uses_a_register_in_range(x):
    register = nisa.register_alloc(3)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    for _ in range(register):  # BUG
        nisa.memset(dst=tile, value=0.0)
    return x


@nki.jit
def computes_with_a_register(x):
    register = nisa.register_alloc(3)
    row = register + 1  # BUG
    nisa.dma_copy(dst=x[nl.ds(row, 1)], src=x[0:1])
    return x


@nki.jit
def leaves_a_register_loop(x):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    for _ in nl.dynamic_range(4):  # BUG
        nisa.memset(dst=tile, value=0.0)
        break
    return x


@nki.jit
def has_a_dynamic_step(x):
    step = nisa.register_alloc(2)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    for _ in nl.dynamic_range(0, 8, step):  # BUG
        nisa.memset(dst=tile, value=0.0)
    return x


# ---- the subset ----


def _double(value):
    return torch.mul(value, 2)  # BUG


@nki.jit
def reaches_torch_in_a_helper(x):
    return _double(x)


@nki.jit
def has_a_lambda(x):
    rows = (lambda t: t.shape[0])(x)  # BUG
    nl.ndarray((rows, 4), dtype=x.dtype, buffer=nl.sbuf)
    return x


@nki.jit
def has_a_generator(x):
    total = sum(size for size in x.shape)  # BUG
    nl.ndarray((4, total), dtype=x.dtype, buffer=nl.sbuf)
    return x


@nki.jit
def has_a_try(x):
    try:  # BUG
        nl.ndarray((4, 4), dtype=x.dtype, buffer=nl.sbuf)
    finally:
        pass
    return x


@nki.jit
def raises_an_error(x):
    if x.shape[0] > 128:
        raise ValueError("too many rows")  # BUG
    return x


@nki.jit
def imports_inside(x):
    import math  # BUG

    nl.ndarray((4, math.prod((2, 2))), dtype=x.dtype, buffer=nl.sbuf)
    return x


@nki.jit
def reads_the_clock(x):
    nl.ndarray((4, int(time.monotonic()) % 2 + 1), dtype=x.dtype, buffer=nl.sbuf)  # BUG
    return x


@nki.jit
def defines_a_helper_inside(x):
    def size():  # BUG
        return 4

    nl.ndarray((size(), 4), dtype=x.dtype, buffer=nl.sbuf)
    return x


@nki.jit
def formats_a_number(x):
    print(f"{x.shape[0]:>8}")  # BUG
    return x
