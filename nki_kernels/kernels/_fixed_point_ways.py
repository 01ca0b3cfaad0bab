"""In which ways `_fixed_point_plan.py` cuts rows, and what engines share."""

from __future__ import annotations

from typing import NamedTuple

Shares = tuple[tuple[int, ...], tuple[int, ...], int]


class Way(NamedTuple):
    """How to cut: `head` are the first pieces by chunk, `middle` those of other chunks, `tail` of
    the last one. VectorE finds what is left of `shares` / 32 of the first pieces, of the last ones
    (from the end), and of others, and rounds `rounds` / 32 of them; it adds in the last `adds`
    pieces. TensorE finds what is left of every second element where `tensor` is not 0, and GpSimd
    has `finishes` / 32 of the results. Bounds are `lead` elements
    ahead of what needs them, but no more than `hurry` of the elements so far; loads are `window`
    ahead of stores (SBUF limits that).
    """

    head: tuple[tuple[int, ...], ...]
    middle: tuple[int, ...]
    tail: tuple[int, ...]
    shares: Shares
    rounds: Shares
    tensor: Shares
    finishes: Shares
    adds: int
    lead: int
    window: int
    hurry: float


# Few positions, of which the ends count, in three ways; more of short rows; and long ones, whose
# chunks are short, since the roundings of what is left grow with what two chunks leave.
_NONE: Shares = ((), (), 0)
_FEW, _SHORT_ROW = 4096, 4096
_SHORT = (
    Way(
        ((384,), (704,)), (512, 576, 512, 512), (576, 448),
        ((2, 4, 0, 4, 4), (13, 6), 0), ((32,), (10,), 8), _NONE, _NONE, 0, 4096, 10240, 0.5,
    ),
    Way(
        ((416,),), (608,), (672, 448),
        ((26, 11, 17, 30, 25, 18), (0, 19, 1, 7, 17, 27), 1),
        ((32, 5, 25, 19, 24), (2, 18, 32), 20),
        ((32, 0, 32, 0, 32, 0), (32, 0, 32, 0, 32, 32, 32), 32),
        ((28, 20, 9, 7, 18, 24), (15, 14, 0, 30, 24, 25, 22), 21), 1, 13312, 13240, 0.6,
    ),
)  # fmt: skip
_MIDDLE = Way(
    ((640, 384, 512), (960,), (512,)), (992, 1088), (416, 512, 992, 352, 192, 320, 96),
    ((32, 6, 0, 6, 24), (10, 21, 0, 9, 0, 15, 17), 0),
    ((28, 12, 32, 27, 0, 21, 22), (28, 0, 13, 26, 0), 5),
    ((32, 32, 0, 32), (0, 32, 0, 32, 32, 32, 32), 32),
    ((19, 23, 19, 14, 19), (19, 14, 21, 27, 23), 7), 5, 36096, 12800, 0.1,
)  # fmt: skip
_LONG = Way(
    ((128,), (512,), (512,), (1024,)), (1024,), (1088, 384, 256), ((10, 8, 8, 4, 16), (2,), 2),
    ((20, 13, 32), (), 0), _NONE, _NONE, 1, 1024, 13312, 0.9,
)  # fmt: skip


def ways_of(length: int, tiles: int) -> tuple[Way, ...]:
    """Those to choose from for so many tiles of rows of `length`, one a partition."""
    if length > _SHORT_ROW:
        return (_LONG,)
    return (*_SHORT, _LONG) if length * tiles <= _FEW else (_MIDDLE, _LONG)
