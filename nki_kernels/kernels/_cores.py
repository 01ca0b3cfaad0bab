"""What each program of a launch does where the physical cores of a logical one share the work.

A kernel that shares has `cores: int = 1` as its last parameter: the number of programs that take
part. Others, of which a launch may have more, get an empty share. Every program allocates all
results, in the same order.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl


def share_of(count: int, cores: int, unit: int = 1) -> tuple[int, int]:
    """The part `first .. end` of `count` rows (heads, tiles, columns) that is this program's.

    Parts are even, but for cuts at multiples of `unit` alone; the last ones may be empty.
    """
    return share_of_program(count, cores, unit, nl.program_id(0))


def share_of_program(count: int, cores: int, unit: int, program: int) -> tuple[int, int]:
    """The part of another program."""
    units = (count + unit - 1) // unit
    each = (units + cores - 1) // cores * unit
    first = min(count, program * each)
    return first, min(count, first + each)


def is_first() -> bool:
    """Whether this is the program that does what is done once."""
    program = nl.program_id(0)  # type: int
    return program == 0


def is_last(cores: int) -> bool:
    """Whether this is the last one of the programs that share the work."""
    program = nl.program_id(0)  # type: int
    return program == cores - 1


def sum_over_cores(values: nl.NkiTensor, cores: int) -> nl.NkiTensor:
    """The sum of a float32 tile `[partitions, columns]` over the programs that share the work."""
    if cores == 1:
        return values
    partitions, columns = values.shape
    shape = (cores, partitions, columns)
    parts = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=parts[nl.program_id(0)], src=values)
    nisa.core_barrier(parts, (0, 1))
    return sum_of_parts(parts)


def sum_of_parts(parts: nl.NkiTensor) -> nl.NkiTensor:
    """The sum of the two tiles in `parts[2, partitions, columns]`, in shared HBM, behind a barrier
    of the programs that put them there."""
    cores, partitions, columns = parts.shape
    every = nl.ndarray((partitions, cores, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=every, src=parts.permute((1, 0, 2)))
    total = nl.ndarray((partitions, columns), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=total, data1=every[:, 0], data2=every[:, 1], op=nl.add)
    return total
