"""Kernels that write rows, or add to them, at addresses which index tensors give.

Sums are made of 128 rows at a time: a product with a matrix of ones where two rows have one address
adds up the rows of each address, and every one of them writes the same sum. Infinite and NaN values
would spread in that product, so they go their own way, as counts: a row gets one where there is one
at its address.

Writes have the order of the rows, so that programs that share the work have columns of all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.indexing._addresses import (
    Term,
    addresses,
    by_position,
    no_bad_index,
    refuse,
)

_LARGEST = 3.4028234663852886e38  # of float32
_BIG = 2.0**100  # its square is infinite
_FILL = 4096  # elements of the zeros that memory is filled from


@nki.jit
def put_rows_kernel(
    shape: tuple[int, ...],
    rows: tuple[int, int, int],
    tile: tuple[int, int],
    terms: tuple[Term, ...],
    spread: tuple[tuple[int, int], ...],
    base: nl.NkiTensor,
    values: nl.NkiTensor,
    i0: nl.NkiTensor | None = None,
    i1: nl.NkiTensor | None = None,
    i2: nl.NkiTensor | None = None,
    i3: nl.NkiTensor | None = None,
    i4: nl.NkiTensor | None = None,
    i5: nl.NkiTensor | None = None,
    cores: int = 1,
) -> nl.NkiTensor:
    """`base` with rows of `values` at the addresses; `rows`: how many, elements of one, and of the
    unit of addresses. `tile`: rows in a partition, and elements of a row at a time. `spread` is the
    pattern of the values of all rows, () where memory has that order.

    Of rows with one address the last is written last. `cores` share the columns of rows that are
    whole units.
    """
    out = nl.ndarray(shape, dtype=base.dtype, buffer=nl.shared_hbm)
    positions, width, unit = rows
    first, last = share_of(width, cores)
    if first < last:
        operands = (i0, i1, i2, i3, i4, i5)
        run, cols = tile
        own = (unit, first, last) if cores > 1 else None
        nisa.dma_copy(dst=_part_of(out, own), src=_part_of(base, own))
        units = out.reshape((base.size // unit, unit))
        source = _rows_of(values, spread, positions, width)
        indices = []  # type: list[nl.NkiTensor]
        for term in terms:
            indices.append(by_position(term, operands, positions, False))
        bad = no_bad_index()
        exact = base.size // unit >= 1 << 24
        done = 0
        while done < positions:
            partitions = min(nl.tile_size.pmax, positions - done)
            length = min(run, (positions - done) // partitions)
            chosen = addresses(terms, indices, done, (partitions, length), bad, exact, True)
            for i in range(length):
                here = source[done + i * partitions : done + (i + 1) * partitions]
                for col in range(first, last, cols):
                    size = min(cols, last - col)
                    found = nl.ndarray((partitions, size), dtype=base.dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=found, src=here[:, col : col + size])
                    goal = units.ap(
                        pattern=[[unit, partitions], [1, size]],
                        offset=col,
                        vector_offset=chosen[:, i : i + 1],
                        indirect_dim=0,
                    )
                    nisa.dma_copy(dst=goal, src=found)
            done = done + partitions * length
        refuse(bad)
    return out


@nki.jit
def add_rows_kernel(
    shape: tuple[int, ...],
    rows: tuple[int, int, int],
    tile: tuple[int, int],
    terms: tuple[Term, ...],
    spread: tuple[tuple[int, int], ...],
    skipped: int,
    base: nl.NkiTensor | None,
    values: nl.NkiTensor,
    i0: nl.NkiTensor | None = None,
    i1: nl.NkiTensor | None = None,
    i2: nl.NkiTensor | None = None,
    i3: nl.NkiTensor | None = None,
    i4: nl.NkiTensor | None = None,
    i5: nl.NkiTensor | None = None,
    cores: int = 1,
) -> nl.NkiTensor:
    """As `put_rows_kernel`, with the rows added to `base`, or to zeros, in float32; nothing is
    added at the address `skipped`.
    """
    out = nl.ndarray(shape, dtype=values.dtype, buffer=nl.shared_hbm)
    positions, width, unit = rows
    first, last = share_of(width, cores)
    if first < last:
        operands = (i0, i1, i2, i3, i4, i5)
        run, cols = tile
        own = (unit, first, last) if cores > 1 else None
        table = out
        if values.dtype != nl.float32:
            table = nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm)
        if base is None:
            _fill_with_zeros(_part_of(table, own))
        else:
            nisa.dma_copy(dst=_part_of(table, own), src=_part_of(base, own))
        units = table.reshape((table.size // unit, unit))
        source = _rows_of(values, spread, positions, width)
        indices = []  # type: list[nl.NkiTensor]
        for term in terms:
            indices.append(by_position(term, operands, positions, False))
        bad = no_bad_index()
        waiting = []  # type: list[_Waiting]
        done = 0
        while done < positions:
            partitions = min(nl.tile_size.pmax, positions - done)
            length = min(run, (positions - done) // partitions)
            chosen = addresses(terms, indices, done, (partitions, length), bad, False, True)
            for i in range(length):
                address = chosen[:, i : i + 1]
                ones = _same_address(address, values.dtype, skipped)
                here = source[done + i * partitions : done + (i + 1) * partitions]
                for col in range(first, last, cols):
                    size = min(cols, last - col)
                    goal = units.ap(
                        pattern=[[unit, partitions], [1, size]],
                        offset=col,
                        vector_offset=address,
                        indirect_dim=0,
                    )
                    sums = _sums_of_rows(here[:, col : col + size], ones)
                    # What rows of other tiles have added there is read behind their writes, and
                    # this tile's rows are summed up before.
                    _write(waiting)
                    total = nl.ndarray((partitions, size), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=total, src=goal)
                    waiting.append(_Waiting(goal, total, sums))
            done = done + partitions * length
        _write(waiting)
        if values.dtype != nl.float32:
            nisa.dma_copy(dst=_part_of(out, own), src=_part_of(table, own))
        refuse(bad)
    return out


def _rows_of(
    values: nl.NkiTensor, spread: tuple[tuple[int, int], ...], positions: int, width: int
) -> nl.NkiTensor:
    """HBM `[positions, width]`"""
    if len(spread) == 0:
        return values.reshape((positions, width))
    copy = nl.ndarray((positions, width), dtype=values.dtype, buffer=nl.private_hbm)
    nisa.dma_copy(dst=copy, src=values.ap(pattern=spread, offset=0))
    return copy


def _part_of(tensor: nl.NkiTensor, own: tuple[int, int, int] | None) -> nl.NkiTensor:
    """`[size]`; or `[units, columns]`, the columns of each unit from the first to the last of `own`
    (size of a unit, first, end)."""
    if own is None:
        return tensor.reshape((tensor.size,))
    return tensor.reshape((tensor.size // own[0], own[0]))[:, own[1] : own[2]]


def _fill_with_zeros(part: nl.NkiTensor) -> None:
    """HBM `[size]` or `[units, columns]`"""
    pmax = nl.tile_size.pmax
    zeros = nl.ndarray((pmax, _FILL), dtype=part.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    count = part.shape[0]
    width = part.size // count
    done = 0
    while done < count:
        partitions = min(pmax, count - done)
        length = min(max(1, _FILL // width), (count - done) // partitions)
        here = part[done : done + partitions * length]
        if part.ndim == 1:
            goal = here.reshape_dim(0, (partitions, length))
            nisa.dma_copy(dst=goal, src=zeros[0:partitions, 0:length])
        else:
            for col in range(0, width, _FILL):
                size = min(_FILL, width - col)
                some = zeros[0:partitions, 0 : length * size]
                nisa.dma_copy(
                    dst=here[:, col : col + size], src=some.reshape_dim(1, (length, size))
                )
        done = done + partitions * length


def _same_address(
    address: nl.NkiTensor, dtype: str, skipped: int
) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """`[P, P]`: 1 where two rows have one address; and 2^100 there, in bfloat16."""
    partitions = address.shape[0]
    square = (partitions, partitions)
    column = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=column, src=address)
    turned = nl.ndarray(square, dtype=nl.float32, buffer=nl.psum)
    wide = column.ap(pattern=[[1, partitions], [0, partitions]])
    nisa.nc_transpose(dst=turned, data=wide, engine=nisa.engine.tensor)
    ones = nl.ndarray(square, dtype=dtype, buffer=nl.sbuf)
    big = nl.ndarray(square, dtype=nl.bfloat16, buffer=nl.sbuf)
    if skipped < 0:
        nisa.tensor_scalar(dst=ones, data=turned, op0=nl.equal, operand0=column)
    else:
        added = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=added, data=column, op0=nl.not_equal, operand0=float(skipped))
        nisa.tensor_scalar(
            dst=ones,
            data=turned,
            op0=nl.equal,
            operand0=column,
            op1=nl.multiply,
            operand1=added,
        )
    nisa.tensor_scalar(dst=big, data=ones, op0=nl.multiply, operand0=_BIG)
    return ones, big


class _Sums(NamedTuple):
    """Sums of rows, `[P, columns]` in float32, of columns `start ..`: of the finite values, in
    PSUM, and infinity or NaN where there is another one, else 0, in SBUF."""

    start: int
    finite: nl.NkiTensor
    special: nl.NkiTensor


class _Waiting(NamedTuple):
    """What is to be written to `goal`, in HBM: `total`, which was there, and the sums."""

    goal: nl.NkiTensor
    total: nl.NkiTensor
    sums: list[_Sums]


def _write(waiting: list[_Waiting]) -> None:
    """Add up and write what waits, if something does."""
    if len(waiting) == 0:
        return
    rows = waiting.pop()
    for sums in rows.sums:  # while `total` is on its way
        nisa.tensor_tensor(dst=sums.special, data1=sums.finite, data2=sums.special, op=nl.add)
    for sums in rows.sums:
        part = rows.total[:, sums.start : sums.start + sums.special.shape[1]]
        nisa.tensor_tensor(dst=part, data1=part, data2=sums.special, op=nl.add)
    nisa.dma_copy(dst=rows.goal, src=rows.total)


def _sums_of_rows(source: nl.NkiTensor, ones: tuple[nl.NkiTensor, nl.NkiTensor]) -> list[_Sums]:
    """For each row of `source`, in HBM, the sums of those that have its address."""
    shape = source.shape
    rows = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=source)
    finite = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.memset(dst=finite, value=0.0, engine=nisa.engine.gpsimd)
    mask = nl.ndarray(shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=mask, data=rows, op0=nl.multiply, operand0=0.0, op1=nl.equal, operand1=0.0
    )
    nisa.tensor_copy_predicated(dst=finite, src=rows, predicate=mask)
    above = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)  # inf and NaN
    nisa.tensor_scalar(
        dst=above, data=rows, op0=nl.less_equal, operand0=_LARGEST, op1=nl.equal, operand1=0.0
    )
    below = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)  # -inf and NaN
    nisa.tensor_scalar(
        dst=below, data=rows, op0=nl.greater_equal, operand0=-_LARGEST, op1=nl.equal, operand1=0.0
    )
    fmax = nl.tile_size.psum_fmax
    sums = []  # type: list[_Sums]
    for start in range(0, shape[1], fmax):
        end = min(shape[1], start + fmax)
        bank = _product(ones[0], finite[:, start:end])
        special = _counted(ones[1], above[:, start:end], _BIG)
        negative = _counted(ones[1], below[:, start:end], -_BIG)
        nisa.tensor_tensor(
            dst=special, data1=special, data2=negative, op=nl.add, engine=nisa.engine.gpsimd
        )
        sums.append(_Sums(start, bank, special))
    return sums


def _counted(ones: nl.NkiTensor, rows: nl.NkiTensor, factor: float) -> nl.NkiTensor:
    """The product times `factor`, which is infinite where it is not 0; VectorE has other work."""
    result = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=result, op=nl.copy, data=_product(ones, rows), scale=factor)
    return result


def _product(ones: nl.NkiTensor, rows: nl.NkiTensor) -> nl.NkiTensor:
    """In a bank of PSUM."""
    bank = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=ones, moving=rows)
    return bank
