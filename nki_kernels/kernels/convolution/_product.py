"""NKI helpers of convolutions: the implicit product.

Input channels lie on the partitions. The input of a block of outputs is loaded once, as it is in
memory; every kernel position is an access pattern on it, and all positions and chunks of 128
channels add up in PSUM, whose partitions are the output channels. Padding is never loaded: at the
border a position adds to those outputs alone that it reaches. Few channels share the partitions
with kernel rows (`fold`): part j of the partitions holds the input shifted by j rows. There padded
rows before the input are zeros in SBUF, and so are their weights, which need not be finite. Where
that still leaves rows of TensorE's array free, several blocks of outputs (`streams`) are computed
side by side, each on `array_rows` rows of its own. Where output channels are few, several such
groups (`sides`) have `array_columns` columns of the array, and so partitions of a bank, each: what
leaves PSUM for one of them takes as long as for all.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, finish, lanes_of
from trnx.nki_kernels.kernels.convolution._geometry import Phase, Tap
from trnx.nki_kernels.kernels.convolution._plan import (
    Axes,
    Axis,
    Block,
    Plan,
)

# Bytes of a partition (as float32) that are worth a transfer of their own.
_TRANSFER_BYTES = 4096

# Chunks of a small convolution that come one by one.
_MANY_CHUNKS = 4

# Outputs of one phase of an axis: (phase, first output of it, outputs).
AxisPart = tuple[Phase, int, int]
BankPart = tuple[AxisPart, AxisPart, AxisPart]  # of the three axes: what shares a PSUM bank
# A kernel position, and the outputs of each axis that it reaches: (taps, clips).
Position = tuple[tuple[Tap, Tap, Tap], tuple[tuple[int, int], tuple[int, int], tuple[int, int]]]


class Weights(NamedTuple):
    """A tile `[channels, chunks, kernel positions, out channels]`, its number of channels, and for
    each mask of the plan the part of its kernel row, `[channels, 1, positions, out channels]`.
    """

    tile: nl.NkiTensor
    channels: int
    masked: list[nl.NkiTensor]


class Source(NamedTuple):
    """The input of a volume: a view `[channels, planes, rows, columns]` of `root`, dense in HBM,
    and its strides and start as patterns on the whole need them; `is_static` as in `Plan`.
    """

    view: nl.NkiTensor
    root: nl.NkiTensor
    start: int
    channels: int
    rows: int
    channel_step: int
    plane_step: int
    row_step: int
    is_static: bool


class Inputs(NamedTuple):
    """A tile `[channels, chunks, planes, rows, columns]` with the input of some blocks: block i is
    on the partitions from `(place + i) * array_rows` on, the last chunk of its channels from `rest`
    on; and how many transfers there were up to these.
    """

    tile: nl.NkiTensor
    blocks: list[Block]
    rest: int
    place: int
    transfers: int


class Job(NamedTuple):
    """A block: its side, which one of those it is, and its parts that share a bank."""

    side: int
    place: int
    block: Block
    parts: list[BankPart]


def load_inputs(
    x: Source, plan: Plan, sides: list[list[Block]], turn: int, number: int, by_both: bool
) -> list[Inputs]:
    """The input of the blocks of each side, `turn` sides of which were loaded before, by `number`
    transfers. Every other one goes by the ring of stores where loads go `by_both`. A chunk of the
    channels comes for all sides before the next one, as they are multiplied in turns.
    """
    channels = x.channels
    used = min(channels, plan.depth) * plan.fold
    tiles: list[nl.NkiTensor] = []
    for blocks in sides:
        tiles.append(_input_tile(x, plan, blocks, used))
    count = tiles[0].shape[1]
    if plan.fold == 1:
        is_even = channels % plan.depth == 0 and count >= _MANY_CHUNKS
        count = _chunks_of_a_transfer(tiles[0])
        if plan.is_small and is_even and count <= _MANY_CHUNKS:
            # The first product starts with the first chunk, unless that has few bytes.
            count = 1
    for chunk in range(0, tiles[0].shape[1], count):
        for side in range(len(sides)):
            rest = (turn + side) * plan.rest_rows % nl.tile_size.pmax
            for index in range(len(sides[side])):
                block = sides[side][index]
                front, top = block.planes_in, block.rows_in
                part = tiles[side][nl.ds(index * plan.array_rows, used)]
                part = part[:, :, 0 : front[1] - front[0], 0 : top[1] - top[0], :]
                if plan.fold > 1:
                    number = _load_shifted(part, x, plan, front, top, number, by_both)
                else:
                    view = x.view[:, front[0] : front[1], top[0] : top[1], :]
                    some = (chunk, min(chunk + count, part.shape[1]))
                    rings = (by_both, plan.is_static)
                    number = _load_chunks(part, view, plan.depth, some, rest, number, rings)
    found: list[Inputs] = []
    for side in range(len(sides)):
        rest = (turn + side) * plan.rest_rows % nl.tile_size.pmax
        found.append(Inputs(tiles[side], sides[side], rest, 0, number))
    return found


def _input_tile(x: Source, plan: Plan, blocks: list[Block], used: int) -> nl.NkiTensor:
    """A tile for the input of some blocks, each on `used` partitions."""
    planes = 1
    rows = 1
    for block in blocks:
        planes = max(planes, block.planes_in[1] - block.planes_in[0])
        rows = max(rows, block.rows_in[1] - block.rows_in[0])
    chunks = (x.channels + plan.depth - 1) // plan.depth
    shape = ((len(blocks) - 1) * plan.array_rows + used, chunks, planes, rows, x.view.shape[3])
    return nl.ndarray(shape, dtype=x.root.dtype, buffer=nl.sbuf)


def _chunks_of_a_transfer(tile: nl.NkiTensor) -> int:
    """Several, because a transfer costs its trigger, but not all in one."""
    nbytes = tile.size // (tile.shape[0] * tile.shape[1]) * 4  # type: int
    return max(1, _TRANSFER_BYTES // nbytes)


def _load_chunks(
    tile: nl.NkiTensor,
    source: nl.NkiTensor,
    depth: int,
    some: tuple[int, int],
    place: int,
    number: int,
    rings: tuple[bool, bool],
) -> int:
    """Chunks `some` of `tile[channels, chunks, planes, rows, columns]` <- `source[channels, ...]`,
    the last of the chunks of `depth` channels from partition `place` on, where it has fewer;
    `rings`: whether by both, and `is_static`; returns the number of transfers.
    """
    full = source.shape[0] // depth
    count = min(some[1], full) - some[0]
    if count > 0:
        part = source[nl.ds(some[0] * depth, count * depth)].reshape_dim(0, (count, depth))
        target = tile[0:depth, nl.ds(some[0], count)]
        load(target, part.permute((1, 0, 2, 3, 4)), rings[0] and number % 2 == 0, rings[1])
        number = number + 1
    if some[1] > full:
        rest = source.shape[0] - full * depth
        target = tile[nl.ds(place, rest), full]
        load(target, source[full * depth :], rings[0] and number % 2 == 0, rings[1])
        number = number + 1
    return number


def load(dst: nl.NkiTensor, src: nl.NkiTensor, is_beside: bool, is_static: bool) -> None:
    """`dst` <- `src`, by the ring of stores where it `is_beside` other loads; where it `is_static`
    by descriptors that are made before the run, whose trigger takes a ring no time to speak of.
    """
    if is_static:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.none)
    elif is_beside and nisa.get_nc_version() != nisa.nc_version.gen2:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
    else:
        nisa.dma_copy(dst=dst, src=src)


def store(dst: nl.NkiTensor, src: nl.NkiTensor, is_beside: bool, is_static: bool) -> None:
    """`dst` <- `src`, by the ring of loads where it `is_beside` other stores; as `load`."""
    if is_static:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.none)
    elif is_beside and nisa.get_nc_version() != nisa.nc_version.gen2:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)
    else:
        nisa.dma_copy(dst=dst, src=src)


def _load_shifted(
    tile: nl.NkiTensor,
    x: Source,
    plan: Plan,
    front: tuple[int, int],
    top: tuple[int, int],
    number: int,
    by_both: bool,
) -> int:
    """Part j of the partitions <- the input some rows further down, zeros before it; returns the
    number of transfers.
    """
    step, origin, shift = plan.row_steps
    rows = top[1] - top[0]
    base = top[0] * step + origin
    firsts = []
    lasts = []
    for j in range(plan.fold):
        begin = base + j * shift
        first = min(rows, max(0, (step - 1 - begin) // step))
        firsts.append(first)
        lasts.append(max(first, min(rows, (x.rows - 1 - begin) // step + 1)))
    # The rows that all parts have come with one transfer. Before them zeros come first: by GpSimdE,
    # as the other engines still work on the block before. Nothing takes what lies beyond the input.
    inner = firsts[0]
    outer = max(inner, lasts[-1])
    if inner > 0:
        nisa.memset(dst=tile[:, 0, :, 0:inner, :], value=0.0, engine=nisa.engine.gpsimd)
    pieces: list[tuple[tuple[int, int], tuple[int, int, int]]] = []
    if inner < outer:
        pieces.append(((inner, outer), (0, plan.fold, shift)))
    for j in range(plan.fold):
        if firsts[j] < min(inner, lasts[j]):
            pieces.append(((firsts[j], min(inner, lasts[j])), (j, 1, shift)))
        if max(outer, firsts[j]) < lasts[j]:
            pieces.append(((max(outer, firsts[j]), lasts[j]), (j, 1, shift)))
    for some, parts in pieces:
        _load_rows(tile, x, front, some, (base, step), parts, by_both and number % 2 == 0)
        number = number + 1
    return number


def _load_rows(
    tile: nl.NkiTensor,
    x: Source,
    front: tuple[int, int],
    some: tuple[int, int],
    where: tuple[int, int],
    parts: tuple[int, int, int],
    is_beside: bool,
) -> None:
    """Rows `some` of the tile, on `parts` (first, count, input rows between two) of its partitions;
    `where` is the input row of the tile's row 0, and the input rows between two of them.
    """
    row = where[0] + some[0] * where[1] + parts[0] * parts[2]
    pattern = [
        [parts[2] * x.row_step, parts[1]],
        [x.channel_step, x.channels],
        [x.plane_step, front[1] - front[0]],
        [where[1] * x.row_step, some[1] - some[0]],
        [1, tile.shape[4]],
    ]
    offset = x.start + front[0] * x.plane_step + row * x.row_step
    part = tile[nl.ds(parts[0] * x.channels, parts[1] * x.channels)]
    source = x.root.ap(pattern=pattern, offset=offset)
    load(part[:, 0, :, some[0] : some[1], :], source, is_beside, x.is_static)


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


def _multiply(
    bank: nl.NkiTensor,
    inputs: Inputs,
    weights: Weights,
    plan: Plan,
    job: Job,
    number: int,
    position: Position,
    chunk: int,
) -> None:
    """The product of one kernel position and chunk of channels for part `number` of a block."""
    taps, clips = position
    slot = (taps[0][0] * plan.rows.slots + taps[1][0]) * plan.columns.slots + taps[2][0]
    left_tile = weights.tile
    if taps[1][4] > 0:
        left_tile = weights.masked[taps[1][4] - 1]
        slot = taps[0][0] * plan.columns.slots + taps[2][0]
    slices = slices_of(job.block, job.parts[number], position)
    target = bank[
        :, clips[0][0] : clips[0][1], clips[1][0] : clips[1][1], clips[2][0] : clips[2][1]
    ]
    left = weights.channels * taps[1][3]
    first = (inputs.place + job.place) * plan.array_rows
    rows = plan.array_rows
    if plan.rest_rows < nl.tile_size.pmax and chunk == weights.tile.shape[1] - 1:
        first, rows = inputs.rest, plan.rest_rows
    where: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    if rows < nl.tile_size.pmax or plan.sides > 1:
        where = (first, job.side * plan.array_columns)
        size = (rows, plan.array_columns)
    parts = nl.ds(first, min(plan.depth, left - chunk * plan.depth))
    nisa.nc_matmul(
        dst=target,
        stationary=left_tile[parts, chunk, slot, :],
        moving=inputs.tile[parts, chunk, slices[0], slices[1], slices[2]],
        tile_position=where,
        tile_size=size,
    )


def zero(bank: nl.NkiTensor, dtype: object, where: tuple[int, ...], size: tuple[int, ...]) -> None:
    """A product of zeros, so that locations which no kernel position reaches at first are 0."""
    columns = bank.shape[1] * bank.shape[2] * bank.shape[3]
    zeros = nl.ndarray((1, bank.shape[0] + columns), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    nisa.nc_matmul(
        dst=bank,
        stationary=zeros[:, 0 : bank.shape[0]],
        moving=zeros[:, bank.shape[0] :],
        tile_position=where,
        tile_size=size,
    )


def _zero(bank: nl.NkiTensor, dtype: object, side: int, plan: Plan) -> None:
    """The same on the part of the array that a side has."""
    where: tuple[int, ...] = ()
    size: tuple[int, ...] = ()
    if plan.streams * plan.sides > 1:
        where = (0, side * plan.array_columns)
        size = (plan.array_rows, plan.array_columns)
    zero(bank, dtype, where, size)


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


def _banks(axis: Axis, first: int) -> list[AxisPart]:
    """The parts of a block at `first` that share a bank: (phase, first output of it, outputs)."""
    parts = []
    for phase in axis.phases:
        end = min(first + axis.block, phase[1])
        for start in range(first, end, axis.tile):
            parts.append((phase, start, min(axis.tile, end - start)))
    return parts


def _outputs(axis: Axis, part: AxisPart, begin: int) -> slice:
    """Where the outputs of a part lie in a result that begins at output `begin`."""
    start = part[0][0] + axis.step * part[1] - begin
    return slice(start, start + axis.step * (part[2] - 1) + 1, axis.step)


def parts_of_block(plan: Plan | Axes, block: Block) -> list[BankPart]:
    """The parts of a block that share a bank: one part of each axis."""
    parts = []
    for a in _banks(plan.planes, block.plane):
        for b in _banks(plan.rows, block.row):
            for c in _banks(plan.columns, 0):
                parts.append((a, b, c))
    return parts


def _reached(parts: list[BankPart]) -> list[BankPart]:
    """Those that a kernel position may reach: a stride beyond the kernel leaves out others."""
    found = []
    for part in parts:
        if len(part[0][0][2]) > 0 and len(part[1][0][2]) > 0 and len(part[2][0][2]) > 0:
            found.append(part)
    return found


def _zero_unreached(result: nl.NkiTensor, plan: Plan, block: Block) -> None:
    """Zeros in the outputs of a block that belong to a phase without kernel positions."""
    axes = (plan.planes, plan.rows, plan.columns)
    firsts = (block.plane, block.row, 0)
    for i in range(3):
        axis = axes[i]
        for phase in axis.phases:
            count = min(firsts[i] + axis.block, phase[1]) - firsts[i]
            if len(phase[2]) == 0 and count > 0:
                where = _outputs(axis, (phase, firsts[i], count), firsts[i] * axis.step)
                if i == 0:
                    part = result[:, where]
                elif i == 1:
                    part = result[:, :, where]
                else:
                    part = result[:, :, :, where]
                nisa.memset(dst=part, value=0.0, engine=nisa.engine.gpsimd)


def convolve_blocks(
    results: list[nl.NkiTensor],
    added: list[nl.NkiTensor | None],
    sides: list[Inputs],
    weights: Weights,
    plan: Plan,
    then: Epilogue,
    turn: int,
) -> int:
    """Blocks side by side: for each of the streams `results[out channels of all sides, planes,
    rows, columns]` in SBUF. `turn` counts the banks that were copied out; returns it after these.
    """
    jobs: list[Job] = []
    longest = 0
    is_plain = then.scale is None and then.shift is None and then.activation == "none"
    width = weights.tile.shape[3]
    columns = len(_banks(plan.columns, 0))
    for side in range(len(sides)):
        for index in range(len(sides[side].blocks)):
            block = sides[side].blocks[index]
            lanes = nl.ds(side * plan.array_columns, width)
            every = parts_of_block(plan, block)
            reached = _reached(every)
            if is_plain and added[index] is None and 0 < len(reached) < len(every):
                _zero_unreached(results[index][lanes], plan, block)
                every = reached
            jobs.append(Job(side, index, block, every))
            longest = max(longest, len(every))
    for number in range(longest):
        banks = _multiply_banks(jobs, number, sides, weights, plan, len(results))
        for index in range(len(results)):
            its = []
            is_same = True
            for job in jobs:
                if job.place == index:
                    is_same = is_same and number < len(job.parts)
                    if number < len(job.parts):
                        its.append(job)
            for job in its:
                is_same = is_same and _where(job, number, plan) == _where(its[0], number, plan)
            if is_same and len(its) > 0:
                # All of them at once, which takes as long as one of them.
                its = its[0:1]
            for job in its:
                start, end = 0, results[index].shape[0]
                if not is_same:
                    start = job.side * plan.array_columns
                    end = start + width
                p, r, q = _where(job, number, plan)
                other = added[index]
                more = None if other is None else other[start:end, p, r, q]
                part = job.parts[number]
                bank = banks[index][start:end, 0 : part[0][2], 0 : part[1][2], 0 : part[2][2]]
                finish(
                    results[index][start:end, p, r, q], bank, more, lanes_of(then, start, end), turn
                )
                # Column phases lie between each other's outputs, so one engine takes all of them:
                # else either waits for what the other one has written.
                if len(plan.columns.phases) == 1 or (number + 1) % columns == 0:
                    turn = turn + 1
    return turn


def _multiply_banks(
    jobs: list[Job], number: int, sides: list[Inputs], weights: Weights, plan: Plan, streams: int
) -> list[nl.NkiTensor]:
    """The sums of part `number` of each block: for each stream a bank with all sides."""
    width = weights.tile.shape[3]
    banks = []
    for index in range(streams):
        size = [0, 1, 1, 1]
        for job in jobs:
            if job.place == index:
                size[0] = job.side * plan.array_columns + width
                for axis in range(3):
                    part = job.parts[min(number, len(job.parts) - 1)]
                    size[axis + 1] = max(size[axis + 1], part[axis][2])
        shape = (size[0], size[1], size[2], size[3])
        banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    positions: list[list[Position | None]] = []
    most = 0
    for job in jobs:
        its: list[Position | None] = []
        if number < len(job.parts):
            part = job.parts[number]
            its = positions_of(plan, part, (width, part[0][2], part[1][2], part[2][2]))
        positions.append(its)
        most = max(most, len(its))
    # Neighbours use different parts of the array, so that none waits for the one before it; a chunk
    # is used up before the next one, which may still be on its way.
    for chunk in range(weights.tile.shape[1]):
        for turn in range(most):
            for n in range(len(jobs)):
                job = jobs[n]
                if turn < len(positions[n]):
                    part = job.parts[number]
                    lanes = nl.ds(job.side * plan.array_columns, width)
                    bank = banks[job.place][lanes, 0 : part[0][2], 0 : part[1][2], 0 : part[2][2]]
                    position = positions[n][turn]
                    if position is not None:
                        _multiply(
                            bank, sides[job.side], weights, plan, job, number, position, chunk
                        )
                    elif chunk == 0:
                        _zero(bank, weights.tile.dtype, job.side, plan)
    return banks


def _where(job: Job, number: int, plan: Plan) -> tuple[slice, slice, slice]:
    """Where part `number` lies in the result of its block."""
    return where_of(plan, job.block, job.parts[number])


def where_of(plan: Plan | Axes, block: Block, part: BankPart) -> tuple[slice, slice, slice]:
    """Where a part lies in the result of a block."""
    return (
        _outputs(plan.planes, part[0], block.plane * plan.planes.step),
        _outputs(plan.rows, part[1], block.row * plan.rows.step),
        _outputs(plan.columns, part[2], 0),
    )
