"""NKI helpers of `convolution_weight_gradient`: operands of a 1x1 kernel that DMA transposes.

Positions of an image lie on the partitions in chunks of 128, and its last ones by themselves, or
those of several small images, so that TensorE has no transposes to do. From NeuronCore-v3 on, where
DMA transposes at 90 % of its rate (trainium2_arch.rst).
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._weight_product import Place


def stacked_images(positions: int) -> int:
    """Images of so many positions that share the partitions; 1 where one has half of them."""
    pmax = nl.tile_size.pmax  # type: int
    return max(1, pmax // positions)


def load_turned(source: nl.NkiTensor) -> list[nl.NkiTensor]:
    """Tiles `[128, images, chunks, channels]`, and `[positions, images, 1, channels]` where an
    image has a last chunk of fewer, or `[positions of some images, groups of them, 1, channels]`,
    of `source[channels, images, rows, columns]`.
    """
    pmax = nl.tile_size.pmax
    channels, images = source.shape[0], source.shape[1]
    positions = source.shape[2] * source.shape[3]
    flat = source.flatten_dims(2, 3)
    some = stacked_images(positions)
    tiles: list[nl.NkiTensor] = []
    if some > 1:
        groups = (images + some - 1) // some
        lanes = min(some, images) * positions
        tile = nl.ndarray((lanes, groups, 1, channels), dtype=source.dtype, buffer=nl.sbuf)
        for place in range(min(some, images)):
            count = (images - 1 - place) // some + 1
            part = tile[nl.ds(place * positions, positions), 0:count, 0, :]
            nisa.dma_transpose(dst=part, src=flat[:, place::some, :], axes=(2, 1, 0))
        tiles.append(tile)
        return tiles
    full = positions // pmax
    if full > 0:
        tile = nl.ndarray((pmax, images, full, channels), dtype=source.dtype, buffer=nl.sbuf)
        part = flat[:, :, 0 : full * pmax].reshape_dim(2, (full, pmax))
        nisa.dma_transpose(dst=tile, src=part, axes=(3, 1, 2, 0))
        tiles.append(tile)
    if full * pmax < positions:
        rest = flat[:, :, full * pmax : positions]
        shape = (rest.shape[2], images, 1, channels)
        tile = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=tile[:, :, 0, :], src=rest, axes=(2, 1, 0))
        tiles.append(tile)
    return tiles


def turned_part(tiles: list[nl.NkiTensor], place: Place) -> nl.NkiTensor:
    """`[positions, channels]` of a place."""
    image, count = place.starts[0], place.counts[2]
    if count < nl.tile_size.pmax:
        return tiles[-1][0:count, image, 0, :]
    return tiles[0][:, image, place.starts[2] // nl.tile_size.pmax, :]


def turned_places(images: int, positions: int) -> list[Place]:
    """The places of a block of so many images: parts of one, or groups of them."""
    places: list[Place] = []
    some = stacked_images(positions)
    for first in range(0, images, some):
        every = min(some, images - first) * positions
        for start in range(0, every, nl.tile_size.pmax):
            counts = (1, 1, min(nl.tile_size.pmax, every - start))
            places.append(Place((first // some, 0, start), counts, 1, len(places)))
    return places
