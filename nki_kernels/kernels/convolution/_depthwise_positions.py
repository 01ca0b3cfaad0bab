"""NKI helpers of `_depthwise_product.py`: blocks, and the kernel positions that their outputs take.

Two kernel rows that are `shift` input rows apart are one product. Where one of them takes the
padding, the tile has zeros; that these meet a weight which is not finite is seen in the sums.
"""

from __future__ import annotations

from typing import NamedTuple

from trnx.nki_kernels.kernels.convolution._parts import BankPart, Position, clip
from trnx.nki_kernels.kernels.convolution._plan import Axes, Block, blocks_of
from trnx.nki_kernels.kernels.convolution._windows import Tap


class Taken(NamedTuple):
    """A kernel position, or two that lie in neighbouring kernel rows (`is_pair`)."""

    position: Position
    is_pair: bool


class Cell(NamedTuple):
    """A block of outputs of the channels `first ..` of a tile of the array."""

    first: int
    number: int
    block: Block


class Side(NamedTuple):
    """Cells on parts of the partitions; of adjacent channels of one block where it `is_whole`."""

    cells: list[Cell]
    is_whole: bool


def outputs_of(axes: Axes, block: Block) -> tuple[int, int, int]:
    """Planes, rows and columns of all phases of a block."""
    front, top = block.plane * axes.planes.step, block.row * axes.rows.step
    planes = min(axes.planes.block * axes.planes.step, axes.planes.out - front)
    rows = min(axes.rows.block * axes.rows.step, axes.rows.out - top)
    return planes, rows, axes.columns.out


def rounds_of(
    axes: Axes,
    channels: int,
    images: tuple[int, int],
    lanes: int,
    streams: int,
    count: int,
    is_small_first: bool,
    is_rest_first: bool,
) -> list[list[Side]]:
    """All cells of `images` (first, end), of `lanes` channels, `streams` a side, in rounds of up to
    `count` sides whose blocks have one size; of a round the last side alone may have fewer cells.
    Those of small blocks come last, as their sums leave PSUM soon; but where it `is_small_first`
    one of them is the first, as its inputs come soon. `is_rest_first`: sides of the last channels
    are a round of their own where they fill partitions, the first one.
    """
    alike: list[list[Block]] = []
    for block in blocks_of(axes):
        if block.plane < images[0] or block.plane >= images[1]:
            continue
        is_new = True
        for blocks in alike:
            if outputs_of(axes, blocks[0]) == outputs_of(axes, block):
                blocks.append(block)
                is_new = False
        if is_new:
            alike.append([block])
    rounds: list[list[Side]] = []
    for blocks in alike:
        sides = _sides(channels, blocks, lanes, streams)
        some: list[list[Side]] = []
        for begin in range(0, len(sides), count):
            some.append(sides[begin : begin + count])
        if is_small_first and len(rounds) > 0 and len(some) > 1:
            rounds.insert(0, some[0])
            some = some[1:]
        if is_rest_first and len(alike) == 1:
            some = _rest_first(sides, lanes, streams, count)
        rounds.extend(some)
    return rounds


def _rest_first(sides: list[Side], lanes: int, streams: int, count: int) -> list[list[Side]]:
    """Rounds of which the first one has the sides of the last channels, if these fill them."""
    rest: list[Side] = []
    others: list[Side] = []
    for side in sides:
        is_full = len(side.cells) == streams and side.cells[-1].number == lanes
        if is_full and not side.is_whole:
            rest.append(side)
        else:
            others.append(side)
    rounds: list[list[Side]] = [rest] if len(rest) > 0 else []
    for begin in range(0, len(others), count):
        rounds.append(others[begin : begin + count])
    return rounds


def _sides(channels: int, blocks: list[Block], lanes: int, streams: int) -> list[Side]:
    """All cells of blocks: as many adjacent channels as fill a side, and the others."""
    each = streams * lanes
    full = channels // each * each
    sides: list[Side] = []
    for first in range(0, full, each):
        for block in blocks:
            cells: list[Cell] = []
            for channel in range(first, first + each, lanes):
                cells.append(Cell(channel, lanes, block))
            sides.append(Side(cells, True))
    rest: list[Cell] = []
    for first in range(full, channels, lanes):
        for block in blocks:
            rest.append(Cell(first, min(lanes, channels - first), block))
    for begin in range(0, len(rest), streams):
        sides.append(Side(rest[begin : begin + streams], False))
    return sides


def sides_with(sides: list[Side], stream: int) -> int:
    """How many of the sides, the first ones, have a cell of a stream."""
    count = 0
    for side in sides:
        if len(side.cells) > stream:
            count = count + 1
    return count


def taken_of(axes: Axes, part: BankPart, shift: int) -> list[Taken | None]:
    """The kernel positions that outputs of a part take, pairs where `shift` is not 0. First come
    some that give each location its first value, or None where none do.
    """
    whole: list[Taken | None] = []
    others: list[Taken | None] = []
    for a in part[0][0][2]:
        planes = clip(axes.planes, a, part[0][1], part[0][2])
        for b, first, end, is_pair in _rows_taken(axes, part, shift):
            for c in part[2][0][2]:
                columns = clip(axes.columns, c, part[2][1], part[2][2])
                if min(planes[1] - planes[0], columns[1] - columns[0]) <= 0:
                    continue
                found = Taken(((a, b, c), (planes, (first, end), columns)), is_pair)
                size = (planes[1] - planes[0]) * (end - first) * (columns[1] - columns[0])
                if size == part[0][2] * part[1][2] * part[2][2]:
                    whole.append(found)
                else:
                    others.append(found)
    if len(whole) == 0:
        whole.append(None)
    return whole + others


def _rows_taken(axes: Axes, part: BankPart, shift: int) -> list[tuple[Tap, int, int, bool]]:
    """Kernel rows, or pairs of them with the outputs that take one or both: (kernel row, first
    output, end, whether it is a pair).
    """
    taps = part[1][0][2]
    ordered: list[Tap] = []
    for tap in taps:
        # By the input that they take.
        place = 0
        while place < len(ordered) and ordered[place][1] < tap[1]:
            place = place + 1
        ordered.insert(place, tap)
    found: list[tuple[Tap, int, int, bool]] = []
    index = 0
    while index < len(ordered):
        one = ordered[index]
        begin, end = clip(axes.rows, one, part[1][1], part[1][2])
        index = index + 1
        if shift == 0 or index == len(ordered):
            if begin < end:
                found.append((one, begin, end, False))
            continue
        other = ordered[index]
        low, high = clip(axes.rows, other, part[1][1], part[1][2])
        index = index + 1
        if end <= begin or high <= low:
            for tap, first, last in ((one, begin, end), (other, low, high)):
                if first < last:
                    found.append((tap, first, last, False))
            continue
        # One of the two may be in the padding, where the tile has zeros.
        found.append((one, min(begin, low), max(end, high), True))
    return found
