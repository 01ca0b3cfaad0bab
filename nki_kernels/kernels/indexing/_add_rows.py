"""The kernel that adds rows at addresses which index tensors give.

Sums are made of 128 rows at a time: a product with a matrix of ones where two rows have one address
adds up the rows of each address, and DMA adds the sum of the first one to what is there. Infinite
and NaN values would spread in that product, so they go their own way, as counts: a row gets one
where there is one at its address.

A long base is copied behind the loads of the first rows, which are summed up meanwhile. Engines
work on three tiles at a time: what is finite of one, the products of the one before, their sum.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._identity import triangle
from trnx.nki_kernels.kernels.indexing._addresses import (
    Term,
    addresses,
    by_position,
    no_bad_index,
    refuse,
)
from trnx.nki_kernels.kernels.indexing._scatter_kernels import part_of, rows_in_order

_LARGEST = 3.4028234663852886e38  # of float32
_BIG = 2.0**100  # its square is infinite
_FILL = 4096  # elements of the zeros that memory is filled from
_SHORT = 1 << 20  # elements whose copy the first loads do not wait for
_LOADED = 65536  # bytes of rows in a partition that are loaded ahead


class _Tile(NamedTuple):
    """`size` columns from `col` on of `partitions` rows from `row` on. Addresses are found for the
    `length` tiles of run `run` at a time; this is number `place` of them."""

    row: int
    partitions: int
    run: int
    length: int
    place: int
    begins_run: bool
    col: int
    size: int


class _Same(NamedTuple):
    """Of a tile: `[P, P]`, 1 where two rows have one address; 2^100 there, in bfloat16; and the
    addresses of the first row of each, those of others and `skipped` ones out of bounds."""

    ones: nl.NkiTensor
    big: nl.NkiTensor
    address: nl.NkiTensor


class _Masked(NamedTuple):
    """Rows with zeros for what is not finite; 1 where they are inf or NaN; where -inf or NaN."""

    same: _Same
    finite: nl.NkiTensor
    above: nl.NkiTensor
    below: nl.NkiTensor


class _Products(NamedTuple):
    """Of parts of the columns: sums of the finite values, in PSUM; and infinity or NaN where there
    is another one, else 0, of values above and below."""

    finite: list[nl.NkiTensor]
    above: list[nl.NkiTensor]
    below: list[nl.NkiTensor]


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
        own = (unit, first, last) if cores > 1 else None
        table = out
        if values.dtype != nl.float32:
            table = nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm)
        units = table.reshape((table.size // unit, unit))
        source = rows_in_order(values, spread, positions, width)
        indices = []  # type: list[nl.NkiTensor]
        for term in terms:
            indices.append(by_position(term, (i0, i1, i2, i3, i4, i5), positions, False))
        bad = no_bad_index()
        tiles = _tiles_of(positions, tile, first, last)
        ahead = max(2, _LOADED // (tiles[0].size * values.dtype.itemsize))
        is_short = table.size <= _SHORT
        if is_short:
            _begin_with(part_of(table, own), None if base is None else part_of(base, own), False)
        runs = []  # type: list[nl.NkiTensor]
        loaded = []  # type: list[nl.NkiTensor]
        for some in tiles[0:ahead]:
            if some.begins_run:
                form = (some.partitions, some.length)
                runs.append(addresses(terms, indices, some.row, form, bad, False, True))
            loaded.append(_load(source, some))
        if not is_short:
            _begin_with(part_of(table, own), None if base is None else part_of(base, own), True)
        earlier = triangle(1.0, 0.0, nl.greater, nl.float32)
        masked = []  # type: list[_Masked]
        products = []  # type: list[_Products]
        for n in range(len(tiles) + 2):
            if n + ahead < len(tiles):
                some = tiles[n + ahead]
                if some.begins_run:
                    form = (some.partitions, some.length)
                    runs.append(addresses(terms, indices, some.row, form, bad, False, True))
                loaded.append(_load(source, some))
            if n < len(tiles):
                here = tiles[n]
                if here.col == first:
                    address = runs[here.run][:, here.place : here.place + 1]
                    same = _same_address(address, values.dtype, skipped, earlier, units.shape[0])
                masked.append(_masked(loaded[n], same))
            if 1 <= n <= len(tiles):
                products.append(_products_of(masked[n - 1]))
            if n >= 2:
                _add(units, tiles[n - 2], masked[n - 2].same.address, products[n - 2])
        if values.dtype != nl.float32:
            nisa.dma_copy(dst=part_of(out, own), src=part_of(table, own))
        refuse(bad)
    return out


def _tiles_of(positions: int, tile: tuple[int, int], first: int, last: int) -> list[_Tile]:
    """All rows, and of each the columns `first .. last`, in the order of rows."""
    run, cols = tile
    tiles = []  # type: list[_Tile]
    done, number = 0, 0
    while done < positions:
        partitions = min(nl.tile_size.pmax, positions - done)
        length = min(run, (positions - done) // partitions)
        for i in range(length):
            for col in range(first, last, cols):
                size = min(cols, last - col)
                row = done + i * partitions
                begins = i == 0 and col == first
                tiles.append(_Tile(row, partitions, number, length, i, begins, col, size))
        done = done + partitions * length
        number = number + 1
    return tiles


def _load(source: nl.NkiTensor, tile: _Tile) -> nl.NkiTensor:
    """Its rows in SBUF."""
    rows = nl.ndarray((tile.partitions, tile.size), dtype=source.dtype, buffer=nl.sbuf)
    here = source[tile.row : tile.row + tile.partitions]
    nisa.dma_copy(dst=rows, src=here[:, tile.col : tile.col + tile.size])
    return rows


def _begin_with(part: nl.NkiTensor, base: nl.NkiTensor | None, waits: bool) -> None:
    """HBM `[size]` or `[units, columns]`: copy the base, or fill with zeros; `waits` for loads."""
    if base is None:
        _fill_with_zeros(part, waits)
    else:
        _copy(part, base, waits)


def _copy(dst: nl.NkiTensor, src: nl.NkiTensor, waits: bool) -> None:
    """`waits`: on the ring of the loads, where hardware writes descriptors, and of equal dtypes."""
    is_old = nisa.get_nc_version() == nisa.nc_version.gen2
    if waits and not is_old and dst.dtype == src.dtype:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)
    else:
        nisa.dma_copy(dst=dst, src=src)


def _fill_with_zeros(part: nl.NkiTensor, waits: bool) -> None:
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
            _copy(goal, zeros[0:partitions, 0:length], waits)
        else:
            for col in range(0, width, _FILL):
                size = min(_FILL, width - col)
                some = zeros[0:partitions, 0 : length * size].reshape_dim(1, (length, size))
                _copy(here[:, col : col + size], some, waits)
        done = done + partitions * length


def _same_address(
    address: nl.NkiTensor, dtype: str, skipped: int, earlier: nl.NkiTensor, units: int
) -> _Same:
    """Of rows with these addresses; `earlier` is 1 where a row comes before that of the partition,
    and there are so many `units`."""
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
    before = nl.ndarray(square, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=before, data1=ones, data2=earlier[0:partitions, 0:partitions], op=nl.multiply
    )
    is_later = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=is_later, op=nl.maximum, data=before, axis=1)
    if skipped >= 0:
        nisa.scalar_tensor_tensor(
            dst=is_later, data=column, op0=nl.equal, operand0=float(skipped), op1=nl.maximum,
            operand1=is_later,
        )  # fmt: skip
    of_first = nl.ndarray((partitions, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=of_first, data=is_later, op0=nl.multiply, operand0=float(units), op1=nl.add,
        operand1=address,
    )  # fmt: skip
    return _Same(ones, big, of_first)


def _masked(rows: nl.NkiTensor, same: _Same) -> _Masked:
    """Of the rows of a tile."""
    shape = rows.shape
    finite = nl.ndarray(shape, dtype=rows.dtype, buffer=nl.sbuf)
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
    return _Masked(same, finite, above, below)


def _products_of(masked: _Masked) -> _Products:
    """For each row, of those that have its address."""
    ones, big = masked.same.ones, masked.same.big
    columns = masked.finite.shape[1]
    fmax = nl.tile_size.psum_fmax
    products = _Products([], [], [])
    for start in range(0, columns, fmax):
        end = min(columns, start + fmax)
        products.finite.append(_product(ones, masked.finite[:, start:end]))
        products.above.append(_counted(big, masked.above[:, start:end], _BIG))
        products.below.append(_counted(big, masked.below[:, start:end], -_BIG))
    return products


def _add(units: nl.NkiTensor, tile: _Tile, address: nl.NkiTensor, products: _Products) -> None:
    """Add up a tile's products, and them to what its addresses have."""
    sums = nl.ndarray((tile.partitions, tile.size), dtype=nl.float32, buffer=nl.sbuf)
    start = 0
    for i in range(len(products.finite)):
        finite, special = products.finite[i], products.above[i]
        nisa.tensor_tensor(
            dst=special, data1=special, data2=products.below[i], op=nl.add,
            engine=nisa.engine.gpsimd,
        )  # fmt: skip
        part = sums[:, start : start + finite.shape[1]]
        nisa.tensor_tensor(dst=part, data1=finite, data2=special, op=nl.add)
        start = start + finite.shape[1]
    goal = units.ap(
        pattern=[[units.shape[1], tile.partitions], [1, tile.size]],
        offset=tile.col,
        vector_offset=address,
        indirect_dim=0,
    )
    nisa.dma_compute(dst=goal, srcs=[goal, sums], reduce_op=nl.add, oob_mode=nisa.oob_mode.skip)


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
