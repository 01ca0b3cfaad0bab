"""NKI: the gradient of the weight of a convolution, position by position.

`_weight_product.py` says how it is computed; this adds up all positions, bank by bank.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.convolution._turned import cuts_last, splits_images
from trnx.nki_kernels.kernels.convolution._views import volumes_of
from trnx.nki_kernels.kernels.convolution._weight_halves import (
    Half,
    blocks_of,
    finish_halves,
    tiles_of,
)
from trnx.nki_kernels.kernels.convolution._weight_masks import (
    Mask,
    Reach,
    Variant,
    make_masks,
    note_reaches,
)
from trnx.nki_kernels.kernels.convolution._weight_operands import (
    Ready,
    Segment,
    Windows,
    Work,
    add_segments,
    gradient_of,
    is_last_block,
    left_of,
    load_both,
    load_gradient,
    places_of,
    window_of,
    windows_of_block,
)
from trnx.nki_kernels.kernels.convolution._weight_product import (
    BANKS,
    OVERLAPPING_BANKS,
    Columns,
    WindowAxis,
    axis_of,
    columns_beside,
    columns_of_banks,
    is_inside,
    tiles_of_columns,
)
from trnx.nki_kernels.kernels.convolution._weight_sums import multiply, multiply_last, results_of

# Positions whose transposes are made before the products of the first of them.
_AHEAD = 6


def weight_gradient(
    out: nl.NkiTensor,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor],
    groups: tuple[int, int],
    numbers: tuple[tuple[int, ...], ...],
    how: tuple[tuple[bool, bool], bool, bool, int],
    cores: int,
    by_images: bool,
) -> None:
    """`out`, as the weight is, `<-` of `tensors` the dense one and the window, `[N, C, ...]`.
    `groups`: all, and how many are one product; `how`: which transposes are kept, whether DMA
    transposes, and `is_static`. `cores` share the blocks of the result, or `by_images`, of which
    there are as many or more, and then there is one group; 0: all is this program's.
    """
    grads, windows = volumes_of(tensors[0], 1), volumes_of(tensors[1], 1)
    count, together = groups
    axes = (axis_of(numbers[0]), axis_of(numbers[1]), axis_of(numbers[2]))
    is_shared = by_images and cores > 1
    halves: list[Half] = []
    if is_shared:
        first, end = share_of(tensors[0].shape[0], cores)
        cores = 0
        if len(tensors[0].shape) == 5:
            grads, windows = grads[first:end], windows[first:end]
        else:
            grads = [grads[0][:, first:end]]
            windows = [windows[0][:, first:end]]
            block = min(axes[0].block, end - first)
            images = WindowAxis(end - first, end - first, 1, 1, 0, 1, block, axes[0].tile)
            axes = (images, axes[1], axes[2])
    taps = axes[0].kernel * axes[1].kernel * axes[2].kernel
    flat = out.reshape((out.shape[0], out.shape[1], taps))
    rows = out.shape[0] // count
    waiting: list[Ready] = []
    is_flat = taps == 1 and is_inside(axes)
    warm_up(how[3])
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
        shared = (is_shared, halves)
        _gradient(part, its_grads, its_windows, axes, how, some, turn, waiting, masks, shared)
    start = 0
    for index in range(len(waiting)):
        if waiting[index].is_end:
            multiply_last(waiting[start : index + 1])
            start = index + 1
    finish_halves(halves, how[2])


def _masks(axes: tuple[WindowAxis, ...]) -> list[Mask]:
    """Those of all places, which are not flat."""
    noted: list[tuple[tuple[int, int, int], Reach]] = []
    for plane in range(0, axes[0].out, axes[0].block):
        for row in range(0, axes[1].out, axes[1].block):
            firsts = (plane, row, 0)
            note_reaches(axes, places_of(axes, firsts, False, False, False, False), firsts, noted)
    return make_masks(noted)


class Division(NamedTuple):
    """How a product is cut: `tiles`, columns of the result that share their banks; `each` of its
    channels, with at most `most` banks at once; whether transposes are kept (`is_kept`), DMA
    transposes images by themselves (`is_split`), and TensorE their last positions (`is_cut`).
    """

    tiles: list[list[Columns]]
    is_kept: bool
    most: int
    each: int
    is_split: bool
    is_cut: bool


def _gradient(
    out: nl.NkiTensor,
    grads: list[nl.NkiTensor],
    windows: list[nl.NkiTensor],
    axes: tuple[WindowAxis, ...],
    how: tuple[tuple[bool, bool], bool, bool, int],
    groups: int,
    turn: tuple[int, int, int],
    waiting: list[Ready],
    masks: list[Mask],
    shared: tuple[bool, list[Half]],
) -> None:
    """`out[a, b, kernel]` in HBM, of one group or of several in one product, what of it is this
    program's; what is left to multiply is in `waiting`. `how`: what is kept, whether DMA
    transposes, and `is_static`. `turn` counts such products: this one, all,
    and the cores that share them; `shared`:
    whether they share images instead, and what is under way between them.
    """
    pmax = nl.tile_size.pmax
    taps = out.shape[2]
    is_flat = taps == 1 and is_inside(axes)
    plan = _division(out, axes, how, groups, turn, shared[0])
    kept: list[list[list[Variant]]] = []
    for _ in range(0, out.shape[0], plan.each):
        kept.append([])
    held: list[Windows] = []
    last = -1
    passes = _passes(out.shape[0], plan)
    begin_pass, end_pass = 0, turn[1] * len(passes)
    if turn[2] > 0:
        begin_pass, end_pass = share_of(end_pass, turn[2])
    number = turn[0] * len(passes)
    for first, columns in passes:
        number = number + 1
        if number <= begin_pass or number > end_pass:
            continue
        channels = min(plan.each, out.shape[0] - first)
        some = max(1, plan.most // ((channels + pmax - 1) // pmax))
        if columns[0].first != last:
            held = []
        last = columns[0].first
        blocks: list[nl.NkiTensor] = []
        if shared[0]:
            finish_halves(shared[1], how[2])
            blocks = blocks_of(channels, columns[0], taps)
        results = tiles_of(blocks)
        if len(results) == 0:
            results = results_of(out, channels, columns[0], taps)
        for begin in range(0, len(columns), some):
            its = columns[begin : begin + some]
            banks: list[nl.NkiTensor] = []
            for row in range(0, channels, pmax):
                for part in its:
                    size = (min(pmax, channels - row), part.chunks, part.lanes, part.taps)
                    banks.append(nl.ndarray(size, dtype=nl.float32, buffer=nl.psum))
            is_first = number == begin_pass + 1 and begin == 0
            is_last = begin + some >= len(columns)
            again = kept[first // plan.each]
            work = Work(
                out, groups, axes, first, channels, its, is_flat, how[1], plan.is_split,
                plan.is_cut, how[2],
                is_first, is_last, how[0], again, held, masks, results, banks, blocks, shared[1],
            )  # fmt: skip
            _sum_positions(work, grads, windows, waiting)


def _division(
    out: nl.NkiTensor,
    axes: tuple[WindowAxis, ...],
    how: tuple[tuple[bool, bool], bool, bool, int],
    groups: int,
    turn: tuple[int, int, int],
    shares_images: bool,
) -> Division:
    """Of `out[a, b, kernel]`, with the arguments of `_gradient`."""
    pmax = nl.tile_size.pmax
    keeps = how[0]
    taps = out.shape[2]
    chunks = (out.shape[0] + pmax - 1) // pmax
    most_chunks = nl.tile_size.psum_bank_fmax // pmax
    if turn[1] < turn[2] and chunks < turn[2]:
        # The channels of the window for all cores.
        most_chunks = max(1, (out.shape[1] + pmax * turn[2] - 1) // (pmax * turn[2]))
    tiles = tiles_of_columns(columns_of_banks(out.shape[1] * groups, taps, most_chunks))
    if how[1] and turn[1] >= turn[2]:
        tiles = tiles_of_columns(columns_beside(out.shape[1] * groups))
    is_split = how[1] and axes[0].block >= axes[0].out
    if is_split:
        widest = max(out.shape[0], out.shape[1] * groups)
        is_split = splits_images(axes[0].out, axes[1].out * axes[2].out, widest, pmax)
    # Where nothing is transposed twice, the banks of two passes share PSUM: the first ones are
    # copied out while the others are in use. Else many channels meet the same transposes.
    is_kept = keeps[0] and keeps[1]
    # Small products of several groups take more banks for transposes.
    sums = BANKS if groups == 1 else BANKS - 1
    most = OVERLAPPING_BANKS if is_kept else sums
    if shares_images and chunks * len(tiles[0]) <= sums:
        # One pass for some columns, so that there are few exchanges.
        most = sums
    each = max(1, most // len(tiles[0])) * pmax if is_kept else most * pmax
    if turn[2] > 1:
        # Even shares.
        pieces = (out.shape[0] + each - 1) // each
        while turn[1] * len(tiles) * pieces % turn[2] > 0 and pieces < chunks:
            pieces = pieces + 1
        each = (chunks + pieces - 1) // pieces * pmax
    width = tiles[0][0].chunks * tiles[0][0].lanes
    is_cut = how[1] and not is_split
    if is_cut:
        both = min(each, out.shape[0]) + width
        is_cut = cuts_last(axes[0].out, axes[0].block, axes[1].out * axes[2].out, both)
    return Division(tiles, is_kept, most, each, is_split, is_cut)


def _passes(channels: int, plan: Division) -> list[tuple[int, list[Columns]]]:
    """The first of the channels of the gradient, and columns of the window, in order."""
    passes: list[tuple[int, list[Columns]]] = []
    if plan.is_kept:
        for columns in plan.tiles:
            for first in range(0, channels, plan.each):
                passes.append((first, columns))
        return passes
    for first in range(0, channels, plan.each):
        for columns in plan.tiles:
            passes.append((first, columns))
    return passes


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
                is_last = work.is_cut and is_last_block(axes[0], plane)
                places = places_of(
                    axes, firsts, work.is_flat, work.is_turned, work.is_split, is_last
                )
                its = windows_of_block(work, block, len(places))
                block = block + 1
                # Loaded where something is not kept.
                tile: list[nl.NkiTensor] = []
                tiles: list[nl.NkiTensor] = []
                if work.is_turned:
                    source = [] if number < len(work.kept) else [gradient_of(grad, axes, firsts)]
                    other = []
                    if its[0] is None:
                        other.append(window_of(windows[volume], work.columns[0], axes, firsts))
                    tiles, tile = load_both(source, other, work, block, is_last)
                for place in places:
                    if number >= len(work.kept) and len(tiles) == 0:
                        tiles = load_gradient(grad, axes, firsts, work)
                    left = left_of(tiles, place, number, work)
                    right: list[Segment] = []
                    for index in range(len(work.columns)):
                        add_segments(
                            right, index, windows[volume], tile, its, place, firsts, number, work,
                            left,
                        )  # fmt: skip
                    waiting.append(Ready(work, left, right, False))
                    number = number + 1
                    if len(waiting) > _AHEAD:
                        multiply(waiting.pop(0))
    last = waiting.pop()
    waiting.append(Ready(last.work, last.left, last.right, True))
