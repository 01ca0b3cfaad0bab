"""NKI: the plan of a convolution as its kernel reads it; `_geometry.py` makes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels.convolution._windows import Mask, Phase

# Products, at half rate: as long as DMA takes for the first weights or inputs.
WARM_UP = 22


class Axis(NamedTuple):
    """One axis of a convolution; see `_windows.py` for phases and taps.

    low, high: the input indices that are in SBUF, padding included where kernel rows are folded;
    slots: kernel positions, folded ones counted once; out: outputs; step: distance of the outputs
    of a phase; block, tile: outputs of a phase whose input is loaded at once, and that share a PSUM
    bank.
    """

    low: int
    high: int
    slots: int
    out: int
    step: int
    block: int
    tile: int
    phases: tuple[Phase, ...]


class Axes(NamedTuple):
    """The axes alone, as `Plan` has them."""

    planes: Axis
    rows: Axis
    columns: Axis


class Plan(NamedTuple):
    """The axes, and how many kernel rows a product contracts.

    pitch: partitions from one of these to the next, of which those beyond the channels hold zeros;
    row_steps: of folded rows, the input rows between two of a tile, the input row of row 0, and
    the input rows between two parts of the partitions; fold_step: the kernel rows between two of
    these; masks: weights for outputs whose first folded rows are padding; streams, array_rows:
    blocks that are computed side by side, and rows of the array for each; sides, array_columns: so
    many times as many blocks, and columns of the array for each; depth: channels of a chunk, the
    last of which may have fewer; rest_rows: rows of the array for a last chunk of few channels,
    whose blocks take turns at them, or two banks of one block where it `is_paired`, or all;
    rest_columns: of the array, for a last chunk of few
    output channels of each block side by side, or 0; is_small: all input of a volume is in SBUF,
    so that nothing is loaded between its stores; out_channels: how many have their weights in SBUF;
    together: how many chunks of 128 of them are stored by one transfer; layout: how the weights of
    a 1x1 kernel are loaded, "" for a larger one; is_static: transfers have descriptors that are
    made before the run, so that none waits while DGE makes those of the one before, about 600 ns
    (nki-dge.rst); by_blocks: cores share blocks of outputs, not output channels;
    warm_up: products that keep TensorE busy at first; is_filled: rows of the array beyond the
    channels have zeros.
    """

    planes: Axis
    rows: Axis
    columns: Axis
    fold: int
    pitch: int
    row_steps: tuple[int, int, int]
    fold_step: int
    masks: tuple[Mask, ...]
    streams: int
    array_rows: int
    sides: int
    array_columns: int
    depth: int
    rest_rows: int
    rest_columns: int
    is_small: bool
    out_channels: int
    together: int
    layout: str
    is_static: bool
    by_blocks: bool
    is_paired: bool
    warm_up: int
    is_filled: bool


class Block(NamedTuple):
    """A block of outputs: its first plane and row of a phase, and the inputs that it takes."""

    plane: int
    row: int
    planes_in: tuple[int, int]
    rows_in: tuple[int, int]


def axes_of(numbers: tuple[Any, ...]) -> Axes:
    """The axes that the host has planned."""
    planes, rows, columns = numbers
    return Axes(_axis_of(planes), _axis_of(rows), _axis_of(columns))


def plan_of(numbers: tuple[Any, ...]) -> Plan:
    """The plan that the host has made."""
    planes, rows, columns, fold, pitch, row_steps, fold_step, masks = numbers[0:8]
    streams, array_rows, sides, array_columns = numbers[8:12]
    depth, rest_rows, rest_columns, is_small, out_channels, together, layout = numbers[12:19]
    return Plan(
        _axis_of(planes),
        _axis_of(rows),
        _axis_of(columns),
        fold,
        pitch,
        row_steps,
        fold_step,
        masks,
        streams,
        array_rows,
        sides,
        array_columns,
        depth,
        rest_rows,
        rest_columns,
        is_small,
        out_channels,
        together,
        layout,
        numbers[19],
        numbers[20],
        numbers[21],
        numbers[22],
        numbers[23],
    )


def plan_of_rest(plan: Plan) -> Plan:
    """The plan of a last chunk of few output channels: each of the blocks is a side."""
    columns = plan.rest_columns
    sides = nl.tile_size.pmax // columns
    return Plan(
        plan.planes,
        plan.rows,
        plan.columns,
        plan.fold,
        plan.pitch,
        plan.row_steps,
        plan.fold_step,
        plan.masks,
        1,
        plan.array_rows,
        sides,
        columns,
        plan.depth,
        plan.rest_rows,
        0,
        plan.is_small,
        plan.out_channels,
        plan.together,
        plan.layout,
        plan.is_static,
        plan.by_blocks,
        plan.is_paired,
        plan.warm_up,
        plan.is_filled,
    )


def _axis_of(numbers: tuple[Any, ...]) -> Axis:
    low, high, slots, out, step, block, tile, phases = numbers
    return Axis(low, high, slots, out, step, block, tile, phases)


def most(axis: Axis) -> int:
    """Outputs of the largest phase, the first one."""
    return axis.phases[0][1]


def span(axis: Axis, first: int, count: int) -> tuple[int, int]:
    """The inputs that outputs `first .. first+count` of all phases take, at least one."""
    low = axis.high
    high = axis.low
    for phase in axis.phases:
        for tap in phase[2]:
            begin = max(first, tap[5])
            end = min(first + count, tap[6])
            if begin < end:
                low = min(low, tap[1] + tap[2] * begin)
                high = max(high, tap[1] + tap[2] * (end - 1) + 1)
    low = min(max(low, axis.low), axis.high - 1)
    return low, max(min(high, axis.high), low + 1)


def blocks_of(plan: Plan | Axes) -> list[Block]:
    """All blocks of outputs of a volume."""
    blocks = []
    for plane in range(0, most(plan.planes), plan.planes.block):
        for row in range(0, most(plan.rows), plan.rows.block):
            planes_in = span(plan.planes, plane, plan.planes.block)
            rows_in = span(plan.rows, row, plan.rows.block)
            blocks.append(Block(plane, row, planes_in, rows_in))
    return blocks
