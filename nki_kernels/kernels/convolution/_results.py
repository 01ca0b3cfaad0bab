"""NKI helpers of convolutions: the outputs of blocks, between SBUF and HBM."""

from __future__ import annotations

import nki.language as nl

from trnx.nki_kernels.kernels.convolution._filters import Channels
from trnx.nki_kernels.kernels.convolution._loads import Inputs, load, store
from trnx.nki_kernels.kernels.convolution._parts import first_banks, parts_of_block, where_of
from trnx.nki_kernels.kernels.convolution._plan import Block, Plan


def size_of(sides: list[Inputs], index: int, plan: Plan, chunks: list[Channels]) -> tuple[int, ...]:
    """`[partitions, chunks, planes, rows, columns]` of the outputs of a stream on all sides."""
    size = [chunks[0].number, len(chunks), 1, 1, 1]
    for side in range(len(sides)):
        if index < len(sides[side].blocks):
            block = _outputs(plan, sides[side].blocks[index])
            if plan.sides > 1:
                size[0] = (side + 1) * plan.array_columns
            for axis in range(2, 5):
                size[axis] = max(size[axis], block[axis])
    return (size[0], size[1], size[2], size[3], size[4])


def move(
    tensor: nl.NkiTensor,
    tile: nl.NkiTensor,
    sides: list[Inputs],
    index: int,
    plan: Plan,
    chunks: list[Channels],
    is_store: bool,
    turn: int | None,
) -> None:
    """The outputs of a stream, all of its sides: from the tile to HBM, or from there. Stores that
    have a `turn` go by both rings, as no loads follow.
    """
    for side in range(len(sides)):
        if index < len(sides[side].blocks):
            block = _outputs(plan, sides[side].blocks[index])
            target = _place(tensor, block, chunks)
            part = tile[nl.ds(side * plan.array_columns, chunks[0].number)]
            part = part[:, :, 0 : block[2], 0 : block[3], 0 : block[4]]
            if is_store:
                is_beside = turn is not None and (turn + side) % 2 == 1
                store(target, part, is_beside, plan.is_static)
            else:
                load(part, target, False, plan.is_static)


def store_last(
    out: nl.NkiTensor,
    tile: nl.NkiTensor,
    block: Block,
    plan: Plan,
    chunks: list[Channels],
    turn: int,
) -> None:
    """The outputs of the last block, each chunk by itself, so that few bytes are left when the last
    one is there; by both rings in turns.
    """
    size = _outputs(plan, block)
    target = _place(out, size, chunks)
    part = tile[:, :, 0 : size[2], 0 : size[3], 0 : size[4]]
    for chunk in range(len(chunks)):
        some = nl.ds(chunk, 1)
        store(target[:, some], part[:, some], (turn + chunk) % 2 == 1, plan.is_static)


def store_banks(
    out: nl.NkiTensor, tile: nl.NkiTensor, block: Block, plan: Plan, chunks: list[Channels]
) -> None:
    """The outputs of a block of adjacent ones, each bank by itself, the first in halves."""
    target = _place(out, _outputs(plan, block), chunks)
    for part in first_banks(parts_of_block(plan, block), plan):
        p, r, q = where_of(plan, block, part)
        store(target[:, :, p, r, q], tile[:, :, p, r, q], False, plan.is_static)


def _outputs(plan: Plan, block: Block) -> tuple[int, int, int, int, int]:
    """The first plane and row of a block's outputs, and how many planes, rows and columns."""
    front = block.plane * plan.planes.step
    top = block.row * plan.rows.step
    planes = min(plan.planes.block * plan.planes.step, plan.planes.out - front)
    rows = min(plan.rows.block * plan.rows.step, plan.rows.out - top)
    return front, top, planes, rows, plan.columns.out


def _place(
    tensor: nl.NkiTensor, block: tuple[int, int, int, int, int], chunks: list[Channels]
) -> nl.NkiTensor:
    """The outputs of a block in HBM: `[channels, chunks, planes, rows, columns]`, or `[channels,
    rows of each, planes, rows, columns]` where these are on the partitions together.
    """
    front, top, planes, rows, _ = block
    if len(tensor.shape) == 5:
        return tensor[:, :, nl.ds(front, planes), nl.ds(top, rows), :]
    count = chunks[0].number
    part = tensor[nl.ds(chunks[0].place, count * len(chunks))]
    part = part[:, nl.ds(front, planes), nl.ds(top, rows), :]
    return part.reshape_dim(0, (len(chunks), count)).permute((1, 0, 2, 3, 4))
