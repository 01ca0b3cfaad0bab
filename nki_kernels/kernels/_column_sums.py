"""Sums of rows over all tiles, by TensorE: the gradients of the weight and the bias of a norm.

The rows move, so that those of float32 need not be loaded as weights, columns of factors stand
still. As that uses few columns of TensorE's array, four products run side by side, each with a
quarter of the columns of the rows: partition `32 * q` of the sums holds those of quarter q, and the
partitions behind it those for further columns of factors.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import is_first, is_last, sum_of_parts
from trnx.nki_kernels.kernels._transfers import store_late

_QUARTERS = 4  # of TensorE's array
_WIDTH = 32  # columns of one


class Gradients(NamedTuple):
    """HBM: the results `[columns]`; `parts[cores, 2, columns]` in float32 is where programs
    that share the work exchange their sums, None where there is one."""

    weight: nl.NkiTensor
    bias: nl.NkiTensor
    parts: nl.NkiTensor | None


def new_gradients(weight: nl.NkiTensor, cores: int) -> Gradients:
    """Of a weight and a bias of one shape and dtype; not filled."""
    dweight = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    dbias = nl.ndarray(weight.shape, dtype=weight.dtype, buffer=nl.shared_hbm)
    parts = None
    if cores > 1:
        shape = (cores, 2, weight.size)
        parts = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
    return Gradients(dweight, dbias, parts)


def new_sums(columns: int) -> nl.NkiTensor:
    """`[128, columns / 4]` in PSUM, zeros; `columns` is a multiple of 128."""
    shape = (nl.tile_size.pmax, columns // _QUARTERS)
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    nisa.memset(dst=sums, value=0.0, engine=nisa.engine.vector)
    return sums


def ones_of(columns: int, dtype: str) -> nl.NkiTensor:
    """`[128, columns]`: the last column ones, zeros before it."""
    ones = nl.ndarray((nl.tile_size.pmax, columns), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=0.0, engine=nisa.engine.gpsimd)
    nisa.memset(dst=ones[:, columns - 1 : columns], value=1.0, engine=nisa.engine.gpsimd)
    return ones


def add_columns(
    sums: nl.NkiTensor, rows: nl.NkiTensor, factors: nl.NkiTensor, is_started: bool
) -> None:
    """sums += those of `rows[partitions, columns]` times each column of `factors[partitions, n]`:
    the first n partitions of each quarter."""
    pmax = nl.tile_size.pmax
    size, kinds = sums.shape[1], factors.shape[1]
    limit = nl.tile_size.psum_bank_fmax
    for start in range(0, size, limit):
        end = min(size, start + limit)
        for quarter in range(_QUARTERS):
            first = quarter * _WIDTH
            nisa.nc_matmul(
                dst=sums[first : first + kinds, start:end], stationary=factors,
                moving=rows[:, quarter * size + start : quarter * size + end],
                accumulate=is_started, tile_position=(0, first), tile_size=(pmax, _WIDTH),
            )  # fmt: skip


def keep_lines(results: Gradients, lines: nl.NkiTensor) -> None:
    """`lines[2 * blocks, 128]` in PSUM, those for the weight first: the results, or this program's
    part of them, by both queues at once."""
    rounded = _copy_of(lines, results)
    blocks = lines.shape[0] // 2
    shape = (blocks, lines.shape[1])
    nisa.dma_copy(dst=_target(results, 0).reshape(shape), src=rounded[0:blocks])
    store_late(_target(results, 1).reshape(shape), rounded[blocks : 2 * blocks])


def keep_each(results: Gradients, weight: nl.NkiTensor, bias: nl.NkiTensor) -> None:
    """The same from the first partitions of the quarters of two sums."""
    for kind, sums in ((0, weight), (1, bias)):
        rounded = _copy_of(sums, results)
        target = _target(results, kind).reshape((_QUARTERS, sums.shape[1]))
        for quarter in range(_QUARTERS):
            first = quarter * _WIDTH
            store_late(target[quarter : quarter + 1], rounded[first : first + 1])


def join_parts(results: Gradients, cores: int) -> None:
    """Behind a barrier of the programs, each of which has kept its part."""
    if results.parts is None:
        return
    nisa.core_barrier(results.parts, (0, 1), engine=nisa.engine.tensor)
    size = results.parts.shape[2] // _QUARTERS
    total = sum_of_parts(results.parts.reshape((cores, 2 * _QUARTERS, size)))
    rounded = nl.ndarray(total.shape, dtype=results.weight.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=total)
    if is_first():
        store_late(results.weight.reshape((_QUARTERS, size)), rounded[0:_QUARTERS])
    if is_last(cores):
        store_late(results.bias.reshape((_QUARTERS, size)), rounded[_QUARTERS : 2 * _QUARTERS])


def _copy_of(sums: nl.NkiTensor, results: Gradients) -> nl.NkiTensor:
    """In the dtype in which they are kept."""
    dtype = results.weight.dtype if results.parts is None else nl.float32
    copy = nl.ndarray(sums.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=copy, src=sums)
    return copy


def _target(results: Gradients, kind: int) -> nl.NkiTensor:
    """Where sums of one kind are kept, `[columns]`; it is 0 for the weight."""
    if results.parts is not None:
        return results.parts[nl.program_id(0), kind]
    return results.weight if kind == 0 else results.bias
