"""Kernels of the tests of collectives; loaded as a twin."""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl


@nki.jit
def reduces(x, groups, op, in_sbuf):
    group = ncc.ReplicaGroup(groups)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if not in_sbuf:
        ncc.all_reduce([x], [out], group, op=nl.add if op == "add" else nl.maximum)
        return out
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    ncc.all_reduce([tile], [tile], group, op=nl.add if op == "add" else nl.minimum)
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def reduces_two(x, y, groups):
    group = ncc.ReplicaGroup(groups)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    b = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.shared_hbm)
    ncc.all_reduce(srcs=[x, y], dsts=[a, b], replica_group=group, op=nl.add)
    return a, b


@nki.jit
def gathers(x, groups, dim, in_sbuf):
    group = ncc.ReplicaGroup(groups)
    n = len(groups[0])
    shape = (x.shape[0] * n, x.shape[1]) if dim == 0 else (x.shape[0], x.shape[1] * n)
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if not in_sbuf:
        ncc.all_gather([x], [out], group, collective_dim=dim)
        return out
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    whole = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    ncc.all_gather([tile], [whole], group, collective_dim=dim)
    nisa.dma_copy(dst=out, src=whole)
    return out


@nki.jit
def scatters(x, groups):
    n = len(groups[0])
    out = nl.ndarray((x.shape[0] // n, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    ncc.reduce_scatter([x], [out], ncc.ReplicaGroup(groups), collective_dim=0, op=nl.add)
    return out


@nki.jit
def exchanges_all(x, groups):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    ncc.all_to_all([x], [out], ncc.ReplicaGroup(groups), collective_dim=0)
    return out


@nki.jit
def permutes(x, pairs):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=-1.0)
    nisa.dma_copy(dst=out, src=tile)
    ncc.collective_permute([x], [out], source_target_pairs=pairs)
    return out


@nki.jit
def gathers_by_ring(x, groups):
    """An all-gather as a ring: row r of the result is rank r's, placed by the processing rank."""
    group = ncc.ReplicaGroup(groups)
    n = len(groups[0])
    out = nl.ndarray((n, x.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    zero = nl.ndarray((n, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zero, value=0.0)
    nisa.dma_copy(dst=out, src=zero)
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=here, src=x)
    for step in range(n):
        rank = ncc.collective_permute_implicit_current_processing_rank_id(step, group)
        nisa.dma_copy(dst=out[nl.ds(rank, 1)], src=here)
        following = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        ncc.collective_permute_implicit([[here]], [[following]], group)
        here = following
    return out


@nki.jit
def reduces_by_ring(x, groups):
    """Two channels at once; every turn adds the own values to what arrived."""
    group = ncc.ReplicaGroup(groups)
    width = x.shape[1] // 2
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    own = [x[:, 0:width], x[:, width : 2 * width]]
    sums = [own[0], own[1]]
    for step in range(len(groups[0]) - 1):
        a = nl.ndarray((x.shape[0], width), dtype=x.dtype, buffer=nl.shared_hbm)
        b = nl.ndarray((x.shape[0], width), dtype=x.dtype, buffer=nl.shared_hbm)
        if step == 0:
            ncc.collective_permute_implicit(
                [[sums[0]], [sums[1]]], [[a], [b]], group, channel_ids=[0, 1]
            )
        else:
            ncc.collective_permute_implicit_reduce(
                [[sums[0]], [sums[1]]],
                [[own[0]], [own[1]]],
                [[a], [b]],
                group,
                op=nl.add,
                channel_ids=[0, 1],
            )
        sums = [a, b]
    nisa.dma_copy(dst=out[:, 0:width], src=sums[0])
    nisa.dma_copy(dst=out[:, width : 2 * width], src=sums[1])
    return out


@nki.jit
def shifts_channels_in_sbuf(x, groups):
    """Each half of x, in SBUF, goes to the next rank on a channel of its own."""
    width = x.shape[1] // 2
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    there = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=here, src=x)
    ncc.collective_permute_implicit(
        [[here[:, 0:width]], [here[:, width : 2 * width]]],
        [[there[:, 0:width]], [there[:, width : 2 * width]]],
        ncc.ReplicaGroup(groups),
        channel_ids=[0, 1],
    )
    nisa.dma_copy(dst=out, src=there)
    return out


@nki.jit
def tells_its_rank(x):
    out = nl.ndarray((x.shape[0], 1), dtype=nl.int32, buffer=nl.shared_hbm)
    tile = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.register_store(tile, ncc.rank_id())
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def moves_chunks(x, metadata, size, groups, gather, known):
    """The received elements and the metadata afterwards; what is not received is -1."""
    group = ncc.ReplicaGroup(groups)
    out = nl.ndarray((size,), dtype=x.dtype, buffer=nl.shared_hbm)
    blank = nl.ndarray((1, size), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=blank, value=-1.0)
    nisa.dma_copy(dst=out, src=blank)
    if gather:
        ncc.all_gather_v([x], [out], group, metadata, recv_counts_known=known)
    else:
        ncc.all_to_all_v(
            [x], [out], group, metadata, recv_counts_known=known, has_rdispls=metadata.shape[0] == 4
        )
    return out, metadata


@nki.jit
def breaks(x, what):
    group = ncc.ReplicaGroup([[0, 1]])
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    if what == "overlap":
        ncc.all_reduce([x], [out], ncc.ReplicaGroup([[0, 1], [1, 0]]), op=nl.add)
    elif what == "range":
        ncc.all_reduce([x], [out], ncc.ReplicaGroup([[0, 2]]), op=nl.add)
    elif what == "missing":
        ncc.all_reduce([x], [out], ncc.ReplicaGroup([[1]]), op=nl.add)
    elif what == "mixed":
        ncc.all_reduce([x], [tile], group, op=nl.add)
    elif what == "op":
        ncc.all_reduce([x], [out], group, op=nl.multiply)
    elif what == "dim":
        ncc.all_gather([x], [out], group, collective_dim=1)
    elif what == "shape":
        ncc.all_gather([x], [out], group, collective_dim=0)
    elif what == "sbuf":
        ncc.all_to_all([tile], [tile], group, collective_dim=0)
    elif what == "priority":
        ncc.all_reduce([x], [out], group, op=nl.add, priority=1)
    elif what == "pairs":
        ncc.collective_permute([x], [out], source_target_pairs=[(0, 1), (1, 1)])
    elif what == "channels":
        ncc.collective_permute_implicit([[x]], [[out]], group, channel_ids=[1])
    elif what == "unwritten":
        ncc.all_reduce([out], [out], group, op=nl.add)
    elif what == "rank" and ncc.rank_id() < 1:
        return x
    return x


@nki.jit
def meets_in_another_order(x, first):
    """Ranks call two collectives in different orders; `first` differs between them."""
    group = ncc.ReplicaGroup([[0, 1]])
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    b = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if first:
        ncc.all_reduce([x], [a], group, op=nl.add)
        ncc.all_to_all([x], [b], group, collective_dim=0)
    else:
        ncc.all_to_all([x], [b], group, collective_dim=0)
        ncc.all_reduce([x], [a], group, op=nl.add)
    return a, b


# ---- two programs a rank ----


@nki.jit
def reduces_by_halves(x, groups):
    """Each program reduces its half of the rows in its own SBUF."""
    me, half = nl.program_id(), x.shape[0] // 2
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((half, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(half * me, half)])
    ncc.all_reduce([tile], [tile], ncc.ReplicaGroup(groups), op=nl.add)
    nisa.dma_copy(dst=out[nl.ds(half * me, half)], src=tile)
    return out


@nki.jit
def passes_shared_memory_on(x, groups, reads):
    """Each program fills a half of a shared buffer; the ring moves all of it, once, when both have.
    `reads` is whose half a program reads afterwards.
    """
    me, half = nl.program_id(), x.shape[0] // 2
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    here = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    there = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray((half, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x[nl.ds(half * me, half)])
    nisa.dma_copy(dst=here[nl.ds(half * me, half)], src=tile)
    ncc.collective_permute_implicit([[here]], [[there]], ncc.ReplicaGroup(groups))
    mine = nl.ds(half * (me if reads == "own" else 1 - me), half)
    nisa.dma_copy(dst=tile, src=there[mine])
    nisa.dma_copy(dst=out[mine], src=tile)
    return out


@nki.jit
def reduces_in_one_program(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if nl.program_id() == 0:
        ncc.all_reduce([x], [out], ncc.ReplicaGroup([[0, 1]]), op=nl.add)
    return out


@nki.jit
def fails_in_one_program(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    if nl.program_id() == 1 and x.shape[0] == 3:
        nisa.dma_copy(dst=out, src=nl.ndarray((4, 4), dtype=x.dtype, buffer=nl.sbuf))
    ncc.all_reduce([x], [out], ncc.ReplicaGroup([[0, 1]]), op=nl.add)
    return out


# ---- arguments that are written ----


@nki.jit
def reduces_into(x, y, groups):
    """The sum of all x, in y, which every rank writes; and what y had been."""
    before = nl.ndarray(y.shape, dtype=y.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=before, src=y)
    ncc.all_reduce([x], [y], ncc.ReplicaGroup(groups), op=nl.add)
    return y, before
