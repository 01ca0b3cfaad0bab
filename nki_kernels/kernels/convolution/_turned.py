"""NKI helpers of `convolution_weight_gradient`: operands of a 1x1 kernel that DMA transposes.

Positions of an image lie on the partitions in chunks of 128, and its last ones by themselves, or
those of several small images, so that TensorE has no transposes to do. From NeuronCore-v3 on, where
DMA transposes at 90 % of its rate (trainium2_arch.rst).
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._weight_product import Place

# Partitions between those that an instruction may begin at.
_QUADRANT = 32


def stacked_images(positions: int) -> int:
    """Images of so many positions that share the partitions; 1 where one has half of them."""
    pmax = nl.tile_size.pmax  # type: int
    return max(1, pmax // positions)


def stacked_step(positions: int) -> int:
    """Partitions between two of these images: where as many fit, each begins where instructions may
    begin, and so at DMA engines of its own, which serve 8 partitions (nki-dma-overview.rst).
    """
    pmax = nl.tile_size.pmax  # type: int
    step = (positions + _QUADRANT - 1) // _QUADRANT * _QUADRANT
    return step if (pmax - positions) // step == stacked_images(positions) - 1 else positions


def load_turned(sources: list[nl.NkiTensor]) -> list[list[nl.NkiTensor]]:
    """For each `source[channels, images, rows, columns]`, which have the same images: tiles `[128,
    images, chunks, channels]`, and `[positions, images, 1, channels]` where an image has a last
    chunk of fewer, or `[positions of some images, groups of them, 1, channels]`. The first chunks
    of all sources come first, as products take the same chunk of each.
    """
    pmax = nl.tile_size.pmax
    found: list[list[nl.NkiTensor]] = []
    for _ in sources:
        found.append([])
    if len(sources) == 0:
        return found
    images = sources[0].shape[1]
    positions = sources[0].shape[2] * sources[0].shape[3]
    full = positions // pmax
    for index in range(len(sources)):
        if stacked_images(positions) > 1:
            found[index].append(_load_stacked(sources[index].flatten_dims(2, 3)))
        elif full > 0:
            source = sources[index].flatten_dims(2, 3)
            shape = (pmax, images, full, source.shape[0])
            tile = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
            part = source[:, :, 0 : full * pmax].reshape_dim(2, (full, pmax))
            nisa.dma_transpose(dst=tile, src=part, axes=(3, 1, 2, 0))
            found[index].append(tile)
    if stacked_images(positions) == 1 and full * pmax < positions:
        for index in range(len(sources)):
            rest = sources[index].flatten_dims(2, 3)[:, :, full * pmax : positions]
            shape = (rest.shape[2], images, 1, rest.shape[0])
            tile = nl.ndarray(shape, dtype=rest.dtype, buffer=nl.sbuf)
            nisa.dma_transpose(dst=tile[:, :, 0, :], src=rest, axes=(2, 1, 0))
            found[index].append(tile)
    return found


def _load_stacked(source: nl.NkiTensor) -> nl.NkiTensor:
    """`[positions of some images, groups of them, 1, channels]` of `source[channels, images,
    positions]`.
    """
    channels, images, positions = source.shape
    some = stacked_images(positions)
    groups = (images + some - 1) // some
    some = min(some, images)
    step = stacked_step(positions)
    lanes = (some - 1) * step + positions
    tile = nl.ndarray((lanes, groups, 1, channels), dtype=source.dtype, buffer=nl.sbuf)
    for first in range(0, lanes - positions, _QUADRANT):
        # Zeros between two images, in both operands of the products.
        if step > positions and _has_gap(first, positions, step):
            quadrant = tile[first : min(first + _QUADRANT, lanes)]
            if channels % 2 == 0:
                quadrant = quadrant.view(nl.int32)  # half as many elements
            nisa.memset(dst=quadrant, value=0, engine=nisa.engine.gpsimd)
    for index in range(some):
        # The last one first: the others wait for these zeros.
        place = some - 1 - index
        count = (images - 1 - place) // some + 1
        part = tile[nl.ds(place * step, positions), 0:count, 0, :]
        nisa.dma_transpose(dst=part, src=source[:, place::some, :], axes=(2, 1, 0))
    return tile


def _has_gap(first: int, positions: int, step: int) -> bool:
    """Whether one of the partitions `first ..` that an instruction takes lies between images."""
    between = 0
    for lane in range(first, first + _QUADRANT):
        if lane % step >= positions:
            between = between + 1
    return between > 0


def turned_part(tiles: list[nl.NkiTensor], place: Place) -> nl.NkiTensor:
    """`[positions, channels]` of a place."""
    image, count = place.starts[0], place.counts[2]
    if count < nl.tile_size.pmax:
        return tiles[-1][0:count, image, 0, :]
    return tiles[0][:, image, place.starts[2] // nl.tile_size.pmax, :]


def turned_places(images: int, positions: int) -> list[Place]:
    """The places of a block of so many images: parts of one, or groups of them. Whole chunks come
    first: TensorE starts faster with all rows of its array (docs/timing.md).
    """
    places: list[Place] = []
    some = stacked_images(positions)
    if some > 1:
        for first in range(0, images, some):
            lanes = (min(some, images - first) - 1) * stacked_step(positions) + positions
            places.append(Place((first // some, 0, 0), (1, 1, lanes), 1, len(places)))
        return places
    full = positions // nl.tile_size.pmax * nl.tile_size.pmax
    for image in range(images):
        for start in range(0, full, nl.tile_size.pmax):
            places.append(Place((image, 0, start), (1, 1, nl.tile_size.pmax), 1, len(places)))
    if full < positions:
        for image in range(images):
            places.append(Place((image, 0, full), (1, 1, positions - full), 1, len(places)))
    return places
