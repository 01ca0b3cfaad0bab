"""NKI helpers of gradients of weights: strips of image rows, contracted as they are in memory.

Strips of adjacent rows lie on the partitions, of all images and of one channel after the other, so
that nothing is transposed. The rows above and below an image are those of its neighbours in memory,
in place of which zeros come. What is not finite may meet such a zero, so kernels look at their sums
and compute all once more in another way where one is not finite.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._loads import load
from trnx.nki_kernels.kernels.convolution._weight_rows import RowAxis

# Partitions that an instruction may begin at the multiples of; at this one it has no more.
_QUADRANT = 32


class Source(NamedTuple):
    """`tensor[N, C, rows, columns]` in HBM, and into how many strips its images are cut;
    `kept[128, 1]` is 0 for the last strip; `is_static` as in `load`.
    """

    tensor: nl.NkiTensor
    number: int
    kept: nl.NkiTensor
    is_static: bool


class Heights(NamedTuple):
    """Rows of a strip, and those of the last one that values meet; the first row of the first
    strip, and the rows from one strip to the next.
    """

    rows: int
    needed: int
    begin: int
    step: int


class Piece(NamedTuple):
    """Rows `first .. end` of the strips of some channels, from `channel` on, which came by
    themselves.
    """

    channel: int
    first: int
    end: int
    tile: nl.NkiTensor


class Loaded(NamedTuple):
    """Strips `[strips of images, channels, rows, columns]`, of which `channels` were loaded;
    `zeros`: rows at the top of the first strip, and first and end of those of the last one, where
    `kept` is 0; pieces of the first and last channels of all.
    """

    tile: nl.NkiTensor
    channels: int
    zeros: tuple[int, int, int]
    pieces: list[Piece]
    kept: nl.NkiTensor


def reach_of(axis: RowAxis, count: int) -> int:
    """Elements of the window that so many of the gradient meet."""
    return (count - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1


def window_heights(axis: RowAxis, rows: int) -> Heights:
    """Of the window, where the gradient has `rows` a strip."""
    last = axis.long - (axis.long - 1) // rows * rows
    return Heights(reach_of(axis, rows), reach_of(axis, last), -axis.padding, rows * axis.stride)


def kept_of(number: int, images: int, parts: int) -> nl.NkiTensor:
    """`[128, 1]`: 0 for the last of `number` strips on each of `parts` of the partitions, 1 for the
    others.
    """
    pmax = nl.tile_size.pmax
    column = nl.ndarray((pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=column, value=0.0, engine=nisa.engine.vector)
    if number > 1:
        for part in range(parts):
            others = column[nl.ds(part * (pmax // parts), (number - 1) * images)]
            nisa.memset(dst=others, value=1.0, engine=nisa.engine.vector)
    return column


def load_strips(
    source: Source,
    place: int,
    channels: tuple[int, int],
    room: int,
    heights: Heights,
    apart: int,
    is_late: bool,
) -> Loaded:
    """Strips of channels (first, end) on their way to the partitions from `place` on, with zeros
    for as many more as there is room for. There are no rows before the first channel of all and
    behind the last one, so that `apart` channels there come in pieces. HBM serves transfers in the
    order of their triggers, so that a core whose first piece waits for zeros gets all behind the
    other core's: none waits where the last piece, which has to, `is_late`.
    """
    images, every, height, width = source.tensor.shape
    first, end = channels
    count = end - first
    shape = (place + source.number * images, room, heights.rows, width)
    tile = nl.ndarray(shape, dtype=source.tensor.dtype, buffer=nl.sbuf)[place:]
    if count < room:
        nisa.memset(dst=tile[:, count:], value=0.0, engine=nisa.engine.gpsimd)
    top = max(0, -heights.begin)
    last = heights.begin + (source.number - 1) * heights.step
    bottom = min(heights.rows, max(0, last + heights.rows - height))
    begin = min(count, apart) if top > 0 and first == 0 else 0
    stop = max(begin, count - apart) if bottom > 0 and end == every else count
    if begin < stop:
        _transfer(source, tile[:, begin:stop], first + begin, heights.begin, heights.step)
    pieces: list[Piece] = []
    low, high = 0, heights.rows
    spans = [(0, begin), (stop, count)]
    if begin == stop:
        spans = [(0, count)]
    for span in spans:
        if span[0] == span[1]:
            continue
        low = top if first + span[0] == 0 else 0
        high = heights.rows - bottom if first + span[1] == every else heights.rows
        # Each to a tile of its own, as transfers to one tile would wait for each other.
        for ends in (
            (0, low, 1, source.number),
            (low, high, 0, source.number),
            (high, heights.rows, 0, source.number - 1),
        ):
            if ends[1] > ends[0]:
                waits = not is_late and bottom > 0
                pieces.append(_load_piece(source, place, first, span, heights, ends, waits))
    zeros = (top, heights.rows - bottom, heights.needed)
    if begin == stop:
        # What the pieces have need not be cleared.
        zeros = (0 if low > 0 else top, zeros[1], heights.needed if high == heights.rows else 0)
    return Loaded(tile, count, zeros, pieces, source.kept[nl.ds(place, tile.shape[0])])


def _load_piece(
    source: Source,
    place: int,
    before: int,
    span: tuple[int, int],
    heights: Heights,
    ends: tuple[int, int, int, int],
    waits: bool,
) -> Piece:
    """Rows `first .. end` of strips `low .. high` (`ends`), and zeros for those of other strips:
    of channels (first, end) of a tile, in front of which are so many. `waits`: for the zeros.
    """
    first, end, low, high = ends
    images = source.tensor.shape[0]
    size = source.number * images
    shape = (place + size, span[1] - span[0], end - first, source.tensor.shape[3])
    tile = nl.ndarray(shape, dtype=source.tensor.dtype, buffer=nl.sbuf)[place:]
    if low > 0 and waits:
        nisa.memset(dst=tile, value=0.0, engine=nisa.engine.vector)
    elif low > 0:
        nisa.memset(dst=tile[0 : low * images], value=0.0, engine=nisa.engine.vector)
    if high < source.number:
        begin = high * images // _QUADRANT * _QUADRANT
        if place + begin == _QUADRANT and size > begin + _QUADRANT:
            begin = 0
        nisa.memset(dst=tile[begin:], value=0.0, engine=nisa.engine.vector)
    if high > low:
        some = tile[low * images : high * images]
        begin = heights.begin + low * heights.step + first
        _transfer(source, some, before + span[0], begin, heights.step)
    return Piece(span[0], first, end, tile)


def _transfer(source: Source, target: nl.NkiTensor, channel: int, begin: int, step: int) -> None:
    """`target[strips of images, channels, rows, columns]` <- `source`, from a channel and a row of
    the first strip on, by one transfer.
    """
    images, every, height, width = source.tensor.shape
    pattern = [
        [step * width, target.shape[0] // images],
        [every * height * width, images],
        [height * width, target.shape[1]],
        [1, target.shape[2] * width],
    ]
    data = source.tensor.ap(pattern=pattern, offset=(channel * height + begin) * width)
    load(target, data, False, source.is_static)


def finish_strips(loaded: Loaded, images: int) -> None:
    """What is to be done when strips are there: put pieces together, and zeros in place of
    neighbours.
    """
    lanes = loaded.tile[:, 0 : loaded.channels]
    for piece in loaded.pieces:
        target = lanes[:, nl.ds(piece.channel, piece.tile.shape[1]), piece.first : piece.end]
        nisa.tensor_copy(dst=target, src=piece.tile, engine=nisa.engine.vector)
    top, first, end = loaded.zeros
    if top > 0:
        above = lanes[0:images, :, 0:top]
        nisa.memset(dst=above, value=0.0, engine=nisa.engine.gpsimd)
    if end > first:
        below = lanes[:, :, first:end]
        nisa.tensor_scalar(
            dst=below, data=below, op0=nl.multiply, operand0=loaded.kept,
            engine=nisa.engine.scalar,
        )  # fmt: skip
