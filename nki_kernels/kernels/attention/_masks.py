"""NKI helpers of attention: masks, and how they hide keys in a tile of scores."""

from __future__ import annotations

from typing import NamedTuple

import nki.isa as nisa
import nki.language as nl

from trnx.nki_kernels.kernels.attention._host import LEAST_SCALE
from trnx.nki_kernels.kernels.attention._layout import Chunk, split_heads

_NEG_INF = float("-inf")
# What a False of a bool mask adds to a score: far below any score, yet finite, and below the
# clamp of the row maximum that is used with it, so that the weights of a row of nothing but False
# are exp(-3e38 + 1e38) = 0.
FALSE_BIAS = 3.0e38
CLAMP_FALSE = -1.0e38
# With a float mask the clamp is the lowest float32: -inf gives weight 0, the lowest float weight 1.
CLAMP_FLOAT = -3.4028234663852886e38


def heads_as_rows(x: nl.NkiTensor | None, group: int) -> nl.NkiTensor | None:
    """`x[B, H, 1, ...]`, which has one query, with the heads of a group as queries:
    `[B, H / group, group, ...]`. What is the same for all heads stays as it is."""
    if x is None or x.shape[1] == 1:
        return x
    return x.squeeze_dim(2).reshape_dim(1, (x.shape[1] // group, group))


def as_four(mask: nl.NkiTensor) -> nl.NkiTensor:
    """A mask of fewer dimensions as `[B or 1, H or 1, L or 1, S or 1]`."""
    for _ in range(4 - mask.ndim):
        mask = mask.expand_dim(0)
    return mask


def shares(mask: nl.NkiTensor, dim: int) -> bool:
    """True where a four-dimensional mask is the same all along `dim`."""
    return bool(mask.shape[dim] == 1 or mask.strides[dim] == 0)


def along(mask: nl.NkiTensor, dim: int, start: int, size: int) -> nl.NkiTensor:
    """`start .. start + size` along `dim`, of which the mask may have one that counts for all."""
    if not shares(mask, dim):
        return mask.slice(dim, start, start + size)
    one = mask.slice(dim, 0, 1)
    return one.broadcast(dim, size) if size > 1 else one


def load_mask(
    mask: nl.NkiTensor, chunk: Chunk, row: int, rows: int, col: int, cols: int
) -> nl.NkiTensor:
    """`[rows, batches or 1, heads or 1, cols]` of a four-dimensional mask, in its own dtype."""
    batches = 1 if shares(mask, 0) else chunk.batches
    heads = 1 if shares(mask, 1) else chunk.heads
    view = along(along(mask, 0, chunk.batch, batches), 1, chunk.head, heads)
    view = along(along(view, 2, row, rows), 3, col, cols)
    tile = nl.ndarray((rows, batches, heads, cols), dtype=mask.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=view.permute((2, 0, 1, 3)))
    return tile


def _selected(
    row: int, rows: int, col: int, cols: int, step: int, chosen: tuple[float, float], dtype: str
) -> nl.NkiTensor:
    """`[rows, 1, 1, cols]` in `dtype`: the first of `chosen` where `step` times the number of a
    query, less that of the key, is at least 0, else the second. `step` is 1 or -1."""
    full = nl.ndarray((rows, cols), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=full, value=chosen[0])
    tile = nl.ndarray((rows, 1, 1, cols), dtype=dtype, buffer=nl.sbuf)
    nisa.affine_select(
        dst=tile,
        pattern=[[-step, cols]],
        offset=step * (row - col),
        channel_multiplier=step,
        on_true_tile=full,
        on_false_value=chosen[1],
        cmp_op=nl.greater_equal,
    )
    return tile


class Masks(NamedTuple):
    """`mask`, added to the scores, has four dimensions; `boolean` where it is uint8. Of the
    keys that `causal` leaves, a query sees the last `window`, or all where it is 0."""

    mask: nl.NkiTensor | None
    boolean: bool
    causal: bool
    window: int


def first_key(masks: Masks, row: int) -> int:
    """The first key that a query may see."""
    return max(0, row - masks.window + 1) if masks.window > 0 else 0


def _reaches_after(masks: Masks, row: int, col: int, cols: int) -> bool:
    """True where keys of a tile of scores are after a query."""
    return masks.causal and col + cols - 1 > row


def _reaches_before(masks: Masks, row: int, rows: int, col: int) -> bool:
    """True where keys of a tile of scores are before the window of a query."""
    return first_key(masks, row + rows - 1) > col


def crosses(masks: Masks, row: int, rows: int, col: int, cols: int) -> bool:
    """True where causal or window hide a part of a tile of scores."""
    return _reaches_after(masks, row, col, cols) or _reaches_before(masks, row, rows, col)


def bias_key(
    masks: Masks, chunk: Chunk, row: int, rows: int, col: int, cols: int, crossed: bool
) -> tuple[int | bool, ...]:
    """Equal for tiles of scores that have the same bias."""
    mask = masks.mask
    if mask is None:
        return (row - col, rows, cols)
    batch = 0 if shares(mask, 0) else chunk.batch
    head = 0 if shares(mask, 1) else chunk.head
    first = 0 if shares(mask, 2) and not crossed else row
    return (batch, chunk.batches, head, chunk.heads, first, rows, col, cols)


class Bias(NamedTuple):
    """What hides keys of a tile of scores, each `[rows, batches or 1, heads or 1, cols]`: `added`
    to the scaled scores, and 1 where a key is `seen`, else 0; None where there is nothing.

    As in torch's kernel, which selects what causal attention hides, and adds a mask, of which the
    window is a part: the score of a hidden key may be infinite or NaN.
    """

    added: nl.NkiTensor | None
    seen: nl.NkiTensor | None


def make_bias(masks: Masks, chunk: Chunk, row: int, rows: int, col: int, cols: int) -> Bias:
    """The bias of a tile of scores."""
    seen = None
    if _reaches_after(masks, row, col, cols):
        seen = _selected(row, rows, col, cols, 1, (1, 0), nl.uint8)
    added = None
    if masks.mask is not None:
        added = _mask_bias(masks, chunk, row, rows, col, cols)
    if _reaches_before(masks, row, rows, col):
        near = _selected(row - masks.window + 1, rows, col, cols, -1, (0.0, _NEG_INF), nl.float32)
        added = near if added is None else _sum(added, near)
    return Bias(added, seen)


def _mask_bias(
    masks: Masks, chunk: Chunk, row: int, rows: int, col: int, cols: int
) -> nl.NkiTensor:
    """What the mask adds to a tile of scores."""
    bias = load_mask(masks.mask, chunk, row, rows, col, cols)
    if not masks.boolean:
        return bias
    wide = nl.ndarray(bias.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=wide, data=bias, op0=nl.subtract, operand0=1.0, op1=nl.multiply, operand1=FALSE_BIAS
    )
    return wide


def _sum(bias: nl.NkiTensor, near: nl.NkiTensor) -> nl.NkiTensor:
    """Both, of which `near` is the same for all heads."""
    both = nl.ndarray(bias.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=both,
        data1=bias,
        data2=near.broadcast(1, bias.shape[1]).broadcast(2, bias.shape[2]),
        op=nl.add,
    )
    return both


def _spread(tile: nl.NkiTensor, chunk: Chunk) -> nl.NkiTensor:
    """A tile of a bias as `[rows, batches, heads, cols]`."""
    if tile.shape[1] < chunk.batches:
        tile = tile.broadcast(1, chunk.batches)
    if tile.shape[2] < chunk.heads:
        tile = tile.broadcast(2, chunk.heads)
    return tile


class Hidden(NamedTuple):
    """`scores[rows, heads, cols]` that count `scale` times."""

    scores: nl.NkiTensor
    scale: float


def apply_bias(scores: nl.NkiTensor, scale: float, bias: Bias, chunk: Chunk) -> Hidden:
    """Scores with their bias."""
    if bias.added is not None:
        biased = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=split_heads(biased, chunk),
            data=split_heads(scores, chunk),
            op0=nl.multiply,
            operand0=scale,
            op1=nl.add,
            operand1=_spread(bias.added, chunk),
        )
        scores, scale = biased, 1.0
    elif scale < LEAST_SCALE:  # 0 times -inf is NaN
        scaled = nl.ndarray(scores.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=scaled, data=scores, op0=nl.multiply, operand0=scale)
        scores, scale = scaled, 1.0
    if bias.seen is None:
        return Hidden(scores, scale)
    return Hidden(keep_seen(scores, bias.seen, chunk, _NEG_INF), scale)


def keep_seen(x: nl.NkiTensor, seen: nl.NkiTensor, chunk: Chunk, other: float) -> nl.NkiTensor:
    """`x[rows, heads, cols]` where a key is seen, `other` elsewhere."""
    kept = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.select_reduce(
        dst=split_heads(kept, chunk),
        predicate=_spread(seen, chunk),
        on_true=split_heads(x, chunk),
        on_false=other,
    )
    return kept


def drop(dst: nl.NkiTensor, data: nl.NkiTensor, keep: nl.NkiTensor, factor: float) -> None:
    """`dst = data * keep * factor`, where `keep` is 0 or 1."""
    nisa.scalar_tensor_tensor(
        dst=dst, data=keep, op0=nl.multiply, operand0=factor, op1=nl.multiply, operand1=data
    )
