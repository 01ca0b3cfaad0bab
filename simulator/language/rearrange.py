"""`NkiTensor.rearrange`: einops-style patterns as tuples of names and of groups of names."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trnx.simulator.errors import IllegalInstructionError
from trnx.simulator.kernel_lines import kernel_location

if TYPE_CHECKING:
    from trnx.simulator.language.tensor import NkiTensor


def rearrange_view(
    tensor: NkiTensor, source: tuple[Any, ...], target: tuple[Any, ...], sizes: dict[str, int]
) -> NkiTensor:
    """Split by `source`, reorder, and merge by `target`."""
    if len(source) != tensor.ndim:
        _fail(tensor, f"the source pattern {source} does not name {tensor.ndim} dimensions")
    view = tensor
    names: list[str] = []
    for group, size in zip(source, tensor.shape, strict=True):
        members = _members(group)
        if len(members) == 1:
            if sizes.get(members[0], size) != size:
                _fail(tensor, f"{members[0]!r} is {sizes[members[0]]}, the dimension {size}")
        else:
            view = view.reshape_dim(len(names), _group_sizes(tensor, members, size, sizes))
        names.extend(members)
    flat_target = [name for group in target for name in _members(group)]
    if sorted(flat_target) != sorted(names) or len(set(names)) != len(names):
        _fail(tensor, f"patterns {source} and {target} must have the same distinct names")
    view = view.permute(tuple(names.index(name) for name in flat_target))
    for dim, group in enumerate(target):
        count = len(_members(group))
        if count > 1:
            view = view.flatten_dims(dim, dim + count - 1)
    return view


def _members(group: Any) -> tuple[str, ...]:
    return (group,) if isinstance(group, str) else tuple(group)


def _group_sizes(
    tensor: NkiTensor, members: tuple[str, ...], size: int, sizes: dict[str, int]
) -> tuple[int, ...]:
    known = math.prod(sizes[name] for name in members if name in sizes)
    unknown = [name for name in members if name not in sizes]
    if len(unknown) > 1 or size % known or (not unknown and known != size):
        _fail(tensor, f"the sizes {sizes} do not split {size} into {members}")
    return tuple(sizes.get(name, size // known) for name in members)


def _fail(tensor: NkiTensor, message: str) -> None:
    raise IllegalInstructionError(
        "view", f"rearrange: {message} ({tensor.describe()})", kernel_location()
    )
