"""NKI: convolutions in which every input channel is a group of its own.

TensorE would use one of its 128 columns for a channel, and zeros beside it would make NaN of a
channel next to one with an infinity. So channels lie on the partitions, also of several images
where there are few, and kernel positions are multiplied and added one after the other: blocks of
outputs by VectorE in one instruction a position, others by ScalarE, which multiplies, and GpSimdE,
which adds. Sums are float32, rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, Norm, Rows, columns_of, finish

# Time of a kernel position on VectorE against that on GpSimdE (`tensor_tensor` of two tiles).
_VECTOR_TIME, _GPSIMD_TIME = 10, 15
# Blocks whose epilogue waits: ScalarE multiplies for the next ones, and does not wait for sums.
_BEHIND = 2


class DepthwiseAxis(NamedTuple):
    """One axis: outputs, inputs, the kernel, and outputs of a block."""

    out: int
    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    block: int


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


class Ready(NamedTuple):
    """The sums of a block: where they belong, what is added, and what is done with them."""

    where: nl.NkiTensor
    sums: nl.NkiTensor
    added: nl.NkiTensor | None
    then: Epilogue
    is_vector: bool


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
) -> nl.NkiTensor:
    """x `[N, groups, ...]`, weight `[groups * m, 1, ...]` or `[groups, m, ...]` where `transposed`,
    vectors `[groups * m]`; residual, result: `shape`. `has_images`: the first axis is that of the
    images, else they share the partitions with the channels.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    many = shape[1] // groups
    axes = (_axis_of(numbers[0]), _axis_of(numbers[1]), _axis_of(numbers[2]))
    source = _rows(x, groups, 1, axes, False, has_images)
    target = _rows(out, groups, many, axes, True, has_images)
    added = None
    if residual is not None:
        added = _rows(residual, groups, many, axes, True, has_images)
    taps = axes[0].kernel * axes[1].kernel * axes[2].kernel
    kernels = weight.reshape((groups, many, taps))
    norm = None
    if mean is not None:
        norm = Norm(norm_weight, norm_bias, mean, variance, eps)
    busy = [0, 0]
    waiting: list[Ready] = []
    for first in range(0, source.shape[0], nl.tile_size.pmax):
        lanes = min(nl.tile_size.pmax, source.shape[0] - first)
        columns = _load_kernels(kernels, first, lanes)
        thens = []
        for index in range(many):
            scale, shift = columns_of(bias, norm, Rows(first, lanes, groups, many, index))
            thens.append(Epilogue(scale, shift, activation))
        here = nl.ds(first, lanes)
        for parts in _blocks(axes, transposed):
            tile = _load_input(source[here], parts)
            for index in range(many):
                places = (
                    slice(parts[0].first, parts[0].end),
                    slice(parts[1].first, parts[1].end),
                    slice(parts[2].first, parts[2].end),
                )
                where = target[here, index, places[0], places[1], places[2]]
                more = None
                if added is not None:
                    more = nl.ndarray(where.shape, dtype=x.dtype, buffer=nl.sbuf)
                    part = added[here, index, places[0], places[1], places[2]]
                    nisa.dma_copy(dst=more, src=part)
                # The engine that is done first.
                is_vector = busy[0] + _VECTOR_TIME <= busy[1] + _GPSIMD_TIME
                if is_vector:
                    busy[0] = busy[0] + _VECTOR_TIME
                else:
                    busy[1] = busy[1] + _GPSIMD_TIME
                sums = _sum(tile, columns[:, index, :], axes, parts, transposed, is_vector)
                waiting.append(Ready(where, sums, more, thens[index], is_vector))
                if len(waiting) > _BEHIND:
                    _store(waiting.pop(0))
    for ready in waiting:
        _store(ready)
    return out


def _store(ready: Ready) -> None:
    """The epilogue of a block; VectorE does as much of its own sums as it can."""
    where = ready.where
    result = nl.ndarray(where.shape, dtype=where.dtype, buffer=nl.sbuf)
    finish(result, ready.sums, ready.added, ready.then, 1 if ready.is_vector else 0)
    nisa.dma_copy(dst=where, src=result)


def _axis_of(numbers: tuple[int, ...]) -> DepthwiseAxis:
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


def _load_kernels(kernels: nl.NkiTensor, first: int, lanes: int) -> nl.NkiTensor:
    """Float32 `[lanes, many, taps]` of `kernels[groups, many, taps]` for rows `first ..`."""
    groups, many, taps = kernels.shape
    raw = nl.ndarray((lanes, many, taps), dtype=kernels.dtype, buffer=nl.sbuf)
    place = 0
    while place < lanes:
        channel = (first + place) % groups
        count = min(groups - channel, lanes - place)
        nisa.dma_copy(dst=raw[nl.ds(place, count)], src=kernels[nl.ds(channel, count)])
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


def _load_input(source: nl.NkiTensor, parts: tuple[Part, Part, Part]) -> nl.NkiTensor:
    """The input of a block."""
    a, b, c = parts
    part = source[:, a.low : a.high, b.low : b.high, c.low : c.high]
    tile = nl.ndarray(part.shape, dtype=source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=part)
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


def _positions(
    axes: tuple[DepthwiseAxis, ...], parts: tuple[Part, Part, Part], transposed: bool
) -> tuple[list[tuple[int, list[Reached]]], bool]:
    """Kernel positions that reach anything of a block, and whether the first one reaches all."""
    found: list[tuple[int, list[Reached]]] = []
    is_whole = False
    outputs = 1
    for part in parts:
        outputs = outputs * (part.end - part.first)
    for tap in range(axes[0].kernel * axes[1].kernel * axes[2].kernel):
        position = (
            tap // (axes[2].kernel * axes[1].kernel),
            tap // axes[2].kernel % axes[1].kernel,
            tap % axes[2].kernel,
        )
        reached = []
        count = 1
        for i in range(3):
            reached.append(_reached(axes[i], parts[i], position[i], transposed))
            count = count * reached[i].size
        if count == outputs and not is_whole:
            found.insert(0, (tap, reached))
            is_whole = True
        elif count > 0:
            found.append((tap, reached))
    return found, is_whole


def _sum(
    tile: nl.NkiTensor,
    columns: nl.NkiTensor,
    axes: tuple[DepthwiseAxis, ...],
    parts: tuple[Part, Part, Part],
    transposed: bool,
    is_vector: bool,
) -> nl.NkiTensor:
    """The float32 sums of a block, `[lanes, ...]`; `columns` are the kernels, `[lanes, taps]`."""
    shape = (
        tile.shape[0],
        parts[0].end - parts[0].first,
        parts[1].end - parts[1].first,
        parts[2].end - parts[2].first,
    )
    sums = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    positions, is_whole = _positions(axes, parts, transposed)
    if not is_whole:
        nisa.memset(dst=sums, value=0.0)
    for number in range(len(positions)):
        tap, reached = positions[number]
        data = tile[:, reached[0].source, reached[1].source, reached[2].source]
        total = sums[:, reached[0].target, reached[1].target, reached[2].target]
        weight = columns[:, nl.ds(tap, 1)]
        if number == 0 and is_whole and is_vector:
            nisa.tensor_scalar(dst=total, data=data, op0=nl.multiply, operand0=weight)
        elif number == 0 and is_whole:
            nisa.activation(dst=total, op=nl.copy, data=data, scale=weight)
        elif is_vector:
            nisa.scalar_tensor_tensor(
                dst=total, data=data, op0=nl.multiply, operand0=weight, op1=nl.add, operand1=total
            )
        else:
            product = nl.ndarray(data.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=product, op=nl.copy, data=data, scale=weight)
            nisa.tensor_tensor(
                dst=total, data1=total, data2=product, op=nl.add, engine=nisa.engine.gpsimd
            )
    return sums
