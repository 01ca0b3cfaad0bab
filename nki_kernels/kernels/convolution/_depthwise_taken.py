"""NKI helpers of `_depthwise_product.py`: what a product takes."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._depthwise_operands import (
    Given,
    diagonals_of,
    filters_of,
    rows_of_tile,
)
from trnx.nki_kernels.kernels.convolution._depthwise_positions import Side, Taken
from trnx.nki_kernels.kernels.convolution._parts import BankPart, parts_of_block, slices_of
from trnx.nki_kernels.kernels.convolution._product import zero


def multiply_taken(
    given: Given,
    bank: nl.NkiTensor,
    side: Side,
    tile: nl.NkiTensor,
    taken: Taken | None,
    where: tuple[int, int, int],
) -> None:
    """What is taken for a cell's part of a bank, of which zeros are None; `where`: its stream, the
    tile of columns, and the number of the part.
    """
    stream, column, number = where
    axes = given.axes
    if taken is None:
        zero(bank, given.weight.dtype, (0, column * given.tile), (given.tile, given.tile))
        return
    weights = diagonals_of(given, filters_of(given, side, stream))
    cell = side.cells[stream]
    taps, clips = taken.position
    slot = (taps[0][0] * axes.rows.slots + taps[1][0]) * axes.columns.slots + taps[2][0]
    part: BankPart = parts_of_block(axes, cell.block)[number]
    planes, rows, columns = slices_of(cell.block, part, taken.position)
    rows = slice(rows.start + given.shift, rows.stop + given.shift, rows.step)
    place = stream * rows_of_tile(given)
    size = 2 * given.tile if taken.is_pair else given.tile
    lanes = nl.ds(place, size if taken.is_pair else cell.number)
    nisa.nc_matmul(
        dst=bank[
            :, clips[0][0] : clips[0][1], clips[1][0] : clips[1][1], clips[2][0] : clips[2][1]
        ],
        stationary=weights[lanes, slot, :],
        moving=tile[lanes, planes, rows, columns],
        tile_position=(place, column * given.tile),
        tile_size=(size, given.tile),
    )
