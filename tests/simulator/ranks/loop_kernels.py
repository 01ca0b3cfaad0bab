"""Kernels whose programs and ranks meet in register loops; loaded as a twin."""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl


def _count(count):
    """A register with the value of a tensor in HBM."""
    tile = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=count)
    register = nisa.register_alloc()
    nisa.register_load(register, tile)
    return register


@nki.jit
def swaps_and_adds(x, count):
    """Each turn: the other program's tile is added to the own one, doubled."""
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mine = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    theirs = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=mine, src=x[nl.ds(me, 1)])
    for _ in nl.dynamic_range(_count(count)):
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
        nisa.tensor_scalar(dst=mine, data=mine, op0=nl.multiply, operand0=2.0)
        nisa.tensor_tensor(dst=mine, data1=mine, data2=theirs, op=nl.add)
    nisa.dma_copy(dst=out[nl.ds(me, 1)], src=mine)
    return out


@nki.jit
def swaps_in_place(x, count, as_while):
    """The tiles of both programs change places each turn: src and dst are one tile."""
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(me, 1)])

    def body(_):
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
        nisa.sendrecv(src=tile, dst=tile, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)

    if as_while:
        left = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=left, src=count)
        register = nisa.register_alloc()
        nisa.register_load(register, left)
        while register:
            body(register)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(register, left)
    else:
        nl.fori_loop(0, _count(count), body)
    nisa.dma_copy(dst=out[nl.ds(me, 1)], src=tile)
    return out


@nki.jit
def writes_in_turns(x, count, turns):
    """Shared HBM, ordered by barriers in two loops, one in the other: each program doubles what the
    other one has left.
    """
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(me, 1)])
    nisa.dma_copy(dst=out[nl.ds(me, 1)], src=tile)
    nisa.core_barrier(out, (0, 1))
    outer, inner = _count(count), _count(turns)

    def turn(_):
        nisa.dma_copy(dst=tile, src=out[nl.ds(1 - me, 1)])
        nisa.core_barrier(out, (0, 1))
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[nl.ds(me, 1)], src=tile)
        nisa.core_barrier(out, (0, 1))

    def turns_of_an_outer_loop(_):
        nl.fori_loop(0, inner, turn)

    nl.fori_loop(0, outer, turns_of_an_outer_loop)
    return out


@nki.jit
def counts_for_itself(x, counts):
    """Each program has its own number of turns with a barrier."""
    me = nl.program_id()
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(me, 1)])
    for _ in nl.dynamic_range(_count(counts[nl.ds(me, 1)])):
        nisa.core_barrier(out, (0, 1))
    nisa.dma_copy(dst=out[nl.ds(me, 1)], src=tile)
    return out


@nki.jit
def waits_in_a_loop_alone(x, count):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if nl.program_id() == 0:
        for _ in nl.dynamic_range(_count(count)):
            nisa.core_barrier(out, (0, 1))
    else:
        nisa.core_barrier(out, (0, 1))
    return x


# ---- ranks ----


@nki.jit
def sums_in_turns(x, count, groups):
    """x becomes the sum over the group, count times, plus 1 each."""
    group = ncc.ReplicaGroup(groups)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    for _ in nl.dynamic_range(_count(count)):
        ncc.all_reduce([tile], [tile], group, op=nl.add)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def gathers_by_a_ring_in_a_loop(x, count, groups):
    """Row r of the result is rank r's, as far as `count` turns bring it."""
    group = ncc.ReplicaGroup(groups)
    n = len(groups[0])
    out = nl.ndarray((n, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    there = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.private_hbm)
    blank = nl.ndarray((n, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=blank, value=0.0)
    nisa.dma_copy(dst=out, src=blank)
    nisa.dma_copy(dst=here, src=x)

    def turn(i):
        rank = ncc.collective_permute_implicit_current_processing_rank_id(i, group)
        nisa.dma_copy(dst=out[nl.ds(rank, 1)], src=here)
        ncc.collective_permute_implicit([[here]], [[there]], group)
        nisa.dma_copy(dst=here, src=there)

    nl.fori_loop(0, _count(count), turn)
    return out


@nki.jit
def reduces_halves_in_turns(x, count, groups):
    """Two programs a rank: each sums its half over the ranks, then they change halves."""
    me, half = nl.program_id(), x.shape[0] // 2
    group = ncc.ReplicaGroup(groups)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((half, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(half * me, half)])
    for _ in nl.dynamic_range(_count(count)):
        ncc.all_reduce([tile], [tile], group, op=nl.add)
        nisa.sendrecv(src=tile, dst=tile, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.dma_copy(dst=out[nl.ds(half * me, half)], src=tile)
    return out


@nki.jit
def reduces_rows_at_an_index(x, ids, count, groups):
    """The row that is summed over the ranks is at an address that a tensor in SBUF has."""
    group = ncc.ReplicaGroup(groups)
    out = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    row = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.private_hbm)
    total = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    got = nl.ndarray((1, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=total, value=0.0)
    index = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)

    def turn(i):
        nisa.dma_copy(dst=index, src=ids[nl.ds(i, 1)])
        at = nisa.register_alloc()
        nisa.register_load(at, index)
        ncc.all_reduce([x[nl.ds(at, 1)]], [row], group, op=nl.add)
        nisa.dma_copy(dst=got, src=row)
        nisa.tensor_tensor(dst=total, data1=total, data2=got, op=nl.add)

    nl.fori_loop(0, _count(count), turn)
    nisa.dma_copy(dst=out, src=total)
    return out
