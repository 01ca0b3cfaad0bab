"""Operands at addresses that only values decide: which rows an index means, and the steps that move
them.

A scalar index (one value, from a register or a tensor) serves every instruction; a vector index
(one value per row) DMA alone. Tensor indirection (`tensor.indirect(index)`, NeuronCore-v4) serves
the compute engines: offset i of a group of G partitions is `index[i % G, i // G]` of the group's
rows, with G = 32 on the Tensor engine and 16 on others. An index out of bounds is found when the
step runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trnx.simulator.errors import (
    IllegalInstructionError,
    Location,
    OutOfBoundsError,
    UninitialisedReadError,
)
from trnx.simulator.language.enums import Engine
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.language.tensor_view import Indirect
from trnx.simulator.memory.storage import SBUF, MemoryRegion
from trnx.simulator.memory.views import Shape, last_element

if TYPE_CHECKING:
    from trnx.simulator.isa.access import Access
    from trnx.simulator.isa.legality import Legality


def require_some_written(emit: Access, tensor: NkiTensor, operand: str) -> None:
    """Which elements are read only values decide; but where nothing was written, none is valid."""
    initialised = emit.initialised
    if initialised.written.of(tensor.storage).is_empty and initialised.skips.of(tensor) is None:
        emit.finding(
            "uninitialised-read",
            f"{operand} ({tensor.describe()}) is read, and nothing was ever written there",
            UninitialisedReadError,
        )


def unwritten_rows(
    emit: Access, tensor: NkiTensor, indirect: Indirect, limit: int
) -> torch.Tensor | None:
    """Which of the rows that an index may name nothing has written, as it is known when the kernel
    is recorded; None where there is no such row.
    """
    if emit.initialised.written.of(tensor.storage).full:
        return None
    whole = all_rows(tensor, indirect, limit)
    has_any = (~emit.initialised.unwritten(whole)).reshape(limit, -1).any(1)
    return None if bool(has_any.all()) else ~has_any


def all_rows(tensor: NkiTensor, indirect: Indirect, limit: int) -> NkiTensor:
    """What an index may name, as [rows, ...]."""
    shape, strides = _row_of(tensor, indirect)
    strides = (indirect.scale, *strides)
    return NkiTensor(tensor.storage, tensor.dtype, (limit, *shape), strides, tensor.offset)


def require_rows_written(
    unwritten: torch.Tensor, index: torch.Tensor, what: str, where: Location | None
) -> None:
    """The rows that are read must have been written, as a step."""
    wide = index.to(torch.int64).view(-1)
    inside = wide[(wide >= 0) & (wide < len(unwritten))]
    missing = inside[unwritten[inside]]
    if missing.numel():
        raise UninitialisedReadError(
            "uninitialised-read",
            f"{what} is read at index {int(missing[0])}, where nothing was written",
            where,
        )


def _row_of(tensor: NkiTensor, indirect: Indirect) -> tuple[Shape, Shape]:
    """Shape and strides of what one index names."""
    rest = slice(1, None) if indirect.is_vector else slice(None)
    return tensor.shape[rest], tensor.strides[rest]


def rows_of(emit: Access, tensor: NkiTensor, indirect: Indirect) -> tuple[torch.Tensor, int]:
    """A view [rows, ...] whose first dimension is what the index counts, and its valid rows."""
    shape, strides = _row_of(tensor, indirect)
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


def index_view(emit: Access, tensor: NkiTensor, indirect: Indirect, operand: str) -> torch.Tensor:
    """The index values as a flat view."""
    index = indirect.index
    if not isinstance(index, NkiTensor):
        emit.require_set(index, f"index of {operand}")
        return index.value
    if not index.dtype.is_integer:
        emit.illegal(f"the index of {operand} is {index.dtype}, not an integer")
    expected = tensor.shape[0] if indirect.is_vector else 1
    if index.size != expected:
        emit.illegal(f"the index of {operand} has {index.size} elements, not {expected}")
    return emit.read(index, f"index of {operand}", shape=(index.size,), buffers=SBUF)


def check_tensor_indirect(emit: Legality, operand: str) -> None:
    """Whether an operand may be a view made by `.indirect()`."""
    if operand not in emit.spec.indirect:
        emit.illegal(f"{operand} takes no tensor indirection here")


def check_starts(emit: Access, tensor: NkiTensor, operand: str, beside: NkiTensor | None) -> None:
    """Where operands with addresses must start: an index at a quadrant; a gathered operand with its
    index; the index of a scattered dst with `beside`, what the instruction reads first (with its
    index, where that is in PSUM).
    """
    indirect = tensor.indirection
    assert indirect is not None
    index = indirect.index
    if not isinstance(index, NkiTensor) or not index.is_placed:
        return
    if index.start_partition % 32:
        emit.finding(
            "start-partition",
            f"the index of {operand} starts at partition {index.start_partition}; it must be a "
            "multiple of 32",
        )
    other: NkiTensor | None = indirect.base
    if beside is not None:
        inner = beside.indirection
        other = beside
        if beside.buffer is MemoryRegion.psum:
            held = inner.index if inner is not None else None
            other = held if isinstance(held, NkiTensor) else None
    if other is not None and other.is_placed and other.start_partition != index.start_partition:
        emit.finding(
            "start-partition",
            f"the index of {operand} starts at partition {index.start_partition}, and what it goes "
            f"with at {other.start_partition}; they must be equal",
        )


def _columns_of(
    emit: Access, tensor: NkiTensor, indirect: Indirect, operand: str
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The base tile, its index as stored, and the partitions that share a list of offsets."""
    base, index = indirect.base, indirect.index
    assert base is not None
    assert isinstance(index, NkiTensor)
    group = 32 if emit.engine is Engine.tensor else 16
    rows = tensor.shape[0]
    if not (rows % group == 0 and tensor.shape[1] <= group * index.shape[1]):
        emit.illegal(
            f"{operand} has {rows} partitions and {tensor.shape[1]} offsets from an index "
            f"{index.shape}; groups of {group} partitions have {group * index.shape[1]} offsets "
            "each"
        )
    return base.torch_view(), emit.read(index, f"index of {operand}", buffers=SBUF), group


def _offsets(
    index: torch.Tensor, group: int, count: int, limit: int, where: Location | None
) -> torch.Tensor:
    """int64 [partitions, count]: the column of every element."""
    partitions, columns = index.shape
    lists = index.to(torch.int64).reshape(partitions // group, group, columns).transpose(1, 2)
    wide = lists.reshape(partitions // group, -1)[:, :count]
    if bool(((wide < 0) | (wide >= limit)).any()):
        raise OutOfBoundsError(
            "out-of-bounds",
            f"tensor indirection has offsets {int(wide.min())} to {int(wide.max())}; valid are 0 "
            f"to {limit - 1}",
            where,
        )
    return wide.repeat_interleave(group, 0)


def _gather_columns(
    base: torch.Tensor, index: torch.Tensor, group: int, out: torch.Tensor, where: Location | None
) -> None:
    offsets = _offsets(index, group, out.shape[1], base.shape[1], where)
    torch.gather(_bits(base), 1, offsets, out=_bits(out))


def _scatter_columns(
    base: torch.Tensor, index: torch.Tensor, group: int, value: torch.Tensor, where: Location | None
) -> None:
    offsets = _offsets(index, group, value.shape[1], base.shape[1], where)
    _bits(base).scatter_(1, offsets, _bits(value))


def gather_rows(
    rows: torch.Tensor, index: torch.Tensor, group: int, out: torch.Tensor, where: Location | None
) -> None:
    """Columns of the first rows of one group of partitions, as a step."""
    offsets = _offsets(index, group, out.shape[1], rows.shape[1], where)
    torch.gather(rows, 1, offsets[: rows.shape[0]], out=out)


def load_scalar_indirect(emit: Access, tensor: NkiTensor, operand: str) -> torch.Tensor:
    """Scratch with the elements of a view with a scalar index, or with tensor indirection."""
    indirect = tensor.indirection
    assert indirect is not None
    if indirect.base is not None:
        base, columns, group = _columns_of(emit, tensor, indirect, operand)
        if operand != "dst":
            check_starts(emit, tensor, operand, None)
        emit.require_written(indirect.base, operand)
        emit.reads(tensor)
        out = emit.scratch(tensor.shape, tensor.dtype.torch)
        emit.step(_gather_columns, base, columns, group, out, emit.location)
        return out
    require_some_written(emit, tensor, operand)
    index = index_view(emit, tensor, indirect, operand)
    rows, limit = rows_of(emit, tensor, indirect)
    emit.reads(tensor)
    out = emit.scratch(tensor.shape, tensor.dtype.torch)
    emit.step(gather, rows, index, out.view(1, *tensor.shape), limit, False, emit.location)
    return out


def store_scalar_indirect(emit: Access, tensor: NkiTensor, operand: str) -> torch.Tensor:
    """Scratch that is stored into an indirect view after the instruction's steps."""
    indirect = tensor.indirection
    assert indirect is not None
    if indirect.base is not None:
        check_starts(emit, tensor, operand, emit.first_read())
        base, columns, group = _columns_of(emit, tensor, indirect, operand)
        if emit.engine is Engine.scalar and tensor.buffer is MemoryRegion.psum:
            emit.finding("engine", "the Scalar engine does not scatter into PSUM")
        emit.writes_some(tensor)
        value = emit.scratch(tensor.shape, tensor.dtype.torch)
        emit.finish(_scatter_columns, base, columns, group, value, emit.location)
        return value
    index = index_view(emit, tensor, indirect, operand)
    rows, limit = rows_of(emit, tensor, indirect)
    emit.writes_some(tensor)
    value = emit.scratch(tensor.shape, tensor.dtype.torch)
    emit.finish(put, rows, index, value.view(1, *tensor.shape), limit, False, emit.location)
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
            "out-of-bounds",
            f"an indirect access has index {bad}; valid are 0 to {limit - 1}",
            where,
        )
    return wide, inside


def require_unique(index: torch.Tensor, limit: int, where: Location | None) -> None:
    """No row may be named twice, as a step: all are read before the first is written, so one of two
    additions to a row would be lost.
    """
    wide = index.to(torch.int64)
    rows = wide[(wide >= 0) & (wide < limit)].sort().values
    twice = rows[1:][rows[1:] == rows[:-1]]
    if twice.numel():
        raise IllegalInstructionError(
            "scatter-index",
            f"dma_compute adds to row {int(twice[0])} twice; the indices must be unique",
            where,
        )


_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def _bits(view: torch.Tensor) -> torch.Tensor:
    """The same memory as signed integers: torch indexes not every type."""
    return view.view(_SIGNED[view.element_size()])


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
    rows, out = _bits(rows), _bits(out)
    if inside is None:
        torch.index_select(rows, 0, wide, out=out)
    else:
        out[inside] = rows[wide[inside]]


def keep_invalid(index: torch.Tensor, fresh: torch.Tensor, kept: torch.Tensor, limit: int) -> None:
    """kept[i] = fresh[i] where index[i] is in bounds, as a step."""
    wide = index.to(torch.int64)
    inside = ((wide >= 0) & (wide < limit))[:, None]
    bits = _bits(kept)
    bits.copy_(torch.where(inside, _bits(fresh), bits))


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
    rows, value = _bits(rows), _bits(value)
    if inside is None:
        rows[wide] = value
    else:
        rows[wide[inside]] = value[inside]
