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
from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, finish
from trnx.nki_kernels.kernels.convolution._loads import load, store
from trnx.nki_kernels.kernels.convolution._plan import Axes

# Sums of a partition that leave PSUM at once at the end, rather than in two pieces, each of which
# has the start of an instruction.
FEW_SUMS = 288


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
        _store_cell(given, cell, result[nl.ds(side * given.tile, cell.number), p, r, q], where)


def _store_cell(
    given: Given, cell: Cell, source: nl.NkiTensor, where: tuple[slice, slice, slice]
) -> None:
    """What lies `where` in the results of a cell."""
    p, r, q = where
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


def _runs_of(given: Given, side: Side, place: int) -> list[tuple[int, Cell]]:
    """Adjacent channels of a side whose stream s lies on part `s + place` of the partitions: where
    each run begins, and all of its channels.
    """
    count = nl.tile_size.pmax // given.tile
    runs: list[tuple[int, Cell]] = []
    for stream in range(len(side.cells)):
        cell = side.cells[stream]
        lane = (stream + place) % count * given.tile
        if side.is_whole and len(runs) > 0:
            start, before = runs[-1]
            if start + before.number == lane:
                runs[-1] = (start, Cell(before.first, before.number + cell.number, cell.block))
                continue
        runs.append((lane, cell))
    return runs


def load_added_of_side(
    given: Given, side: Side, place: int, shape: tuple[int, ...]
) -> nl.NkiTensor | None:
    """What is added to the outputs of a side."""
    if given.residual is None:
        return None
    added = nl.ndarray(shape, dtype=given.out.dtype, buffer=nl.sbuf)
    if side.cells[-1].number < given.tile:
        nisa.memset(dst=added, value=0.0, engine=nisa.engine.gpsimd)
    for lane, cell in _runs_of(given, side, place):
        target = added[nl.ds(lane, cell.number)]
        load(target, _part_of(given.residual, given.axes, cell), False, given.is_static)
    return added


def store_side(
    given: Given,
    side: Side,
    place: int,
    result: nl.NkiTensor,
    where: tuple[slice, slice, slice],
) -> None:
    """As `store_stream`, of a side."""
    p, r, q = where
    for lane, cell in _runs_of(given, side, place):
        _store_cell(given, cell, result[nl.ds(lane, cell.number), p, r, q], where)


def finish_plain(
    given: Given,
    piece: Piece,
    tiles: tuple[nl.NkiTensor, nl.NkiTensor | None],
    total: nl.NkiTensor,
    on_vector: bool,
) -> None:
    """The epilogue of a piece without bias and norm, and its total. By VectorE if that may do it
    with one instruction. `tiles`: the results, and what is added to them.
    """
    bank, where = piece
    result, added = tiles
    p, r, q = where
    activation = given.tensors.activation
    is_copy = added is None and activation == "none"
    if is_copy and on_vector:
        nisa.tensor_scalar_reduce(
            dst=result[:, p, r, q], data=bank, op0=nl.multiply, operand0=1.0, reduce_op=nl.add,
            reduce_res=total,
        )  # fmt: skip
        return
    if is_copy:
        nisa.activation(
            dst=result[:, p, r, q], op=nl.copy, data=bank, reduce_op=nl.add, reduce_res=total,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        return
    nisa.tensor_reduce(dst=total, op=nl.add, data=bank, axis=(1, 2, 3))
    more = None if added is None else added[:, p, r, q]
    # By ScalarE, as VectorE has the totals.
    finish(result[:, p, r, q], bank, more, Epilogue(None, None, activation), 0)
