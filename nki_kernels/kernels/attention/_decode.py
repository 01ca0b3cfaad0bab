"""NKI helpers of attention of few queries: runs of keys, loaded, transposed and scored.

The rows of a group of heads, `R` of them, meet up to 4,096 keys at a time, loaded 2,048 a DMA.
Scores are transposed, `[128 keys, R, blocks of keys]`, so that an instruction has 128 lanes at work
however few rows there are, and the weights multiply the values as they are.
"""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._heads import transpose_blocks
from trnx.nki_kernels.kernels.attention._masks import (
    FALSE_BIAS,
    along,
    shares,
)

# Blocks of 128 keys that one DMA loads: half a megabyte at a width of 128.
PIECE = 16
# Blocks whose rows share the instructions of the softmax: two pieces.
RUN = 32
# Scores of a run, elements per partition: a PSUM bank.
_SCORES = 512


class DecodeProblem(NamedTuple):
    """What the kernel computes: `rows` queries (of `group` heads) share a key head; heads of q and
    k are cut in `cuts` pieces of at most 128, those of v in `value_cuts`; `ones` is [128, 128]."""

    mask: nl.NkiTensor | None
    boolean: bool
    scale: float
    rows: int
    group: int
    cuts: int
    value_cuts: int
    ones: nl.NkiTensor


class Run(NamedTuple):
    """Keys `start .. start + blocks * height` of one key head. `first` and `last` of that head,
    `final` of all."""

    batch: int
    source: int
    start: int
    blocks: int
    height: int
    first: bool
    last: bool
    final: bool


class RunScores(NamedTuple):
    """Transposed queries; scores `[height, R, blocks]` in PSUM; keys, transposed keys and values, a
    tile for `PIECE` blocks; the bias of a mask."""

    run: Run
    queries: nl.NkiTensor
    scores: nl.NkiTensor
    keys: list[nl.NkiTensor]
    turned: list[nl.NkiTensor]
    values: list[nl.NkiTensor]
    bias: nl.NkiTensor | None


def runs_of(batches: int, sources: int, keys: tuple[int, int], rows: int) -> list[Run]:
    """The keys `start .. end` of all heads in runs; what is left of a head's last 128 keys makes
    its own one."""
    pmax = nl.tile_size.pmax
    start, end = keys
    full = (end - start) // pmax
    rest = (end - start) % pmax
    most = max(1, min(RUN, _SCORES // rows))
    count = max(1, (full + most - 1) // most)
    most = (full + count - 1) // count  # even shares: a run takes as long however short it is
    runs: list[Run] = []
    for batch in range(batches):
        for source in range(sources):
            final = batch == batches - 1 and source == sources - 1
            for block in range(0, full, most):
                count = min(most, full - block)
                last = rest == 0 and block + count == full
                runs.append(
                    Run(
                        batch,
                        source,
                        start + block * pmax,
                        count,
                        pmax,
                        block == 0,
                        last,
                        last and final,
                    )
                )
            if rest > 0:
                first = start + full * pmax
                runs.append(Run(batch, source, first, 1, rest, full == 0, True, final))
    return runs


def load_queries(q: nl.NkiTensor, cuts: int) -> list[nl.NkiTensor]:
    """All queries, transposed: tiles `[width / cuts, cuts, rows]` in the order of
    `[B, H, L]`, as many whole batch entries a tile as fit, or else one or a part of one."""
    pmax = nl.tile_size.pmax
    heads = q.shape[1]
    each = heads * q.shape[2]
    tiles: list[nl.NkiTensor] = []
    if each <= pmax:
        step = pmax // each
        for batch in range(0, q.shape[0], step):
            count = min(step, q.shape[0] - batch)
            tiles.append(_turned_queries(q[batch : batch + count], cuts))
        return tiles
    for batch in range(q.shape[0]):
        tiles.append(_turned_heads(q[batch : batch + 1], cuts))
    return tiles


def _turned_heads(q: nl.NkiTensor, cuts: int) -> nl.NkiTensor:
    """The rows of one batch entry, more than 128: `[width / cuts, cuts, rows]`."""
    length = q.shape[2]
    step = nl.tile_size.pmax // length
    shape = (q.shape[3] // cuts, cuts, q.shape[1] * length)
    whole = nl.ndarray(shape, dtype=q.dtype, buffer=nl.sbuf)
    for head in range(0, q.shape[1], step):
        count = min(step, q.shape[1] - head)
        part = whole[:, :, head * length : (head + count) * length]
        _turn_queries(part, q[:, head : head + count])
    return whole


def _turned_queries(q: nl.NkiTensor, cuts: int) -> nl.NkiTensor:
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    dst = nl.ndarray((q.shape[3] // cuts, cuts, rows), dtype=q.dtype, buffer=nl.sbuf)
    _turn_queries(dst, q)
    return dst


def _turn_queries(dst: nl.NkiTensor, q: nl.NkiTensor) -> None:
    """`dst[width / cuts, cuts, rows]` <- `q[B, H, L, width]`."""
    tile = nl.ndarray((dst.shape[2], q.shape[3]), dtype=q.dtype, buffer=nl.sbuf)
    if nisa.get_nc_version() == nisa.nc_version.gen2:
        nisa.dma_copy(dst=tile, src=q)
    else:
        # From the queue of ScalarE: on the other one the first keys would wait.
        mode = nisa.dge_mode.hwdge
        nisa.dma_copy(dst=tile, src=q, dge_mode=mode, engine=nisa.engine.scalar)
    data = tile.reshape_dim(1, (dst.shape[1], dst.shape[0])).expand_dim(1)
    transpose_blocks(dst, data, True)


def queries_of(p: DecodeProblem, tiles: list[nl.NkiTensor], run: Run, sources: int) -> nl.NkiTensor:
    """`[width / cuts, cuts, R]` of the run's rows."""
    each = sources * p.rows
    per_tile = max(1, nl.tile_size.pmax // each)
    first = run.batch % per_tile * each + run.source * p.rows
    return tiles[run.batch // per_tile][:, :, first : first + p.rows]


def _load_blocks(x: nl.NkiTensor, run: Run, block: int, count: int) -> nl.NkiTensor:
    """Blocks `block ..` of the run of `x[B, H, S, width]`: `[height, count, width]`."""
    first = run.start + block * run.height
    src = x[run.batch, run.source, first : first + count * run.height]
    tile = nl.ndarray((run.height, count, x.shape[3]), dtype=x.dtype, buffer=nl.sbuf)
    src = src.reshape_dim(0, (count, run.height)).permute((1, 0, 2))
    nisa.dma_copy(dst=tile, src=src)
    return tile


def load_run(
    p: DecodeProblem,
    tensors: tuple[nl.NkiTensor, nl.NkiTensor],
    queries: nl.NkiTensor,
    run: Run,
) -> RunScores:
    """Keys and values of a run of k and v, the keys first, because they are needed first."""
    loaded: list[list[nl.NkiTensor]] = [[], []]
    for tensor, tiles in zip(tensors, loaded, strict=True):
        for block in range(0, run.blocks, PIECE):
            count = min(PIECE, run.blocks - block)
            tiles.append(_load_blocks(tensor, run, block, count))
    shape = (run.height, p.rows, run.blocks)
    scores = nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum)
    return RunScores(run, queries, scores, loaded[0], [], loaded[1], load_bias(p, run))


def turn_piece(p: DecodeProblem, s: RunScores, piece: int) -> None:
    """Transpose the keys that were loaded as number `piece`."""
    run = s.run
    k = s.keys[piece]
    count = k.shape[1]
    width = k.shape[2] // p.cuts
    keys = k.reshape_dim(2, (p.cuts, width))
    turned = nl.ndarray((width, count * p.cuts, run.height), dtype=k.dtype, buffer=nl.sbuf)
    # ScalarE and VectorE take the PSUM banks in turn.
    itemsize = 4 if k.dtype == nl.float32 else 2
    step = max(1, nl.tile_size.psum_bank_fmax * 4 // itemsize // run.height // p.cuts)
    for first in range(0, count, step):
        end = min(first + step, count)
        dst = turned[:, first * p.cuts : end * p.cuts, :]
        transpose_blocks(dst, keys[:, first:end], first // step % 2 == 0)
    s.turned.append(turned)


def score_piece(p: DecodeProblem, s: RunScores, piece: int) -> None:
    """Scores of the keys that `turn_piece` transposed as number `piece`."""
    turned = s.turned[piece]
    for at in range(turned.shape[1] // p.cuts):
        for cut in range(p.cuts):
            nisa.nc_matmul(
                dst=s.scores[:, :, piece * PIECE + at],
                stationary=turned[:, at * p.cuts + cut, :],
                moving=s.queries[:, cut, :],
            )


def load_bias(p: DecodeProblem, run: Run) -> nl.NkiTensor | None:
    """What the mask adds to scores, `[height, heads or 1, L or 1, blocks]` in float32."""
    mask = p.mask
    if mask is None:
        return None
    heads = 1 if shares(mask, 1) else p.group
    length = p.rows // p.group
    rows = 1 if shares(mask, 2) else length
    view = along(along(mask, 0, run.batch, 1), 1, run.source * p.group, heads)
    view = along(along(view, 2, 0, rows), 3, run.start, run.blocks * run.height)
    shape = (run.blocks, heads * rows, run.height)
    tile = nl.ndarray(shape, dtype=mask.dtype, buffer=nl.sbuf)
    src = view[0].reshape_dim(2, (run.blocks, run.height)).permute((2, 0, 1, 3))
    nisa.dma_copy(dst=tile, src=src)
    if p.boolean:
        half = nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=half, src=tile, engine=nisa.engine.gpsimd)
        tile = half
    bias = nl.ndarray((run.height, heads, rows, run.blocks), dtype=nl.float32, buffer=nl.sbuf)
    flat = bias.reshape((run.height, heads * rows, run.blocks))
    step = max(1, nl.tile_size.psum_bank_fmax // run.blocks)
    for first in range(0, heads * rows, step):
        count = min(step, heads * rows - first)
        shape = (run.height, count, run.blocks)
        turned = nl.ndarray(shape, dtype=tile.dtype, buffer=nl.psum)
        for row in range(count):
            nisa.nc_transpose(
                dst=turned[:, row, :], data=tile[:, first + row, :], engine=nisa.engine.tensor
            )
        dst = flat[:, first : first + count, :]
        if p.boolean:
            nisa.tensor_scalar(
                dst=dst, data=turned, op0=nl.subtract, operand0=1.0,
                op1=nl.multiply, operand1=FALSE_BIAS,
            )  # fmt: skip
        else:
            nisa.tensor_copy(dst=dst, src=turned)
    return bias
