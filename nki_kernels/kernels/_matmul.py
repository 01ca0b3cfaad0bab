"""NKI helpers of the matrix products: operands brought to SBUF with K on the partitions, and one
blocked product with a fused epilogue, used by `linear` and `bmm`.

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

from trnx.nki_kernels.kernels._blocking import COLUMN_UNIT, DMA, ONE_ROW, ROWS, shares_rows
from trnx.nki_kernels.kernels._cores import share_of
from trnx.nki_kernels.kernels._row_norm import RowNorm, normalise

# Bytes per partition of rows loaded before they are transposed: a DMA is efficient from 2 KiB per
# partition on, and nothing is gained beyond a few times that.
_STAGING_BYTES = 16384
# Of an operand, loaded by one DMA: little, so that the first product starts early, and more than
# moves while the next one is triggered (600 ns). By schedule; 256 KiB are slower for long rows, and
# on trn1, where a DMA costs more, whatever is less than 1 MiB.
_PIECE_BYTES = 384 * 1024
_PIECE_BYTES_GEN2 = 1024 * 1024
# The first products of a program are those of up to four tiles of 128 rows and two banks of
# columns, all eight banks of PSUM; two tiles take less time than the loads of the columns.
_FIRST_BANKS = 2
_FIRST_ROWS = 256
# Of K, which each bank of them gets when the others are done with: more time than the bank takes to
# be evicted.
_LAST_CHUNKS = 3


class MatmulOperand(NamedTuple):
    """Rows `[rows, K]` of a product: HBM views in row order, and how K gets to the partitions."""

    segments: list[nl.NkiTensor]
    layout: str


class Blocks(NamedTuple):
    """Block sizes of M, N and K: multiples of 128, 512 and 128 unless they are the whole size.

    `keep`: all of x stays in SBUF while column blocks of w stream by (K is one block then).
    """

    rows: int
    columns: int
    depth: int
    keep: bool


class Epilogue(NamedTuple):
    """What is applied to a product before rounding: `activation(product + bias) + residual`.

    A residual comes with the activation "none". `bias` is `[N]`, `residual` `[M, N]`, both in HBM.
    With a `norm` the rows are normalised instead of rounded; blocks have all columns then, and all
    of K. `before` `[M, N]` in HBM gets `product + bias`, rounded, of which the activation is then;
    blocks have all of K.
    """

    bias: nl.NkiTensor | None
    residual: nl.NkiTensor | None
    activation: str
    norm: RowNorm | None = None
    before: nl.NkiTensor | None = None


class Part(NamedTuple):
    """Rows `row .. end_row` and columns `col .. end_col` of a product."""

    row: int
    end_row: int
    col: int
    end_col: int


def own_part(rows: int, columns: int, cores: int) -> Part:
    """This program's part, where `cores` share the rows or the columns."""
    return part_of(rows, columns, shares_rows(rows, columns), cores)


def part_of(rows: int, columns: int, by_rows: bool, cores: int) -> Part:
    """The same where it is decided which."""
    if not by_rows:
        col, end_col = share_of(columns, cores, COLUMN_UNIT)
        return Part(0, rows, col, end_col)
    row, end_row = share_of(rows, cores)
    if row == end_row:
        return Part(0, 0, 0, 0)
    return Part(row, end_row, 0, columns)


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


def multiply(
    dst: nl.NkiTensor,
    x: nl.NkiTensor,
    row: int,
    w: nl.NkiTensor,
    col: int,
    depth: int,
) -> None:
    """`dst[rows, cols]` in PSUM: rows `row ..` of `x` times rows `col ..` of `w`, both in SBUF."""
    multiply_chunks(dst, x, row, w, col, 0, depth)


def multiply_chunks(
    dst: nl.NkiTensor, x: nl.NkiTensor, row: int, w: nl.NkiTensor, col: int, k: int, end: int
) -> None:
    """The part of the same that indices `k .. end` of the contraction contribute."""
    pmax = nl.tile_size.pmax
    rows, cols = dst.shape
    for first in range(k, end, pmax):
        part = min(pmax, end - first)
        nisa.nc_matmul(
            dst=dst,
            stationary=x[0:part, first // pmax, row : row + rows],
            moving=w[0:part, first // pmax, col : col + cols],
        )


def activation_function(activation: str) -> object:
    """The function of ScalarE that computes `activation`."""
    if activation == "gelu":
        return nl.gelu
    if activation == "gelu_tanh":
        return nl.gelu_apprx_tanh
    if activation == "quick_gelu":
        return nl.gelu_apprx_sigmoid
    if activation == "relu":
        return nl.relu
    if activation == "silu":
        return nl.silu
    if activation == "tanh":
        return nl.tanh
    if activation == "sigmoid":
        return nl.sigmoid
    return nl.copy


def activate(dst: nl.NkiTensor, src: nl.NkiTensor, activation: str) -> None:
    """`dst = activation(src)` on ScalarE, a copy on VectorE."""
    if activation == "none":
        nisa.tensor_copy(dst=dst, src=src)
    else:
        nisa.activation(dst=dst, op=activation_function(activation), data=src)


def apply_epilogue(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    residual: nl.NkiTensor | None,
    activation: str,
) -> None:
    """`dst = activation(src + bias) + residual` in float32 with one rounding, all tiles on chip."""
    value = src
    if bias is not None:
        last = activation == "none" and residual is None
        value = dst if last else nl.ndarray(src.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=value, data1=src, data2=bias, op=nl.add)
        if last:
            return
    if residual is not None:
        nisa.tensor_tensor(dst=dst, data1=value, data2=residual, op=nl.add)
    else:
        activate(dst, value, activation)


def _part(tile: nl.NkiTensor | None, rows: int, left: int, width: int) -> nl.NkiTensor | None:
    return None if tile is None else tile[0:rows, left : left + width]


def product(
    out: nl.NkiTensor,
    x: MatmulOperand,
    w: MatmulOperand,
    blocks: Blocks,
    then: Epilogue,
    part: Part,
    kept: list[Pieces],
) -> None:
    """`out[M, N] = activation(x[M, K] @ w[N, K].T + bias[N]) + residual[M, N]`, a part of it.

    `kept`: blocks of rows of x that are in SBUF already, none at first; more are added where
    `blocks.keep` says so.
    """
    depth = w.segments[0].shape[1]
    for col in range(part.col, part.end_col, blocks.columns):
        cols = min(blocks.columns, part.end_col - col)
        rows = min(blocks.rows, part.end_row - part.row)
        data = Pieces(rows, [])
        weights = Pieces(piece_rows(w, depth, nl.tile_size.psum_bank_fmax), [])
        chunked = len(kept) == 0 and depth <= blocks.depth and _starts_with_chunks(x, w, rows)
        chunked = chunked and col == part.col
        if then.norm is not None and cols > _FIRST_BANKS * nl.tile_size.psum_bank_fmax:
            chunked = False  # rows are normalised as a whole
        if chunked:
            weights = Pieces(_FIRST_BANKS * nl.tile_size.psum_bank_fmax, [])
            _load_chunks(data, weights, x, part.row, w, (col, min(weights.step, cols)))
        bias = None
        if then.bias is not None:
            bias = load_broadcast(then.bias, col, cols, min(nl.tile_size.pmax, out.shape[0]))
        if chunked:
            load_pieces(weights, w, col + weights.step, cols - weights.step, depth)
        for row in range(part.row, part.end_row, blocks.rows):
            rows = min(blocks.rows, part.end_row - row)
            if depth > blocks.depth:
                _deep_block(out, row, rows, col, cols, x, w, blocks.depth, bias, then)
                continue
            first = row == part.row
            if first and chunked:
                done = min(weights.step, cols)
                _block_by_chunks(out, (row, rows), (col, done), data, weights, depth, bias, then)
                _block(out, (row, rows), (col, cols), data, weights, depth, bias, then, done)
                if blocks.keep:
                    kept.append(data)
                continue
            number = (row - part.row) // blocks.rows
            if number >= len(kept):
                data = Pieces(piece_rows(x, depth, nl.tile_size.pmax), [])
                # The first product of all reads one piece of x and one of w.
                head = min(rows, data.step) if first else rows
                load_pieces(data, x, row, head, depth)
                if first:
                    load_pieces(weights, w, col, cols, depth)
                    load_pieces(data, x, row + head, rows - head, depth)
                if blocks.keep:
                    kept.append(data)
            else:
                data = kept[number]
                if first:
                    load_pieces(weights, w, col, cols, depth)
            _block(out, (row, rows), (col, cols), data, weights, depth, bias, then)


def _starts_with_chunks(x: MatmulOperand, w: MatmulOperand, rows: int) -> bool:
    """Whether the first block is multiplied chunk by chunk of K, as they arrive: TensorE waits for
    the first of them alone. Few rows take less time than the loads of their weights, which are
    better done with by columns; what TensorE transposes needs banks of its own.
    """
    return rows > _FIRST_ROWS and x.layout != ROWS and w.layout != ROWS


def _load_chunks(
    data: Pieces,
    weights: Pieces,
    x: MatmulOperand,
    row: int,
    w: MatmulOperand,
    col_range: tuple[int, int],
) -> None:
    """All rows of `data` and the first columns of `weights`, chunks of K of both in turn."""
    pmax = nl.tile_size.pmax
    depth = w.segments[0].shape[1]
    col, cols = col_range
    shape = (min(depth, pmax), (depth + pmax - 1) // pmax)
    data.tiles.append(nl.ndarray(shape + (data.step,), dtype=x.segments[0].dtype, buffer=nl.sbuf))
    weights.tiles.append(nl.ndarray(shape + (cols,), dtype=w.segments[0].dtype, buffer=nl.sbuf))
    most = piece_rows(w, max(data.step, cols), pmax)
    k = 0
    while k < depth:
        ks = min(pmax if k == 0 else most, depth - k)
        chunks = (ks + pmax - 1) // pmax
        fill_operand(data.tiles[0][:, nl.ds(k // pmax, chunks), :], x, row, k, ks)
        fill_operand(weights.tiles[0][:, nl.ds(k // pmax, chunks), :], w, col, k, ks)
        k = k + ks


def _block_by_chunks(
    out: nl.NkiTensor,
    row_range: tuple[int, int],
    col_range: tuple[int, int],
    data: Pieces,
    weights: Pieces,
    depth: int,
    bias: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    """A block whose products are in all banks at a time: first chunk by chunk, as loads arrive,
    then bank by bank, so that banks are done one after another.
    """
    pmax = nl.tile_size.pmax
    fmax = nl.tile_size.psum_bank_fmax
    row, rows = row_range
    col, cols = col_range
    banks = []
    for start in range(0, rows, pmax):
        for left in range(0, cols, fmax):
            shape = (min(pmax, rows - start), min(fmax, cols - left))
            banks.append(nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum))
    across = (cols + fmax - 1) // fmax
    chunks = (depth + pmax - 1) // pmax
    turn = max(0, chunks - max(chunks // 4, _LAST_CHUNKS)) * pmax
    added = []  # before GpSimd has more to do
    for start in range(0, rows, pmax):
        count = min(pmax, rows - start)
        own = _part(bias, count, 0, cols)
        added.append(_load_added(then, row + start, col, own, count, cols))
    for k in range(0, turn, pmax):
        for number in range(len(banks)):
            start, left = number // across * pmax, number % across * fmax
            multiply_chunks(
                banks[number], data.tiles[0], start, weights.tiles[0], left, k, k + pmax
            )
    for start in range(0, rows, pmax):
        count = min(pmax, rows - start)
        other = added[start // pmax]
        tile = _new_tile(out, then, count, cols)
        before = None if then.before is None else _new_tile(out, then, count, cols)
        for left in range(0, cols, fmax):
            bank = banks[start // pmax * across + left // fmax]
            width = bank.shape[1]
            multiply_chunks(bank, data.tiles[0], start, weights.tiles[0], left, turn, depth)
            own = None if other is not None else _part(bias, count, left, width)
            part = tile[:, left : left + width]
            _evict(
                part,
                _part(before, count, left, width),
                bank,
                own,
                _part(other, count, left, width),
                then,
            )
        _finish_tile(out, row + start, col, tile, before, then)


def product_of_tile(
    out: nl.NkiTensor,
    data: nl.NkiTensor,
    w: MatmulOperand,
    block_columns: int,
    then: Epilogue,
    columns: tuple[int, int],
) -> None:
    """The same of few rows that are in SBUF already, `data[128, chunks, M]`: the columns from the
    first of `columns` to the second.
    """
    depth = w.segments[0].shape[1]
    rows = data.shape[2]
    for col in range(columns[0], columns[1], block_columns):
        cols = min(block_columns, columns[1] - col)
        bias = None
        if then.bias is not None:
            bias = load_broadcast(then.bias, col, cols, rows)
        weights = Pieces(piece_rows(w, depth, nl.tile_size.psum_bank_fmax), [])
        load_pieces(weights, w, col, cols, depth)
        _block(out, (0, rows), (col, cols), Pieces(rows, [data]), weights, depth, bias, then)


def _block(
    out: nl.NkiTensor,
    row_range: tuple[int, int],
    col_range: tuple[int, int],
    data: Pieces,
    weights: Pieces,
    depth: int,
    bias: nl.NkiTensor | None,
    then: Epilogue,
    done: int = 0,
) -> None:
    """One block, `(first, count)` of rows and columns, whose whole contraction is in SBUF: row
    tiles are finished straight from PSUM. `done` columns are there already.
    """
    row, rows = row_range
    col, cols = col_range
    if done == cols:
        return
    for start in range(0, rows, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, rows - start)
        own = _part(bias, count, done, cols - done)
        added = _load_added(then, row + start, col + done, own, count, cols - done)
        tile = _new_tile(out, then, count, cols - done)
        before = None if then.before is None else _new_tile(out, then, count, cols - done)
        for left in range(done, cols, nl.tile_size.psum_bank_fmax):
            width = min(nl.tile_size.psum_bank_fmax, cols - left)
            bank = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.psum)
            multiply(
                bank,
                data.tiles[start // data.step],
                start % data.step,
                weights.tiles[left // weights.step],
                left % weights.step,
                depth,
            )
            own = None if added is not None else _part(bias, count, left, width)
            place = left - done
            part = tile[:, place : place + width]
            _evict(
                part,
                _part(before, count, place, width),
                bank,
                own,
                _part(added, count, place, width),
                then,
            )
        _finish_tile(out, row + start, col + done, tile, before, then)


def _new_tile(out: nl.NkiTensor, then: Epilogue, rows: int, cols: int) -> nl.NkiTensor:
    """Rows of the result, or of what is normalised, which is not rounded before."""
    dtype = out.dtype if then.norm is None else nl.float32
    return nl.ndarray((rows, cols), dtype=dtype, buffer=nl.sbuf)


def _evict(
    dst: nl.NkiTensor,
    before: nl.NkiTensor | None,
    bank: nl.NkiTensor,
    bias: nl.NkiTensor | None,
    added: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    """A bank of products to `dst`, and what the activation is of to `before`, both in SBUF."""
    if before is None:
        apply_epilogue(dst, bank, bias, added, then.activation)
    else:
        apply_epilogue(before, bank, bias, None, "none")
        activate(dst, before, then.activation)


def _finish_tile(
    out: nl.NkiTensor,
    row: int,
    col: int,
    tile: nl.NkiTensor,
    before: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    rows, cols = tile.shape
    if then.norm is not None:
        normalise(then.norm, out, row, tile)
    else:
        nisa.dma_copy(dst=out[row : row + rows, col : col + cols], src=tile)
    if then.before is not None:
        nisa.dma_copy(dst=then.before[row : row + rows, col : col + cols], src=before)


def _load_added(
    then: Epilogue, row: int, col: int, bias: nl.NkiTensor | None, rows: int, cols: int
) -> nl.NkiTensor | None:
    """`[rows, cols]`: the residual, if there is one, plus the bias of its columns. By GpSimd, which
    has nothing else to do.
    """
    if then.residual is None:
        return None
    tile = nl.ndarray((rows, cols), dtype=then.residual.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=then.residual[row : row + rows, col : col + cols])
    if bias is None:
        return tile
    added = nl.ndarray((rows, cols), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=added, data1=tile, data2=bias, op=nl.add, engine=nisa.engine.gpsimd)
    return added


def _deep_block(
    out: nl.NkiTensor,
    row: int,
    rows: int,
    col: int,
    cols: int,
    x: MatmulOperand,
    w: MatmulOperand,
    step: int,
    bias: nl.NkiTensor | None,
    then: Epilogue,
) -> None:
    """One block where K is too deep for SBUF: the partial sums of K blocks add up in float32."""
    pmax = nl.tile_size.pmax
    tiles = (rows + pmax - 1) // pmax
    depth = w.segments[0].shape[1]
    sums = nl.ndarray((min(rows, pmax), tiles, cols), dtype=nl.float32, buffer=nl.sbuf)
    for k in range(0, depth, step):
        ks = min(step, depth - k)
        weights = load_operand(w, col, cols, k, ks)
        data = load_operand(x, row, rows, k, ks)
        for tile in range(tiles):
            count = min(pmax, rows - tile * pmax)
            for left in range(0, cols, nl.tile_size.psum_bank_fmax):
                width = min(nl.tile_size.psum_bank_fmax, cols - left)
                part = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.psum)
                multiply(part, data, tile * pmax, weights, left, ks)
                total = sums[0:count, tile, left : left + width]
                if k == 0:
                    nisa.tensor_copy(dst=total, src=part)
                else:
                    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    for tile in range(tiles):
        first = row + tile * pmax
        count = min(pmax, rows - tile * pmax)
        own = _part(bias, count, 0, cols)
        added = _load_added(then, first, col, own, count, cols)
        result = nl.ndarray((count, cols), dtype=out.dtype, buffer=nl.sbuf)
        total = sums[0:count, tile, :]
        own = None if added is not None else own
        apply_epilogue(result, total, own, added, then.activation)
        nisa.dma_copy(dst=out[first : first + count, col : col + cols], src=result)
