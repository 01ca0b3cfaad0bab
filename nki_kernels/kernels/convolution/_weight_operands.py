"""NKI helpers of `_weight_gradient.py`: the operands of products, transposed.

A block of positions is loaded once; its *places*, positions that share the partitions, give the
left operands, and the window at all kernel rows the right ones.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels.convolution._loads import load
from trnx.nki_kernels.kernels.convolution._turned import load_turned, turned_part, turned_places
from trnx.nki_kernels.kernels.convolution._weight_halves import Half
from trnx.nki_kernels.kernels.convolution._weight_masks import (
    Mask,
    Variant,
    parts_of,
    reach_of,
    variant_of,
    whole_of,
)
from trnx.nki_kernels.kernels.convolution._weight_product import (
    Columns,
    Place,
    WindowAxis,
    flattened,
    load_window,
    size_of,
    transposed_gradient,
    transposed_window,
)

# Transposes of a block's window, by place, kernel plane and row; None where nothing took it yet.
Windows = list[nl.NkiTensor | None]


class Segment(NamedTuple):
    """The right operand of a product, the kernel positions of a bank that it is for, and which
    variant of the gradient is the left one.
    """

    bank: int
    first: int
    moving: nl.NkiTensor
    variant: int


class Work(NamedTuple):
    """One pass over all positions: channels `first ..` of the gradient, and columns of the window.

    out: the gradient of the weight, of `groups` groups; results: tiles of it in SBUF, stored when
    the pass `is_last` of theirs; is_first: no other pass was before; is_flat: a 1x1 kernel, so that
    all positions of a block are columns; is_turned: DMA transposes; is_split: TensorE does so with
    the last positions of images; is_static: as in `load`; kept:
    transposes of the gradient, in order, where a pass keeps them for the next ones; windows: those
    of the window, by block; masks: those of the gradient's positions; blocks: where
    cores share images, the results, float32 sums over those of this program; halves: what is under
    way between them.
    """

    out: nl.NkiTensor
    groups: int
    axes: tuple[WindowAxis, ...]
    first: int
    channels: int
    columns: list[Columns]
    is_flat: bool
    is_turned: bool
    is_split: bool
    is_cut: bool
    is_static: bool
    is_first: bool
    is_last: bool
    keeps: tuple[bool, bool]
    kept: list[list[Variant]]
    windows: list[Windows]
    masks: list[Mask]
    results: list[nl.NkiTensor]
    banks: list[nl.NkiTensor]
    blocks: list[nl.NkiTensor]
    halves: list[Half]


class Ready(NamedTuple):
    """The operands of the products at a place, all of which are transposed, and whether these are
    the last ones of the pass.
    """

    work: Work
    left: list[Variant]
    right: list[Segment]
    is_end: bool


def _rows_of(axes: tuple[WindowAxis, ...]) -> int:
    """Rows of a window that the outputs of a block take, at most."""
    return (axes[1].block - 1) * axes[1].stride + (axes[1].kernel - 1) * axes[1].dilation + 1


def windows_of_block(work: Work, block: int, places: int) -> Windows:
    """The transposes of a block's window that there are."""
    if block < len(work.windows):
        return work.windows[block]
    found: Windows = []
    for _ in range(places * work.axes[0].kernel * _rows_of(work.axes)):
        found.append(None)
    if work.keeps[1]:
        work.windows.append(found)
    return found


def is_last_block(axis: WindowAxis, first: int) -> bool:
    """Whether the block that begins with image `first` is the last one of several."""
    return first > 0 and first + axis.block >= axis.out


def load_both(
    gradient: list[nl.NkiTensor], window: list[nl.NkiTensor], work: Work, turn: int, is_last: bool
) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The transposes of a block's gradient and of its window, none where the list is empty. The
    larger ones come first, as products wait for both.
    """
    if len(gradient) > 0 and len(window) > 0 and window[0].shape[0] > gradient[0].shape[0]:
        loaded = load_turned([window[0], gradient[0]], work.is_split, turn, is_last, work.is_static)
        return loaded[1], loaded[0]
    loaded = load_turned(gradient + window, work.is_split, turn, is_last, work.is_static)
    if len(gradient) == 0:
        loaded.insert(0, [])
    if len(window) == 0:
        loaded.append([])
    return loaded[0], loaded[1]


def gradient_of(
    grad: nl.NkiTensor, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]
) -> nl.NkiTensor:
    """`[channels, planes, rows, columns]` of a block."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    return grad[:, nl.ds(firsts[0], planes), nl.ds(firsts[1], rows), :]


def load_gradient(
    grad: nl.NkiTensor, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...], work: Work
) -> list[nl.NkiTensor]:
    """The gradient of a block as tiles `[channels, chunks, planes, rows, columns]`: whole chunks of
    128 channels, and the rest, all positions being columns where it `is_flat`.
    """
    pmax = nl.tile_size.pmax
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    source = gradient_of(grad, axes, firsts)
    full = grad.shape[0] // pmax
    tiles = []
    if full > 0:
        shape = (pmax, full, planes, rows, grad.shape[3])
        tile = nl.ndarray(shape, dtype=grad.dtype, buffer=nl.sbuf)
        part = source[0 : full * pmax].reshape_dim(0, (full, pmax)).permute((1, 0, 2, 3, 4))
        load(tile, part, False, work.is_static)
        tiles.append(tile)
    rest = grad.shape[0] - full * pmax
    if rest > 0:
        tile = nl.ndarray((rest, 1, planes, rows, grad.shape[3]), dtype=grad.dtype, buffer=nl.sbuf)
        load(tile[:, 0], source[full * pmax :], False, work.is_static)
        tiles.append(tile)
    if work.is_flat:
        for index in range(len(tiles)):
            size = planes * rows * grad.shape[3]
            chunks = tiles[index].shape[0:2]
            tiles[index] = tiles[index].reshape((chunks[0], chunks[1], 1, 1, size))
    return tiles


def places_of(
    axes: tuple[WindowAxis, ...],
    firsts: tuple[int, ...],
    is_flat: bool,
    is_turned: bool,
    is_split: bool,
    is_last: bool,
) -> list[Place]:
    """The places of a block; `is_last` as in `load_turned`."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    places: list[Place] = []
    if is_turned:
        return turned_places(planes, rows * axes[2].out, is_split, is_last)
    if is_flat:
        positions = planes * rows * axes[2].out
        for first in range(0, positions, nl.tile_size.pmax):
            counts = (1, 1, min(nl.tile_size.pmax, positions - first))
            places.append(Place((0, 0, first), counts, 1, len(places)))
        return places
    apart = (rows + axes[1].tile - 1) // axes[1].tile
    index = 0
    for p in range(0, planes, axes[0].tile):
        for q in range(0, axes[2].out, axes[2].tile):
            for r in range(apart):
                counts = (
                    min(axes[0].tile, planes - p),
                    (rows - 1 - r) // apart + 1,
                    min(axes[2].tile, axes[2].out - q),
                )
                places.append(Place((p, r, q), counts, apart, index))
            index = index + 1
    return places


def left_of(tiles: list[nl.NkiTensor], place: Place, number: int, work: Work) -> list[Variant]:
    """The gradient at the `number`-th place of all, as it is; its variants are made when a kernel
    position needs them.
    """
    if number < len(work.kept):
        return work.kept[number]
    wide: list[nl.NkiTensor] = []
    if work.is_turned:
        wide.append(turned_part(tiles, place))
        tiles = []
    for index in range(len(tiles)):
        wide.append(transposed_gradient(tiles[index], place, number + index))
    variants = [Variant(whole_of(place), wide, parts_of(wide))]
    if work.keeps[0]:
        work.kept.append(variants)
    return variants


def add_segments(
    segments: list[Segment],
    index: int,
    window: nl.NkiTensor,
    tile: list[nl.NkiTensor],
    known: Windows,
    place: Place,
    firsts: tuple[int, ...],
    number: int,
    work: Work,
    left: list[Variant],
) -> None:
    """The right operands for bank `index` of the columns, one for each run of kernel columns that
    takes the same variant of the gradient. `tile` is the window of the block, loaded where it is
    needed.
    """
    axes, columns = work.axes, work.columns[index]
    width = axes[2].kernel
    tap = columns.tap
    while tap < columns.tap + columns.taps:
        end = min((tap // width + 1) * width, columns.tap + columns.taps)
        plane, kernel_row = tap // width // axes[1].kernel, tap // width % axes[1].kernel
        step = 1 if work.is_flat else axes[1].stride
        row = place.starts[1] * step + kernel_row * axes[1].dilation
        key = (place.order * axes[0].kernel + plane) * _rows_of(axes) + row
        values = known[key]
        if values is None and work.is_turned:
            values = turned_part(tile, place).reshape_dim(1, (columns.chunks, columns.lanes))
            values = values.expand_dim(3)
            known[key] = values
        if values is None:
            if len(tile) == 0:
                # The first one by the ring of stores, which has nothing to do yet.
                is_first = work.is_first and number == 0
                loaded = load_window(window, columns, axes, firsts, is_first, work.is_static)
                tile.append(flattened(loaded, axes) if work.is_flat else loaded)
            turn = number + index + 1
            values = transposed_window(tile[0], axes, place, plane, row, work.is_flat, turn)
            known[key] = values
        while tap < end:
            start, reach = tap, reach_of(axes, place, firsts, (plane, kernel_row, tap % width))
            if work.is_flat:
                reach = whole_of(place)
            tap = end if work.is_flat else tap + 1
            while (
                tap < end
                and reach_of(axes, place, firsts, (plane, kernel_row, tap % width)) == reach
            ):
                tap = tap + 1
            moving = values[0 : size_of(place), :, :, nl.ds(start % width, tap - start)]
            variant = variant_of(left, reach, place, work.masks)
            segments.append(Segment(index, start - columns.tap, moving, variant))


def window_of(
    window: nl.NkiTensor, columns: Columns, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]
) -> nl.NkiTensor:
    """`[channels, planes, rows, columns]` of a block of a 1x1 kernel with stride 1."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    channels = window[nl.ds(columns.first, columns.chunks * columns.lanes)]
    return channels[:, nl.ds(firsts[0], planes), nl.ds(firsts[1], rows), :]
