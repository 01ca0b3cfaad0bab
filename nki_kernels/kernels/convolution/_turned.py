"""NKI helpers of `convolution_weight_gradient`: operands of a 1x1 kernel that DMA transposes.

Positions of an image lie on the partitions in chunks of 128, and its last ones by themselves, so
that TensorE has no transposes to do. From NeuronCore-v3 on, where DMA transposes at 90 % of its
rate (trainium2_arch.rst).
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._weight_product import Place


def load_turned(source: nl.NkiTensor) -> list[nl.NkiTensor]:
    """Tiles `[128, images, chunks, channels]`, and `[positions, images, channels]` where an image
    has a last chunk of fewer, of `source[channels, images, rows, columns]`.
    """
    pmax = nl.tile_size.pmax
    channels, images = source.shape[0], source.shape[1]
    positions = source.shape[2] * source.shape[3]
    flat = source.flatten_dims(2, 3)
    full = positions // pmax
    tiles: list[nl.NkiTensor] = []
    if full > 0:
        tile = nl.ndarray((pmax, images, full, channels), dtype=source.dtype, buffer=nl.sbuf)
        part = flat[:, :, 0 : full * pmax].reshape_dim(2, (full, pmax))
        nisa.dma_transpose(dst=tile, src=part, axes=(3, 1, 2, 0))
        tiles.append(tile)
    if full * pmax < positions:
        rest = flat[:, :, full * pmax : positions]
        tile = nl.ndarray((rest.shape[2], images, channels), dtype=source.dtype, buffer=nl.sbuf)
        nisa.dma_transpose(dst=tile, src=rest, axes=(2, 1, 0))
        tiles.append(tile)
    return tiles


def turned_part(tiles: list[nl.NkiTensor], place: Place) -> nl.NkiTensor:
    """`[positions, channels]` of a place."""
    image, count = place.starts[0], place.counts[2]
    if count < nl.tile_size.pmax:
        return tiles[-1][:, image, :]
    return tiles[0][:, image, place.starts[2] // nl.tile_size.pmax, :]


def turned_places(images: int, positions: int) -> list[Place]:
    """The places of a block of so many images."""
    places: list[Place] = []
    for image in range(images):
        for first in range(0, positions, nl.tile_size.pmax):
            counts = (1, 1, min(nl.tile_size.pmax, positions - first))
            places.append(Place((image, 0, first), counts, 1, len(places)))
    return places
