"""NKI helpers of gradients of weights: sums of the images of two cores, of which each stores half.

Each core has float32 sums over its own images of the whole result. It sends the columns that the
other one stores, and adds what it gets to its own; then there is one rounding.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.convolution._loads import store
from trnx.nki_kernels.kernels.convolution._weight_product import Columns

# Float32 columns that GpSimd's own DMA exchanges at once (nki.isa.sendrecv), which has no trigger
# and no loads to wait for.
_FEW_COLUMNS = 256


class Half(NamedTuple):
    """Columns of some tiles of sums that this program stores: `target[a, columns]` in HBM for all
    tiles, `[tile rows, tiles, columns]` of its own sums and of the other's.
    """

    target: nl.NkiTensor
    own: nl.NkiTensor
    other: nl.NkiTensor


def blocks_of(channels: int, columns: Columns, taps: int) -> list[nl.NkiTensor]:
    """Float32 tiles `[a, tiles, chunks, b, kernel]`: of all whole tiles of 128 channels of the
    gradient, and of the rest.
    """
    pmax = nl.tile_size.pmax
    blocks: list[nl.NkiTensor] = []
    full = channels // pmax
    for rows, tiles in ((pmax, full), (channels - full * pmax, 1)):
        if rows * tiles > 0:
            shape = (rows, tiles, columns.chunks, columns.lanes, taps)
            blocks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
    return blocks


def tiles_of(blocks: list[nl.NkiTensor]) -> list[nl.NkiTensor]:
    """Their tiles `[a, chunks, b, kernel]`, in order."""
    tiles: list[nl.NkiTensor] = []
    for block in blocks:
        for index in range(block.shape[1]):
            tiles.append(block[:, index])
    return tiles


def exchange(target: nl.NkiTensor, blocks: list[nl.NkiTensor], halves: list[Half]) -> None:
    """`target[a, b, kernel]` in HBM `<-` the sums in `blocks`, over the images of this program, and
    the other's; what is under way joins the `halves`.
    """
    core = nl.program_id(0)
    flat = target.flatten_dims(1, 2)
    columns = flat.shape[1]
    # Of an odd number both have the middle one, which the first core stores.
    size = (columns + 1) // 2
    sent, first = (1 - core) * (columns - size), core * size
    count = size if core == 0 else columns - size
    row = 0
    for block in blocks:
        rows, tiles = block.shape[0:2]
        sums = block.reshape((rows, tiles, columns))
        # Several tiles at once where they are small: others come one by one.
        is_few = tiles * size <= _FEW_COLUMNS
        together = tiles if is_few else 1
        for tile in range(0, tiles, together):
            its = sums[:, nl.ds(tile, together)]
            other = nl.ndarray((rows, together, size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.sendrecv(
                src=its[:, :, nl.ds(sent, size)],
                dst=other,
                send_to_rank=1 - core,
                recv_from_rank=1 - core,
                pipe_id=0,
                dma_engine=nisa.dma_engine.gpsimd_dma if is_few else nisa.dma_engine.dma,
            )
            if count > 0:
                place = flat[nl.ds(row, rows * together), nl.ds(first, count)]
                own = its[:, :, nl.ds(first, count)]
                halves.append(Half(place, own, other[:, :, size - count : size]))
            row = row + rows * together


def finish_halves(halves: list[Half], is_static: bool) -> None:
    """All that are under way: added up, rounded and stored."""
    while len(halves) > 0:
        half = halves.pop(0)
        rows, tiles, columns = half.own.shape
        result = nl.ndarray((rows, tiles, columns), dtype=half.target.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=half.own, data2=half.other, op=nl.add)
        target = half.target.reshape_dim(0, (tiles, rows)).permute((1, 0, 2))
        store(target, result, False, is_static)
