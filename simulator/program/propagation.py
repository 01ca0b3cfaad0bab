"""What becomes of elements that nothing has written: where a result lacks what an operand lacks.

A declaration names the operands whose lack of values the instruction hands on: `by_element` where
each element has its place in the result, `by_partition` where a partition of the result comes from
that partition of all operands. What is not named is a finding when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from trnx.simulator.errors import FindingError
from trnx.simulator.language.tensor import NkiTensor

# What is missing in a read operand (by element), the operand's name, and the finding that the read
# is if it cannot be handed on.
Missing = tuple[torch.Tensor, str, FindingError]
# What is missing in the result, from what is missing in an operand; None where nobody can say.
Placement = Callable[[torch.Tensor, NkiTensor], torch.Tensor | None]


@dataclass(frozen=True)
class Propagation:
    """`places`: of operands whose elements have their place in the result. With `is_by_partition`
    any other operand makes partitions of the result missing.
    """

    places: Mapping[str, Placement] = field(default_factory=dict)
    is_by_partition: bool = False

    def propagates(self, operand: str) -> bool:
        """True where a lack in `operand` becomes one in the result."""
        return self.is_by_partition or operand in self.places

    def place(self, operand: str, missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
        """What is missing in `target`, or None where that cannot be said."""
        own = self.places.get(operand)
        mask = own(missing, target) if own else None
        if mask is None and self.is_by_partition:
            return same_partition(missing, target)
        return mask


# Every read of a missing element is a finding.
NOTHING = Propagation()


def by_element(*operands: str, **places: Placement) -> Propagation:
    """`operands` have the elements of the result in its order; `places` have them elsewhere."""
    return Propagation(dict.fromkeys(operands, same_place) | places)


def by_partition(*operands: str) -> Propagation:
    """Partition by partition; of `operands` element by element, where the sizes are equal."""
    return Propagation(dict.fromkeys(operands, same_place), is_by_partition=True)


def same_place(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """Element i of the operand is element i of the result."""
    return missing.reshape(target.shape) if missing.numel() == target.size else None


def same_partition(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """A partition of the result comes from that partition of the operand."""
    lanes = missing.reshape(missing.shape[0], -1).any(1)
    return _spread(lanes, target) if lanes.numel() == target.shape[0] else None


def transposed_place(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """The result is the operand with its dimensions reversed, as the transposes have it."""
    if missing.numel() != target.size:
        return None
    if missing.ndim == 3 and target.ndim == 3:
        return missing.permute(2, 1, 0).reshape(target.shape)
    if missing.ndim == 4 and target.ndim == 4:
        return missing.permute(3, 1, 2, 0).reshape(target.shape)
    return missing.reshape(missing.shape[0], -1).t().reshape(target.shape)


def product_rows(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """A column of the stationary operand makes a row of the product."""
    rows = missing.reshape(missing.shape[0], -1).any(0)
    return _spread(rows, target) if rows.numel() == target.shape[0] else None


def product_columns(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """A column of the moving operand makes a column of the product."""
    columns = missing.reshape(missing.shape[0], -1).any(0)
    if columns.numel() * target.shape[0] != target.size:
        return None
    return columns.view(1, *target.shape[1:]).expand(target.shape)


def rows_of_gpsimd_cores(missing: torch.Tensor, target: NkiTensor) -> torch.Tensor | None:
    """The operand has one row for each GpSimd core, whose partitions in the result are 16."""
    lanes = torch.zeros(target.shape[0], dtype=torch.bool, device="cpu")
    lanes[::16] = missing.reshape(missing.shape[0], -1).any(1)
    return _spread(lanes, target)


def moved_partitions(
    targets: Sequence[int], sources: Sequence[int], missing: torch.Tensor, target: NkiTensor
) -> torch.Tensor:
    """Partitions `targets` of the result come from the partitions `sources` of the operand."""
    placed = torch.zeros(target.shape[0], target.free_size, dtype=torch.bool, device="cpu")
    placed[list(targets)] = missing.reshape(missing.shape[0], -1)[list(sources)]
    return placed.view(target.shape)


def other_partitions(
    targets: Sequence[int], missing: torch.Tensor, target: NkiTensor
) -> torch.Tensor:
    """All partitions of the result but `targets` are what they were."""
    kept = missing.clone()
    kept[list(targets)] = False
    return kept.view(target.shape)


def _spread(partitions: torch.Tensor, target: NkiTensor) -> torch.Tensor:
    return partitions.view(-1, *[1] * (target.ndim - 1)).expand(target.shape)
