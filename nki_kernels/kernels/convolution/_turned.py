"""NKI helpers of `convolution_weight_gradient`: operands of a 1x1 kernel that DMA transposes.

Positions of an image lie on the partitions in chunks of 128, and its last ones by themselves, or
those of several small images, so that TensorE has no transposes to do, or those of the last ones
alone. From NeuronCore-v3 on, where
DMA transposes at 90 % of its rate (trainium2_arch.rst).
"""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._loads import load, place_of
from trnx.nki_kernels.kernels.convolution._weight_product import Place, copy_out

# Partitions between those that an instruction may begin at.
_QUADRANT = 32
# Bytes of a partition for the whole chunks of all images, with which TensorE has the time for the
# last positions while DMA transposes the chunks.
_LEAST_BYTES, _MOST_BYTES = 4096, 8192
# Of a partition, that DMA transposes in the time of a trigger.
_TRIGGER_BYTES = 1536
# Whose last positions come with one transfer.
_IMAGES = 2


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


def splits_images(images: int, positions: int, channels: int, lanes: int) -> bool:
    """Whether TensorE transposes the last positions of images, all of which are one block: DMA
    would do so by those of its engines that serve so few partitions, while the others wait.
    `channels`: of the larger operand, of two bytes; `lanes`: partitions.
    """
    nbytes = images * (positions // lanes) * channels * 2
    return positions % lanes > 0 and nbytes > _LEAST_BYTES and nbytes <= _MOST_BYTES


def cuts_last(images: int, block: int, positions: int, channels: int) -> bool:
    """Whether the last image of the last `block` had better come in two: where all transfers of
    both operands, of so many `channels`, take longer than their triggers.
    """
    chunks = positions // nl.tile_size.pmax
    each = 2 if chunks * nl.tile_size.pmax == positions else 4
    triggers = (images + block - 1) // block * each + (4 if block > 1 else 2)
    is_turned_alone = stacked_images(positions) == 1 and block < images
    return is_turned_alone and images * chunks * channels * 2 >= triggers * _TRIGGER_BYTES


def _pieces(images: int, chunks: int, is_last: bool) -> list[tuple[int, int, int, int]]:
    """Images `first .. end`, and chunks of their positions, that are transposed by one transfer: of
    all of a block, but that the last image comes in two where it `is_last`.
    """
    half = (chunks + 1) // 2
    if not is_last or half == chunks:
        return [(0, images, 0, chunks)]
    last = [(images - 1, images, 0, half), (images - 1, images, half, chunks)]
    return last if images == 1 else [(0, images - 1, 0, chunks)] + last


def load_turned(
    sources: list[nl.NkiTensor], is_split: bool, turn: int, is_last: bool, is_static: bool
) -> list[list[nl.NkiTensor]]:
    """For each `source[channels, images, rows, columns]`, which have the same images: tiles `[128,
    images, chunks, channels]`, and `[positions, images, 1, channels]` where an image has a last
    chunk of fewer, or `[positions of some images, groups of them, 1, channels]`. The first chunks
    of all sources come first, as products take the same chunk of each; where the images are split,
    their last positions, which TensorE transposes. `is_static` as in `load`.
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
    if is_split:
        rests = _load_rests(sources, full * pmax, is_static)
        for index in range(len(sources)):
            source = sources[index].flatten_dims(2, 3)[:, :, 0 : full * pmax]
            shape = (pmax, images, full, source.shape[0])
            found[index].append(nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf))
            found[index].append(rests[index])
        # Products of the first images start before all are there, and few are left after the last.
        first = 0
        ends = [images * 3 // 8, images - 1, images]
        for end in ends:
            for index in range(len(sources)):
                if end > first:
                    part = sources[index].flatten_dims(2, 3)[:, first:end, 0 : full * pmax]
                    part = part.reshape_dim(2, (full, pmax))
                    target = found[index][0][:, first:end]
                    nisa.dma_transpose(dst=target, src=part, axes=(3, 1, 2, 0))
            first = max(first, end)
        return found
    if stacked_images(positions) > 1:
        for index in range(len(sources)):
            found[index].append(_load_stacked(sources[index].flatten_dims(2, 3)))
        return found
    for index in range(len(sources)):
        source = sources[index]
        if full > 0:
            shape = (pmax, images, full, source.shape[0])
            found[index].append(nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf))
        if full * pmax < positions:
            few = positions - full * pmax
            place = place_of(few, turn)
            shape = (place + few, images, 1, source.shape[0])
            rest = nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf)
            found[index].append(rest[nl.ds(place, few)])
    pieces = _pieces(images, full, is_last)
    for number in range(len(pieces)):
        begin, end, first, last = pieces[number]
        for index in range(len(sources)):
            if full > 0:
                source = sources[index].flatten_dims(2, 3)
                part = source[:, begin:end, first * pmax : last * pmax]
                part = part.reshape_dim(2, (last - first, pmax))
                target = found[index][0][:, begin:end, first:last]
                nisa.dma_transpose(dst=target, src=part, axes=(3, 1, 2, 0))
        if number == max(0, len(pieces) - 2) and full * pmax < positions:
            # Behind which whole chunks come, of more DMA engines.
            for index in range(len(sources)):
                rest = sources[index].flatten_dims(2, 3)[:, :, full * pmax : positions]
                target = found[index][-1][:, :, 0, :]
                nisa.dma_transpose(dst=target, src=rest, axes=(2, 1, 0))
    return found


def _load_rests(sources: list[nl.NkiTensor], start: int, is_static: bool) -> list[nl.NkiTensor]:
    """`[positions, images, 1, channels]` of each `source[channels, images, rows, columns]`, the
    positions `start ..` of its images.
    """
    tiles: list[nl.NkiTensor] = []
    for source in sources:
        positions = source.shape[2] * source.shape[3] - start
        shape = (positions, source.shape[1], 1, source.shape[0])
        tiles.append(nl.ndarray(shape, dtype=source.dtype, buffer=nl.sbuf))
    images = sources[0].shape[1]
    for first in range(0, images, _IMAGES):
        some = min(_IMAGES, images - first)
        loaded: list[list[nl.NkiTensor]] = []
        for source in sources:
            rest = source.flatten_dims(2, 3)[:, nl.ds(first, some), start:]
            loaded.append(_load_chunks(rest, first // _IMAGES, is_static))
        for image in range(some):
            for index in range(len(sources)):
                tile = tiles[index][:, first + image, 0]
                _transpose_rest(tile, loaded[index], image, 1 + first + image)
    return tiles


def _load_chunks(source: nl.NkiTensor, turn: int, is_static: bool) -> list[nl.NkiTensor]:
    """`source[channels, images, positions]` in chunks of 128 channels, few ones on partitions that
    take turns.
    """
    pmax = nl.tile_size.pmax
    channels, images, positions = source.shape
    full = channels // pmax
    chunks: list[nl.NkiTensor] = []
    if full > 0:
        whole = nl.ndarray((pmax, full, images, positions), dtype=source.dtype, buffer=nl.sbuf)
        part = source[0 : full * pmax].reshape_dim(0, (full, pmax)).permute((1, 0, 2, 3))
        load(whole, part, False, is_static)
        for chunk in range(full):
            chunks.append(whole[:, chunk])
    if full * pmax < channels:
        rest = channels - full * pmax
        place = place_of(rest, turn)
        last = nl.ndarray((place + rest, images, positions), dtype=source.dtype, buffer=nl.sbuf)
        load(last[nl.ds(place, rest)], source[full * pmax :], False, is_static)
        chunks.append(last[nl.ds(place, rest)])
    return chunks


def _transpose_rest(tile: nl.NkiTensor, chunks: list[nl.NkiTensor], image: int, turn: int) -> None:
    """`tile[positions, channels]` <- image `image` of `chunks[channels, images, positions]`."""
    pmax = nl.tile_size.pmax
    positions, channels = tile.shape
    most = nl.tile_size.psum_bank_fmax
    for lane in range(0, channels, most):
        width = min(most, channels - lane)
        bank = nl.ndarray((positions, width), dtype=tile.dtype, buffer=nl.psum)
        for start in range(0, width, pmax):
            its = chunks[(lane + start) // pmax][:, image]
            target = bank[:, nl.ds(start, its.shape[0])]
            nisa.nc_transpose(dst=target, data=its, engine=nisa.engine.tensor)
        copy_out(tile[:, nl.ds(lane, width)], bank, turn + lane // most)


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


def turned_places(images: int, positions: int, is_split: bool, is_last: bool) -> list[Place]:
    """The places of a block of so many images: parts of one, or groups of them. Whole chunks come
    first: TensorE starts faster with all rows of its array (docs/timing.md); but where the images
    are split they are there last.
    """
    places: list[Place] = []
    some = stacked_images(positions)
    if some > 1:
        for first in range(0, images, some):
            lanes = (min(some, images - first) - 1) * stacked_step(positions) + positions
            places.append(Place((first // some, 0, 0), (1, 1, lanes), 1, len(places)))
        return places
    pmax = nl.tile_size.pmax
    full = positions // pmax
    pieces = _pieces(images, full, is_last and not is_split)
    where: list[tuple[int, int, int, int]] = []
    if is_split:
        where.append((0, images, full, full + 1))
    for number in range(len(pieces)):
        where.append(pieces[number])
        if number == max(0, len(pieces) - 2) and not is_split:
            where.append((0, images, full, full + 1))
    for first, last, begin, end in where:
        for image in range(first, last):
            for chunk in range(begin, end):
                count = min(pmax, positions - chunk * pmax)
                if count > 0:
                    start = (image, 0, chunk * pmax)
                    places.append(Place(start, (1, 1, count), 1, len(places)))
    return places
