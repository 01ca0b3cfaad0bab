"""NKI helpers that bring the operands of matrix products to SBUF, with K on the partitions.

An operand is a list of segments: 2-D HBM views `[rows, K]` that follow each other, so that rows
whose leading dimensions do not merge into one stride need no copy. Its `layout`, chosen in
`_blocking.py`, says how K gets to the partitions.

An operand in SBUF is `[128, chunks, rows]`: element `[p, c, r]` is row r, contraction index 128*c +
p.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels._blocking import COLUMNS, DMA, ONE_ROW, ROWS

# Bytes per partition of rows loaded before they are transposed: a DMA is efficient from 2 KiB per
# partition on, and nothing is gained beyond a few times that.
_STAGING_BYTES = 16384
# Of an operand, loaded by one DMA: little, so that the first product starts early, and more than
# moves while the next one is triggered (600 ns). By schedule; 256 KiB are slower for long rows, and
# on trn1, where a DMA costs more, whatever is less than 2 MiB.
_PIECE_BYTES = 384 * 1024
_PIECE_BYTES_GEN2 = 2 * 1024 * 1024
_LONG_COLUMNS_GEN2 = 1024


class MatmulOperand(NamedTuple):
    """Rows `[rows, K]` of a product: HBM views in row order, and how K gets to the partitions.
    `deeper`: an operand with the same rows whose K follows; that before it is whole chunks of 128.
    """

    segments: list[nl.NkiTensor]
    layout: str
    deeper: MatmulOperand | None = None


def depth_of(operand: MatmulOperand) -> int:
    """All of K."""
    depth = 0  # type: int
    part = operand  # type: MatmulOperand | None
    while part is not None:
        depth = depth + part.segments[0].shape[1]
        part = part.deeper
    return depth


def segments_of(tensor: nl.NkiTensor, merged: bool) -> list[nl.NkiTensor]:
    """`tensor[..., K]` as 2-D views in row order; one view if its leading dimensions merge."""
    if merged:
        return [tensor.reshape((tensor.size // tensor.shape[-1], tensor.shape[-1]))]
    views = [tensor]
    for _ in range(tensor.ndim - 2):
        inner = []
        for view in views:
            for index in range(view.shape[0]):
                inner.append(view[index])
        views = inner
    return views


def pieces_of(
    segments: list[nl.NkiTensor], row: int, rows: int
) -> list[tuple[nl.NkiTensor, int, int]]:
    """The parts of rows `row .. row+rows`: `(segment, first row in it, rows of the part)`."""
    length = segments[0].shape[0]
    pieces = []
    end = row + rows
    while row < end:
        first = row % length
        count = min(length - first, end - row)
        pieces.append((segments[row // length], first, count))
        row = row + count
    return pieces


def load_block(
    dst: nl.NkiTensor, segments: list[nl.NkiTensor], row: int, rows: int, col: int, cols: int
) -> None:
    """`dst[rows, cols]` in SBUF <- columns `col ..` of rows `row ..`."""
    done = 0
    for piece in pieces_of(segments, row, rows):
        nisa.dma_copy(
            dst=dst[done : done + piece[2], 0:cols],
            src=piece[0][piece[1] : piece[1] + piece[2], col : col + cols],
        )
        done = done + piece[2]


def load_broadcast(vector: nl.NkiTensor, col: int, cols: int, rows: int) -> nl.NkiTensor:
    """A `[rows, cols]` tile, every row of which is `vector[col : col+cols]`."""
    tile = nl.ndarray((rows, cols), dtype=vector.dtype, buffer=nl.sbuf)
    row = vector.reshape((1, vector.shape[0]))[:, col : col + cols]
    nisa.dma_copy(dst=tile, src=row.broadcast(0, rows))
    return tile


def load_turned_bias(bias: nl.NkiTensor | None, size: int) -> nl.NkiTensor:
    """`[128, chunks]` in float32: element `[p, c]` is that of index 128 c + p, or 0."""
    pmax = nl.tile_size.pmax
    chunks = (size + pmax - 1) // pmax
    tile = nl.ndarray((min(size, pmax), chunks), dtype=nl.float32, buffer=nl.sbuf)
    if bias is None:
        nisa.memset(dst=tile, value=0.0)
        return tile
    loaded = nl.ndarray(tile.shape, dtype=bias.dtype, buffer=nl.sbuf)
    full = size // pmax
    if full > 0:
        source = bias[0 : full * pmax].reshape((full, pmax))
        nisa.dma_copy(dst=loaded[:, 0:full], src=source.permute((1, 0)))
        nisa.tensor_copy(dst=tile[:, 0:full], src=loaded[:, 0:full])
    rest = size % pmax
    if rest > 0:
        source = bias[full * pmax : size].reshape((rest, 1))
        nisa.dma_copy(dst=loaded[0:rest, full : full + 1], src=source)
        nisa.tensor_copy(dst=tile[0:rest, full : full + 1], src=loaded[0:rest, full : full + 1])
    return tile


def transpose_tiles(dst: nl.NkiTensor, data: nl.NkiTensor) -> None:
    """`dst[128, chunks, tiles*p]` <- `data[p, tiles, K]`, 128x128 blocks on TensorE.

    As many blocks as fit share one PSUM bank and are evicted by one instruction.
    """
    pmax = nl.tile_size.pmax
    tiles = data.shape[1]
    full = data.shape[2] // pmax
    rest = data.shape[2] % pmax
    bank = nl.tile_size.psum_bank_fmax
    if data.dtype != nl.float32:
        bank = bank * 2
    tiles_in_bank = min(tiles, bank // pmax)
    chunks_in_bank = bank // pmax // tiles_in_bank
    for tile in range(0, tiles, tiles_in_bank):
        count = min(tiles_in_bank, tiles - tile)
        for chunk in range(0, full, chunks_in_bank):
            chunks = min(chunks_in_bank, full - chunk)
            _transpose_bank(dst, data, tile, count, chunk, chunks, pmax)
        if rest > 0:
            _transpose_bank(dst, data, tile, count, full, 1, rest)


def _transpose_bank(
    dst: nl.NkiTensor,
    data: nl.NkiTensor,
    tile: int,
    tiles: int,
    chunk: int,
    chunks: int,
    width: int,
) -> None:
    pmax = nl.tile_size.pmax
    rows = data.shape[0]
    bank = nl.ndarray((width, chunks, tiles * rows), dtype=data.dtype, buffer=nl.psum)
    for c in range(chunks):
        for t in range(tiles):
            nisa.nc_transpose(
                dst=bank[:, c, t * rows : (t + 1) * rows],
                data=data[:, tile + t, nl.ds((chunk + c) * pmax, width)],
                engine=nisa.engine.tensor,
            )
    nisa.tensor_copy(
        dst=dst[0:width, chunk : chunk + chunks, nl.ds(tile * rows, tiles * rows)], src=bank
    )


class Pieces(NamedTuple):
    """Rows of an operand in SBUF: tiles `[128, chunks, step]`, the last may have fewer rows."""

    step: int
    tiles: list[nl.NkiTensor]


def piece_rows(operand: MatmulOperand, depth: int, unit: int) -> int:
    """Rows of a piece: a multiple of `unit`, whose DMA takes longer than the trigger of the next
    one.
    """
    row_bytes = depth * 4 if operand.segments[0].dtype == nl.float32 else depth * 2
    is_gen2 = nisa.get_nc_version() == nisa.nc_version.gen2
    piece = _PIECE_BYTES_GEN2 if is_gen2 else _PIECE_BYTES
    return max(1, piece // (row_bytes * unit)) * unit


def piece_columns(weights: MatmulOperand, depth: int, columns: int) -> int:
    """Columns of a piece of weights `[N, K]`, of which `columns` are needed. On trn1, where a
    descriptor costs as much as some hundred bytes, rows of K are not cut below 1024 columns.
    """
    step = piece_rows(weights, depth, nl.tile_size.psum_bank_fmax)
    if nisa.get_nc_version() != nisa.nc_version.gen2 or weights.layout != COLUMNS:
        return step
    return max(step, min(columns, _LONG_COLUMNS_GEN2))


def load_pieces(pieces: Pieces, operand: MatmulOperand, row: int, rows: int, depth: int) -> None:
    """More rows, `row ..`, with the whole contraction."""
    for first in range(0, rows, pieces.step):
        count = min(pieces.step, rows - first)
        pieces.tiles.append(load_operand(operand, row + first, count, 0, depth))


def load_operand(operand: MatmulOperand, row: int, rows: int, k: int, ks: int) -> nl.NkiTensor:
    """Rows `row ..` and indices `k ..` of the contraction as `[128, chunks, rows]` in SBUF.

    By several DMAs where there is much, so that products start with the first chunks.
    """
    pmax = nl.tile_size.pmax
    shape = (min(ks, pmax), (ks + pmax - 1) // pmax, rows)
    dst = nl.ndarray(shape, dtype=operand.segments[0].dtype, buffer=nl.sbuf)
    fill_operand(dst, operand, row, k, ks)
    return dst


def fill_operand(dst: nl.NkiTensor, operand: MatmulOperand, row: int, k: int, ks: int) -> None:
    """The same into `dst[128, chunks, rows]`, of whose last chunk a part may stay as it is."""
    pmax = nl.tile_size.pmax
    segments = operand.segments
    rows = dst.shape[2]
    if operand.deeper is not None:
        own = segments[0].shape[1]
        first = max(0, min(ks, own - k))
        if first > 0:
            part = MatmulOperand(segments, operand.layout)
            fill_operand(dst[:, 0 : (first + pmax - 1) // pmax, :], part, row, k, first)
        if first < ks:
            rest = dst[:, first // pmax : dst.shape[1], :]
            fill_operand(rest, operand.deeper, row, k + first - own, ks - first)
        return
    if operand.layout == ROWS:
        _load_and_transpose(dst, segments, row, rows, k, ks)
        return
    if operand.layout == ONE_ROW:
        _load_row(dst, segments[0][row : row + 1, k : k + ks])
        return
    full = ks // pmax
    at_once = piece_rows(operand, rows, pmax) // pmax
    done = 0
    for piece in pieces_of(segments, row, rows):
        source = piece[0][piece[1] : piece[1] + piece[2], k : k + ks]
        target = dst[:, :, done : done + piece[2]]
        done = done + piece[2]
        for chunk in range(0, full, at_once):
            count = min(at_once, full - chunk)
            whole = source[:, chunk * pmax : (chunk + count) * pmax]
            part = target[:, chunk : chunk + count, :]
            _turn(part, whole.reshape_dim(1, (count, pmax)), operand.layout)
        if ks % pmax > 0:
            _turn(target[0 : ks % pmax, full, :], source[:, full * pmax : ks], operand.layout)


def _load_row(dst: nl.NkiTensor, row: nl.NkiTensor) -> None:
    """`dst[128, chunks, 1]` <- `row[1, K]`: chunks side by side on the partitions are turned by
    TensorE, since a DMA that turns them would move two bytes a descriptor.
    """
    pmax = nl.tile_size.pmax
    ks = row.shape[1]
    for chunk in range(0, ks // pmax, pmax):
        count = min(pmax, ks // pmax - chunk)
        data = nl.ndarray((count, pmax), dtype=dst.dtype, buffer=nl.sbuf)
        source = row[:, chunk * pmax : (chunk + count) * pmax]
        nisa.dma_copy(dst=data, src=source.reshape((count, pmax)))
        bank = nl.ndarray((pmax, count), dtype=dst.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=bank, data=data, engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=dst[:, chunk : chunk + count, 0], src=bank)
    if ks % pmax > 0:
        rest = row[:, ks // pmax * pmax : ks]
        nisa.dma_copy(dst=dst[0 : ks % pmax, ks // pmax, :], src=rest.permute((1, 0)))


def _turn(dst: nl.NkiTensor, src: nl.NkiTensor, layout: str) -> None:
    """`dst` <- `src` with its two or three dimensions reversed, by DMA."""
    axes = (1, 0) if len(src.shape) == 2 else (2, 1, 0)
    if layout == DMA:
        nisa.dma_transpose(dst=dst, src=src, axes=axes)
    else:
        nisa.dma_copy(dst=dst, src=src.permute(axes))


def _load_and_transpose(
    dst: nl.NkiTensor, segments: list[nl.NkiTensor], row: int, rows: int, k: int, ks: int
) -> None:
    pmax = nl.tile_size.pmax
    width = ks * 4 if dst.dtype == nl.float32 else ks * 2
    most = max(1, _STAGING_BYTES // width) if len(segments) == 1 else 1
    done = 0
    while done < rows:
        count = min(pmax, rows - done)
        tiles = min(most, (rows - done) // count)
        data = nl.ndarray((count, tiles, ks), dtype=dst.dtype, buffer=nl.sbuf)
        if tiles == 1:
            load_block(data[:, 0, :], segments, row + done, count, k, ks)
        else:
            source = segments[0][nl.ds(row + done, tiles * count), k : k + ks]
            nisa.dma_copy(dst=data, src=source.reshape_dim(0, (tiles, count)).permute((1, 0, 2)))
        transpose_tiles(dst[:, :, nl.ds(done, tiles * count)], data)
        done = done + tiles * count
