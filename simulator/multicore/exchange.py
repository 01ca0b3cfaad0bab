"""What collectives do with the tensors of all ranks of a group, as steps.

A rank's payload is (sources, targets), each a list of strided tensors; lists are in the group's
order. All sources are read before a target is written where a tensor may be both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trnx.simulator.language.operators.table import OPERATORS
from trnx.simulator.memory.dtype_conversion import append_load_f32, append_store_f32
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.storage import Step

Payload = tuple[list[torch.Tensor], list[torch.Tensor]]


def _reduced(tensors: Sequence[torch.Tensor], how: str, dtype: DType) -> torch.Tensor:
    """The reduction in float32, of integers in int64."""
    total, combine = _wide(tensors[0], dtype), OPERATORS[how].function
    for tensor in tensors[1:]:
        total = combine(total, _wide(tensor, dtype))
    return total


def _wide(tensor: torch.Tensor, dtype: DType) -> torch.Tensor:
    if dtype.is_integer:
        return tensor.to(torch.int64)
    value = torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
    steps: list[Step] = []
    append_load_f32(steps, dtype, tensor, value)
    for step in steps:
        step()
    return value


def _store(total: torch.Tensor, dtype: DType, target: torch.Tensor) -> None:
    """Round once; integers saturate."""
    if dtype.is_integer:
        low, high = dtype.limits or (0, 1)
        target.copy_(total.clamp(low, high))
        return
    steps: list[Step] = []
    append_store_f32(steps, dtype, total.clone(), target, exact=False)
    for step in steps:
        step()


def all_reduce(how: str, dtypes: Sequence[DType], ranks: Sequence[Payload]) -> None:
    """Every target = the reduction of all sources."""
    for i, dtype in enumerate(dtypes):
        total = _reduced([sources[i] for sources, _ in ranks], how, dtype)
        for _, targets in ranks:
            _store(total, dtype, targets[i])


def all_gather(dim: int, ranks: Sequence[Payload]) -> None:
    """Every target = the sources one after the other."""
    for i in range(len(ranks[0][0])):
        whole = torch.cat([sources[i] for sources, _ in ranks], dim)
        for _, targets in ranks:
            targets[i].copy_(whole)


def reduce_scatter(how: str, dtypes: Sequence[DType], ranks: Sequence[Payload]) -> None:
    """Target of each rank = its part of the reduction."""
    for i, dtype in enumerate(dtypes):
        total = _reduced([sources[i] for sources, _ in ranks], how, dtype)
        for (_, targets), part in zip(ranks, total.chunk(len(ranks)), strict=True):
            _store(part, dtype, targets[i])


def all_to_all(ranks: Sequence[Payload]) -> None:
    """Part j of rank i's target = part i of rank j's source."""
    for i in range(len(ranks[0][0])):
        parts = [sources[i].chunk(len(ranks)) for sources, _ in ranks]
        wholes = [torch.cat([theirs[me] for theirs in parts]) for me in range(len(ranks))]
        for (_, targets), whole in zip(ranks, wholes, strict=True):
            targets[i].copy_(whole)


def permute(
    pairs: Sequence[tuple[int, int]],
    ranks: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
) -> None:
    """Target of each pair's receiver = source of its sender."""
    held = {receiver: ranks[sender][0].clone() for sender, receiver in pairs}
    for receiver, value in held.items():
        target = ranks[receiver][1]
        assert target is not None
        target.copy_(value)


def ring(ranks: Sequence[Payload]) -> None:
    """Targets of each rank = sources of the rank before it."""
    held = [[source.clone() for source in sources] for sources, _ in ranks]
    for i, (_, targets) in enumerate(ranks):
        for value, target in zip(held[i - 1], targets, strict=True):
            target.copy_(value)


def ring_reduce(how: str, dtypes: Sequence[DType], ranks: Sequence[Payload]) -> None:
    """Targets of each rank = the reduction of both sources of the rank before it."""
    count = len(dtypes)
    held = [
        [_reduced([sources[i], sources[count + i]], how, dtypes[i]) for i in range(count)]
        for sources, _ in ranks
    ]
    for i, (_, targets) in enumerate(ranks):
        for total, dtype, target in zip(held[i - 1], dtypes, targets, strict=True):
            _store(total, dtype, target)


def ring_member(
    out: torch.Tensor, ring_ranks: torch.Tensor, position: int, iteration: torch.Tensor
) -> None:
    """The rank whose data is at `position` after `iteration` turns."""
    out.copy_(ring_ranks[(position - iteration) % len(ring_ranks)])
