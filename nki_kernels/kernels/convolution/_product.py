"""NKI helpers of convolutions: the implicit product.

Input channels lie on the partitions. The input of a block of outputs is loaded once, as it is in
memory; every kernel position is an access pattern on it, and all positions and chunks of 128
channels add up in PSUM, whose partitions are the output channels. Padding is never loaded: at the
border a position adds to those outputs alone that it reaches. Few channels share the partitions
with kernel rows (`fold`): block j of the partitions holds the input shifted by j rows, and there
the padded rows are zeros in SBUF.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, finish

# Bytes of a partition (as float32) that are worth a transfer of their own.
_TRANSFER_BYTES = 4096


class Axis(NamedTuple):
    """One axis of a convolution; see `_geometry.py` for phases and taps.

    low, high: the input indices that are in SBUF, padding included where kernel rows are folded;
    slots: kernel positions, folded ones counted once; out: outputs; step: distance of the outputs
    of a phase; block, tile: outputs of a phase whose input is loaded at once, and that share a PSUM
    bank.
    """

    low: int
    high: int
    slots: int
    out: int
    step: int
    block: int
    tile: int
    phases: tuple


class Plan(NamedTuple):
    """The axes, how many kernel rows a product contracts, and the distance of their inputs.

    out_channels: how many have their weights in SBUF; together: how many chunks of 128 of them are
    stored by one transfer; layout: how the weights of a 1x1 kernel are loaded, "" for a larger one.
    """

    planes: Axis
    rows: Axis
    columns: Axis
    fold: int
    dilation: int
    out_channels: int
    together: int
    layout: str


class Weights(NamedTuple):
    """A tile `[channels, chunks, kernel positions, out channels]`, and its number of channels."""

    tile: nl.NkiTensor
    channels: int


class Inputs(NamedTuple):
    """A tile `[channels, chunks, planes, rows, columns]` of the input, and its first indices."""

    tile: nl.NkiTensor
    plane: int
    row: int


def plan_of(numbers: tuple) -> Plan:
    """The plan that the host has made."""
    planes, rows, columns, fold, dilation, out_channels, together, layout = numbers
    axes = (_axis_of(planes), _axis_of(rows), _axis_of(columns))
    return Plan(axes[0], axes[1], axes[2], fold, dilation, out_channels, together, layout)


def _axis_of(numbers: tuple) -> Axis:
    low, high, slots, out, step, block, tile, phases = numbers
    return Axis(low, high, slots, out, step, block, tile, phases)


def most(axis: Axis) -> int:
    """Outputs of the largest phase, the first one."""
    return axis.phases[0][1]


def span(axis: Axis, first: int, count: int) -> tuple[int, int]:
    """The inputs that outputs `first .. first+count` of all phases take, at least one."""
    low = axis.high
    high = axis.low
    for phase in axis.phases:
        last = min(first + count, phase[1]) - 1
        for tap in phase[2]:
            low = min(low, tap[1] + tap[2] * first)
            high = max(high, tap[1] + tap[2] * last + 1)
    low = min(max(low, axis.low), axis.high - 1)
    return low, max(min(high, axis.high), low + 1)


def load_input(x: nl.NkiTensor, plan: Plan, plane: int, row: int) -> Inputs:
    """The input `x[channels, planes, rows, columns]` of the block of outputs at `plane`, `row`."""
    pmax = nl.tile_size.pmax
    channels = x.shape[0]
    top = span(plan.rows, row, plan.rows.block)
    front = span(plan.planes, plane, plan.planes.block)
    chunks = (channels + pmax - 1) // pmax
    partitions = min(channels, pmax) * plan.fold
    shape = (partitions, chunks, front[1] - front[0], top[1] - top[0], x.shape[3])
    tile = nl.ndarray(shape, dtype=x.dtype, buffer=nl.sbuf)
    if plan.fold > 1:
        _load_shifted(tile, x, plan, front, top)
        return Inputs(tile, front[0], top[0])
    source = x[:, front[0] : front[1], top[0] : top[1], :]
    full = channels // pmax
    # Several chunks a transfer, because a transfer costs its trigger, but not all in one.
    nbytes = tile.size // (partitions * chunks) * 4
    some = max(1, _TRANSFER_BYTES // nbytes)
    for chunk in range(0, full, some):
        count = min(some, full - chunk)
        part = source[nl.ds(chunk * pmax, count * pmax)].reshape_dim(0, (count, pmax))
        nisa.dma_copy(dst=tile[:, nl.ds(chunk, count)], src=part.permute((1, 0, 2, 3, 4)))
    if full < chunks:
        nisa.dma_copy(dst=tile[0 : channels - full * pmax, full], src=source[full * pmax :])
    return Inputs(tile, front[0], top[0])


def _load_shifted(
    tile: nl.NkiTensor, x: nl.NkiTensor, plan: Plan, front: tuple, top: tuple
) -> None:
    """Block j of the partitions <- the input `j * dilation` rows further down, zeros beyond it."""
    channels = x.shape[0]
    size = x.shape[2]
    rows = top[1] - top[0]
    # The rows that all blocks have; the others are zeros first.
    above = min(rows, max(0, -top[0]))
    below = max(0, min(rows, size - (plan.fold - 1) * plan.dilation - top[0]))
    if above > 0:
        nisa.memset(dst=tile[:, 0, :, 0:above, :], value=0.0)
    if below < rows:
        nisa.memset(dst=tile[:, 0, :, max(above, below) : rows, :], value=0.0)
    for j in range(plan.fold):
        shift = top[0] + j * plan.dilation
        first = max(0, -shift)
        last = min(rows, size - shift)
        if first < last:
            nisa.dma_copy(
                dst=tile[nl.ds(j * channels, channels), 0, :, first:last, :],
                src=x[:, front[0] : front[1], shift + first : shift + last, :],
            )


def clip(axis: Axis, tap: tuple, first: int, count: int) -> tuple[int, int]:
    """Those of outputs `first .. first+count` of a phase that `tap` reaches, counted from first."""
    offset = tap[1] + tap[2] * first
    begin = 0
    if offset < axis.low:
        begin = (axis.low - offset + tap[2] - 1) // tap[2]
    return begin, min(count, (axis.high - 1 - offset) // tap[2] + 1)


def _multiply(
    bank: nl.NkiTensor,
    inputs: Inputs,
    weights: Weights,
    plan: Plan,
    taps: tuple,
    firsts: tuple,
    clips: tuple,
) -> None:
    """The products of one kernel position, over all chunks of channels."""
    slot = (taps[0][0] * plan.rows.slots + taps[1][0]) * plan.columns.slots + taps[2][0]
    starts = (inputs.plane, inputs.row, 0)
    slices = []
    for axis in range(3):
        begin, end = clips[axis]
        stride = taps[axis][2]
        start = taps[axis][1] + stride * (firsts[axis] + begin) - starts[axis]
        slices.append(slice(start, start + stride * (end - begin - 1) + 1, stride))
    target = bank[
        :, clips[0][0] : clips[0][1], clips[1][0] : clips[1][1], clips[2][0] : clips[2][1]
    ]
    partitions = weights.tile.shape[0]
    left = weights.channels * taps[1][3]
    for chunk in range(weights.tile.shape[1]):
        parts = min(partitions, left - chunk * partitions)
        nisa.nc_matmul(
            dst=target,
            stationary=weights.tile[0:parts, chunk, slot, :],
            moving=inputs.tile[0:parts, chunk, slices[0], slices[1], slices[2]],
        )


def _zero(bank: nl.NkiTensor, dtype: object) -> None:
    """A product of zeros, so that locations which no kernel position reaches are 0."""
    size = bank.shape[1] * bank.shape[2] * bank.shape[3]
    zeros = nl.ndarray((1, bank.shape[0] + size), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    nisa.nc_matmul(
        dst=bank, stationary=zeros[:, 0 : bank.shape[0]], moving=zeros[:, bank.shape[0] :]
    )


def accumulate(
    bank: nl.NkiTensor, inputs: Inputs, weights: Weights, plan: Plan, parts_of: tuple
) -> None:
    """`bank[out channels, planes, rows, columns]` = the sum over all kernel positions."""
    axes = (plan.planes, plan.rows, plan.columns)
    firsts = (parts_of[0][1], parts_of[1][1], parts_of[2][1])
    whole = []
    parts = []
    for a in parts_of[0][0][2]:
        planes = clip(axes[0], a, firsts[0], bank.shape[1])
        for b in parts_of[1][0][2]:
            rows = clip(axes[1], b, firsts[1], bank.shape[2])
            for c in parts_of[2][0][2]:
                columns = clip(axes[2], c, firsts[2], bank.shape[3])
                clips = (planes, rows, columns)
                covered = 1
                is_whole = True
                for axis in range(3):
                    extent = clips[axis][1] - clips[axis][0]
                    covered = covered * max(0, extent)
                    is_whole = is_whole and extent == bank.shape[axis + 1]
                if is_whole:
                    whole.append(((a, b, c), clips))
                elif covered > 0:
                    parts.append(((a, b, c), clips))
    # What covers all comes first: it gives every location its first value.
    if len(whole) == 0:
        _zero(bank, inputs.tile.dtype)
    for position in whole + parts:
        _multiply(bank, inputs, weights, plan, position[0], firsts, position[1])


def _banks(axis: Axis, first: int) -> list[tuple]:
    """The parts of a block at `first` that share a bank: (phase, first output of it, outputs)."""
    parts = []
    for phase in axis.phases:
        end = min(first + axis.block, phase[1])
        for start in range(first, end, axis.tile):
            parts.append((phase, start, min(axis.tile, end - start)))
    return parts


def _outputs(axis: Axis, part: tuple, begin: int) -> slice:
    """Where the outputs of a part lie in a result that begins at output `begin`."""
    start = part[0][0] + axis.step * part[1] - begin
    return slice(start, start + axis.step * (part[2] - 1) + 1, axis.step)


def convolve_block(
    result: nl.NkiTensor,
    added: nl.NkiTensor | None,
    inputs: Inputs,
    weights: Weights,
    plan: Plan,
    first: tuple[int, int],
    then: Epilogue,
    turn: int,
) -> None:
    """`result[out channels, planes, rows, columns]` in SBUF: one block of up to 128 channels."""
    for a in _banks(plan.planes, first[0]):
        for b in _banks(plan.rows, first[1]):
            for c in _banks(plan.columns, 0):
                shape = (result.shape[0], a[2], b[2], c[2])
                bank = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
                accumulate(bank, inputs, weights, plan, (a, b, c))
                p = _outputs(plan.planes, a, first[0] * plan.planes.step)
                r = _outputs(plan.rows, b, first[1] * plan.rows.step)
                q = _outputs(plan.columns, c, 0)
                more = None if added is None else added[:, p, r, q]
                finish(result[:, p, r, q], bank, more, then, turn)
                turn = turn + 1
