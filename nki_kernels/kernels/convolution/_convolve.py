"""NKI: a whole convolution: its groups, blocks of output channels, planes and rows."""

from __future__ import annotations

from typing import NamedTuple

import nki.language as nl

from trnx.nki_kernels.kernels.convolution._epilogue import Epilogue, Norm, columns_of
from trnx.nki_kernels.kernels.convolution._product import (
    Plan,
    convolve_block,
    load_input,
    most,
)
from trnx.nki_kernels.kernels.convolution._weights import load_weights


class Operands(NamedTuple):
    """The tensors in HBM. `weight` is `[out channels, channels of a group, ...]`, or `[channels, out
    channels of a group, ...]` where it `is_turned`; `out` and `residual` have one shape.
    """

    out: nl.NkiTensor
    x: nl.NkiTensor
    weight: nl.NkiTensor
    bias: nl.NkiTensor | None
    norm: Norm | None
    residual: nl.NkiTensor | None
    activation: str
    is_turned: bool


class Channels(NamedTuple):
    """Up to 128 output channels of a group: where they start in the group and in the result."""

    first: int
    place: int
    count: int


def with_planes(weight: nl.NkiTensor) -> nl.NkiTensor:
    """A weight of 1, 2 or 3 kernel dimensions as `[a, b, planes, rows, columns]`."""
    shape = weight.shape
    if len(shape) == 3:
        return weight.reshape((shape[0], shape[1], 1, shape[2], 1))
    if len(shape) == 4:
        return weight.reshape((shape[0], shape[1], 1, shape[2], shape[3]))
    return weight


def volumes_of(tensor: nl.NkiTensor | None, count: int) -> list:
    """`tensor[N, C, ...]` as views `[C, planes, rows, columns]`; None `count` times for None."""
    views = []
    if tensor is None:
        for _ in range(count):
            views.append(None)
        return views
    shape = tensor.shape
    if len(shape) == 3:
        views.append(tensor.reshape((shape[0], shape[1], shape[2], 1)).permute((1, 0, 2, 3)))
    elif len(shape) == 4:
        views.append(tensor.permute((1, 0, 2, 3)))
    else:
        for image in range(shape[0]):
            views.append(tensor[image])
    return views


def convolve(given: Operands, groups: int, plan: Plan) -> None:
    """`given.out` = the convolution of `given.x`, with its epilogue."""
    xs = volumes_of(given.x, 1)
    outs = volumes_of(given.out, 1)
    residuals = volumes_of(given.residual, len(xs))
    channels = xs[0].shape[0] // groups
    out_channels = outs[0].shape[0] // groups
    weight = with_planes(given.weight)
    for group in range(groups):
        size = channels if given.is_turned else out_channels
        part = weight[nl.ds(group * size, size)]
        for first in range(0, out_channels, plan.out_channels):
            chunks = []
            end = min(first + plan.out_channels, out_channels)
            for begin in range(first, end, nl.tile_size.pmax):
                count = min(nl.tile_size.pmax, end - begin)
                chunks.append(Channels(begin, group * out_channels + begin, count))
            ready = []
            for index in range(len(xs)):
                x = xs[index][nl.ds(group * channels, channels)]
                _convolve_volume(outs[index], x, residuals[index], part, given, plan, chunks, ready)


def _convolve_volume(
    out: nl.NkiTensor,
    x: nl.NkiTensor,
    residual: nl.NkiTensor | None,
    weight: nl.NkiTensor,
    given: Operands,
    plan: Plan,
    chunks: list,
    ready: list,
) -> None:
    """`ready` has (weights, scale, shift) for each of `chunks`, from the first block on."""
    for plane in range(0, most(plan.planes), plan.planes.block):
        for row in range(0, most(plan.rows), plan.rows.block):
            inputs = load_input(x, plan, plane, row)
            for index in range(len(chunks)):
                some = chunks[index]
                if index == len(ready):
                    # Here, so that the first products do not wait for all weights.
                    tile = load_weights(weight, some.first, some.count, plan.fold, given.is_turned)
                    columns = columns_of(given.bias, given.norm, some.place, some.count)
                    ready.append((tile, columns[0], columns[1]))
                weights, scale, shift = ready[index]
                place = nl.ds(some.place, some.count)
                added = None if residual is None else residual[place]
                then = Epilogue(scale, shift, added, given.activation)
                convolve_block(out[place], inputs, weights, plan, (plane, row), then)
