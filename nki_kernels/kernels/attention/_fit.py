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
# Keys beside its window that a group of 512 queries sees at most, in whole blocks.
_MORE_KEYS = 640
# What `long_kernel` keeps of a block of queries, and what it has for that and for keys and values:
# leaves 32 KiB of trn2's to the rest.
_KEPT_BYTES = 8
_FOR_ROWS_AND_KEYS = 196608


def loads_windows(window: int, depth: int) -> bool:
    """Whether each group of queries loads the keys that it sees, as a head has many more than a
    window: those of four groups are in SBUF at once, in place of those of two heads."""
    return window > 0 and 2 * (window + _MORE_KEYS) <= depth


def fits(b: Bindings) -> bool:
    """Whether there is room for the keys and values of two heads, or of the windows of four groups,
    beside all else that `long_kernel` needs in SBUF."""
    depth = b.k.shape[2]
    if loads_windows(b.window, depth):
        depth = 2 * (b.window + _MORE_KEYS)
    masks = 0 if b.attn_mask is None else depth
    head = depth * 2 + depth // 128 * (b.v.shape[3] + 1) * 2 + masks
    more = depth * 2 * (-(-b.k.shape[3] // 128) - 1)  # of wide keys
    blocks = b.q.shape[0] * b.q.shape[1] * b.q.shape[2] // 128
    total = 2 * (head + more) + _KEPT_BYTES * blocks
    return bool(head <= _LONG_BYTES and total <= _FOR_ROWS_AND_KEYS)


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
