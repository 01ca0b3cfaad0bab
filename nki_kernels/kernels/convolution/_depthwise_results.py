"""NKI helpers of `_depthwise_product.py`: results of cells, and what is added to them, in HBM."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._depthwise_operands import Given
from trnx.nki_kernels.kernels.convolution._depthwise_positions import (
    Cell,
    Side,
    outputs_of,
    sides_with,
)
from trnx.nki_kernels.kernels.convolution._loads import load, store
from trnx.nki_kernels.kernels.convolution._plan import Axes


class Piece(NamedTuple):
    """Sums of a stream in PSUM, of all sides, and where they lie in the results of their blocks."""

    bank: nl.NkiTensor
    where: tuple[slice, slice, slice]


def load_added(
    given: Given, sides: list[Side], stream: int, shape: tuple[int, ...]
) -> nl.NkiTensor | None:
    """What is added to the outputs of a stream."""
    if given.residual is None:
        return None
    added = nl.ndarray(shape, dtype=given.out.dtype, buffer=nl.sbuf)
    count = sides_with(sides, stream)
    if sides[count - 1].cells[stream].number < given.tile:
        nisa.memset(dst=added, value=0.0, engine=nisa.engine.gpsimd)
    for side in range(count):
        cell = sides[side].cells[stream]
        target = added[nl.ds(side * given.tile, cell.number)]
        load(target, _part_of(given.residual, given.axes, cell), False, given.is_static)
    return added


def are_dense(axes: Axes) -> bool:
    """Whether parts of a block have adjacent outputs."""
    return axes.planes.step * axes.rows.step * axes.columns.step == 1


def pieces_of(bank: nl.NkiTensor, where: tuple[slice, slice, slice]) -> list[Piece]:
    """Half of the images each, or of the rows where there is one, whose outputs are adjacent."""
    p, r, q = where
    planes, rows = bank.shape[1:3]
    if planes == 1:
        half = (rows + 1) // 2
        if half == rows:
            return [Piece(bank, where)]
        middle = r.start + half
        first = Piece(bank[:, :, 0:half], (p, slice(r.start, middle), q))
        return [first, Piece(bank[:, :, half:rows], (p, slice(middle, r.stop), q))]
    half = (planes + 1) // 2
    middle = p.start + half
    first = Piece(bank[:, 0:half], (slice(p.start, middle), r, q))
    return [first, Piece(bank[:, half:planes], (slice(middle, p.stop), r, q))]


def store_stream(
    given: Given,
    sides: list[Side],
    stream: int,
    result: nl.NkiTensor,
    where: tuple[slice, slice, slice],
) -> None:
    """What lies `where` in the results of a stream, of all its sides; an image at a time where
    triggers take no time, as what several have of some channels is no rectangle, and seems to
    overlap that of other channels.
    """
    p, r, q = where
    for side in range(sides_with(sides, stream)):
        cell = sides[side].cells[stream]
        source = result[nl.ds(side * given.tile, cell.number), p, r, q]
        target = _part_of(given.out, given.axes, cell)[:, p, r, q]
        planes = target.shape[1]
        each = 1 if given.is_static else planes
        for plane in range(0, planes, each):
            some = nl.ds(plane, each)
            store(target[:, some], source[:, some], False, given.is_static)


def _part_of(tensor: nl.NkiTensor, axes: Axes, cell: Cell) -> nl.NkiTensor:
    """The outputs of a cell in HBM."""
    front, top = cell.block.plane * axes.planes.step, cell.block.row * axes.rows.step
    planes, rows, _ = outputs_of(axes, cell.block)
    some = tensor[nl.ds(cell.first, cell.number)]
    return some[:, nl.ds(front, planes), nl.ds(top, rows), :]
