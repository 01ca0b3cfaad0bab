"""Kernels that write rows, or add to them, at addresses which index tensors give.

Sums are made of 128 rows at a time: a product with a matrix of ones where two rows have one address
adds up the rows of each address, and every one of them writes the same sum. Infinite and NaN values
would spread in that product, so they go their own way, as counts: a row gets one where there is one
at its address.

Writes have the order of the rows, so that the first program of a launch does them all.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import is_first
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
) -> nl.NkiTensor:
    """`base` with rows of `values` at the addresses; `rows`: how many, elements of one, and of the
    unit of addresses. `tile`: rows in a partition, and elements of a row at a time. `spread` is the
    pattern of the values of all rows, () where memory has that order.

    Of rows with one address the last is written last.
    """
    out = nl.ndarray(shape, dtype=base.dtype, buffer=nl.shared_hbm)
    if is_first():
        operands = (i0, i1, i2, i3, i4, i5)
        positions, width, unit = rows
        run, cols = tile
        nisa.dma_copy(dst=out.reshape((base.size,)), src=base.reshape((base.size,)))
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
                for col in range(0, width, cols):
                    size = min(cols, width - col)
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
) -> nl.NkiTensor:
    """As `put_rows_kernel`, with the rows added to `base`, or to zeros, in float32; nothing is
    added at the address `skipped`.
    """
    out = nl.ndarray(shape, dtype=values.dtype, buffer=nl.shared_hbm)
    if is_first():
        operands = (i0, i1, i2, i3, i4, i5)
        positions, width, unit = rows
        run, cols = tile
        sums = out
        if values.dtype != nl.float32:
            sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm)
        if base is None:
            _fill_with_zeros(sums.reshape((sums.size,)))
        else:
            nisa.dma_copy(dst=sums.reshape((sums.size,)), src=base.reshape((sums.size,)))
        units = sums.reshape((sums.size // unit, unit))
        source = _rows_of(values, spread, positions, width)
        indices = []  # type: list[nl.NkiTensor]
        for term in terms:
            indices.append(by_position(term, operands, positions, False))
        bad = no_bad_index()
        done = 0
        while done < positions:
            partitions = min(nl.tile_size.pmax, positions - done)
            length = min(run, (positions - done) // partitions)
            chosen = addresses(terms, indices, done, (partitions, length), bad, False, True)
            for i in range(length):
                address = chosen[:, i : i + 1]
                ones = _same_address(address, values.dtype, skipped)
                here = source[done + i * partitions : done + (i + 1) * partitions]
                for col in range(0, width, cols):
                    size = min(cols, width - col)
                    goal = units.ap(
                        pattern=[[unit, partitions], [1, size]],
                        offset=col,
                        vector_offset=address,
                        indirect_dim=0,
                    )
                    total = nl.ndarray((partitions, size), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.dma_copy(dst=total, src=goal)
                    _add_up(total, here[:, col : col + size], ones)
                    nisa.dma_copy(dst=goal, src=total)
            done = done + partitions * length
        if values.dtype != nl.float32:
            nisa.dma_copy(dst=out.reshape((out.size,)), src=sums.reshape((out.size,)))
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


def _fill_with_zeros(flat: nl.NkiTensor) -> None:
    pmax = nl.tile_size.pmax
    zeros = nl.ndarray((pmax, _FILL), dtype=flat.dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    done = 0
    while done < flat.size:
        partitions = min(pmax, flat.size - done)
        length = min(_FILL, (flat.size - done) // partitions)
        part = flat[done : done + partitions * length].reshape((partitions, length))
        nisa.dma_copy(dst=part, src=zeros[0:partitions, 0:length])
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


def _add_up(
    total: nl.NkiTensor, source: nl.NkiTensor, ones: tuple[nl.NkiTensor, nl.NkiTensor]
) -> None:
    """total `[P, size]` += the sum of the rows of `source`, in HBM, that have its address."""
    shape = total.shape
    rows = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=rows, src=source)
    finite = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.memset(dst=finite, value=0.0)
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
    for start in range(0, shape[1], fmax):
        size = min(fmax, shape[1] - start)
        part = total[:, start : start + size]
        _add_product(part, ones[0], finite[:, start : start + size], 1.0)
        _add_product(part, ones[1], above[:, start : start + size], _BIG)
        _add_product(part, ones[1], below[:, start : start + size], -_BIG)


def _add_product(part: nl.NkiTensor, ones: nl.NkiTensor, rows: nl.NkiTensor, factor: float) -> None:
    bank = nl.ndarray(part.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=bank, stationary=ones, moving=rows)
    nisa.scalar_tensor_tensor(
        dst=part, data=bank, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=part
    )
