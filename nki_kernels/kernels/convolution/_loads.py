"""NKI helpers of convolutions: the input of blocks of outputs in SBUF, and transfers."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._transfers import load_aside, store_late, transfer
from trnx.nki_kernels.kernels.convolution._plan import Block, Plan, blocks_of

# Bytes of a partition (as float32) that are worth a transfer of their own.
_TRANSFER_BYTES = 4096
# Chunks of a small convolution that come one by one.
_MANY_CHUNKS = 4

# Tiles for the input of a side that take turns.
IN_TURN = 3


class Source(NamedTuple):
    """The input of a volume: a view `[channels, planes, rows, columns]` of `root`, dense in HBM,
    and its strides and start as patterns on the whole need them; `is_static` as in `Plan`.
    `spread`: tiles that take turns, where there are zeros between the parts of folded rows.
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
    spread: list[nl.NkiTensor]


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


def load_inputs(
    x: Source, plan: Plan, sides: list[list[Block]], turn: int, number: int, by_both: bool
) -> list[Inputs]:
    """The input of the blocks of each side, `turn` sides of which were loaded before, by `number`
    transfers. Every other one goes by the ring of stores where loads go `by_both`. A chunk of the
    channels comes for all sides before the next one, as they are multiplied in turns.
    """
    channels = x.channels
    used = min(channels, plan.depth)
    if plan.fold > 1:
        used = plan.pitch * plan.fold
    tiles: list[nl.NkiTensor] = []
    fresh: list[int] = []
    for blocks in sides:
        if is_spread(x, plan):
            if turn + len(tiles) == len(x.spread):
                fresh.append(len(tiles))
            tiles.append(_spread_tile(x, plan, turn + len(tiles)))
        else:
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
            rest = _place_of_rest(plan, turn + side)
            for index in range(len(sides[side])):
                block = sides[side][index]
                front, top = block.planes_in, block.rows_in
                part = tiles[side][nl.ds(index * plan.array_rows, used)]
                part = part[:, :, 0 : front[1] - front[0], 0 : top[1] - top[0], :]
                if plan.fold > 1:
                    number = _load_shifted(
                        part, x, plan, front, top, number, by_both, side in fresh
                    )
                else:
                    view = x.view[:, front[0] : front[1], top[0] : top[1], :]
                    some = (chunk, min(chunk + count, part.shape[1]))
                    rings = (by_both, plan.is_static)
                    number = _load_chunks(part, view, plan.depth, some, rest, number, rings)
                    if plan.is_paired and some[1] == part.shape[1]:
                        # Its last chunk once more, for the other half of the array.
                        last = (some[1] - 1, some[1])
                        number = _load_chunks(
                            part, view, plan.depth, last, plan.rest_rows, number, rings
                        )
    found: list[Inputs] = []
    for side in range(len(sides)):
        rest = _place_of_rest(plan, turn + side)
        found.append(Inputs(tiles[side], sides[side], rest, 0, number))
    return found


def _place_of_rest(plan: Plan, turn: int) -> int:
    """The partition where the last chunk of channels starts: those of blocks take turns."""
    if plan.is_paired:
        return 0
    pmax = nl.tile_size.pmax  # type: int
    return turn * plan.rest_rows % pmax


def is_spread(x: Source, plan: Plan) -> bool:
    """Whether there are zeros between the parts of folded rows."""
    return plan.fold > 1 and plan.pitch > x.channels


def _input_tile(x: Source, plan: Plan, blocks: list[Block], used: int) -> nl.NkiTensor:
    """A tile for the input of some blocks, each on `used` partitions."""
    planes, rows = _most(blocks)
    chunks = (x.channels + plan.depth - 1) // plan.depth
    lanes = plan.array_rows if plan.is_filled else used
    shape = ((len(blocks) - 1) * plan.array_rows + lanes, chunks, planes, rows, x.view.shape[3])
    tile = nl.ndarray(shape, dtype=x.root.dtype, buffer=nl.sbuf)
    if plan.is_filled:
        rest = tile[used:lanes].reshape((lanes - used, tile.size // tile.shape[0]))
        _zero_on_gpsimd(rest)
    return tile


def _most(blocks: list[Block]) -> tuple[int, int]:
    """Planes and rows of the input of the largest block."""
    planes = 1
    rows = 1
    for block in blocks:
        planes = max(planes, block.planes_in[1] - block.planes_in[0])
        rows = max(rows, block.rows_in[1] - block.rows_in[0])
    return planes, rows


def _spread_tile(x: Source, plan: Plan, turn: int) -> nl.NkiTensor:
    """A tile for the input of the blocks of a side, of which loads leave zeros between the parts of
    folded rows: one of some that take turns, so that the zeros are written once.
    """
    index = turn % (IN_TURN * plan.sides)
    if index == len(x.spread):
        planes, rows = _most(blocks_of(plan))
        lanes = (plan.streams - 1) * plan.array_rows + plan.fold * plan.pitch
        shape = (lanes, 1, planes, rows, x.view.shape[3])
        tile = nl.ndarray(shape, dtype=x.root.dtype, buffer=nl.sbuf)
        # The first ones by VectorE, which is faster and has nothing to do yet.
        if len(x.spread) < plan.sides:
            nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
        else:
            _zero_on_gpsimd(tile.reshape((lanes, planes * rows * x.view.shape[3])))
        x.spread.append(tile)
    return x.spread[index]


def _zero_on_gpsimd(zeros: nl.NkiTensor) -> None:
    """Zeros in `zeros[partitions, elements]`."""
    if zeros.shape[1] % 2 == 0 and zeros.dtype != nl.float32:
        zeros = zeros.view(nl.int32)  # half as many elements
    nisa.memset(dst=zeros, value=0, engine=nisa.engine.gpsimd)


def _chunks_of_a_transfer(tile: nl.NkiTensor) -> int:
    """Several, because a transfer costs its trigger, but not all in one."""
    nbytes = tile.size // (tile.shape[0] * tile.shape[1]) * 4  # type: int
    return max(1, _TRANSFER_BYTES // nbytes)


def comes_at_once(tile: nl.NkiTensor) -> bool:
    """Whether the chunks of an input come together, and so before those of the next side."""
    chunks = tile.shape[1]  # type: int
    return chunks <= min(_MANY_CHUNKS - 1, _chunks_of_a_transfer(tile))


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
    if is_beside and not is_static:
        load_aside(dst, src)
    else:
        transfer(dst, src, is_static)


def store(dst: nl.NkiTensor, src: nl.NkiTensor, is_beside: bool, is_static: bool) -> None:
    """`dst` <- `src`, by the ring of loads where it `is_beside` other stores; as `load`."""
    if is_beside and not is_static:
        store_late(dst, src)
    else:
        transfer(dst, src, is_static)


def place_of(channels: int, turn: int) -> int:
    """The partition where few channels start: each DMA engine serves some partitions, and several
    tiles, in turns, are moved by all of them.
    """
    pmax = nl.tile_size.pmax  # type: int
    if channels <= pmax // 4:
        return turn % 4 * (pmax // 4)
    if channels <= pmax // 2:
        return turn % 2 * (pmax // 2)
    return 0


def _load_shifted(
    tile: nl.NkiTensor,
    x: Source,
    plan: Plan,
    front: tuple[int, int],
    top: tuple[int, int],
    number: int,
    by_both: bool,
    is_zero: bool,
) -> int:
    """Part j of the partitions <- the input some rows further down, zeros before it, unless the
    tile `is_zero`; returns the number of transfers.
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
    # Zeros come before the first row: by GpSimdE, as the other engines still work on the block
    # before. Nothing takes what lies beyond the input.
    inner = firsts[0]
    if inner > 0 and not is_zero:
        nisa.memset(dst=tile[:, 0, :, 0:inner, :], value=0.0, engine=nisa.engine.gpsimd)
    # The rows that all parts have come with one transfer, where no zeros lie between the parts.
    outer = max(inner, lasts[-1])
    if is_spread(x, plan):
        inner = rows
        outer = rows
    pieces: list[tuple[tuple[int, int], tuple[int, int, int]]] = []
    if inner < outer:
        pieces.append(((inner, outer), (0, plan.fold, shift)))
    for j in range(plan.fold):
        if firsts[j] < min(inner, lasts[j]):
            pieces.append(((firsts[j], min(inner, lasts[j])), (j, 1, shift)))
        if max(outer, firsts[j]) < lasts[j]:
            pieces.append(((max(outer, firsts[j]), lasts[j]), (j, 1, shift)))
    for some, parts in pieces:
        part = tile[nl.ds(parts[0] * plan.pitch, parts[1] * x.channels)]
        _load_rows(part, x, front, some, (base, step), parts, by_both and number % 2 == 0)
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
    """Rows `some` of a tile with `parts` (first, count, input rows between two) of the partitions;
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
    source = x.root.ap(pattern=pattern, offset=offset)
    load(tile[:, 0, :, some[0] : some[1], :], source, is_beside, x.is_static)
