"""Collectives whose counts and displacements are values: `all_gather_v`, `all_to_all_v`.

The metadata tensor (uint32) has the rows send_counts, send_displs, recv_counts (an output unless
`recv_counts_known`) and, for all_to_all_v on trn3, recv_displs. Counts and displacements are
elements of the flattened tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trnx.simulator.costs.collective import over_ring
from trnx.simulator.errors import Location, OutOfBoundsError
from trnx.simulator.isa.collectives import (
    ReplicaGroup,
    check_pairs,
    collective,
    group_of,
)
from trnx.simulator.isa.instruction import Emit
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.storage import DMA_REACHABLE, HBM, SBUF


@dataclass
class _Part:
    """What one rank brings: flat tensors, and rows of its metadata."""

    source: torch.Tensor
    target: torch.Tensor
    counts: torch.Tensor
    displacements: torch.Tensor
    received: torch.Tensor | None
    places: torch.Tensor | None
    where: Location | None


def _flat(emit: Emit, tensor: NkiTensor, operand: str) -> NkiTensor:
    if not tensor.is_contiguous():
        emit.illegal(f"{operand} must be contiguous")
    return tensor.reshape((tensor.size,))


def _part(
    emit: Emit,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    metadata: NkiTensor,
    columns: tuple[int, int],
    known: bool,
    has_rdispls: bool,
) -> _Part:
    """Checks the operands; `columns`: how many of rows 0 and 1 are read, and ranks."""
    check_pairs(emit, srcs, dsts, hbm_only=True)
    emit.require(len(srcs) == 1, "it takes one tensor")
    emit.check(metadata, "metadata_tensor", DMA_REACHABLE)
    used, count = columns
    wanted = (4 if has_rdispls else 3, count)
    shape = (1, *wanted) if metadata.buffer in SBUF else wanted
    if metadata.dtype != "uint32":
        emit.illegal(f"metadata_tensor is {metadata.dtype}, not uint32")
    if metadata.shape != shape:
        emit.illegal(f"metadata_tensor has shape {metadata.shape}; expected {shape}")
    at = len(shape) - 2

    def rows(first: int, last: int, width: int) -> NkiTensor:
        return metadata.slice(at, first, last).slice(at + 1, 0, width)

    read = functools.partial(emit.read, buffers=DMA_REACHABLE)
    source = read(_flat(emit, srcs[0], "src"), "srcs")
    counts = read(rows(0, 1, used), "metadata_tensor", shape=(used,))
    displacements = read(rows(1, 2, used), "metadata_tensor", shape=(used,))
    places = read(rows(3, 4, count), "metadata_tensor", shape=(count,)) if has_rdispls else None
    received = None
    if not known:
        received = emit.write(
            rows(2, 3, count), "metadata_tensor", shape=(count,), buffers=DMA_REACHABLE
        )
    target = emit.overwrite_some(_flat(emit, dsts[0], "dst"), "dsts", buffers=HBM)
    return _Part(source, target, counts, displacements, received, places, emit.location)


@collective(over_ring(1))
def all_gather_v(
    emit: Emit,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: Any = None,
) -> None:
    """Slot s of every dst = the chunk that rank s of the group sends to all."""
    group = group_of(emit, replica_group, priority)
    emit.require(not has_rdispls, "has_rdispls is not supported")
    if len(group) != 4:
        emit.illegal(f"a group must have 4 ranks, not {len(group)}")
    if emit.programs != 2:
        emit.finding(emit.name, "it needs ranks of two programs (LNC2): launch kernel[2]")
    columns = (1, len(group))
    part = _part(emit, srcs, dsts, metadata_tensor, columns, recv_counts_known, False)
    _meet(emit, group, part)


@collective(over_ring(1))
def all_to_all_v(
    emit: Emit,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: ReplicaGroup,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: Any = None,
) -> None:
    """Every rank sends each other rank a chunk of its own size."""
    group = group_of(emit, replica_group, priority)
    emit.require(not has_rdispls or emit.generation > 3, "has_rdispls needs trn3")
    columns = (len(group), len(group))
    part = _part(emit, srcs, dsts, metadata_tensor, columns, recv_counts_known, has_rdispls)
    _meet(emit, group, part)


def _meet(emit: Emit, group: tuple[int, ...], part: _Part) -> None:
    for arrived in emit.meet_ranks((emit.name, group), group, part):
        emit.step(_move, [arrived[rank] for rank in group])


def _move(parts: Sequence[_Part]) -> None:
    """Chunk of rank s for rank r: column r of s's metadata, or its only one."""
    chunks = [_chunks(part, len(parts)) for part in parts]
    for r, part in enumerate(parts):
        slot = part.target.numel() // len(parts)
        places = [slot * s for s in range(len(parts))]
        if part.places is not None:
            places = part.places.to(torch.int64).tolist()
        for s, theirs in enumerate(chunks):
            size = theirs[r].numel()
            room = part.target.numel() - places[s] if part.places is not None else slot
            if size > room:
                _fail(part, f"{size} elements from rank {s} of the group exceed {room} of dst")
            part.target[places[s] : places[s] + size] = theirs[r]
        if part.received is not None:
            part.received.copy_(torch.tensor([theirs[r].numel() for theirs in chunks]))


def _chunks(part: _Part, ranks: int) -> list[torch.Tensor]:
    """Copies of what a rank sends, by receiver."""
    counts = part.counts.to(torch.int64).tolist()
    starts = part.displacements.to(torch.int64).tolist()
    chunks = []
    for count, start in zip(counts, starts, strict=True):
        if start + count > part.source.numel():
            _fail(part, f"elements {start} to {start + count - 1} of {part.source.numel()} of src")
        chunks.append(part.source[start : start + count].clone())
    return chunks * ranks if len(chunks) == 1 else chunks


def _fail(part: _Part, message: str) -> None:
    raise OutOfBoundsError("out-of-bounds", f"metadata of a collective: {message}", part.where)
