"""NKI: convolutions in which every input channel is a group of its own.

TensorE would use one of its 128 columns for a channel, and zeros beside it would make NaN of a
channel next to one with an infinity. So channels lie on the partitions, also of several images
where there are few, and kernel positions are multiplied and added one after the other: some blocks
of outputs by VectorE in one instruction a position, others by ScalarE, which multiplies, and
GpSimdE, which adds. A round of blocks takes its positions in turns, so that no instruction waits
for the one before it. Sums are float32, rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, Norm, Rows, columns_of, finish
from trnx.nki_kernels.kernels.convolution._loads import load, store

# Time of a kernel position on VectorE against that on GpSimdE (`tensor_tensor` of two tiles).
_VECTOR_TIME, _GPSIMD_TIME = 10, 15
# Blocks of a round: three on VectorE take as long as two on GpSimdE.
ROUND = 5


class DepthwiseAxis(NamedTuple):
    """One axis: outputs, inputs, the kernel, and outputs of a block."""

    out: int
    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    block: int


class Depthwise(NamedTuple):
    """The tensors in HBM, of `groups` input channels; `residual` has the shape of `out`."""

    out: nl.NkiTensor
    x: nl.NkiTensor
    weight: nl.NkiTensor
    bias: nl.NkiTensor | None
    norm: Norm | None
    residual: nl.NkiTensor | None
    activation: str
    transposed: bool
    groups: int


class Reached(NamedTuple):
    """What one kernel position does along an axis: elements of the input tile, of the block."""

    source: slice
    target: slice
    size: int


class Part(NamedTuple):
    """Outputs `first .. end` of an axis, and the inputs `low .. high` that they take."""

    first: int
    end: int
    low: int
    high: int


class Lanes(NamedTuple):
    """Up to 128 channels on the partitions: the first one, how many, their float32 kernels
    `[lanes, many, taps]`, and the epilogues of the `many` outputs of each.
    """

    first: int
    number: int
    columns: nl.NkiTensor
    thens: list[Epilogue]


class Sums(NamedTuple):
    """How a block's sums come: `positions` are the kernel positions that reach it, the `started`
    first of which give each sum its value, or 0 where none can; `is_spread`: positions reach
    outputs with others between them; `is_vector`: by VectorE.
    """

    positions: list[tuple[int, list[Reached]]]
    started: int
    is_spread: bool
    is_vector: bool


class Job(NamedTuple):
    """The sums of a block: its input and kernels, where it belongs, what is added, and what is done
    with them.
    """

    tile: nl.NkiTensor
    columns: nl.NkiTensor
    where: nl.NkiTensor
    sums: nl.NkiTensor
    added: nl.NkiTensor | None
    then: Epilogue
    how: Sums


@nki.jit
def depthwise_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    residual: nl.NkiTensor | None,
    norm_weight: nl.NkiTensor | None,
    norm_bias: nl.NkiTensor | None,
    mean: nl.NkiTensor | None,
    variance: nl.NkiTensor | None,
    eps: float,
    activation: str,
    transposed: bool,
    groups: int,
    shape: tuple[int, ...],
    numbers: tuple[tuple[int, ...], ...],
    has_images: bool,
    is_static: bool,
    cores: int = 1,
) -> nl.NkiTensor:
    """x `[N, groups, ...]`, weight `[groups * m, 1, ...]` or `[groups, m, ...]` where `transposed`,
    vectors `[groups * m]`; residual, result: `shape`. `has_images`: the first axis is that of the
    images, else they share the partitions with the channels. `is_static`: descriptors are made
    before the run. `cores` share the blocks of outputs.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    norm = None
    if mean is not None:
        norm = Norm(norm_weight, norm_bias, mean, variance, eps)
    given = Depthwise(out, x, weight, bias, norm, residual, activation, transposed, groups)
    axes = (axis_of(numbers[0]), axis_of(numbers[1]), axis_of(numbers[2]))
    convolve_channels(given, axes, has_images, is_static, cores)
    return out


def convolve_channels(
    given: Depthwise,
    axes: tuple[DepthwiseAxis, DepthwiseAxis, DepthwiseAxis],
    has_images: bool,
    is_static: bool,
    cores: int | None,
) -> None:
    """`given.out`, of which `cores` share the blocks; where it is None, all of them are this
    program's."""
    x, groups, transposed = given.x, given.groups, given.transposed
    many = given.out.shape[1] // groups
    source = _rows(x, groups, 1, axes, False, has_images)
    target = _rows(given.out, groups, many, axes, True, has_images)
    added = None
    if given.residual is not None:
        added = _rows(given.residual, groups, many, axes, True, has_images)
    taps = axes[0].kernel * axes[1].kernel * axes[2].kernel
    kernels = given.weight.reshape((groups, many, taps))
    blocks = _blocks(axes, transposed)
    tiles = (source.shape[0] + nl.tile_size.pmax - 1) // nl.tile_size.pmax
    begin, end = 0, tiles * len(blocks)
    if cores is not None:
        begin, end = share_of(tiles * len(blocks), cores)
    lanes: list[Lanes] = []
    jobs: list[Job] = []
    waiting: list[Job] = []
    for item in range(begin, end):
        first = item // len(blocks) * nl.tile_size.pmax
        parts = blocks[item % len(blocks)]
        if len(lanes) == 0 or lanes[-1].first != first:
            count = min(nl.tile_size.pmax, source.shape[0] - first)
            thens = []
            for index in range(many):
                rows = Rows(first, count, groups, many, index)
                scale, shift = columns_of(given.bias, given.norm, rows)
                thens.append(Epilogue(scale, shift, given.activation))
            columns = _load_kernels(kernels, first, count, is_static)
            lanes.append(Lanes(first, count, columns, thens))
        here = nl.ds(first, lanes[-1].number)
        tile = _load_input(source[here], parts, is_static)
        positions, started = _positions(axes, parts, transposed)
        is_spread = transposed and axes[0].stride * axes[1].stride * axes[2].stride > 1
        for index in range(many):
            where = _outputs(target[here, index], parts)
            more = None
            if added is not None:
                more = nl.ndarray(where.shape, dtype=x.dtype, buffer=nl.sbuf)
                load(more, _outputs(added[here, index], parts), False, is_static)
            sums = nl.ndarray(where.shape, dtype=nl.float32, buffer=nl.sbuf)
            columns, then = lanes[-1].columns[:, index, :], lanes[-1].thens[index]
            its = Sums(positions, started, is_spread, _is_vector(jobs))
            jobs.append(Job(tile, columns, where, sums, more, then, its))
            if len(jobs) == ROUND:
                _sum(jobs)
                _store(waiting, is_static)
                waiting = jobs
                jobs = []
    _sum(jobs)
    _store(waiting, is_static)
    _store(jobs, is_static)


def _is_vector(jobs: list[Job]) -> bool:
    """Whether VectorE takes the next block of a round: the engine that is done first."""
    vector = 0
    gpsimd = 0
    for job in jobs:
        if job.how.is_vector:
            vector = vector + _VECTOR_TIME
        else:
            gpsimd = gpsimd + _GPSIMD_TIME
    return vector + _VECTOR_TIME <= gpsimd + _GPSIMD_TIME


def _outputs(tensor: nl.NkiTensor, parts: tuple[Part, Part, Part]) -> nl.NkiTensor:
    """A block of `tensor[lanes, ...]`."""
    a, b, c = parts
    return tensor[:, a.first : a.end, b.first : b.end, c.first : c.end]


def _store(jobs: list[Job], is_static: bool) -> None:
    """The epilogues of a round; VectorE does as much of its own sums as it can. Where positions
    have a part of the outputs each, ScalarE has more time, and GpSimdE for sums that it added.
    """
    for job in jobs:
        result = nl.ndarray(job.where.shape, dtype=job.where.dtype, buffer=nl.sbuf)
        then = job.then
        is_plain = job.added is None and then.scale is None and then.shift is None
        if job.how.is_spread and not job.how.is_vector and is_plain and then.activation == "none":
            nisa.tensor_copy(dst=result, src=job.sums, engine=nisa.engine.gpsimd)
        else:
            turn = 1 if job.how.is_vector and not job.how.is_spread else 0
            finish(result, job.sums, job.added, then, turn)
        store(job.where, result, False, is_static)


def axis_of(numbers: tuple[int, ...]) -> DepthwiseAxis:
    """The axis that the host has planned."""
    out, size, kernel, stride, padding, dilation, block = numbers
    return DepthwiseAxis(out, size, kernel, stride, padding, dilation, block)


def _rows(
    tensor: nl.NkiTensor,
    groups: int,
    many: int,
    axes: tuple[DepthwiseAxis, ...],
    is_result: bool,
    has_images: bool,
) -> nl.NkiTensor:
    """`[channels, many, ...]` with three axes, or `[images * channels, many, ...]`; without `many`
    for what is no result.
    """
    images = tensor.shape[0]
    sizes = []
    for axis in axes:
        sizes.append(axis.out if is_result else axis.size)
    if has_images:
        view = tensor.reshape((images, groups, many, sizes[1], sizes[2])).permute((1, 2, 0, 3, 4))
    else:
        view = tensor.reshape((images * groups, many, sizes[0], sizes[1], sizes[2]))
    return view if is_result else view[:, 0]


def _load_kernels(kernels: nl.NkiTensor, first: int, lanes: int, is_static: bool) -> nl.NkiTensor:
    """Float32 `[lanes, many, taps]` of `kernels[groups, many, taps]` for rows `first ..`."""
    groups, many, taps = kernels.shape
    raw = nl.ndarray((lanes, many, taps), dtype=kernels.dtype, buffer=nl.sbuf)
    place = 0
    while place < lanes:
        channel = (first + place) % groups
        count = min(groups - channel, lanes - place)
        load(raw[nl.ds(place, count)], kernels[nl.ds(channel, count)], False, is_static)
        place = place + count
    if kernels.dtype == nl.float32:
        return raw
    wide = nl.ndarray((lanes, many, taps), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=raw)
    return wide


def _parts(axis: DepthwiseAxis, transposed: bool) -> list[Part]:
    """The blocks of an axis."""
    parts = []
    reach = (axis.kernel - 1) * axis.dilation
    for first in range(0, axis.out, axis.block):
        end = min(first + axis.block, axis.out)
        if transposed:
            low = (first + axis.padding - reach + axis.stride - 1) // axis.stride
            high = (end - 1 + axis.padding) // axis.stride + 1
        else:
            low = first * axis.stride - axis.padding
            high = (end - 1) * axis.stride + reach - axis.padding + 1
        # At least one element, which no kernel position may take.
        low = min(max(low, 0), axis.size - 1)
        parts.append(Part(first, end, low, max(low + 1, min(high, axis.size))))
    return parts


def _blocks(axes: tuple[DepthwiseAxis, ...], transposed: bool) -> list[tuple[Part, Part, Part]]:
    """All blocks of outputs."""
    blocks = []
    for a in _parts(axes[0], transposed):
        for b in _parts(axes[1], transposed):
            for c in _parts(axes[2], transposed):
                blocks.append((a, b, c))
    return blocks


def _load_input(
    source: nl.NkiTensor, parts: tuple[Part, Part, Part], is_static: bool
) -> nl.NkiTensor:
    """The input of a block."""
    a, b, c = parts
    part = source[:, a.low : a.high, b.low : b.high, c.low : c.high]
    tile = nl.ndarray(part.shape, dtype=source.dtype, buffer=nl.sbuf)
    load(tile, part, False, is_static)
    return tile


def _reached(axis: DepthwiseAxis, part: Part, position: int, transposed: bool) -> Reached:
    """What kernel position `position` does for a block of an axis."""
    shift = position * axis.dilation - axis.padding
    step = axis.stride
    if transposed:
        low = max(part.low, (part.first - shift + step - 1) // step)
        high = min(part.high, (part.end - 1 - shift) // step + 1)
        if high <= low:
            return Reached(slice(0, 0, 1), slice(0, 0, 1), 0)
        start = low * step + shift - part.first
        target = slice(start, start + (high - low - 1) * step + 1, step)
        return Reached(slice(low - part.low, high - part.low, 1), target, high - low)
    low = max(part.first, (step - 1 - shift) // step)
    high = min(part.end, (axis.size - 1 - shift) // step + 1)
    if high <= low:
        return Reached(slice(0, 0, 1), slice(0, 0, 1), 0)
    start = low * step + shift - part.low
    source = slice(start, start + (high - low - 1) * step + 1, step)
    return Reached(source, slice(low - part.first, high - part.first, 1), high - low)


def _phase(size: int, target: slice) -> tuple[int, int]:
    """The outputs of `size` that lie as a target's do: the first one, and how many."""
    first = target.start % target.step
    return first, (size - 1 - first) // target.step + 1


def _positions(
    axes: tuple[DepthwiseAxis, ...], parts: tuple[Part, Part, Part], transposed: bool
) -> tuple[list[tuple[int, list[Reached]]], int]:
    """Kernel positions that reach anything of a block; of those that reach all outputs that lie as
    theirs do, one each comes first, which are so many, 0 where these are not all outputs.
    """
    found: list[tuple[int, list[Reached]]] = []
    starts: list[tuple[int, list[Reached]]] = []
    begun: list[tuple[int, int, int]] = []
    outputs, covered = 1, 0
    for part in parts:
        outputs = outputs * (part.end - part.first)
    for tap in range(axes[0].kernel * axes[1].kernel * axes[2].kernel):
        position = (
            tap // (axes[2].kernel * axes[1].kernel),
            tap // axes[2].kernel % axes[1].kernel,
            tap % axes[2].kernel,
        )
        reached = []
        phase = []
        count, alike = 1, 1
        for i in range(3):
            reached.append(_reached(axes[i], parts[i], position[i], transposed))
            count = count * reached[i].size
            first, number = _phase(parts[i].end - parts[i].first, reached[i].target)
            phase.append(first)
            alike = alike * number
        key = (phase[0], phase[1], phase[2])
        if count > 0 and count == alike and key not in begun:
            begun.append(key)
            starts.append((tap, reached))
            covered = covered + count
        elif count > 0:
            found.append((tap, reached))
    return starts + found, len(starts) if covered == outputs else 0


def _sum(jobs: list[Job]) -> None:
    """The float32 sums of a round of blocks, `[lanes, ...]`."""
    longest = 0
    for job in jobs:
        longest = max(longest, len(job.how.positions))
        if job.how.started == 0:
            nisa.memset(dst=job.sums, value=0.0)
    for number in range(longest):
        for job in jobs:
            if number < len(job.how.positions):
                _add_position(job, number)


def _add_position(job: Job, number: int) -> None:
    """What one kernel position adds to the sums of a block."""
    tap, reached = job.how.positions[number]
    data = job.tile[:, reached[0].source, reached[1].source, reached[2].source]
    total = job.sums[:, reached[0].target, reached[1].target, reached[2].target]
    weight = job.columns[:, nl.ds(tap, 1)]
    is_first = number < job.how.started
    if is_first and job.how.is_vector:
        nisa.tensor_scalar(dst=total, data=data, op0=nl.multiply, operand0=weight)
    elif is_first:
        nisa.activation(dst=total, op=nl.copy, data=data, scale=weight)
    elif job.how.is_vector:
        nisa.scalar_tensor_tensor(
            dst=total, data=data, op0=nl.multiply, operand0=weight, op1=nl.add, operand1=total
        )
    else:
        product = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=product, op=nl.copy, data=data, scale=weight)
        nisa.tensor_tensor(
            dst=total, data1=total, data2=product, op=nl.add, engine=nisa.engine.gpsimd
        )
