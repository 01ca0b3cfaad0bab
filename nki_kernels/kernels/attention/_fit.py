"""Host side of attention of long sequences: what of it fits SBUF."""

from __future__ import annotations

from trnx.nki_kernels.spec import Bindings

# Keys and values of a head for `long_kernel`, bytes per partition: those of two are in SBUF.
_LONG_BYTES = 62464
# What `direct_kernel` keeps of a block of queries in a partition, with that of a repair, and how
# much of that fits beside the largest keys and values.
_BLOCK_BYTES = 10
_ROWS_BYTES = 24576
# Keys of a head that `streamed_kernel` loads together, and how many such spans are in SBUF at once:
# of the end of a group, those that follow, and the first ones of the next.
SPAN = 2048
_LIVE_SPANS = 4


def fits(b: Bindings) -> bool:
    """Whether the keys and values of two heads fit SBUF beside all else that `long_kernel` needs
    there."""
    depth = b.k.shape[2]
    masks = 0 if b.attn_mask is None else depth
    return bool(depth * 2 + depth // 128 * (b.v.shape[3] + 1) * 2 + masks <= _LONG_BYTES)


def keeps_rows(b: Bindings) -> bool:
    """Whether there is room beside them for what `direct_kernel` keeps of each block of queries."""
    depth = b.k.shape[2]
    heads = 2 * (depth * 2 * -(-b.k.shape[3] // 128) + depth // 128 * (b.v.shape[3] + 1) * 2)
    blocks = b.q.shape[0] * b.q.shape[1] * b.q.shape[2] // 128
    return bool(heads + _BLOCK_BYTES * blocks <= 2 * _LONG_BYTES + _ROWS_BYTES)


def streams(b: Bindings) -> bool:
    """Whether there is room beside spans of keys and values, those under way included."""
    span = 2 * (SPAN * -(-b.k.shape[3] // 128) + SPAN // 128 * (b.v.shape[3] + 1))
    blocks = b.q.shape[0] * b.q.shape[1] * b.q.shape[2] // 128
    return bool(_LIVE_SPANS * span + _BLOCK_BYTES * blocks <= 2 * _LONG_BYTES + _ROWS_BYTES)
