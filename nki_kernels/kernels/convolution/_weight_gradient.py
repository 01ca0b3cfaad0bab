"""NKI: the gradient of the weight of a convolution, position by position.

`_weight_product.py` says how it is computed; this adds up all positions, bank by bank.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.convolution._convolve import volumes_of
from trnx.nki_kernels.kernels.convolution._product import load, store
from trnx.nki_kernels.kernels.convolution._turned import (
    load_turned,
    turned_part,
    turned_places,
)
from trnx.nki_kernels.kernels.convolution._weight_masks import (
    Mask,
    Reach,
    Variant,
    make_masks,
    note_reaches,
    parts_of,
    reach_of,
    variant_of,
    whole_of,
)
from trnx.nki_kernels.kernels.convolution._weight_product import (
    BANKS,
    OVERLAPPING_BANKS,
    Columns,
    Place,
    WindowAxis,
    axis_of,
    columns_of_banks,
    copy_halves,
    copy_out,
    flattened,
    is_inside,
    load_window,
    size_of,
    tiles_of_columns,
    transposed_gradient,
    transposed_window,
)

# Products, at half rate: as long as DMA takes for the first operands.
_WARM_UP = 18
# Positions whose transposes are made before the products of the first of them.
_AHEAD = 6
# The last places of all, whose products are ordered by bank.
_LAST = 3
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
    all positions of a block are columns; is_turned: DMA transposes; is_static: as in `load`; kept:
    transposes of the gradient, in order, where a pass keeps them for the next ones; windows: those
    of the window, by block; masks: those of the gradient's positions.
    """

    out: nl.NkiTensor
    groups: int
    axes: tuple[WindowAxis, ...]
    first: int
    channels: int
    columns: list[Columns]
    is_flat: bool
    is_turned: bool
    is_static: bool
    is_first: bool
    is_last: bool
    keeps: tuple[bool, bool]
    kept: list[list[Variant]]
    windows: list[Windows]
    masks: list[Mask]
    results: list[nl.NkiTensor]
    banks: list[nl.NkiTensor]


class Ready(NamedTuple):
    """The operands of the products at a place, all of which are transposed, and whether these are
    the last ones of the pass.
    """

    work: Work
    left: list[Variant]
    right: list[Segment]
    is_end: bool


def weight_gradient(
    out: nl.NkiTensor,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor],
    groups: tuple[int, int],
    numbers: tuple[tuple[int, ...], ...],
    how: tuple[tuple[bool, bool], bool, bool],
    cores: int,
) -> None:
    """`out`, as the weight is, `<-` of `tensors` the dense one and the window, `[N, C, ...]`.
    `groups`: all, and how many are one product; `how`: which transposes are kept, whether DMA
    transposes, and `is_static`. `cores` share the blocks of the result; 0: they are all this
    program's.
    """
    grads, windows = volumes_of(tensors[0], 1), volumes_of(tensors[1], 1)
    count, together = groups
    axes = (axis_of(numbers[0]), axis_of(numbers[1]), axis_of(numbers[2]))
    taps = axes[0].kernel * axes[1].kernel * axes[2].kernel
    flat = out.reshape((out.shape[0], out.shape[1], taps))
    rows = out.shape[0] // count
    waiting: list[Ready] = []
    is_flat = taps == 1 and is_inside(axes)
    warm_up(_WARM_UP)
    masks = [] if is_flat else _masks(axes)
    for group in range(0, count, together):
        some = min(together, count - group)
        its_grads = []
        its_windows = []
        for volume in range(len(grads)):
            its_grads.append(grads[volume][nl.ds(group * rows, some * rows)])
            its_windows.append(windows[volume][nl.ds(group * out.shape[1], some * out.shape[1])])
        part = flat[nl.ds(group * rows, some * rows)]
        turn = (group // together, (count + together - 1) // together, cores)
        _gradient(part, its_grads, its_windows, axes, how, some, turn, waiting, masks)
    start = 0
    for index in range(len(waiting)):
        if waiting[index].is_end:
            _multiply_last(waiting[start : index + 1])
            start = index + 1


def _masks(axes: tuple[WindowAxis, ...]) -> list[Mask]:
    """Those of all places, which are not flat."""
    noted: list[tuple[tuple[int, int, int], Reach]] = []
    for plane in range(0, axes[0].out, axes[0].block):
        for row in range(0, axes[1].out, axes[1].block):
            firsts = (plane, row, 0)
            note_reaches(axes, _places(axes, firsts, False, False), firsts, noted)
    return make_masks(noted)


def _gradient(
    out: nl.NkiTensor,
    grads: list[nl.NkiTensor],
    windows: list[nl.NkiTensor],
    axes: tuple[WindowAxis, ...],
    how: tuple[tuple[bool, bool], bool, bool],
    groups: int,
    turn: tuple[int, int, int],
    waiting: list[Ready],
    masks: list[Mask],
) -> None:
    """`out[a, b, kernel]` in HBM, of one group or of several in one product, what of it is this
    program's; what is left to multiply is in `waiting`. `how`: what is kept, whether DMA
    transposes, and `is_static`. `turn` counts such products: this one, all,
    and the cores that share them.
    """
    pmax = nl.tile_size.pmax
    keeps = how[0]
    taps = out.shape[2]
    is_flat = taps == 1 and is_inside(axes)
    tiles = tiles_of_columns(columns_of_banks(out.shape[1] * groups, taps))
    # Where nothing is transposed twice, the banks of two passes share PSUM: the first ones are
    # copied out while the others are in use. Else many channels meet the same transposes.
    is_kept = keeps[0] and keeps[1]
    # Small products of several groups take more banks for transposes.
    sums = BANKS if groups == 1 else BANKS - 1
    most = OVERLAPPING_BANKS if is_kept else sums
    each = max(1, most // len(tiles[0])) * pmax if is_kept else most * pmax
    kept: list[list[list[Variant]]] = []
    for _ in range(0, out.shape[0], each):
        kept.append([])
    held: list[Windows] = []
    last = -1
    passes = _passes(out.shape[0], each, tiles, is_kept)
    begin_pass, end_pass = 0, turn[1] * len(passes)
    if turn[2] > 0:
        begin_pass, end_pass = share_of(end_pass, turn[2])
    number = turn[0] * len(passes)
    for first, columns in passes:
        number = number + 1
        if number <= begin_pass or number > end_pass:
            continue
        channels = min(each, out.shape[0] - first)
        some = max(1, most // ((channels + pmax - 1) // pmax))
        if columns[0].first != last:
            held = []
        last = columns[0].first
        results = _results(out, channels, columns[0], taps)
        for begin in range(0, len(columns), some):
            its = columns[begin : begin + some]
            banks: list[nl.NkiTensor] = []
            for row in range(0, channels, pmax):
                for part in its:
                    size = (min(pmax, channels - row), part.chunks, part.lanes, part.taps)
                    banks.append(nl.ndarray(size, dtype=nl.float32, buffer=nl.psum))
            is_first = number == begin_pass + 1 and begin == 0
            is_last = begin + some >= len(columns)
            again = kept[first // each]
            work = Work(
                out, groups, axes, first, channels, its, is_flat, how[1], how[2], is_first, is_last,
                keeps, again, held, masks, results, banks,
            )  # fmt: skip
            _sum_positions(work, grads, windows, waiting)


def _passes(
    channels: int, each: int, tiles: list[list[Columns]], is_kept: bool
) -> list[tuple[int, list[Columns]]]:
    """The first of `each` channels of the gradient, and columns of the window, in order."""
    passes: list[tuple[int, list[Columns]]] = []
    if is_kept:
        for columns in tiles:
            for first in range(0, channels, each):
                passes.append((first, columns))
        return passes
    for first in range(0, channels, each):
        for columns in tiles:
            passes.append((first, columns))
    return passes


def _results(out: nl.NkiTensor, channels: int, columns: Columns, taps: int) -> list[nl.NkiTensor]:
    """Tiles `[a, chunks, b, kernel]` for the channels of the window in these columns."""
    pmax = nl.tile_size.pmax
    results = []
    for row in range(0, channels, pmax):
        shape = (min(pmax, channels - row), columns.chunks, columns.lanes, taps)
        results.append(nl.ndarray(shape, dtype=out.dtype, buffer=nl.sbuf))
    return results


def _store(
    out: nl.NkiTensor,
    results: list[nl.NkiTensor],
    first: int,
    channel: int,
    are_alone: bool,
    is_static: bool,
) -> None:
    """`out[first .., channel .., kernel]` <- the results, whose kernel positions are all there."""
    for tile in results:
        size = (tile.shape[0], tile.shape[1] * tile.shape[2], tile.shape[3])
        target = out[nl.ds(first, size[0]), nl.ds(channel, size[1]), :]
        is_beside = are_alone and first // nl.tile_size.pmax % 2 == 1
        store(target, tile.reshape(size), is_beside, is_static)
        first = first + size[0]


def _store_diagonal(out: nl.NkiTensor, tile: nl.NkiTensor, groups: int) -> None:
    """`out[a, b, kernel]` <- `tile[a, 1, groups * b, kernel]`, for each row a the columns of its
    group. The others are replaced, not multiplied with zeros: they need not be finite.
    """
    rows, depth = out.shape[0] // groups, out.shape[1] * out.shape[2]
    wide = tile.reshape((out.shape[0], groups, depth))
    kept = nl.ndarray(wide.shape, dtype=tile.dtype, buffer=nl.sbuf)
    # The row in its group, counted from a group's first row, is 0 .. rows - 1 in its own group.
    nisa.affine_select(
        dst=kept, pattern=[[-rows, groups], [0, depth]], channel_multiplier=1, offset=0,
        on_true_tile=wide, on_false_value=0.0, cmp_op=nl.greater_equal,
    )  # fmt: skip
    nisa.affine_select(
        dst=kept, pattern=[[rows, groups], [0, depth]], channel_multiplier=-1, offset=rows - 1,
        on_true_tile=kept, on_false_value=0.0, cmp_op=nl.greater_equal,
    )  # fmt: skip
    result = nl.ndarray((out.shape[0], depth), dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=result, op=nl.add, data=kept.permute((0, 2, 1)), axis=2)
    nisa.dma_copy(dst=out.reshape((out.shape[0], depth)), src=result)


def _sum_positions(
    work: Work, grads: list[nl.NkiTensor], windows: list[nl.NkiTensor], waiting: list[Ready]
) -> None:
    """The transposes of this pass, and products: those of the last places are left `waiting`, so
    that transposes run ahead of the products, which wait for them to leave PSUM.
    """
    axes = work.axes
    number = 0
    block = 0
    for volume in range(len(grads)):
        grad = grads[volume][nl.ds(work.first, work.channels)]
        for plane in range(0, axes[0].out, axes[0].block):
            for row in range(0, axes[1].out, axes[1].block):
                firsts = (plane, row, 0)
                places = _places(axes, firsts, work.is_flat, work.is_turned)
                its = _windows_of(work, block, len(places))
                block = block + 1
                # Loaded where something is not kept.
                tile: list[nl.NkiTensor] = []
                tiles: list[nl.NkiTensor] = []
                if work.is_turned:
                    source = [] if number < len(work.kept) else [_gradient_of(grad, axes, firsts)]
                    other = []
                    if its[0] is None:
                        other.append(_window_of(windows[volume], work.columns[0], axes, firsts))
                    tiles, tile = _load_both(source, other)
                for place in places:
                    if number >= len(work.kept) and len(tiles) == 0:
                        tiles = _load_gradient(grad, axes, firsts, work)
                    left = _left(tiles, place, number, work)
                    right: list[Segment] = []
                    for index in range(len(work.columns)):
                        _add_segments(
                            right, index, windows[volume], tile, its, place, firsts, number, work,
                            left,
                        )  # fmt: skip
                    waiting.append(Ready(work, left, right, False))
                    number = number + 1
                    if len(waiting) > _AHEAD:
                        _multiply(waiting.pop(0))
    last = waiting.pop()
    waiting.append(Ready(last.work, last.left, last.right, True))


def _rows_of(axes: tuple[WindowAxis, ...]) -> int:
    """Rows of a window that the outputs of a block take, at most."""
    return (axes[1].block - 1) * axes[1].stride + (axes[1].kernel - 1) * axes[1].dilation + 1


def _windows_of(work: Work, block: int, places: int) -> Windows:
    """The transposes of a block's window that there are."""
    if block < len(work.windows):
        return work.windows[block]
    found: Windows = []
    for _ in range(places * work.axes[0].kernel * _rows_of(work.axes)):
        found.append(None)
    if work.keeps[1]:
        work.windows.append(found)
    return found


def _load_both(
    gradient: list[nl.NkiTensor], window: list[nl.NkiTensor]
) -> tuple[list[nl.NkiTensor], list[nl.NkiTensor]]:
    """The transposes of a block's gradient and of its window, none where the list is empty. The
    larger ones come first, as products wait for both.
    """
    if len(gradient) > 0 and len(window) > 0 and window[0].shape[0] > gradient[0].shape[0]:
        loaded = load_turned([window[0], gradient[0]])
        return loaded[1], loaded[0]
    loaded = load_turned(gradient + window)
    if len(gradient) == 0:
        loaded.insert(0, [])
    if len(window) == 0:
        loaded.append([])
    return loaded[0], loaded[1]


def _gradient_of(
    grad: nl.NkiTensor, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]
) -> nl.NkiTensor:
    """`[channels, planes, rows, columns]` of a block."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    return grad[:, nl.ds(firsts[0], planes), nl.ds(firsts[1], rows), :]


def _load_gradient(
    grad: nl.NkiTensor, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...], work: Work
) -> list[nl.NkiTensor]:
    """The gradient of a block as tiles `[channels, chunks, planes, rows, columns]`: whole chunks of
    128 channels, and the rest, all positions being columns where it `is_flat`.
    """
    pmax = nl.tile_size.pmax
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    source = _gradient_of(grad, axes, firsts)
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


def _places(
    axes: tuple[WindowAxis, ...], firsts: tuple[int, ...], is_flat: bool, is_turned: bool
) -> list[Place]:
    """The places of a block."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    places: list[Place] = []
    if is_turned:
        return turned_places(planes, rows * axes[2].out)
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


def _left(tiles: list[nl.NkiTensor], place: Place, number: int, work: Work) -> list[Variant]:
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


def _add_segments(
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


def _window_of(
    window: nl.NkiTensor, columns: Columns, axes: tuple[WindowAxis, ...], firsts: tuple[int, ...]
) -> nl.NkiTensor:
    """`[channels, planes, rows, columns]` of a block of a 1x1 kernel with stride 1."""
    planes = min(axes[0].block, axes[0].out - firsts[0])
    rows = min(axes[1].block, axes[1].out - firsts[1])
    channels = window[nl.ds(columns.first, columns.chunks * columns.lanes)]
    return channels[:, nl.ds(firsts[0], planes), nl.ds(firsts[1], rows), :]


def _multiply(ready: Ready) -> None:
    """Add the products at a place to the sums, which leave PSUM after the last one."""
    work = ready.work
    for row in range(len(ready.left[0].parts)):
        for index in range(len(work.columns)):
            _multiply_bank(ready, row, index)
    if ready.is_end:
        for row in range(len(work.results)):
            _take_out(work, row, row)
        _store_results(work, False)


def _multiply_last(places: list[Ready]) -> None:
    """The same for the last places of a pass that no load follows: bank by bank for the very last
    ones, so that the first banks leave PSUM, and are stored, during the products of the others.
    """
    work = places[-1].work
    first = max(0, len(places) - _LAST)
    for ready in places[0:first]:
        _multiply(ready)
    for row in range(len(work.results)):
        for index in range(len(work.columns)):
            for ready in places[first:]:
                _multiply_bank(ready, row, index)
        # By VectorE, which is done sooner, where the products of the next channels take as long.
        _take_out(work, row, 0 if len(places) >= _LAST else row)
        if work.is_last and work.groups == 1:
            channel = work.first + row * nl.tile_size.pmax
            some = work.results[row : row + 1]
            _store(work.out, some, channel, work.columns[0].first, True, work.is_static)
    if work.groups > 1:
        _store_results(work, True)


def _multiply_bank(ready: Ready, row: int, index: int) -> None:
    """What a place adds to bank `index` of the columns, for 128 channels of the gradient."""
    bank = ready.work.banks[row * len(ready.work.columns) + index]
    for segment in ready.right:
        if segment.bank == index:
            nisa.nc_matmul(
                dst=bank[:, :, :, nl.ds(segment.first, segment.moving.shape[3])],
                stationary=ready.left[segment.variant].parts[row],
                moving=segment.moving,
            )


def _take_out(work: Work, row: int, turn: int) -> None:
    """The sums of 128 channels of the gradient: from PSUM to the results, by VectorE or ScalarE."""
    count = len(work.columns)
    for index in range(count):
        some = work.columns[index]
        target = work.results[row][:, :, :, nl.ds(some.tap, some.taps)]
        if count > 1:
            copy_halves(target, work.banks[row * count + index], 0)
        else:
            copy_out(target, work.banks[row * count + index], turn)


def _store_results(work: Work, are_alone: bool) -> None:
    """The results of the last pass that gives them their sums. Stores that `are_alone` go by both
    rings, as no loads follow.
    """
    if work.is_last and work.groups > 1:
        _store_diagonal(work.out, work.results[0], work.groups)
    elif work.is_last:
        first = work.columns[0].first
        _store(work.out, work.results, work.first, first, are_alone, work.is_static)
