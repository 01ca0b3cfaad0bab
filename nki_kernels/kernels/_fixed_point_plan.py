"""How `_fixed_point_sums.py` cuts rows, and in which order it issues its instructions.

Chunks have a bound of their own, pieces of them go through the engines one after the other. The
first ones are short, so that all engines have work early, and the last ones, so that little is left
to do behind the last load. `_fixed_point_order.py` has the schedule.

The sizes were searched for by the ends of these schedules, which are within 0.2 us of the predicted
times of 128x2048 and 1024x4096, and by those times.

What bounds this on trn2, in ns for an element of each partition: ScalarE 2.5 (bound, lift, round),
VectorE 2.1 (two scans of halves, results), GpSimd 1.7 (half of what is left, half an addition),
TensorE 1.7 at half rate (the other half); 2.1 for each of the first three where they share evenly.
Load and store are 2.7 of DMA, a plain scan in float32, whose errors are 29 to 58 times eager's
(`scripts/bench/versus_aws.py --rows cumsum`), 1.04 of VectorE. 1024x4096 has 32,768 such elements:
87 us of DMA; with 3 us until the first elements can be used and 3 behind the last results it cannot
end before 93 us, and ends at 93.1 (the plain scan: 88.8). 128x2048 has 2,048: 2.4 us until the
first, 2.4 behind the last results; between these each piece goes through five instructions one
after the other. TensorE, at its full rate from the start, adds up the results of the first pieces,
so that VectorE has 5 us of work in these 7; it ends at 11.8 (the plain scan: 11.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from trnx.nki_kernels.kernels._fixed_point_order import Order
from trnx.nki_kernels.kernels._fixed_point_steps import EPOCH, Chunk, Piece, Plan
from trnx.nki_kernels.kernels._fixed_point_ways import SHORT_ROW, Shares, Way, ways_of


@cache
def plan_of(length: int, tiles: int) -> Plan:
    """For rows of `length`, one a partition, cut in the way whose schedule ends first."""
    plans = [_plan(length, tiles, way) for way in ways_of(length, tiles)]
    return min(plans, key=lambda plan: plan[0])[1]


def _plan(length: int, tiles: int, way: Way) -> tuple[float, Plan]:
    """And the ns that it takes."""
    chunks: list[Chunk] = []
    pieces: list[Piece] = []
    for tile in range(tiles):
        ends: dict[int, int] = {}
        first = 0
        for number, cut in enumerate(_cuts(length, tile == 0, tile == tiles - 1, way)):
            epoch = first // EPOCH
            begins, last = epoch not in ends, len(pieces) + len(cut) - 1
            before = (ends.get(epoch - 1, -1), ends.get(epoch - 2, -1))
            ends[epoch] = len(chunks)
            numbers = (tile, first, sum(cut), number, len(pieces), last, int(begins))
            place = 0
            for count in cut:
                pieces.append(Piece(len(chunks), place, count, 0, 0, 0, 0, 0, 0))
                place += count
            chunks.append(Chunk(*numbers, *before, int(length > SHORT_ROW)))
            first += sum(cut)
    shared = _shared(pieces, way)
    end, order = Order(chunks, shared, way).found()
    return end, Plan(tiles, way.warm_up, tuple(chunks), shared, tuple(order))


def _cuts(length: int, is_first: bool, is_last: bool, way: Way) -> list[list[int]]:
    """Pieces by chunk."""
    cuts: list[list[int]] = []
    left = length
    for sizes in way.head if is_first else ():
        if left > 0:
            cuts.append(_pieces(min(left, sum(sizes)), sizes))
            left -= sum(sizes)
    while left > 0:
        sizes = way.tail if is_last and left <= sum(way.tail) else way.middle
        cuts.append(_pieces(min(left, sum(sizes)), sizes))
        left -= sum(sizes)
    return cuts


def _pieces(count: int, sizes: Sequence[int]) -> list[int]:
    """The last `sizes` that make `count`, the first of them shorter."""
    found: list[int] = []
    for size in reversed(sizes):
        if count > 0:
            found.insert(0, min(size, count))
            count -= size
    if len(found) > 1 and found[0] % 2:  # only a row may end with an odd number
        found[0], found[-1] = found[0] + 1, found[-1] - 1
    return found


def _shared(pieces: Sequence[Piece], way: Way) -> tuple[Piece, ...]:
    found = []
    for i, piece in enumerate(pieces):
        behind = len(pieces) - 1 - i
        rounds = _share(piece.size, i, behind, way.rounds)
        on_vector = _share(piece.size, i, behind, way.shares)
        adds = int(behind < way.adds)
        on_tensor = int(_share(1024, i, behind, way.tensor) > 0)
        in_psum = int(_share(1024, i, behind, way.in_psum) > 0)
        finishes = _share(piece.size, i, behind, way.finishes)
        found.append(
            piece._replace(
                rounds=rounds,
                on_vector=on_vector,
                adds=adds,
                on_tensor=on_tensor,
                finishes=finishes,
                in_psum=in_psum,
            )
        )
    return tuple(found)


def _share(size: int, i: int, behind: int, shares: Shares) -> int:
    """How much of piece `i`, `behind` which so many follow, is VectorE's; few elements are none."""
    first, last, share = shares
    if i < len(first):
        share = first[i]
    if behind < len(last):
        share = last[behind]
    count, padded = size * share // 1024 * 32, size + size % 2
    return padded if padded - count < 64 else count
