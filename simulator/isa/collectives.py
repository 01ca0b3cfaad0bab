"""`nki.collectives` over simulated ranks: which tensors take part, and what arrives where.

Every rank of a group calls the same collective and waits for the others (see `rank_programs`);
the last to arrive moves the data of all. Groups are lists of ranks that do not overlap; a call that
not every rank of its group makes, or makes differently, is the deadlock finding. Reductions are in
float32 (integers exactly) in the order of the group and round once; the order on the device is not
documented. Without ranks there is one, number 0.

A rank may be a launch of two programs (LNC2): both make the same calls, which wait for all programs
of the group. What they pass in SBUF is moved for each; a tensor in HBM that they share is moved
once, when both have written it. Counts and displacements of the `_v` forms are values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trnx.simulator.costs.attributes import collective_attributes
from trnx.simulator.costs.collective import over_ring, permuted
from trnx.simulator.costs.cost import EngineCost
from trnx.simulator.isa.instruction import Emit, NkiCall, recorded
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.nki_object import NKIObject
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import DMA_REACHABLE, HBM, SBUF
from trnx.simulator.multicore import exchange

_REDUCTIONS = ("add", "minimum", "maximum")
FUNCTIONS: dict[str, NkiCall] = {}

Tensors = Sequence[NkiTensor]


@dataclass(frozen=True)
class ReplicaGroup(NKIObject):
    """Groups of ranks that take part in a collective: lists of ranks without overlap."""

    groups: Any


def collective(cost: EngineCost) -> Callable[[Callable[..., None]], NkiCall]:
    """Declare a collective under the function's name."""

    def declare(function: Callable[..., None]) -> NkiCall:
        call = recorded(engines=(Engine.dma,), cost=(cost,))(function)
        FUNCTIONS[function.__name__] = call
        return call

    return declare


# ---- checks ----


def group_of(
    emit: Emit, replica_group: Any, priority: int | None = None, *, moves: bool = True
) -> tuple[int, ...]:
    """The group of this rank. Where the call moves data, the programs of a rank wait for each other
    first: a tensor that they share is read as both have left it.
    """
    emit.own_scratch()
    if not isinstance(replica_group, ReplicaGroup):
        emit.illegal(f"{replica_group!r} is not a ReplicaGroup")
    groups = [tuple(group) for group in replica_group.groups]
    members = [rank for group in groups for rank in group]
    me, size = emit.rank, emit.ranks
    if not all(isinstance(rank, int) and 0 <= rank < size for rank in members):
        emit.illegal(f"replica group {groups} names ranks that are not in 0 to {size - 1}")
    if len(set(members)) != len(members):
        emit.illegal(f"groups of {groups} overlap")
    if len({len(group) for group in groups}) != 1:
        emit.illegal(f"groups of {groups} differ in size")
    mine = [group for group in groups if me in group]
    if not mine:
        emit.illegal(f"rank {me} is in no group of {groups}")
    if moves and emit.programs > 1:
        emit.meet(("arrival", emit.name), None)
    if priority is not None:
        emit.require(emit.generation > 3, "priority needs NeuronCore-v4")
        if priority not in range(4):
            emit.illegal(f"priority {priority} is not in 0 to 3")
    emit.attributes = collective_attributes(mine[0], priority)
    return mine[0]


def check_pairs(emit: Emit, srcs: Tensors, dsts: Tensors, hbm_only: bool) -> None:
    """As many sources as destinations, of equal types, in one kind of memory."""
    for what, tensors in (("srcs", srcs), ("dsts", dsts)):
        if not isinstance(tensors, list | tuple):
            emit.illegal(f"{what} must be a list of tensors")
        for tensor in tensors:
            emit.check(tensor, what, HBM if hbm_only else DMA_REACHABLE)
    if not (len(srcs) == len(dsts) > 0):
        emit.illegal(f"{len(srcs)} sources and {len(dsts)} destinations")
    in_sbuf = {tensor.buffer in SBUF for tensor in (*srcs, *dsts)}
    emit.require(len(in_sbuf) == 1, "tensors in SBUF and in HBM cannot be mixed")
    emit.require(in_sbuf == {False} or len(srcs) == 1, "several tensors at once must be in HBM")
    for src, dst in zip(srcs, dsts, strict=True):
        if src.dtype != dst.dtype:
            emit.illegal(f"src is {src.dtype}, dst {dst.dtype}")


def _check_shapes(emit: Emit, dst: NkiTensor, expected: tuple[int, ...]) -> None:
    if dst.shape != expected:
        emit.illegal(f"dst has shape {dst.shape}; expected {expected}")


def _check_dim(emit: Emit, dim: int, srcs: Tensors, sbuf_dims: tuple[int, ...] = (0,)) -> None:
    in_sbuf = srcs[0].buffer in SBUF
    allowed = sbuf_dims if in_sbuf else (0,)
    if dim not in allowed:
        emit.illegal(f"collective_dim {dim} is not possible; it must be in {allowed}")
    emit.require(not in_sbuf or srcs[0].ndim == 2, "tensors in SBUF must have two dimensions")


def _check_reduction(emit: Emit, op: Any) -> str:
    name = getattr(op, "name", None)
    if name not in _REDUCTIONS:
        emit.illegal(f"op must be one of {', '.join(_REDUCTIONS)}, not {op!r}")
    return str(name)


def _operands(
    emit: Emit, srcs: Tensors, dsts: Tensors
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    sources = [emit.read(src, "srcs", buffers=DMA_REACHABLE) for src in srcs]
    targets = [emit.write(dst, "dsts", buffers=DMA_REACHABLE, elementwise=False) for dst in dsts]
    return sources, targets


def _exchange(
    emit: Emit,
    group: tuple[int, ...],
    payload: Any,
    move: Callable[[list[Any]], None],
    *what: Any,
) -> None:
    """Meet the group; the last rank records `move` on the payloads of all, in the group's order."""
    for arrived in emit.meet_ranks((emit.name, group, *what), group, payload):
        emit.step(move, [arrived[rank] for rank in group])


# ---- of whole tensors ----


@collective(over_ring(2))
def all_reduce(
    emit: Emit,
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    op: Any,
    priority: int | None = None,
    name: Any = None,
) -> None:
    """Every dst = the reduction of the group's srcs."""
    group = group_of(emit, replica_group, priority)
    check_pairs(emit, srcs, dsts, hbm_only=False)
    for src, dst in zip(srcs, dsts, strict=True):
        _check_shapes(emit, dst, src.shape)
    how = _check_reduction(emit, op)
    dtypes = [src.dtype for src in srcs]
    move = functools.partial(exchange.all_reduce, how, dtypes)
    _exchange(emit, group, _operands(emit, srcs, dsts), move, how, _shapes(srcs))


@collective(over_ring(1))
def all_gather(
    emit: Emit,
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: Any = None,
) -> None:
    """Every dst = the group's srcs one after the other along a dimension."""
    group = group_of(emit, replica_group, priority)
    check_pairs(emit, srcs, dsts, hbm_only=False)
    _check_dim(emit, collective_dim, srcs, (0, 1))
    for src, dst in zip(srcs, dsts, strict=True):
        expected = list(src.shape)
        expected[collective_dim] *= len(group)
        _check_shapes(emit, dst, tuple(expected))
    move = functools.partial(exchange.all_gather, collective_dim)
    _exchange(emit, group, _operands(emit, srcs, dsts), move, collective_dim, _shapes(srcs))


def _rows_of_a_part(emit: Emit, src: NkiTensor, parts: int) -> int:
    """Rows of each of `parts` equal parts of `src`."""
    rows = src.shape[0]
    if rows % parts:
        emit.illegal(f"{rows} rows do not split into {parts}")
    return rows // parts


@collective(over_ring(1))
def reduce_scatter(
    emit: Emit,
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: Any = None,
) -> None:
    """dst of the i-th rank = the i-th part of the reduction of the group's srcs."""
    group = group_of(emit, replica_group, priority)
    check_pairs(emit, srcs, dsts, hbm_only=False)
    _check_dim(emit, collective_dim, srcs)
    for src, dst in zip(srcs, dsts, strict=True):
        rows = _rows_of_a_part(emit, src, len(group))
        _check_shapes(emit, dst, (rows, *src.shape[1:]))
    how = _check_reduction(emit, op)
    move = functools.partial(exchange.reduce_scatter, how, [src.dtype for src in srcs])
    _exchange(emit, group, _operands(emit, srcs, dsts), move, how, _shapes(srcs))


@collective(over_ring(1))
def all_to_all(
    emit: Emit,
    srcs: Tensors,
    dsts: Tensors,
    replica_group: ReplicaGroup,
    collective_dim: int,
    priority: int | None = None,
    name: Any = None,
) -> None:
    """Part j of dst = part i of the j-th rank's src, for the i-th rank."""
    group = group_of(emit, replica_group, priority)
    check_pairs(emit, srcs, dsts, hbm_only=True)
    _check_dim(emit, collective_dim, srcs)
    for src, dst in zip(srcs, dsts, strict=True):
        _rows_of_a_part(emit, src, len(group))
        _check_shapes(emit, dst, src.shape)
    _exchange(emit, group, _operands(emit, srcs, dsts), exchange.all_to_all, _shapes(srcs))


def _shapes(tensors: Tensors) -> tuple[Any, ...]:
    return tuple((tensor.shape, str(tensor.dtype)) for tensor in tensors)


# ---- point to point ----


@collective(permuted)
def collective_permute(
    emit: Emit,
    srcs: Tensors,
    dsts: Tensors,
    source_target_pairs: Sequence[tuple[int, int]],
    priority: int | None = None,
    name: Any = None,
) -> None:
    """dst of a pair's target = src of its source; a rank that is no target keeps its dst."""
    everyone = tuple(range(emit.ranks))
    group_of(emit, ReplicaGroup([everyone]), priority)
    check_pairs(emit, srcs, dsts, hbm_only=True)
    emit.require(len(srcs) == 1, "it takes one tensor")
    _check_shapes(emit, dsts[0], srcs[0].shape)
    pairs = tuple((int(source), int(target)) for source, target in source_target_pairs)
    for side in zip(*pairs, strict=True):
        if len(set(side)) != len(side):
            emit.illegal(f"a rank stands twice on one side of {pairs}")
        if not set(side) <= set(everyone):
            emit.illegal(f"pairs {pairs} name ranks not in {everyone}")
    source = emit.read(srcs[0], "srcs", buffers=HBM)
    target = None
    if any(receiver == emit.rank for _, receiver in pairs):
        target = emit.write(dsts[0], "dsts", buffers=HBM, elementwise=False)
    move = functools.partial(exchange.permute, pairs)
    _exchange(emit, everyone, (source, target), move, pairs, _shapes(srcs))


def _check_channels(emit: Emit, channel_ids: Sequence[int], *by_channel: Sequence[Tensors]) -> None:
    count = len(channel_ids)
    if not (list(channel_ids) == list(range(count)) and 1 <= count <= 4):
        emit.illegal(f"channel_ids {list(channel_ids)} must be 0, 1, ..., at most 4 of them")
    for tensors in by_channel:
        if len(tensors) != count:
            emit.illegal(f"{len(tensors)} lists for {count} channels")
        for inner in tensors:
            emit.require(len(inner) == 1, "every channel takes one tensor")


@collective(permuted)
def collective_permute_implicit(
    emit: Emit,
    srcs_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: Any = None,
) -> None:
    """dst = src of the rank before this one in the ring."""
    group = group_of(emit, replica_group, priority)
    _check_channels(emit, channel_ids, srcs_by_channel, dsts_by_channel)
    srcs = [tensors[0] for tensors in srcs_by_channel]
    dsts = [tensors[0] for tensors in dsts_by_channel]
    # Channels are transfers of their own: the rules for several tensors at once are not theirs.
    for src, dst in zip(srcs, dsts, strict=True):
        check_pairs(emit, [src], [dst], hbm_only=False)
        _check_shapes(emit, dst, src.shape)
    _exchange(emit, group, _operands(emit, srcs, dsts), exchange.ring, _shapes(srcs))


@collective(permuted)
def collective_permute_implicit_reduce(
    emit: Emit,
    srcs0_by_channel: Sequence[Tensors],
    srcs1_by_channel: Sequence[Tensors],
    dsts_by_channel: Sequence[Tensors],
    replica_group: ReplicaGroup,
    op: Any,
    channel_ids: Sequence[int] = (0,),
    priority: int | None = None,
    name: Any = None,
) -> None:
    """dst = op(src0, src1) of the rank before this one in the ring."""
    group = group_of(emit, replica_group, priority)
    _check_channels(emit, channel_ids, srcs0_by_channel, srcs1_by_channel, dsts_by_channel)
    first = [tensors[0] for tensors in srcs0_by_channel]
    second = [tensors[0] for tensors in srcs1_by_channel]
    dsts = [tensors[0] for tensors in dsts_by_channel]
    for a, b, dst in zip(first, second, dsts, strict=True):
        check_pairs(emit, [a], [dst], hbm_only=False)
        check_pairs(emit, [b], [dst], hbm_only=False)
        _check_shapes(emit, dst, a.shape)
        _check_shapes(emit, dst, b.shape)
    how = _check_reduction(emit, op)
    sources, targets = _operands(emit, [*first, *second], dsts)
    move = functools.partial(exchange.ring_reduce, how, [dst.dtype for dst in dsts])
    _exchange(emit, group, (sources, targets), move, how, _shapes(first))


# ---- who am I ----


@recorded(engines=(Engine.sync,))
def _rank_id(emit: Emit, register: VirtualRegister) -> None:
    emit.step(register.value.fill_, emit.rank)
    register.is_set = True


def rank_id(name: Any = None) -> VirtualRegister:
    """A register with the rank of this program."""
    register = VirtualRegister()
    _rank_id(register)
    return register


@recorded(engines=(Engine.dma,))
def _processing_rank(
    emit: Emit,
    register: VirtualRegister,
    iteration: Any,
    replica_group: ReplicaGroup,
    channel: int,
) -> None:
    group = group_of(emit, replica_group, moves=False)
    if channel not in range(4):
        emit.illegal(f"channel_id {channel} is not in 0 to 3")
    ring = torch.tensor(group, device="cpu")
    position = group.index(emit.rank)
    if isinstance(iteration, VirtualRegister):
        emit.require_set(iteration, "iteration_id")
        emit.step(exchange.ring_member, register.value, ring, position, iteration.value)
    else:
        if not isinstance(iteration, int):
            emit.illegal(f"iteration_id {iteration!r} is no integer")
        emit.step(register.value.fill_, group[(position - iteration) % len(group)])
    register.is_set = True


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: Any, replica_group: ReplicaGroup, channel_id: int = 0, name: Any = None
) -> VirtualRegister:
    """A register with the rank whose data is here in an iteration of a ring."""
    register = VirtualRegister()
    _processing_rank(register, iteration_id, replica_group, channel_id)
    return register


def namespace() -> dict[str, Any]:
    """The members of nki.collectives, those of `collectives_v` with them once it is imported."""
    functions = (rank_id, collective_permute_implicit_current_processing_rank_id)
    return {
        "ReplicaGroup": ReplicaGroup,
        **FUNCTIONS,
        **{function.__name__: function for function in functions},
    }
