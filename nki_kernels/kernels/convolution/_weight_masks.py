"""NKI helpers of `convolution_weight_gradient`: the gradient where the window is not padding.

The transposed window has zeros for its padding. A gradient there may be an infinity or NaN, whose
product with a zero is NaN, so it must not be part of the product of that kernel position: its
positions lie on the partitions, where a column of bits keeps a row of the gradient or clears it.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._weight_product import Place, WindowAxis

# Masks that are made together.
_TOGETHER = 64

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
    """The mask of a place, which there is."""
    found = masks[0]
    for known in masks:
        if known.counts == place.counts and known.reach == reach:
            found = known
    return found.tile


def note_reaches(
    axes: tuple[WindowAxis, ...],
    places: list[Place],
    firsts: tuple[int, ...],
    noted: list[tuple[tuple[int, int, int], Reach]],
) -> None:
    """Add the counts and reaches that these places of a block need masks for."""
    for place in places:
        whole = whole_of(place)
        for plane in range(axes[0].kernel):
            for row in range(axes[1].kernel):
                for column in range(axes[2].kernel):
                    reach = reach_of(axes, place, firsts, (plane, row, column))
                    if reach != whole and (place.counts, reach) not in noted:
                        noted.append((place.counts, reach))


def make_masks(noted: list[tuple[tuple[int, int, int], Reach]]) -> list[Mask]:
    """All masks at once, while the first operands are on their way: bits are rows of one partition,
    which TensorE turns.
    """
    masks: list[Mask] = []
    start = 0
    while start < len(noted):
        counts = noted[start][0]
        end = start
        while end < len(noted) and end < start + _TOGETHER and noted[end][0] == counts:
            end = end + 1
        size = counts[0] * counts[1] * counts[2]
        some = end - start
        rows = nl.ndarray((1, some, counts[1], counts[0], counts[2]), nl.bfloat16, buffer=nl.sbuf)
        nisa.memset(dst=rows, value=0.0, engine=nisa.engine.vector)
        bank = nl.ndarray((size, some), dtype=nl.bfloat16, buffer=nl.psum)
        for index in range(some):
            a, b, c = noted[start + index][1]
            inner = rows[:, index, b[0] : b[1], a[0] : a[1], c[0] : c[1]]
            if inner.size > 0:
                nisa.memset(dst=inner, value=-1.0, engine=nisa.engine.vector)
            row = rows[:, index].reshape((1, size))
            nisa.nc_transpose(dst=bank[:, nl.ds(index, 1)], data=row, engine=nisa.engine.tensor)
        tile = nl.ndarray((size, some), dtype=nl.int32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=bank, engine=nisa.engine.vector)
        for index in range(some):
            reach = noted[start + index][1]
            masks.append(Mask(counts, reach, tile[:, nl.ds(index, 1)]))
        start = end
    return masks


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
