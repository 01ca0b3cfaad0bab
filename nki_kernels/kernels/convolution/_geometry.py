"""How a convolution is laid out (host side): its three axes, and what of them is on the chip.

Every convolution has three axes here: planes, rows and columns. Those of two dimensions have their
images as planes, those of one dimension their length as rows of one column; those of three have one
image at a time. Along an axis output `start + step * t` of a *phase* takes input
`offset + stride * t` for every kernel position of the phase, its *taps*. A convolution has one
phase with `step` 1; a transposed one, which spreads its input `stride` apart, has as many phases as
its stride, each a convolution of stride 1 with a part of the kernel.

What the kernel gets is made of tuples of numbers alone: the device's front end reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnx.nki_kernels.kernels._blocking import DMA
from trnx.nki_kernels.kernels.convolution._core_shares import cuts_one_block, shares_blocks
from trnx.nki_kernels.kernels.convolution._first_products import (
    chunks_together,
    fills_rows,
    warm_up_products,
)
from trnx.nki_kernels.kernels.convolution._loads import IN_TURN
from trnx.nki_kernels.kernels.convolution._plan import WARM_UP
from trnx.nki_kernels.kernels.convolution._sharing import (
    Sharing,
    border_transfers,
    depth_of,
    is_compact,
    is_paired,
    pitch_of,
    rest_columns,
    rest_rows,
    sharing_of,
)
from trnx.nki_kernels.kernels.convolution._windows import Mask, Phase, Problem, Tap, Window
from trnx.simulator.hardware import Hardware

# Bytes of a partition for one block of the input: DMA is efficient from 2 KiB on, and the next
# block is loaded while this one is in use.
_INPUT_BYTES = 16384
_WEIGHT_BYTES = 65536
# Of tiles that take turns and keep zeros between folded rows, beside what `plan_bytes` counts.
_IN_TURN_BYTES = 65536
# Of a partition, for the input of a volume that is loaded before the first product.
_SMALL_BYTES = 32768
_STORE_BYTES = 2048  # of a partition, that are worth a transfer of their own
_BLOCKS = 4  # that a convolution is cut into, so that loads, products and stores overlap
# The same where loads take most of the time, as a block is multiplied and stored once it is there;
# if products have that many columns, fewer of which take less time than loads of their weights.
_MORE_BLOCKS, _LEAST_COLUMNS = 8, 128
# Bytes of a partition for a block, which the first products wait for.
_FIRST_BYTES = 6144
# Bytes of a partition for one of the blocks side by side, below which triggers take longer than the
# products of one kernel position, or of several.
_LEAST_BYTES, _LEAST_WINDOW_BYTES = 768, 640
# Loads at the borders of an image, each with a trigger of its own, that are few enough.
_BORDER_TRANSFERS = 12
# Of a partition, for the inputs of blocks that share the array for their last output channels.
_SHARED_BYTES = 32768
_RESULT_BYTES = 32768  # of a partition, for the outputs of a block of all phases


def _folded(window: Window, fold: int) -> tuple[tuple[Phase, ...], tuple[Mask, ...]]:
    """The phases of a window with `fold` kernel positions a tap, that of the first input first, and
    the masks that they need.
    """
    masks: list[Mask] = []
    if is_compact(window, fold):
        taps = _reaching(window, fold, (0, 0, 1, window.kernel), window.out, masks)
        return ((0, window.out, taps),), tuple(masks)
    folded = []
    for start, count, single in window.phases():
        ordered = sorted(single, key=lambda tap: tap[1])
        joined: list[Tap] = []
        for index in range(0, len(ordered), fold):
            group = ordered[index : index + fold]
            # Weights of a transposed convolution keep their places; others have a slot for a group.
            slot = group[0][0] if window.transposed else index // fold
            whole = (slot, group[0][1], group[0][2], len(group))
            joined.extend(_reaching(window, fold, whole, count, masks))
        folded.append((start, count, tuple(joined)))
    return tuple(folded), tuple(masks)


def _reaching(
    window: Window, fold: int, tap: tuple[int, int, int, int], outputs: int, masks: list[Mask]
) -> tuple[Tap, ...]:
    """A folded tap as one for each range of outputs that takes the same of its positions from the
    input, not from the padding. No zero of the padding meets a weight, which may be an infinity:
    last positions are left out of the contraction, first ones have zeros for weights.
    """
    slot, offset, stride, folded = tap
    step, origin, shift = _row_steps(window, fold)
    found: list[Tap] = []
    for output in range(outputs):
        row = (offset + stride * output) * step + origin
        first = max(0, -(row // shift))
        count = min(folded, (window.size - 1 - row) // shift + 1)
        if first >= count:
            continue
        mask: Mask = (slot, first, folded)
        if first > 0 and mask not in masks:
            masks.append(mask)
        which = 1 + masks.index(mask) if first > 0 else 0
        if found and found[-1][3:5] == (count, which) and found[-1][6] == output:
            found[-1] = (*found[-1][:6], output + 1)
        else:
            found.append((slot, offset, stride, count, which, output, output + 1))
    return tuple(found)


def _slots(window: Window, fold: int) -> int:
    """Places for weights along an axis."""
    return window.kernel if window.transposed else -(-window.kernel // fold)


def axis_numbers(window: Window, fold: int, block: int, tile: int) -> tuple[object, ...]:
    """The fields of the kernel's `Axis`."""
    phases = window.phases() if fold == 1 else _folded(window, fold)[0]
    low, high = 0, window.size
    if fold > 1:
        # Of folded positions the first one may be in the padding, so the tile has that as well.
        every = [tap for _, _, taps in phases for tap in taps]
        low = min((tap[1] + tap[2] * tap[5] for tap in every), default=0)
        high = max((tap[1] + tap[2] * (tap[6] - 1) + 1 for tap in every), default=1)
    return low, high, _slots(window, fold), window.out, window.step, block, tile, phases


def _planes_of_a_stream(problem: Problem, sharing: Sharing) -> int:
    """Planes of outputs of a phase that one stream has at most: those of a volume, whose blocks
    are the streams, are shared evenly.
    """
    planes = -(-problem.planes.out // problem.planes.step)
    return planes if problem.planes.kernel == 1 else -(-planes // sharing.blocks)


def _more_blocks(problem: Problem, hw: Hardware) -> int:
    """How many there are where loads take most of the time: so many for each core, if those have
    enough columns.
    """
    each = _MORE_BLOCKS * hw.cores
    return each if problem.outputs // each >= _LEAST_COLUMNS else _MORE_BLOCKS


def _waits_for_loads(problem: Problem, sharing: Sharing, hw: Hardware) -> bool:
    """Whether loads take most of the time of a small convolution, cut into more blocks then."""
    if problem.taps > 1 or sharing.blocks > 1 or problem.channels <= 2 * problem.out_channels:
        return False
    return _LEAST_COLUMNS <= problem.outputs // _more_blocks(problem, hw) < hw.psum_bank_bytes // 4


def _has_small_planes(problem: Problem, bank: int) -> bool:
    """Whether a bank has all outputs of a plane."""
    rows, columns = (-(-axis.out // axis.step) for axis in (problem.rows, problem.columns))
    return rows * columns <= bank


def bank_of(problem: Problem, sharing: Sharing, hw: Hardware) -> tuple[int, int, int]:
    """Planes, rows and columns of a phase in one PSUM bank, in parts of nearly the same size."""
    left = hw.psum_bank_bytes // 4
    if _waits_for_loads(problem, sharing, hw):
        left = -(-problem.outputs // _more_blocks(problem, hw))
    elif sharing.sides == 1 and _has_small_planes(problem, left):
        # Two banks for a block.
        left = left // 2 if is_paired(problem, sharing, hw) else left
        if problem.outputs <= left and cuts_one_block(problem, sharing, hw):
            left = -(-problem.outputs // hw.cores)
    sizes = []
    counts = [-(-window.out // window.step) for window in (problem.columns, problem.rows)]
    for outputs in (*counts, _planes_of_a_stream(problem, sharing)):
        pieces = -(-outputs // max(1, left))
        size = -(-outputs // pieces)
        sizes.append(size)
        left = left // size if pieces == 1 else 1
    return sizes[2], sizes[1], sizes[0]


def input_bytes(problem: Problem, planes: int, rows: int, fold: int, hw: Hardware) -> int:
    """Bytes of a partition for the input of so many planes and rows of outputs of a phase."""
    chunks = -(-problem.channels * fold // hw.partitions)
    sizes = []
    for window, count, folded in ((problem.planes, planes, 1), (problem.rows, rows, fold)):
        stride = 1 if window.transposed else window.stride
        needed = (count - 1) * stride + window.reach
        sizes.append(count if is_compact(window, folded) else needed)
    return chunks * sizes[0] * sizes[1] * problem.columns.size * problem.itemsize


def _wanted_blocks(problem: Problem, sharing: Sharing, hw: Hardware) -> int:
    """Into how many blocks a convolution is cut at least."""
    elements = problem.planes.size * problem.rows.size * problem.columns.size
    if sharing.blocks == 1 and sharing.fold > 1:
        return _BLOCKS * hw.cores
    if _waits_for_loads(problem, sharing, hw):
        return _more_blocks(problem, hw)
    if sharing.blocks == 1:
        return max(_BLOCKS * hw.cores, elements * problem.itemsize // _FIRST_BYTES)
    least = _LEAST_BYTES if problem.taps == 1 else _LEAST_WINDOW_BYTES
    wanted = max(sharing.blocks, elements * problem.itemsize // least)
    return min(wanted, max(_BLOCKS, 8 * sharing.blocks))


def _blocks(
    problem: Problem, bank: tuple[int, int, int], sharing: Sharing, hw: Hardware
) -> list[int]:
    """Planes and rows of outputs of a phase whose input is loaded at once: multiples of a bank's,
    unless they are all; so many that there are enough blocks to overlap.
    """
    fold = sharing.fold
    planes = -(-problem.planes.out // problem.planes.step)
    rows = -(-problem.rows.out // problem.rows.step)
    block = [bank[0], bank[1]]

    def fits(grown: list[int]) -> bool:
        needed = input_bytes(problem, grown[0], grown[1], fold, hw)
        return needed <= _INPUT_BYTES and result_bytes(problem, grown) <= _RESULT_BYTES

    wanted = _wanted_blocks(problem, sharing, hw)
    borders = border_transfers(problem.rows, fold)
    if fold > 1 and (borders > _BORDER_TRANSFERS or problem.planes.kernel > 1):
        # All images first: what is special at the border is done for all of them together.
        images = _planes_of_a_stream(problem, sharing)
        while block[0] < images and fits([block[0] + bank[0], block[1]]):
            block[0] += bank[0]
        block[0] = min(block[0], images)
        most = -(-rows // wanted) if block[0] >= planes else 0
    else:
        most = -(-rows // max(1, wanted // planes))
    while block[1] < rows and block[1] + bank[1] <= most and fits([block[0], block[1] + bank[1]]):
        block[1] += bank[1]
    block[1] = _even_rows(problem, (block[0], block[1]), bank[1], sharing)
    if block[1] >= rows and fold == 1:
        # At least two banks where these are multiplied together.
        banks = 2 if is_paired(problem, sharing, hw) and block[1] <= bank[1] else 1
        most = max(banks * bank[0], planes // wanted)
        while block[0] < most and fits([block[0] + bank[0], block[1]]):
            block[0] += bank[0]
    return [min(block[0], planes), min(block[1], rows)]


def _even_rows(problem: Problem, most: tuple[int, int], bank: int, sharing: Sharing) -> int:
    """Rows of a block, up to those of `most` (planes, rows): of blocks of nearly the same size, or
    where products bound blocks side by side, which wait for the largest of them, so many that these
    take the least time; but not so few that several chunks of output channels are stored together.
    """
    planes = -(-problem.planes.out // problem.planes.step // most[0])
    rows = -(-problem.rows.out // problem.rows.step)
    pieces = -(-rows // most[1])
    even = -(-rows // (pieces * bank)) * bank
    if problem.taps == 1 or sharing.blocks == 1:
        return even

    def banks(block: int) -> int:
        turns = -(-planes * -(-rows // block) // sharing.blocks)
        return turns * (block // bank)

    def is_worth_a_store(block: int) -> bool:
        return 2 * result_bytes(problem, [most[0], block]) > _STORE_BYTES

    smaller = [block for block in range(even - bank, 0, -bank) if is_worth_a_store(block)]
    return min([even, *smaller], key=banks)


def blocks(problem: Problem, hw: Hardware) -> tuple[int, int]:
    """Planes and rows of outputs of a phase whose input is loaded at once."""
    sharing = sharing_of(problem, hw)
    planes, rows = _blocks(problem, bank_of(problem, sharing, hw), sharing, hw)
    return planes, rows


def weight_bytes(problem: Problem, out_channels: int, fold: int, hw: Hardware) -> int:
    """Bytes of a partition for the weights of so many output channels."""
    chunks = -(-problem.channels * fold // hw.partitions)
    rows = _slots(problem.rows, fold)
    taps = problem.planes.kernel * rows * problem.columns.kernel
    return chunks * taps * out_channels * problem.itemsize


def result_bytes(problem: Problem, block: list[int]) -> int:
    """Bytes of a partition for the outputs of a block of planes and rows."""
    result = problem.itemsize * problem.columns.out
    for window, count in zip((problem.planes, problem.rows), block, strict=True):
        result *= min(count * window.step, window.out)
    return result


def is_small(problem: Problem, sharing: Sharing, hw: Hardware) -> bool:
    """Whether all of the input of a volume is loaded before the first product."""
    # Weights that TensorE transposes would delay the first products, all being there before them.
    if problem.has_residual or (problem.taps > 1 and not problem.columns.transposed):
        return False
    block = _blocks(problem, bank_of(problem, sharing, hw), sharing, hw)
    return _small_bytes(problem, block, sharing, hw) <= _SMALL_BYTES


def _count(problem: Problem, block: Sequence[int]) -> int:
    """Blocks of a volume."""
    planes = -(-problem.planes.out // problem.planes.step)
    rows = -(-problem.rows.out // problem.rows.step)
    return -(-planes // block[0]) * -(-rows // block[1])


def _small_bytes(problem: Problem, block: list[int], sharing: Sharing, hw: Hardware) -> int:
    """Bytes of a partition for the input of all blocks."""
    each = input_bytes(problem, block[0], block[1], sharing.fold, hw)
    return -(-_count(problem, block) // sharing.streams) * each


def _row_steps(window: Window, fold: int) -> tuple[int, int, int]:
    """Where a folded tile's rows come from: input rows between two of a tile, the input row of row
    0, and input rows between two parts of the partitions.
    """
    if is_compact(window, fold):
        return window.stride, -window.padding, window.dilation
    return 1, 0, window.fold_shift


def plan(
    problem: Problem, layout: str, is_static: bool, volumes: int, hw: Hardware
) -> tuple[object, ...]:
    """The fields of `Plan`; `layout` is that of the weight as a matrix; `volumes` have blocks of
    their own.
    """
    sharing = sharing_of(problem, hw)
    fold = sharing.fold
    bank = bank_of(problem, sharing, hw)
    block = _blocks(problem, bank, sharing, hw)
    each = weight_bytes(problem, hw.partitions, fold, hw)
    inputs = input_bytes(problem, block[0], block[1], fold, hw)
    small = is_small(problem, sharing, hw)
    starts_free = small and is_static
    return (
        axis_numbers(problem.planes, 1, block[0], bank[0]),
        axis_numbers(problem.rows, fold, block[1], bank[1]),
        axis_numbers(problem.columns, 1, problem.columns.out, bank[2]),
        fold,
        _pitch(problem, sharing, block, is_static, hw),
        _row_steps(problem.rows, fold),
        problem.rows.fold_step,
        _folded(problem.rows, fold)[1] if fold > 1 else (),
        sharing.streams,
        sharing.array_rows,
        sharing.sides,
        sharing.array_columns,
        depth_of(problem, sharing, hw),
        rest_rows(problem, sharing, hw),
        _rest_columns(problem, sharing, block, hw),
        small,
        max(1, _WEIGHT_BYTES // each) * hw.partitions,
        chunks_together(result_bytes(problem, block), starts_free),
        layout if problem.taps == 1 and sharing.streams == 1 else "",
        is_static,
        shares_blocks(problem, sharing, _count(problem, block), volumes, hw),
        is_paired(problem, sharing, hw),
        warm_up_products(problem, inputs, hw) if starts_free and layout == DMA else WARM_UP,
        starts_free and layout == DMA and fills_rows(problem, sharing, hw),
    )


def _rest_columns(problem: Problem, sharing: Sharing, block: Sequence[int], hw: Hardware) -> int:
    """Columns for the last output channels of a block; those of blocks that are not computed side
    by side wait for each other, so only where there is room for their inputs.
    """
    columns = rest_columns(problem, sharing, hw)
    if columns == 0 or sharing.streams > 1:
        return columns
    count = hw.partitions // columns
    each = input_bytes(problem, block[0], block[1], sharing.fold, hw)
    fits = count * each <= _SHARED_BYTES
    return columns if fits and _count(problem, block) >= count else 0


def _pitch(
    problem: Problem, sharing: Sharing, block: Sequence[int], is_static: bool, hw: Hardware
) -> int:
    """Partitions from one folded kernel row to the next: no more than the channels where the tiles
    that take turns then would take much of SBUF.
    """
    each = input_bytes(problem, block[0], block[1], sharing.fold, hw)
    if IN_TURN * sharing.sides * each > _IN_TURN_BYTES:
        return problem.channels
    return pitch_of(problem, sharing, is_static, hw)


def plan_bytes(problem: Problem, hw: Hardware) -> int:
    """Bytes of a partition that weights, input and result of a block take."""
    sharing = sharing_of(problem, hw)
    fold = sharing.fold
    planes, rows = _blocks(problem, bank_of(problem, sharing, hw), sharing, hw)
    each = weight_bytes(problem, hw.partitions, fold, hw)
    weights = max(each, min(_WEIGHT_BYTES, weight_bytes(problem, problem.out_channels, fold, hw)))
    result = max(_STORE_BYTES, result_bytes(problem, [planes, rows]))
    staged = problem.taps * problem.itemsize * min(hw.partitions, problem.channels)
    shares = _rest_columns(problem, sharing, (planes, rows), hw) > 0 and sharing.streams == 1
    return (
        weights
        + staged
        + (_SMALL_BYTES if is_small(problem, sharing, hw) else 0)
        + (_SHARED_BYTES if shares else 0)
        + sharing.sides * input_bytes(problem, planes, rows, fold, hw)
        + 2 * result * (2 if problem.has_residual else 1)
    )
