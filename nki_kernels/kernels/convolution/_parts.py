"""NKI helpers of convolutions: parts of a block that share a PSUM bank, and what reaches them."""

from __future__ import annotations

from trnx.nki_kernels.kernels.convolution._plan import Axes, Axis, Block, Plan
from trnx.nki_kernels.kernels.convolution._windows import Phase, Tap

# Outputs of one phase of an axis: (phase, first output of it, outputs).
AxisPart = tuple[Phase, int, int]
BankPart = tuple[AxisPart, AxisPart, AxisPart]  # of the three axes: what shares a PSUM bank
# A kernel position, and the outputs of each axis that it reaches: (taps, clips).
Position = tuple[tuple[Tap, Tap, Tap], tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]


def clip(axis: Axis, tap: Tap, first: int, count: int) -> tuple[int, int]:
    """Those of outputs `first .. first+count` of a phase that `tap` reaches, counted from first."""
    offset = tap[1] + tap[2] * first
    begin = max(0, tap[5] - first)
    if offset < axis.low:
        begin = max(begin, (axis.low - offset + tap[2] - 1) // tap[2])
    return begin, min(count, tap[6] - first, (axis.high - 1 - offset) // tap[2] + 1)


def slices_of(block: Block, part: BankPart, position: Position) -> list[slice]:
    """What a kernel position takes of the input of a block, for a part of its outputs."""
    taps, clips = position
    starts = (block.planes_in[0], block.rows_in[0], 0)
    slices = []
    for axis in range(3):
        begin, end = clips[axis]
        stride = taps[axis][2]
        start = taps[axis][1] + stride * (part[axis][1] + begin) - starts[axis]
        slices.append(slice(start, start + stride * (end - begin - 1) + 1, stride))
    return slices


def positions_of(
    plan: Plan | Axes, parts_of: BankPart, shape: tuple[int, ...]
) -> list[Position | None]:
    """The kernel positions that reach anything of a bank `[out channels, planes, rows, columns]`,
    as (taps, clips). What reaches all comes first: it gives every location its first value, also
    where several ranges of rows take one kernel row; where nothing does, the first element is None.
    """
    whole: list[Position | None] = []
    parts: list[Position | None] = []
    rows = []
    for b in parts_of[1][0][2]:
        rows.append(clip(plan.rows, b, parts_of[1][1], shape[2]))
    for a in parts_of[0][0][2]:
        planes = clip(plan.planes, a, parts_of[0][1], shape[1])
        for index in range(len(rows)):
            b = parts_of[1][0][2][index]
            reached = 0
            for other in range(len(rows)):
                if parts_of[1][0][2][other][0] == b[0]:
                    reached = reached + max(0, rows[other][1] - rows[other][0])
            for c in parts_of[2][0][2]:
                columns = clip(plan.columns, c, parts_of[2][1], shape[3])
                clips = (planes, rows[index], columns)
                covered = 1
                for axis in range(3):
                    covered = covered * max(0, clips[axis][1] - clips[axis][0])
                if covered == 0:
                    continue
                size = (planes[1] - planes[0]) * reached * (columns[1] - columns[0])
                if size == shape[1] * shape[2] * shape[3]:
                    whole.append(((a, b, c), clips))
                else:
                    parts.append(((a, b, c), clips))
    if len(whole) == 0:
        whole.append(None)
    return whole + parts


def banks_along(axis: Axis, first: int) -> list[AxisPart]:
    """The parts of a block at `first` that share a bank: (phase, first output of it, outputs)."""
    parts = []
    for phase in axis.phases:
        end = min(first + axis.block, phase[1])
        for start in range(first, end, axis.tile):
            parts.append((phase, start, min(axis.tile, end - start)))
    return parts


def outputs_along(axis: Axis, part: AxisPart, begin: int) -> slice:
    """Where the outputs of a part lie in a result that begins at output `begin`."""
    start = part[0][0] + axis.step * part[1] - begin
    return slice(start, start + axis.step * (part[2] - 1) + 1, axis.step)


def parts_of_block(plan: Plan | Axes, block: Block) -> list[BankPart]:
    """The parts of a block that share a bank: one part of each axis."""
    parts = []
    for a in banks_along(plan.planes, block.plane):
        for b in banks_along(plan.rows, block.row):
            for c in banks_along(plan.columns, 0):
                parts.append((a, b, c))
    return parts


def last_banks(parts: list[BankPart], plan: Plan) -> list[BankPart]:
    """The same with the last one in two, so that neither half waits for the other one to be
    written. Pairs stay.
    """
    if len(parts) == 0 or plan.is_paired:
        return parts
    return parts[0 : len(parts) - 1] + _halves_of(parts[-1])


def first_banks(parts: list[BankPart], plan: Plan) -> list[BankPart]:
    """The same with the first one in two, as `last_banks`."""
    if len(parts) == 0 or plan.is_paired:
        return parts
    return _halves_of(parts[0]) + parts[1:]


def _halves_of(part: BankPart) -> list[BankPart]:
    """Two parts of half as many planes, or rows: each is one range of a partition."""
    planes, rows, columns = part
    axis = planes if planes[2] > 1 else rows
    half = (axis[2] + 1) // 2
    if half == axis[2]:
        return [part]
    halves: list[BankPart] = []
    for first, count in ((axis[1], half), (axis[1] + half, axis[2] - half)):
        some = (axis[0], first, count)
        halves.append((some, rows, columns) if planes[2] > 1 else (planes, some, columns))
    return halves


def where_of(plan: Plan | Axes, block: Block, part: BankPart) -> tuple[slice, slice, slice]:
    """Where a part lies in the result of a block."""
    return (
        outputs_along(plan.planes, part[0], block.plane * plan.planes.step),
        outputs_along(plan.rows, part[1], block.row * plan.rows.step),
        outputs_along(plan.columns, part[2], 0),
    )
