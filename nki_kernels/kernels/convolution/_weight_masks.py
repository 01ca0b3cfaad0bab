"""NKI helpers of `convolution_weight_gradient`: the gradient where the window is not padding.

The transposed window has zeros for its padding. A gradient there may be an infinity or NaN, whose
product with a zero is NaN, so it must not be part of the product of that kernel position: its
positions lie on the partitions, where a column of bits keeps a row of the gradient or clears it.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._weight_product import Place, WindowAxis, size_of

# First and end of the positions of a place, along each axis, that take an element of the window.
Reach = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]


class Mask(NamedTuple):
    """int32 `[positions, 1]`: -1 for those of a place of `counts` that `reach` names, else 0."""

    counts: tuple[int, int, int]
    reach: Reach
    tile: nl.NkiTensor


class Variant(NamedTuple):
    """The gradient at a place, `[positions, channels]`, zero outside `reach`; and its parts of up
    to 128 channels.
    """

    reach: Reach
    tiles: list[nl.NkiTensor]
    parts: list[nl.NkiTensor]


def whole_of(place: Place) -> Reach:
    """All positions of a place."""
    counts = place.counts
    return (0, counts[0]), (0, counts[1]), (0, counts[2])


def reach_of(
    axes: tuple[WindowAxis, ...],
    place: Place,
    firsts: tuple[int, ...],
    position: tuple[int, int, int],
) -> Reach:
    """Where kernel position (plane, row, column) meets the window, not its padding."""
    found: list[tuple[int, int]] = []
    for i in range(3):
        axis = axes[i]
        step = place.apart if i == 1 else 1
        each = step * axis.stride
        begin = (firsts[i] + place.starts[i]) * axis.stride
        begin = begin + position[i] * axis.dilation - axis.padding
        first = min(place.counts[i], max(0, (each - 1 - begin) // each))
        end = min(place.counts[i], (axis.size - 1 - begin) // each + 1)
        found.append((first, max(first, end)))
    return found[0], found[1], found[2]


def variant_of(variants: list[Variant], reach: Reach, place: Place, masks: list[Mask]) -> int:
    """Which of the variants of a place is zero outside `reach`; it is made where there is none."""
    for index in range(len(variants)):
        if variants[index].reach == reach:
            return index
    mask = _mask_of(place, reach, masks)
    tiles: list[nl.NkiTensor] = []
    for values in variants[0].tiles:
        tiles.append(_masked(values, mask))
    variants.append(Variant(reach, tiles, parts_of(tiles)))
    return len(variants) - 1


def parts_of(tiles: list[nl.NkiTensor]) -> list[nl.NkiTensor]:
    """Up to 128 channels each."""
    pmax = nl.tile_size.pmax
    parts: list[nl.NkiTensor] = []
    for values in tiles:
        for first in range(0, values.shape[1], pmax):
            parts.append(values[:, nl.ds(first, min(pmax, values.shape[1] - first))])
    return parts


def _mask_of(place: Place, reach: Reach, masks: list[Mask]) -> nl.NkiTensor:
    """The mask of a place, made once for all places of the same counts."""
    for known in masks:
        if known.counts == place.counts and known.reach == reach:
            return known.tile
    size = size_of(place)
    row = nl.ndarray((1, size), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=row, value=0.0)
    inner = row.reshape((1, place.counts[1], place.counts[0], place.counts[2]))
    inner = inner[
        :, reach[1][0] : reach[1][1], reach[0][0] : reach[0][1], reach[2][0] : reach[2][1]
    ]
    if inner.size > 0:
        nisa.memset(dst=inner, value=-1.0)
    column = nl.ndarray((size, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=column, data=row, engine=nisa.engine.tensor)
    tile = nl.ndarray((size, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=column)
    masks.append(Mask(place.counts, reach, tile))
    return tile


def _masked(values: nl.NkiTensor, mask: nl.NkiTensor) -> nl.NkiTensor:
    """`values[positions, channels]`, all bits zero where the mask is."""
    result = nl.ndarray(values.shape, dtype=values.dtype, buffer=nl.sbuf)
    bits = nl.int32
    if values.dtype != nl.float32 and values.shape[1] % 2 == 1:
        bits = nl.int16
        mask = mask.view(nl.int16)[:, 0:1]
    nisa.tensor_scalar(
        dst=result.view(bits), data=values.view(bits), op0=nl.bitwise_and, operand0=mask
    )
    return result
