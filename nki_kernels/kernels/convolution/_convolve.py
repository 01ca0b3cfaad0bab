"""NKI: a whole convolution: its groups, blocks of output channels, planes and rows."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, is_simple
from trnx.nki_kernels.kernels.convolution._filters import (
    Channels,
    Filters,
    Operands,
    Ready,
    are_transposed,
    come_late,
    load_next,
    on_all_sides,
    start_weights,
)
from trnx.nki_kernels.kernels.convolution._loads import (
    Inputs,
    Source,
    is_spread,
    load_inputs,
    place_of,
)
from trnx.nki_kernels.kernels.convolution._plan import (
    Block,
    Plan,
    blocks_of,
    plan_of_rest,
)
from trnx.nki_kernels.kernels.convolution._product import Weights, convolve_blocks
from trnx.nki_kernels.kernels.convolution._results import (
    move,
    size_of,
    store_banks,
    store_last,
)
from trnx.nki_kernels.kernels.convolution._views import results_of, volumes_of, with_planes


class Volume(NamedTuple):
    """Planes that are convolved together: images, or those of one. `is_last`: nothing follows."""

    x: Source
    out: nl.NkiTensor
    residual: nl.NkiTensor | None
    is_last: bool


def convolve(given: Operands, groups: int, plan: Plan, cores: int) -> None:
    """`given.out` = the convolution of `given.x`, with its epilogue. `cores` share the blocks of
    outputs, or the output channels where blocks are few."""
    xs = volumes_of(given.x, 1)
    outs = results_of(given.out, given.apart, 1)
    residuals = results_of(given.residual, given.apart, len(xs))
    channels = xs[0].shape[0] // groups
    out_channels = given.out.shape[1] * given.apart // groups
    weight = with_planes(given.weight, given.apart)
    blocks = blocks_of(plan)
    first_out, end_out = 0, out_channels
    together = plan.streams * plan.sides
    if plan.by_blocks:
        start, end = share_of(len(blocks), cores, together)
        blocks = blocks[start:end]
    else:
        first_out, end_out = share_of(out_channels, cores, nl.tile_size.pmax)
    if len(blocks) == 0:
        end_out = first_out
    if end_out > first_out and together == 1:
        warm_up(plan.warm_up)
    spread: list[nl.NkiTensor] = []
    for group in range(groups):
        size = channels if given.is_turned else out_channels
        part = weight[nl.ds(group * size, size)]
        for first in range(first_out, end_out, plan.out_channels):
            last = min(first + plan.out_channels, end_out)
            chunks = _chunks(first, last, group * out_channels)
            filters = Filters(given, part, chunks, [], [], [])
            for index in range(len(xs)):
                its = group * channels
                x = _source(given.x, xs[index], index, its, channels, plan.is_static, spread)
                is_last = group == groups - 1 and last == end_out and index == len(xs) - 1
                volume = Volume(x, outs[index], residuals[index], is_last)
                _convolve_volume(volume, filters, plan, blocks)


def _source(
    root: nl.NkiTensor,
    volume: nl.NkiTensor,
    index: int,
    first: int,
    channels: int,
    is_static: bool,
    spread: list[nl.NkiTensor],
) -> Source:
    """Channels `first ..` of volume `index` of the input."""
    rows, columns = volume.shape[2], volume.shape[3]
    size = rows * columns
    channel_step = size
    plane_step = root.shape[1] * size
    start = first * size
    if len(root.shape) == 5:
        channel_step = volume.shape[1] * size
        plane_step = size
        start = (index * root.shape[1] + first) * channel_step
    view = volume[nl.ds(first, channels)]
    return Source(
        view, root, start, channels, rows, channel_step, plane_step, columns, is_static, spread
    )


def _chunks(first: int, end: int, place: int) -> list[Channels]:
    """Output channels `first .. end` of a group whose channels begin at `place`."""
    chunks = []
    for begin in range(first, end, nl.tile_size.pmax):
        chunks.append(Channels(begin, place + begin, min(nl.tile_size.pmax, end - begin)))
    return chunks


def _convolve_volume(volume: Volume, filters: Filters, plan: Plan, blocks: list[Block]) -> None:
    """All blocks of a volume."""
    turn = 0
    chunks = filters.chunks
    is_first = len(filters.ready) == 0
    is_behind = (
        is_first and len(chunks) > 0 and start_weights(filters, plan, is_spread(volume.x, plan))
    )
    together = plan.streams * plan.sides
    ready: list[list[Inputs]] = []
    waiting: list[Inputs] = []
    number = 0
    for first in range(0, len(blocks), together):
        by_both = is_first and (plan.is_small or first == 0)
        last = first + 1
        if plan.is_small:
            last = len(blocks)
        elif plan.fold > 1:
            # Loads of few rows, which are many: the next ones before these products, by both rings.
            by_both = True
            last = min(len(blocks), first + together + 1)
        while len(ready) * together < last:
            begin = len(ready) * together
            some = blocks[begin : min(begin + together, len(blocks))]
            ready.append(_load_sides(volume.x, plan, some, begin, number, by_both))
            number = ready[-1][-1].transfers
            if is_behind and len(ready) == 1:
                load_next(filters, plan)
            # The input of most blocks comes behind the weights.
            is_whole = plan.is_small and not are_transposed(filters, plan)
            while is_whole and len(filters.ready) < len(chunks):
                load_next(filters, plan)
        sides = ready[first // together]
        end_block = min(first + together, len(blocks))
        start = 0
        while start < len(chunks):
            # A last chunk of fewer channels is stored by itself.
            end = min(start + plan.together, len(chunks))
            is_early = plan.is_small and not are_transposed(filters, plan)
            if is_early and first + start == 0 and len(chunks) > plan.together:
                # DMA has nothing to do until the first of them are stored.
                end = 1
            while end > start + 1 and chunks[end - 1].number < chunks[start].number:
                end = end - 1
            part = (start, end)
            is_last = volume.is_last and (plan.is_small or end_block >= len(blocks))
            where = (first, turn, is_last, volume.is_last and end_block >= len(blocks))
            if plan.rest_columns > 0 and chunks[start].number < nl.tile_size.pmax:
                waiting.extend(_apart(sides[0]))
                count = nl.tile_size.pmax // plan.rest_columns
                if plan.streams > 1 or len(waiting) == count or end_block >= len(blocks):
                    which = (end_block - len(waiting), where[1], where[2], where[3])
                    turn = _convolve_rest(volume, filters, plan, waiting, start, which)
                    waiting = []
            else:
                turn = _convolve_chunks(volume, filters, plan, sides, part, where)
            start = end


def _load_sides(
    x: Source, plan: Plan, blocks: list[Block], first: int, number: int, by_both: bool
) -> list[Inputs]:
    """The input of blocks `first ..` of a volume, of each side; `number`: as in `load_inputs`."""
    sides: list[list[Block]] = []
    for begin in range(0, len(blocks), plan.streams):
        sides.append(blocks[begin : min(begin + plan.streams, len(blocks))])
    return load_inputs(x, plan, sides, first // plan.streams, number, by_both)


def _apart(inputs: Inputs) -> list[Inputs]:
    """Each of the blocks by itself."""
    found: list[Inputs] = []
    for place in range(len(inputs.blocks)):
        found.append(Inputs(inputs.tile, [inputs.blocks[place]], inputs.rest, place, 0))
    return found


def _convolve_rest(
    volume: Volume,
    filters: Filters,
    plan: Plan,
    inputs: list[Inputs],
    chunk: int,
    where: tuple[int, int, bool, bool],
) -> int:
    """The blocks of `inputs` for a last `chunk` of few output channels: each block has columns of
    the array of its own, so that the sums of several leave PSUM together. `where` and what is
    returned: as in `_convolve_chunks`.
    """
    while len(filters.ready) <= chunk:
        load_next(filters, plan)
    beside = plan_of_rest(plan)
    if len(filters.rest) == 0:
        filters.rest.append(_rest_of(filters.ready[chunk], plan, beside))
    ready = filters.ready[0:chunk]
    ready.append(filters.rest[0])
    its_filters = Filters(filters.given, filters.weight, filters.chunks, ready, filters.rest, [])
    first, turn, is_last, is_end = where
    count = beside.sides
    for begin in range(0, len(inputs), count):
        sides = inputs[begin : min(begin + count, len(inputs))]
        part = (chunk, chunk + 1)
        which = (first + begin, turn, is_last, is_end and begin + count >= len(inputs))
        turn = _convolve_chunks(volume, its_filters, beside, sides, part, which)
    return turn


def _rest_of(its: Ready, plan: Plan, beside: Plan) -> Ready:
    """What a last chunk of few output channels needs, with as many columns as a side has."""
    tile = its.weights.tile
    columns = beside.array_columns
    if tile.shape[3] < columns:
        shape = (tile.shape[0], tile.shape[1], tile.shape[2], columns)
        wide = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.memset(dst=wide, value=0.0)
        for stream in range(plan.streams):
            here = nl.ds(stream * plan.array_rows, its.weights.channels * plan.fold)
            some = wide[here, :, :, 0 : tile.shape[3]]
            nisa.tensor_copy(dst=some, src=tile[here], engine=nisa.engine.vector)
        tile = wide
    scale, shift = on_all_sides(its.scale, beside), on_all_sides(its.shift, beside)
    return Ready(Weights(tile, its.weights.channels, its.weights.masked), scale, shift)


def _convolve_chunks(
    volume: Volume,
    filters: Filters,
    plan: Plan,
    sides: list[Inputs],
    part: tuple[int, int],
    where: tuple[int, int, bool, bool],
) -> int:
    """Some blocks for chunks `part` (first, end) of the output channels, which are stored together.
    `where`: the number of the first block, and of banks that were copied out, whether no input is
    loaded after these blocks, and whether they are the last ones; returns the number of banks after
    these.
    """
    out, residual, ready = volume.out, volume.residual, filters.ready
    chunks = filters.chunks[part[0] : part[1]]
    results: list[nl.NkiTensor] = []
    added: list[nl.NkiTensor | None] = []
    for index in range(len(sides[0].blocks)):
        size = size_of(sides, index, plan, chunks)
        begin = 0
        if residual is None and plan.sides == 1:
            begin = place_of(size[0], where[0] + index)
        whole = (begin + size[0], size[1], size[2], size[3], size[4])
        tile = nl.ndarray(whole, dtype=out.dtype, buffer=nl.sbuf)
        results.append(tile[nl.ds(begin, size[0])])
        added.append(None)
        if residual is not None:
            added[-1] = nl.ndarray(size, dtype=out.dtype, buffer=nl.sbuf)
            move(residual, added[-1], sides, index, plan, chunks, False, None)
    turn = where[1]
    in_halves = False
    for chunk in range(len(chunks)):
        # One more than is needed, whose transposes leave PSUM during the products; but the first
        # products do not wait for the next weights to come, where that takes long.
        ahead = 1 if len(ready) == 1 and come_late(filters, plan, part[0] + chunk) else 2
        while len(ready) < min(part[0] + chunk + ahead, len(filters.chunks)):
            load_next(filters, plan)
        its = ready[part[0] + chunk]
        parts = []
        more = []
        for number in range(len(results)):
            other = added[number]
            parts.append(results[number][:, chunk])
            more.append(None if other is None else other[:, chunk])
        then = Epilogue(its.scale, its.shift, filters.given.activation)
        is_end = where[3] and part[0] + chunk == len(filters.chunks) - 1
        is_end = is_end and _waits_for_products(its.weights, out.shape[0], plan)
        in_halves = residual is None and _leaves_in_halves(plan, then)
        halves = (in_halves, is_end)
        turn = convolve_blocks(parts, more, sides, its.weights, plan, then, turn, halves)
    are_alone = where[2] and len(ready) == len(filters.chunks)
    before = where[0] // (plan.streams * plan.sides) + part[0] // plan.together
    is_end = where[3] and part[1] == len(filters.chunks)
    is_end = is_end and plan.sides == 1 and len(chunks) > 1
    if is_end and _waits_for_products(ready[-1].weights, out.shape[0], plan):
        store_last(out, results[0], sides[0].blocks[0], plan, chunks, before)
        return turn
    if in_halves and len(chunks) == 1:
        store_banks(out, results[0], sides[0].blocks[0], plan, chunks)
        return turn
    for index in range(len(results)):
        store_turn = before + index if are_alone else None
        move(out, results[index], sides, index, plan, chunks, True, store_turn)
    return turn


def _leaves_in_halves(plan: Plan, then: Epilogue) -> bool:
    """Whether two engines copy the first bank of each block, and banks are stored one by one, so
    that DMA waits less for the results of small convolutions: where triggers take no time, outputs
    of a bank are adjacent, and VectorE needs one instruction.
    """
    is_dense = plan.planes.step * plan.rows.step * plan.columns.step == 1
    is_alone = plan.is_small and plan.streams * plan.sides == 1
    return plan.is_static and is_alone and is_dense and is_simple(then)


def _waits_for_products(weights: Weights, out_channels: int, plan: Plan) -> bool:
    """Whether the last store waits for products, not for stores before it, which are more where
    there are more output channels; of one block at a time, as products of less would take as long.
    """
    is_few = out_channels <= weights.channels * weights.tile.shape[2]
    return plan.streams == 1 and (is_few or (plan.is_static and plan.together == 1))
