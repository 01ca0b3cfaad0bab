"""How `topk` cuts long lines into blocks and segments: the cheapest cut that fits SBUF."""

from __future__ import annotations

from typing import NamedTuple

from trnx.simulator.errors import Reject

_EIGHT = 8
_BLOCKS = (8, 16, 32, 64, 128)
_SHORTEST = 512  # of a line; shorter ones are searched whole, several in a partition
_MOST_SEARCHED = 16384  # elements of an instruction
_BYTES = 150 * 1024  # of a partition, of 192 KiB that NeuronCore-v2 has
_BLOCK_BYTES, _CANDIDATE_BYTES = 16, 24  # which the search of one takes in all
# Of the choice of a cut, in cycles of VectorE: the fixed cost of an instruction, instructions of
# keys, and the way of a segment's elements through HBM.
_ISSUE, _KEYS, _EXCHANGE = 110.0, 7, 5000.0
_LANES = 128
_SEGMENTS = (1, 2, 4, 8, 16, 32)


class Blocks(NamedTuple):
    """How lines are searched for their first `k` elements: a line lies in `segments` partitions of
    `number` blocks of `size` elements each, the last of which may be ragged."""

    segments: int
    number: int
    size: int
    k: int

    @property
    def cycles(self) -> float:
        """About the cycles of VectorE for 128 partitions, and of GpSimd, for which it waits."""
        elements, candidates = self.number * self.size, self.k * self.size
        found = self._searched(self.number) + self._searched(candidates)
        if self.segments > 1:
            found += self._searched(self.segments * self.k) + _EXCHANGE
        return 1.8 * elements + found

    def _searched(self, size: int) -> float:
        """Keys of so many elements, and the rounds."""
        return _KEYS * (size + _ISSUE) + 2 * -(-self.k // _EIGHT) * (size + _ISSUE)


def blocks_of(length: int, k: int, lines: int, itemsize: int) -> Blocks | Reject:
    """The cheapest cut of so many lines of `length` elements, or why there is none."""
    if length < _SHORTEST:
        return Reject(f"lines of {length} elements; blocks pay from {_SHORTEST} on")
    cuts = (_cut(length, k, parts, size) for parts in _SEGMENTS for size in _BLOCKS)
    possible = [cut for cut in cuts if _fits(cut, itemsize)]
    if not possible:
        return Reject(f"the first {k} of {length} elements do not fit SBUF as blocks")
    return min(possible, key=lambda cut: cut.cycles * -(-lines * cut.segments // _LANES))


def _cut(length: int, k: int, parts: int, size: int) -> Blocks:
    count = -(-length // (parts * size))
    return Blocks(-(-length // (count * size)), count, size, k)


def _fits(cut: Blocks, itemsize: int) -> bool:
    merged = cut.k * cut.segments if cut.segments > 1 else 0
    most = max(cut.number, cut.k * cut.size, merged)
    searched = max(_BLOCK_BYTES * cut.number, _CANDIDATE_BYTES * max(cut.k * cut.size, merged))
    used = cut.number * cut.size * itemsize + searched
    is_searchable = cut.number >= _EIGHT and most <= _MOST_SEARCHED
    return is_searchable and cut.k < cut.number and used <= _BYTES
