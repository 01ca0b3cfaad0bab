"""What the gradient of the weight of one channel a group is computed from; see
`_depthwise_gradient.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels.convolution._strips import Loaded, Source
from trnx.nki_kernels.kernels.convolution._weight_rows import RowAxis


class Strips(NamedTuple):
    """How strips are multiplied: their number and rows; parts of the partitions; channels and
    columns of a tile of the array; tiles that the same channels have; channels of a part that are
    loaded at once; and as in `load`.
    """

    number: int
    rows: int
    parts: int
    lanes: int
    shift: int
    tiles: int
    channels: int
    is_static: bool


class Given(NamedTuple):
    """`dense` is multiplied with `window`; `mask[128, lanes]` is 1 where a partition has a channel
    of the columns, `ones[128, columns of a round]` where it has sums of a column. `zeros` are those
    of a product.
    """

    out: nl.NkiTensor
    dense: Source
    window: Source
    axes: tuple[RowAxis, RowAxis]
    strips: Strips
    mask: nl.NkiTensor
    ones: nl.NkiTensor
    zeros: nl.NkiTensor


class Chunk(NamedTuple):
    """Channels `first .. end`, as many for each part as `Strips` says, in SBUF: for each part that
    has some a tile `[strips of images, channels, rows, columns]` of each tensor.
    """

    first: int
    end: int
    dense: list[nl.NkiTensor]
    window: list[nl.NkiTensor]
    loads: list[Loaded]


class Sums(NamedTuple):
    """Of a chunk, for each part `[128, rounds, kernel rows, columns]` in SBUF."""

    chunk: Chunk
    parts: list[nl.NkiTensor]


def tile_of(strips: Strips) -> int:
    """Columns of a tile of the array."""
    return strips.lanes * strips.shift


def groups_of(strips: Strips, columns: int) -> int:
    """Groups of lanes that so many columns of the array multiply at once."""
    return columns // (tile_of(strips) * strips.tiles)


def rounds_of(strips: Strips, channels: int) -> int:
    """In how many rounds channels of a part are multiplied."""
    pmax = nl.tile_size.pmax  # type: int
    each = groups_of(strips, pmax) * strips.lanes
    return (channels + each - 1) // each


def channels_of(given: Given, chunk: Chunk, part: int) -> int:
    """How many channels of a chunk a part has."""
    first = chunk.first + part * given.strips.channels
    return max(0, min(given.strips.channels, chunk.end - first))


def place_of(part: int, given: Given) -> int:
    """The first partition of a part."""
    pmax = nl.tile_size.pmax  # type: int
    return part * (pmax // given.strips.parts)
