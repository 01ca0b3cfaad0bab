"""`forwarded`: results that a kernel first keeps in a tile of their own and then copies are written
where the copy puts them.

`tile[...] = nl.add(a, b)` and `tile[...] = nl.load(x)` are written so: the function makes a tile,
the assignment copies it. Kernels of Jerry2423/kda-for-trainium written so keep VectorE and ScalarE
busy for one copy of each product, not two (bmm_v1: 34 % of 7,695 us for 4,608 copies of 512), and
none for a result that goes where its operand lies (silu_v2_k4: ScalarE 199 us, VectorE 0).
"""

from __future__ import annotations

import copy
from array import array
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trnx.simulator.memory.storage import HBM, MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable

_ON_CHIP = np.array([region not in HBM for region in MemoryRegion])
_Ints = npt.NDArray[np.int64]
# What a result and the copy of it agree in; where the copy is put may lie elsewhere.
_SAME = ("start_partition", "partitions", "free_size", "low", "high", "pattern", "dtype")
_ALIKE = ("partitions", "free_size", "dtype")
# What may write over an operand that lies exactly where the result goes.
_BY_ELEMENT = ("activation", "scalar_tensor_tensor", "tensor_scalar", "tensor_tensor")
_COLUMNS = ("storage", "kind", *_SAME, "dynamic")


class Forwarded(NamedTuple):
    """The instructions, the order without copies, and the numbers of the copies' source lines."""

    rows: InstructionTable
    order: array[int]
    lines: tuple[int, ...]


def forwarded(rows: InstructionTable, order: array[int]) -> Forwarded:
    """A run of `order` in which no tile is made only to be copied by the next instruction."""
    found = _copies(rows, order)
    if not found.size:
        return Forwarded(rows, order, ())
    first = _ints(rows.first_operand)
    result = copy.copy(rows)
    for name in _COLUMNS:
        column: array[int] = getattr(rows, name)
        values = np.frombuffer(column, column.typecode).copy()
        # The copy reads, then writes; what it copies is the last operand of the one before.
        values[first[found] - 1] = values[first[found] + 1]
        setattr(result, name, array(column.typecode, values.tobytes()))
    executed = np.frombuffer(order, np.uint32)
    kept = executed[~np.isin(executed, found)]
    lines = np.unique(np.frombuffer(rows.line, np.uint32)[found])
    return Forwarded(result, array("I", kept.tobytes()), tuple(lines.tolist()))


def _copies(rows: InstructionTable, order: array[int]) -> _Ints:
    """Rows that copy all of what the row before wrote, which nothing else uses."""
    names = rows.opcodes()
    if len(rows) < 2 or "tensor_copy" not in names or not order:
        return np.zeros(0, np.int64)
    first = _ints(rows.first_operand)
    at = np.flatnonzero(_ints(rows.opcode) == names.index("tensor_copy"))
    at = at[(at > 0) & (first[at + 1] - first[at] == 2) & (first[at] > first[at - 1])]
    made, read, put = first[at] - 1, first[at], first[at] + 1
    storage, kind, dynamic = _ints(rows.storage), _ints(rows.kind), _ints(rows.dynamic)
    uses = np.bincount(storage)
    times = np.bincount(_ints(order), minlength=len(rows))
    is_whole = (storage[made] == storage[read]) & (uses[storage[made]] == 2)
    is_whole &= (kind[made] % 2 == 1) & (kind[read] % 2 == 0) & (kind[put] % 2 == 1)
    # In the same memory, on chip.
    is_whole &= (kind[made] == kind[put]) & _ON_CHIP[kind[put] // 2]
    is_whole &= (times[at] == times[at - 1]) & (dynamic[made] + dynamic[read] + dynamic[put] == 0)
    is_whole &= (_ints(rows.keeps)[at - 1] == 0) & (_ints(rows.keeps)[at] == 0)
    is_whole &= _ints(rows.core)[at] == _ints(rows.core)[at - 1]
    for name in _SAME:
        column = _ints(getattr(rows, name))
        is_whole &= column[made] == column[read]
        if name in _ALIKE:
            is_whole &= column[made] == column[put]
    is_whole &= ~np.isin(storage[made], list(rows.placed))
    found: _Ints = at[is_whole & ~_needs_target(rows, storage, first, at)]
    return found


def _needs_target(
    rows: InstructionTable, storage: _Ints, first: _Ints, at: _Ints
) -> npt.NDArray[np.bool_]:
    """Where the row before uses the tile that the copy writes, and may need it whole."""
    found = np.zeros(len(at), bool)
    begin, end, put = first[at - 1], first[at], first[at] + 1
    names = rows.opcodes()
    by_element = [names.index(name) for name in _BY_ELEMENT if name in names]
    is_by_element = np.isin(_ints(rows.opcode)[at - 1], by_element)
    columns = [_ints(getattr(rows, name)) for name in _SAME]
    for n in range(int((end - begin).max(initial=0))):
        used = np.where(begin + n < end, begin + n, begin)
        is_there = is_by_element.copy()
        for column in columns:
            is_there &= column[used] == column[put]
        found |= (storage[used] == storage[put]) & ~is_there
    return found


def _ints(column: Any) -> _Ints:
    found: _Ints = np.frombuffer(column, column.typecode).astype(np.int64)
    return found
