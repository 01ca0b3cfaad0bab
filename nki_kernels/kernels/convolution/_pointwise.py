"""NKI: 1x1 convolutions of small images, with two adjacent channels on a partition.

A bank of PSUM has the sums of all images. A channel of an image is a run of memory so short that it
takes a DMA engine the time of a descriptor, and two adjacent channels are one run. So partition p
holds channels `2p` and `2p + 1` of 256 input channels, which are two contractions, and of 256
output channels, which are two banks. DMA transposes weights in pairs of neighbours, as elements of
four bytes.

So it does for kernels of two columns that do not overlap, whose kernel positions are adjacent in
memory: partition p holds a channel and kernel row, the input from that row on, and the two columns
are two contractions.
"""

from __future__ import annotations

from typing import NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._warm_up import warm_up
from trnx.nki_kernels.kernels.convolution._epilogue import (
    Epilogue,
    Norm,
    Rows,
    columns_of,
    finish,
)
from trnx.nki_kernels.kernels.convolution._loads import load, store

# Products, at half rate: as long as DMA takes for the first weights and inputs.
_WARM_UP = 24
# Output channels whose weights come at once, if they are not the first ones.
_MORE_OUTS = 512
# Adjacent channels on a partition, where there are more than partitions.
_PAIR = 2
# Turns of `finish` in which these engines copy.
_ON_SCALAR, _ON_VECTOR = 0, 1


class Part(NamedTuple):
    """Channels `first ..` on `lanes` partitions, `each` adjacent ones on each of them."""

    first: int
    lanes: int
    each: int


class Ready(NamedTuple):
    """What products take, for each part of the contraction: the inputs `[lanes, images, rows,
    columns]` of each channel, or kernel column, of a partition; the weights `[lanes, output
    channels, channels of a partition]`; and the first one of the output channels.
    """

    deep: list[Part]
    inputs: list[list[nl.NkiTensor]]
    weights: list[nl.NkiTensor]
    first: int


@nki.jit
def pointwise_kernel(
    x: nl.NkiTensor,
    weight: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    norm_weight: nl.NkiTensor | None,
    norm_bias: nl.NkiTensor | None,
    mean: nl.NkiTensor | None,
    variance: nl.NkiTensor | None,
    eps: float,
    activation: str,
    shape: tuple[int, ...],
    together: int,
    cores: int = 1,
) -> nl.NkiTensor:
    """As `convolution_kernel`, without a residual, of one group. `together`: output channels whose
    sums are in PSUM at once. `cores` share output channels. A kernel of two columns has its stride.
    """
    out = nl.ndarray(shape, dtype=x.dtype, buffer=nl.shared_hbm)
    norm = None
    if mean is not None:
        norm = Norm(norm_weight, norm_bias, mean, variance, eps)
    first, end = share_of(shape[1], cores, _PAIR * nl.tile_size.pmax)
    if first == end:
        return out
    warm_up(_WARM_UP)
    ready = _load_all(x, weight, (first, end), together)
    for begin in range(first, end, together):
        parts = parts_of(begin, min(end, begin + together), False)
        banks = _multiply(ready, parts)
        for index in range(len(parts)):
            columns = _columns_of(bias, norm, parts[index], shape[1])
            _store(out, parts[index], banks[index], columns, activation)
    return out


def parts_of(first: int, end: int, are_pairs: bool) -> list[Part]:
    """Channels `first .. end`, those that are no more than partitions one on each, unless all
    `are_pairs`.
    """
    pmax = nl.tile_size.pmax
    parts: list[Part] = []
    for begin in range(first, end, _PAIR * pmax):
        count = min(_PAIR * pmax, end - begin)
        each = _PAIR if are_pairs or count > pmax else 1
        parts.append(Part(begin, count // each, each))
    return parts


def _columns_of(
    bias: nl.NkiTensor | None, norm: Norm | None, part: Part, channels: int
) -> list[tuple[nl.NkiTensor | None, nl.NkiTensor | None]]:
    """The scale and shift of each of the channels of a partition."""
    found = []
    for number in range(part.each):
        first, groups = part.first // part.each, channels // part.each
        found.append(columns_of(bias, norm, Rows(first, part.lanes, groups, part.each, number)))
    return found


def _runs(tensor: nl.NkiTensor, part: Part) -> nl.NkiTensor:
    """`[partitions, images, positions of their channels]` in HBM."""
    images, channels = tensor.shape[0:2]
    positions = tensor.size // (images * channels)
    runs = tensor.reshape((images, channels // part.each, part.each * positions))
    return runs[:, nl.ds(part.first // part.each, part.lanes)].permute((1, 0, 2))


def _load_all(x: nl.NkiTensor, weight: nl.NkiTensor, outs: tuple[int, int], together: int) -> Ready:
    """The input, and the weights of output channels `outs` (first, end): what the first products
    take comes first, part by part of the contraction, by both rings.
    """
    first, end = outs
    is_patch = weight.shape[3] > 1
    depth = weight.shape[1] * weight.shape[2] * weight.shape[3]
    ready = Ready(parts_of(0, depth, is_patch), [], [], first)
    until = min(end, first + together)
    for part in ready.deep:
        tile = nl.ndarray((part.lanes, end - first, part.each), dtype=weight.dtype, buffer=nl.sbuf)
        _turn(tile[:, 0 : until - first], weight, part, first, until)
        ready.weights.append(tile)
        ready.inputs.append(_load_patches(x, weight, part) if is_patch else _load_runs(x, part))
    for begin in range(until, end, _MORE_OUTS):
        last = min(end, begin + _MORE_OUTS)
        for index in range(len(ready.deep)):
            target = ready.weights[index][:, begin - first : last - first]
            _turn(target, weight, ready.deep[index], begin, last)
    return ready


def _load_runs(x: nl.NkiTensor, part: Part) -> list[nl.NkiTensor]:
    """`[lanes, images, rows, columns]` of each channel of a partition."""
    source = _runs(x, part)
    data = nl.ndarray(source.shape, dtype=x.dtype, buffer=nl.sbuf)
    load(data, source, True, False)
    images = data.reshape_dim(2, (part.each, x.shape[2], x.shape[3]))
    found = []
    for number in range(part.each):
        found.append(images[:, :, number])
    return found


def _load_patches(x: nl.NkiTensor, weight: nl.NkiTensor, part: Part) -> list[nl.NkiTensor]:
    """`[lanes, images, output rows, output columns]` of each kernel column, of `lanes` channels and
    kernel rows: all input rows from a kernel row on, as far as the last one needs them.
    """
    images, channels, rows, columns = x.shape
    kernel_rows, kernel_columns = weight.shape[2:4]
    length = (rows - kernel_rows + 1) * columns
    first, count = part.first // part.each // kernel_rows, part.lanes // kernel_rows
    pattern = [
        [rows * columns, count], [columns, kernel_rows], [channels * rows * columns, images],
        [1, length],
    ]  # fmt: skip
    data = nl.ndarray((part.lanes, images, length), dtype=x.dtype, buffer=nl.sbuf)
    load(data, x.ap(pattern=pattern, offset=first * rows * columns), True, False)
    lines = data.reshape_dim(2, (length // columns, columns))
    end = columns // kernel_columns * kernel_columns
    found = []
    for column in range(kernel_columns):
        found.append(lines[:, :, ::kernel_rows, column:end:kernel_columns])
    return found


def _turn(dst: nl.NkiTensor, weight: nl.NkiTensor, part: Part, first: int, end: int) -> None:
    """`dst[lanes, outs, channels of a partition]` <- the weights of output channels `first ..`."""
    matrix = weight.reshape((weight.shape[0], weight.size // weight.shape[0]))[first:end]
    if part.each == _PAIR:
        matrix, dst = matrix.view(nl.int32), dst.view(nl.int32)
    source = matrix[:, nl.ds(part.first // part.each, part.lanes)]
    nisa.dma_transpose(dst=dst[:, :, 0], src=source, axes=(1, 0))


def _multiply(ready: Ready, wide: list[Part]) -> list[list[nl.NkiTensor]]:
    """The sums of the output channels `wide`, a bank for each channel of a partition. Inputs are
    used up part by part, as they come.
    """
    images, rows, columns = ready.inputs[0][0].shape[1:]
    found: list[list[nl.NkiTensor]] = []
    for part in wide:
        banks: list[nl.NkiTensor] = []
        for _ in range(part.each):
            shape = (part.lanes, images, rows, columns)
            banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
        found.append(banks)
    for index in range(len(ready.deep)):
        for place in range(len(wide)):
            part = wide[place]
            for number in range(part.each):
                start = part.first - ready.first + number
                outs = slice(start, start + (part.lanes - 1) * part.each + 1, part.each)
                for channel in range(ready.deep[index].each):
                    nisa.nc_matmul(
                        dst=found[place][number],
                        stationary=ready.weights[index][:, outs, channel],
                        moving=ready.inputs[index][channel],
                    )
    return found


def _store(
    out: nl.NkiTensor,
    part: Part,
    banks: list[nl.NkiTensor],
    then_of: list[tuple[nl.NkiTensor | None, nl.NkiTensor | None]],
    activation: str,
) -> None:
    """The epilogue of some output channels, by `then_of` (scale, shift) each bank. ScalarE has
    the first half of the images, VectorE the others: results of the two channels of a partition lie
    between each other, so that one engine would wait for the other.
    """
    images, rows, columns = banks[0].shape[1:]
    shape = (part.lanes, images, part.each, rows, columns)
    result = nl.ndarray(shape, dtype=out.dtype, buffer=nl.sbuf)
    target = _runs(out, part)
    half = (images + 1) // 2
    for begin in range(0, images, half):
        some = nl.ds(begin, min(half, images - begin))
        turn = _ON_SCALAR if begin == 0 else _ON_VECTOR
        for number in range(part.each):
            then = Epilogue(then_of[number][0], then_of[number][1], activation)
            finish(result[:, some, number], banks[number][:, some], None, then, turn)
        store(target[:, some], result[:, some].flatten_dims(2, 4), begin > 0, False)
