"""Sums of rows over all tiles, by TensorE: the gradients of the weight and the bias of a norm.

The rows move, so that those of float32 need not be loaded as weights, a column of factors stands
still. As that uses few columns of TensorE's array, four products run side by side, each with a
quarter of the columns of the rows: partitions `32 * q ..` of the sums hold quarter q, all the same.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import is_first, is_last, sum_of_parts
from trnx.nki_kernels.kernels._rows import store_late

QUARTERS = 4  # of TensorE's array
WIDTH = 32  # columns of one, and partitions that hold the same sums


class ColumnSums(NamedTuple):
    """`weight` and `bias[128, columns / 4]` in PSUM; `ones[128, 32]` in the dtype of the gradient;
    `parts` is where programs that share the work exchange their sums, None where there is one."""

    weight: nl.NkiTensor
    bias: nl.NkiTensor
    ones: nl.NkiTensor
    parts: nl.NkiTensor | None


def new_column_sums(columns: int, dtype: str, cores: int) -> ColumnSums:
    """Of rows of `columns`, a multiple of 128; empty."""
    pmax = nl.tile_size.pmax
    size = columns // QUARTERS
    sums = []  # type: list[nl.NkiTensor]
    for _ in range(2):
        sums.append(nl.ndarray((pmax, size), dtype=nl.float32, buffer=nl.psum))
    ones = nl.ndarray((pmax, WIDTH), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.gpsimd)
    parts = None
    if cores > 1:
        shape = (cores, QUARTERS, 2 * size)
        parts = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm)
    return ColumnSums(sums[0], sums[1], ones, parts)


def add_columns(
    sums: nl.NkiTensor, rows: nl.NkiTensor, factors: nl.NkiTensor, is_started: bool
) -> None:
    """sums += the sums of `rows[partitions, columns]` times `factors[partitions, 32]`."""
    pmax = nl.tile_size.pmax
    size = sums.shape[1]
    limit = nl.tile_size.psum_bank_fmax
    for start in range(0, size, limit):
        end = min(size, start + limit)
        for quarter in range(QUARTERS):
            first = quarter * WIDTH
            nisa.nc_matmul(
                dst=sums[first : first + WIDTH, start:end], stationary=factors,
                moving=rows[:, quarter * size + start : quarter * size + end],
                accumulate=is_started, tile_position=(0, first), tile_size=(pmax, WIDTH),
            )  # fmt: skip


def exchange_column_sums(sums: ColumnSums, is_empty: bool) -> None:
    """This program's sums, zeros if it has no rows, to its part, and a barrier, of TensorE, which
    has nothing else to do then."""
    if sums.parts is None:
        return
    pmax, size = sums.weight.shape
    own = nl.ndarray((pmax, 2, size), dtype=nl.float32, buffer=nl.sbuf)
    if is_empty:
        nisa.memset(dst=own, value=0.0)
    else:
        nisa.tensor_copy(dst=own[:, 0], src=sums.weight)
        nisa.tensor_copy(dst=own[:, 1], src=sums.bias, engine=nisa.engine.scalar)
    flat = own.reshape((pmax, 2 * size))
    target = sums.parts[nl.program_id(0)]
    for quarter in range(QUARTERS):
        first = quarter * WIDTH
        store_late(target[quarter : quarter + 1], flat[first : first + 1])
    nisa.core_barrier(sums.parts, (0, 1), engine=nisa.engine.tensor)


def store_column_sums(
    dweight: nl.NkiTensor, dbias: nl.NkiTensor, sums: ColumnSums, cores: int
) -> None:
    """The gradients: of all programs where they have exchanged their sums."""
    size = sums.weight.shape[1]
    weight, bias = sums.weight, sums.bias
    if sums.parts is not None:
        total = sum_of_parts(sums.parts)
        weight, bias = total[:, 0:size], total[:, size : 2 * size]
    if is_first():
        _store(dweight, weight)
    if is_last(cores):
        _store(dbias, bias)


def _store(dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """Each quarter from the first partition that holds it."""
    partitions, size = sums.shape
    rounded = nl.ndarray(sums.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=rounded, src=sums)
    step = partitions // QUARTERS
    target = dst.reshape((QUARTERS, size))
    for quarter in range(QUARTERS):
        first = quarter * step
        store_late(target[quarter : quarter + 1], rounded[first : first + 1])
