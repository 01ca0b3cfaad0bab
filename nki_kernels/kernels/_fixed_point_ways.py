"""In which ways `_fixed_point_plan.py` cuts rows, and what engines share."""

from __future__ import annotations

from typing import NamedTuple

Shares = tuple[tuple[int, ...], tuple[int, ...], int]


class Way(NamedTuple):
    """How to cut: `head` are the first pieces by chunk, `middle` those of other chunks, `tail` of
    the last one. VectorE finds what is left of `shares` / 32 of the first pieces, of the last ones
    (from the end), and of others, and rounds `rounds` / 32 of them; it adds in the last `adds`
    pieces. TensorE finds what is left of every second element where `tensor` is not 0, and adds
    up the results where `in_psum` is not 0, after `warm_up` products. GpSimd has `finishes` / 32
    of the other results. Bounds are `lead` elements
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
    warm_up: int = 0
    in_psum: Shares = ((), (), 0)


# Few positions, of which the ends count, in three ways; more of short rows; and long ones, whose
# chunks are short, since the roundings of what is left grow with what two chunks leave.
_NONE: Shares = ((), (), 0)
_FEW, SHORT_ROW = 4096, 4096
_SHORT = (
    Way(
        ((448,), (512,)), (408, 280), (232, 632),
        ((0,), (3, 32, 4, 0), 32), ((30,), (0, 0, 32, 32), 32),
        ((32,), (32, 0, 0, 32), 32), ((), (8, 32, 24), 32),
        2, 13312, 13240, 0.1, 28, ((32,), (0, 0, 0, 32), 0),
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
    ((688, 344, 464), (744,), (368,), (448,)), (1000, 1112),
    (376, 544, 192, 968, 296, 192, 360, 96),
    ((8, 0, 1, 4, 32), (0, 20, 0, 0, 0, 0, 19), 0),
    ((32, 10, 32, 27, 0, 32, 26), (0, 0, 2, 0, 0), 5),
    ((32, 0, 0, 32), (0, 32, 0, 32, 32, 32, 32), 32),
    ((0, 0, 32, 4, 0), (0, 1, 28, 30, 23), 7),
    5, 36096, 12800, 0.3,
)  # fmt: skip
_LONG = Way(
    ((128,), (512,), (512,), (1024,)), (1024,), (1088, 384, 256), ((10, 8, 8, 4, 16), (2,), 2),
    ((20, 13, 32), (), 0), _NONE, _NONE, 1, 1024, 13312, 0.9,
)  # fmt: skip


def ways_of(length: int, tiles: int) -> tuple[Way, ...]:
    """Those to choose from for so many tiles of rows of `length`, one a partition."""
    if length > SHORT_ROW:
        return (_LONG,)
    return (*_SHORT, _LONG) if length * tiles <= _FEW else (_MIDDLE, _LONG)
