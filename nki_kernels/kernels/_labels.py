"""Class labels of rows, for cross-entropy: which rows count, and where their class lies.

A group of tiles of 128 rows at a time: row `t * 128 + p` is element `[p, t]` of what is per row, so
that one small instruction serves many tiles. int64 labels arrive as int32 pairs, of which the low
word counts. VectorE computes in float32, so classes must be fewer than 2^24.
"""

from __future__ import annotations

from collections.abc import Sequence

import nki.isa as nisa
import nki.language as nl
import torch

from trnx.nki_kernels.dtypes import reject_dtypes
from trnx.nki_kernels.spec import Bindings
from trnx.simulator.errors import Reject

NONE, MEAN, SUM = range(3)  # at::Reduction
_MOST_TILES = 64
_INT32 = 2**31


def group_of(rows: int, start: int) -> tuple[int, int]:
    """(partitions, tiles) of the group of rows that begins at `start`."""
    partitions = min(nl.tile_size.pmax, rows - start)
    return partitions, min(_MOST_TILES, (rows - start) // partitions)


def by_tile(per_row: nl.NkiTensor, start: int, partitions: int, tiles: int) -> nl.NkiTensor:
    """A view `[partitions, tiles]` of HBM of what is per row, `[rows]`."""
    part = per_row[start : start + partitions * tiles].reshape((tiles, partitions))
    return part.permute((1, 0))


def load_labels(
    target: nl.NkiTensor, start: int, partitions: int, tiles: int, rows: int
) -> nl.NkiTensor:
    """The labels of a group as int32 `[partitions, tiles]`."""
    words = target.size // rows
    pairs = nl.ndarray((partitions, tiles, words), dtype=nl.int32, buffer=nl.sbuf)
    here = target.reshape((rows, words))[start : start + partitions * tiles]
    source = here.reshape((tiles, partitions, words)).permute((1, 0, 2))
    nisa.dma_copy(dst=pairs, src=source)
    return pairs[:, :, 0]


def counted(labels: nl.NkiTensor, ignore_index: int, dtype: str) -> nl.NkiTensor:
    """1 where a row counts, 0 where its label is `ignore_index`."""
    result = nl.ndarray(labels.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=labels, op0=nl.not_equal, operand0=float(ignore_index))
    return result


def gather_logits(
    x: nl.NkiTensor, labels: nl.NkiTensor, start: int, ignore_index: int
) -> nl.NkiTensor:
    """x[row, label] `[partitions, tiles]`; for ignored rows some logit, whatever their label is.

    Any other label outside of the classes is an index out of bounds, as it is in torch.
    """
    rows, classes = x.shape
    partitions, tiles = labels.shape
    inside = _integers(labels)
    nisa.tensor_scalar(
        dst=inside, data=labels, op0=nl.maximum, operand0=0, op1=nl.minimum, operand1=classes - 1
    )
    legal, ignored, index = _integers(labels), _integers(labels), _integers(labels)
    nisa.tensor_tensor(dst=legal, data1=labels, data2=inside, op=nl.equal)
    nisa.tensor_scalar(dst=ignored, data=labels, op0=nl.equal, operand0=float(ignore_index))
    nisa.tensor_tensor(dst=legal, data1=legal, data2=ignored, op=nl.maximum)
    nisa.iota(
        dst=index,
        pattern=[[nl.tile_size.pmax * classes, tiles]],
        offset=start * classes,
        channel_multiplier=classes,
    )
    # GpSimd computes in 32-bit integers: (index + inside) where legal, else -1.
    nisa.tensor_tensor(dst=index, data1=index, data2=inside, op=nl.add, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(
        dst=index, data1=index, data2=legal, op=nl.multiply, engine=nisa.engine.gpsimd
    )
    nisa.tensor_scalar(dst=legal, data=legal, op0=nl.subtract, operand0=1)
    nisa.tensor_tensor(dst=index, data1=index, data2=legal, op=nl.add, engine=nisa.engine.gpsimd)
    chosen = nl.ndarray(labels.shape, dtype=x.dtype, buffer=nl.sbuf)
    for i in range(tiles):
        source = x.reshape((rows * classes, 1)).ap(
            pattern=[[1, partitions], [1, 1]],
            offset=0,
            vector_offset=index[:, i : i + 1],
            indirect_dim=0,
        )
        nisa.dma_copy(dst=chosen[:, i : i + 1], src=source)
    return chosen


def _integers(like: nl.NkiTensor) -> nl.NkiTensor:
    return nl.ndarray(like.shape, dtype=nl.int32, buffer=nl.sbuf)


def reject_logits(b: Bindings, names: Sequence[str]) -> Reject | None:
    """dtypes, shapes and sizes of logits `x` and labels `target`; `names` are float bindings."""
    if reject := reject_dtypes(b, *names):
        return reject
    if b.target.dtype not in (torch.int32, torch.int64):
        return Reject(f"the dtype {b.target.dtype} of target is not int32 or int64")
    if b.x.ndim != 2 or b.target.shape != b.x.shape[:1]:
        return Reject(f"x{b.x.shape} and target{b.target.shape} are not [N, C] and [N]")
    if b.x.numel == 0:
        return Reject(f"x{b.x.shape} has no logits")
    if b.x.shape[1] >= 2**24 or b.x.numel >= _INT32:
        return Reject(f"x{b.x.shape} has an element that an int32 does not count")
    return None
