"""NKI helpers of convolutions: weights with the contracted channels on the partitions.

A convolution's weight is `[out channels, channels, kernel]` and is transposed on TensorE, one block
of 128x128 a kernel position; that of a transposed convolution, and of a gradient of the input, is
`[channels, out channels, kernel]` and is there as it is.
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._operands import MatmulOperand, fill_operand, load_operand
from trnx.nki_kernels.kernels.convolution._loads import load
from trnx.nki_kernels.kernels.convolution._plan import Plan
from trnx.nki_kernels.kernels.convolution._product import Weights
from trnx.nki_kernels.kernels.convolution._weight_product import copy_out

# Bytes of a partition (as float32) for rows of weights that wait to be transposed: few, so that
# transposes start early, and more than a load's trigger takes the time of.
_STAGING_BYTES = 6144
# Chunks of 128 contracted channels that a transfer brings.
_CHUNKS = 4


def load_weights(
    weight: nl.NkiTensor,
    first: int,
    count: int,
    plan: Plan,
    is_turned: bool,
    staged: list[nl.NkiTensor],
) -> Weights:
    """Weights of output channels `first .. first+count`: `weight[a, b, planes, rows, columns]`,
    a being output channels, or the contracted ones where `is_turned`. `staged`: from `load_rows`,
    or none.
    """
    if is_turned:
        return _load_as_they_are(weight, first, count, plan)
    fold = plan.fold
    depth = plan.depth
    channels = weight.shape[1]
    # Those of folded rows have zeros between them, so that channels of zeros are added.
    wide = plan.pitch if fold > 1 else channels
    planes, rows, columns = weight.shape[2:]
    groups = (rows + fold - 1) // fold
    chunks = (channels + depth - 1) // depth
    partitions = (plan.streams - 1) * plan.array_rows + min(wide, depth) * fold
    padded = _padded(count, plan)
    shape = (partitions, chunks, planes * groups * columns, padded)
    tile = nl.ndarray(shape, dtype=weight.dtype, buffer=nl.sbuf)
    if padded > count:
        nisa.memset(dst=tile[:, :, :, count:padded], value=0.0)
    step = _staged_step(weight, plan)
    for channel in range(0, channels, step):
        if len(staged) > 0:
            data = staged[channel // step]
        else:
            data = _load_some_rows(weight, (first, count), channel, plan)
        size = data.shape[1]
        for part in range(0, size, depth):
            block = data[:, nl.ds(part, min(depth, size - part))]
            _transpose(tile, (channel + part) // depth, block, plan)
    return Weights(tile, wide, _masked(tile, wide, plan, len(staged) > 0))


def load_rows(weight: nl.NkiTensor, first: int, count: int, plan: Plan) -> list[nl.NkiTensor]:
    """What `load_weights` transposes, in the parts in which it does."""
    found: list[nl.NkiTensor] = []
    for channel in range(0, weight.shape[1], _staged_step(weight, plan)):
        found.append(_load_some_rows(weight, (first, count), channel, plan))
    return found


def _staged_step(weight: nl.NkiTensor, plan: Plan) -> int:
    """Contracted channels that come at once."""
    width = weight.shape[2] * weight.shape[3] * weight.shape[4] * 4  # type: int
    return max(1, _STAGING_BYTES // width // plan.depth) * plan.depth


def _load_some_rows(
    weight: nl.NkiTensor, outs: tuple[int, int], channel: int, plan: Plan
) -> nl.NkiTensor:
    """`[out channels, channels from `channel` on, planes, rows, columns]` of `outs` (first, count):
    those of folded rows with the zeros that the input has between them.
    """
    channels = weight.shape[1]
    some = min(_staged_step(weight, plan), channels - channel)
    size = max(some, plan.pitch) if plan.fold > 1 else some
    shape = (outs[1], size, weight.shape[2], weight.shape[3], weight.shape[4])
    data = nl.ndarray(shape, dtype=weight.dtype, buffer=nl.sbuf)
    if size > some:
        nisa.memset(dst=data[:, some:size], value=0.0)
    source = weight[nl.ds(outs[0], outs[1]), nl.ds(channel, some)]
    load(data[:, 0:some], source, False, plan.is_static)
    return data


def _spread_rest(tile: nl.NkiTensor, channels: int, plan: Plan) -> None:
    """The last chunk of `tile[channels, chunks, ...]` wherever inputs have theirs."""
    rest = channels % plan.depth
    for place in range(plan.rest_rows, nl.tile_size.pmax, plan.rest_rows):
        chunk = tile.shape[1] - 1
        nisa.tensor_copy(
            dst=tile[nl.ds(place, rest), chunk],
            src=tile[0:rest, chunk],
            engine=nisa.engine.vector,
        )


def _padded(count: int, plan: Plan) -> int:
    """Output channels with zeros beside them: all that the partitions of a side have."""
    return plan.array_columns if plan.sides > 1 else count


def load_pointwise(weight: nl.NkiTensor, first: int, count: int, plan: Plan) -> Weights:
    """Weights of a 1x1 kernel: `weight[out channels, channels, 1, 1, 1]`, a matrix."""
    matrix = weight.reshape(weight.shape[0:2])
    channels = matrix.shape[1]
    operand = MatmulOperand([matrix], plan.layout)
    if plan.is_filled:
        tile = nl.ndarray((nl.tile_size.pmax, 1, count), dtype=matrix.dtype, buffer=nl.sbuf)
        nisa.memset(dst=tile[channels:], value=0.0, engine=nisa.engine.vector)
        fill_operand(tile, operand, first, 0, channels)
    else:
        tile = load_operand(operand, first, count, 0, channels)
    padded = _padded(count, plan)
    if padded > count:
        wide = nl.ndarray((tile.shape[0], tile.shape[1], padded), tile.dtype, buffer=nl.sbuf)
        nisa.memset(dst=wide[:, :, count:padded], value=0.0)
        for chunk in range(tile.shape[1]):
            # The last chunk may have fewer channels.
            some = nl.ds(0, min(nl.tile_size.pmax, channels - chunk * nl.tile_size.pmax))
            nisa.tensor_copy(dst=wide[some, chunk, 0:count], src=tile[some, chunk])
        tile = wide
    _spread_rest(tile, channels, plan)
    return Weights(tile.expand_dim(2), channels, [])


def _transpose(tile: nl.NkiTensor, chunk: int, block: nl.NkiTensor, plan: Plan) -> None:
    """Chunk `chunk` of the tile <- `block[out channels, channels, planes, rows, columns]`."""
    fold = plan.fold
    rows = block.shape[3]
    # The last group of kernel rows may be smaller, so it has banks of its own.
    groups = rows // fold
    for plane in range(block.shape[2]):
        first = plane * ((rows + fold - 1) // fold) * block.shape[4]
        if groups > 0:
            _transpose_groups(tile, chunk, first, block[:, :, plane], fold, groups, plan)
        if groups * fold < rows:
            rest = block[:, :, plane, groups * fold : rows, :]
            slot = first + groups * block.shape[4]
            _transpose_groups(tile, chunk, slot, rest, rest.shape[2], 1, plan)


def _transpose_groups(
    tile: nl.NkiTensor,
    chunk: int,
    slot: int,
    block: nl.NkiTensor,
    fold: int,
    groups: int,
    plan: Plan,
) -> None:
    """Slots `slot ..` of the tile <- `block[out channels, channels, rows, columns]`."""
    count, channels, columns = block.shape[0], block.shape[1], block.shape[3]
    many = nl.tile_size.psum_bank_fmax
    if block.dtype != nl.float32:
        many = many * 2
    together = max(1, many // count)
    positions = groups * columns
    for start in range(0, positions, together):
        some = min(together, positions - start)
        bank = nl.ndarray((fold * channels, some, count), dtype=block.dtype, buffer=nl.psum)
        for index in range(some):
            row = (start + index) // columns * fold
            column = (start + index) % columns
            data = block[:, :, row : row + fold, column].permute((0, 2, 1))
            nisa.nc_transpose(dst=bank[:, index, :], data=data, engine=nisa.engine.tensor)
        # Each of the streams has all weights, and so has each place of the last chunk.
        step, copies, turns = plan.array_rows, plan.streams, 1
        if plan.rest_rows < nl.tile_size.pmax and chunk == tile.shape[1] - 1:
            # These by VectorE alone, whose results are there before those of ScalarE.
            step, copies, turns = plan.rest_rows, nl.tile_size.pmax // plan.rest_rows, 0
        for copy in range(copies):
            partitions = nl.ds(copy * step, fold * channels)
            target = tile[partitions, chunk, nl.ds(slot + start, some), 0:count]
            copy_out(target, bank, (chunk + copy + start // together) * turns)


def _load_as_they_are(weight: nl.NkiTensor, first: int, count: int, plan: Plan) -> Weights:
    """`weight[channels, out channels, planes, rows, columns]`. Of folded rows, part j of the
    partitions has the row some kernel rows before that of part 0 in its place.
    """
    depth = plan.depth
    channels = weight.shape[0]
    chunks = (channels + depth - 1) // depth
    planes, rows, columns = weight.shape[2:]
    partitions = (plan.streams - 1) * plan.array_rows + min(channels, depth) * plan.fold
    padded = _padded(count, plan)
    shape = (partitions, chunks, padded, planes, rows, columns)
    tile = nl.ndarray(shape, dtype=weight.dtype, buffer=nl.sbuf)
    if padded > count:
        nisa.memset(dst=tile[:, :, count:padded], value=0.0)
    full = channels // depth
    # Whole rows are copied to the other streams, as each transfer costs its trigger.
    copies = plan.streams if plan.fold == 1 else 1
    for stream in range(plan.streams // copies):
        # Several chunks a transfer, because a transfer costs its trigger, but not all in one.
        for chunk in range(0, full, _CHUNKS):
            some = min(_CHUNKS, full - chunk)
            source = weight[nl.ds(chunk * depth, some * depth), nl.ds(first, count)]
            source = source.reshape_dim(0, (some, depth)).permute((1, 0, 2, 3, 4, 5))
            load(tile[0:depth, nl.ds(chunk, some), 0:count], source, False, plan.is_static)
        if full < chunks:
            rest = channels - full * depth
            source = weight[nl.ds(full * depth, rest), nl.ds(first, count)]
            for part in range(plan.fold):
                here = nl.ds(stream * plan.array_rows + part * rest, rest)
                before = part * plan.fold_step
                if before < rows:
                    load(
                        tile[here, full, 0:count, :, before:rows, :],
                        source[:, :, :, 0 : rows - before, :],
                        False,
                        plan.is_static,
                    )
    _spread_rest(tile, channels, plan)
    flat = tile.reshape((partitions, chunks, padded, planes * rows * columns))
    for stream in range(1, copies):
        here = nl.ds(stream * plan.array_rows, channels)
        nisa.tensor_copy(dst=flat[here], src=flat[0:channels], engine=nisa.engine.vector)
    ordered = flat.permute((0, 1, 3, 2))
    return Weights(ordered, channels, _masked(ordered, channels, plan, False))


def _masked(tile: nl.NkiTensor, channels: int, plan: Plan, by_both: bool) -> list[nl.NkiTensor]:
    """For each mask of the plan, its row of kernel positions of `tile[channels, 1, positions, out
    channels]` with zeros in the first folded ones; `by_both`: those of some streams by ScalarE, as
    products wait for them.
    """
    found = []
    columns = plan.columns.slots
    planes = tile.shape[2] // (plan.rows.slots * columns)
    for slot, zeros, folded in plan.masks:
        shape = (tile.shape[0], 1, planes * columns, tile.shape[3])
        masked = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.sbuf)
        for stream in range(plan.streams):
            here = nl.ds(stream * plan.array_rows, folded * channels)
            for plane in range(planes):
                target = masked[here, :, nl.ds(plane * columns, columns)]
                some = nl.ds((plane * plan.rows.slots + slot) * columns, columns)
                copy_out(target, tile[here, :, some], stream if by_both else 0)
            first = nl.ds(stream * plan.array_rows, zeros * channels)
            nisa.memset(dst=masked[first], value=0.0)
        found.append(masked)
    return found
