"""NKI helpers of `_weight_gradient.py`: products, and how their sums leave PSUM for HBM."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._loads import store
from trnx.nki_kernels.kernels.convolution._weight_halves import exchange
from trnx.nki_kernels.kernels.convolution._weight_operands import Ready, Work
from trnx.nki_kernels.kernels.convolution._weight_product import Columns, copy_halves, copy_out

# The last places of all, whose products are ordered by bank.
_LAST = 3


def results_of(out: nl.NkiTensor, channels: int, columns: Columns, taps: int) -> list[nl.NkiTensor]:
    """Tiles `[a, chunks, b, kernel]` for the channels of the window in these columns."""
    pmax = nl.tile_size.pmax
    results = []
    for row in range(0, channels, pmax):
        shape = (min(pmax, channels - row), columns.chunks, columns.lanes, taps)
        results.append(nl.ndarray(shape, dtype=out.dtype, buffer=nl.sbuf))
    return results


def _store(work: Work, results: list[nl.NkiTensor], first: int, are_alone: bool) -> None:
    """`out[first .., channels, kernel]` <- the results, whose kernel positions are all there."""
    for tile in results:
        size = (tile.shape[0], tile.shape[1] * tile.shape[2], tile.shape[3])
        target = work.out[nl.ds(first, size[0]), nl.ds(work.columns[0].first, size[1]), :]
        is_beside = are_alone and first // nl.tile_size.pmax % 2 == 1
        store(target, tile.reshape(size), is_beside, work.is_static)
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


def multiply(ready: Ready) -> None:
    """Add the products at a place to the sums, which leave PSUM after the last one."""
    work = ready.work
    for row in range(len(ready.left[0].parts)):
        for index in range(len(work.columns)):
            _multiply_bank(ready, row, index)
    if ready.is_end:
        for row in range(len(work.results)):
            _take_out(work, row, row)
        _store_results(work, False)


def multiply_last(places: list[Ready]) -> None:
    """The same for the last places of a pass that no load follows: bank by bank for the very last
    ones, so that the first banks leave PSUM, and are stored, during the products of the others.
    """
    work = places[-1].work
    # Of split images the very last place waits for its load, and the others do not.
    last = 1 if work.is_split else _LAST
    first = max(0, len(places) - last)
    for ready in places[0:first]:
        multiply(ready)
    for row in range(len(work.results)):
        for index in range(len(work.columns)):
            for ready in places[first:]:
                _multiply_bank(ready, row, index)
        # By VectorE, which is done sooner, where the products of the next channels take as long.
        _take_out(work, row, 0 if len(places) >= _LAST and last > 1 else row)
        if work.is_last and work.groups == 1 and len(work.blocks) == 0:
            channel = work.first + row * nl.tile_size.pmax
            _store(work, work.results[row : row + 1], channel, True)
    if work.groups > 1 or len(work.blocks) > 0:
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
    if work.is_last and len(work.blocks) > 0:
        channels = nl.ds(work.columns[0].first, work.columns[0].chunks * work.columns[0].lanes)
        target = work.out[nl.ds(work.first, work.channels), channels, :]
        exchange(target, work.blocks, work.halves)
    elif work.is_last and work.groups > 1:
        _store_diagonal(work.out, work.results[0], work.groups)
    elif work.is_last:
        _store(work, work.results, work.first, are_alone)
