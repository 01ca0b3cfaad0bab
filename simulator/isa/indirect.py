"""Operands at addresses that only values decide: which rows an index means, and the steps that move
them.

A scalar index (one value, from a register or a tensor) serves every instruction; a vector index
(one value per row) DMA alone. An index out of bounds is found when the step runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trnx.simulator.errors import Location, OutOfBoundsError
from trnx.simulator.storage import DMA_REACHABLE
from trnx.simulator.tensor import Indirect, NkiTensor
from trnx.simulator.views import last_element

if TYPE_CHECKING:
    from trnx.simulator.isa.instruction import Emit


def rows_of(emit: Emit, tensor: NkiTensor, indirect: Indirect) -> tuple[torch.Tensor, int]:
    """A view [rows, ...] whose first dimension is what the index counts, and its valid rows."""
    rest = slice(1, None) if indirect.is_vector else slice(None)
    shape, strides = tensor.shape[rest], tensor.strides[rest]
    total = tensor.storage.nbytes // tensor.dtype.itemsize
    room = total - tensor.offset - last_element(shape, strides)
    emit.require(room > 0, "the access pattern leaves its storage for every index")
    limit = indirect.limit
    if indirect.scale > 0:
        limit = min(limit, (room - 1) // indirect.scale + 1)
    view = tensor.storage.view(
        tensor.dtype, (limit, *shape), (indirect.scale, *strides), tensor.offset
    )
    return view, limit


def index_view(emit: Emit, tensor: NkiTensor, indirect: Indirect, operand: str) -> torch.Tensor:
    """The index values as a flat view."""
    index = indirect.index
    if not isinstance(index, NkiTensor):
        emit.require_set(index, f"index of {operand}")
        return index.value
    emit.require(index.dtype.is_integer, f"the index of {operand} is {index.dtype}, not an integer")
    expected = tensor.shape[0] if indirect.is_vector else 1
    emit.require(
        index.size == expected, f"the index of {operand} has {index.size} elements, not {expected}"
    )
    return emit.read(index, f"index of {operand}", shape=(index.size,), buffers=DMA_REACHABLE)


def load_scalar_indirect(emit: Emit, tensor: NkiTensor, operand: str) -> torch.Tensor:
    """Scratch with the elements of a view with a scalar index."""
    indirect = tensor.indirection
    assert indirect is not None
    index = index_view(emit, tensor, indirect, operand)
    rows, limit = rows_of(emit, tensor, indirect)
    emit.reads(tensor)
    out = emit.scratch(tensor.shape, tensor.dtype.torch)
    emit.step(gather, rows, index, out.view(1, *tensor.shape), limit, False, emit.location())
    return out


def store_scalar_indirect(emit: Emit, tensor: NkiTensor, operand: str) -> torch.Tensor:
    """Scratch that is stored into a view with a scalar index after the instruction's steps."""
    indirect = tensor.indirection
    assert indirect is not None
    index = index_view(emit, tensor, indirect, operand)
    rows, limit = rows_of(emit, tensor, indirect)
    emit.writes_some(tensor)
    value = emit.scratch(tensor.shape, tensor.dtype.torch)
    emit.finish(put, rows, index, value.view(1, *tensor.shape), limit, False, emit.location())
    return value


def _valid(
    index: torch.Tensor, limit: int, skip: bool, where: Location | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The index as int64, and which entries are in bounds (None: all). Raises OutOfBoundsError."""
    wide = index.to(torch.int64)
    inside = (wide >= 0) & (wide < limit)
    if bool(inside.all()):
        return wide, None
    if not skip:
        bad = wide[~inside][0].item()
        raise OutOfBoundsError(
            "out-of-bounds", f"an indirect DMA has index {bad}; valid are 0 to {limit - 1}", where
        )
    return wide, inside


def gather(
    rows: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor,
    limit: int,
    skip: bool,
    where: Location | None,
) -> None:
    """out[i] = rows[index[i]], as a step."""
    wide, inside = _valid(index, limit, skip, where)
    if inside is None:
        torch.index_select(rows, 0, wide, out=out)
    else:
        out[inside] = rows[wide[inside]]


def put(
    rows: torch.Tensor,
    index: torch.Tensor,
    value: torch.Tensor,
    limit: int,
    skip: bool,
    where: Location | None,
) -> None:
    """rows[index[i]] = value[i], as a step."""
    wide, inside = _valid(index, limit, skip, where)
    if inside is None:
        rows[wide] = value
    else:
        rows[wide[inside]] = value[inside]
