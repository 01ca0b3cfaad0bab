"""Where a sequence of numbers repeats itself: runs with a period, found by hashing windows.

A Program has no marks of the Python loops that made it; equal signatures at a constant distance
show them. Nested loops give runs with several periods.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Windows whose last earlier occurrence gives candidates for periods.
_WINDOWS = (1, 8, 64, 512, 4096, 32768, 262144)
# Repetitions that make a run worth noting: reaching a steady state takes two or three.
_REPETITIONS = 4
_CANDIDATES = 3  # per window
LEVELS = 8
_BASE = 0x9E3779B97F4A7C15  # odd, so that its powers have inverses modulo 2**64
_MASK = 2**64 - 1

_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.uint32]


class Run(NamedTuple):
    """Elements from `first` + `period` to `end` equal those one period before."""

    first: int
    end: int
    period: int


def find_runs(numbers: _Numbers) -> list[list[Run]]:
    """Runs by period, longest periods first; at most LEVELS periods."""
    covered: dict[int, list[Run]] = {}
    for period in _candidates(numbers):
        runs = _runs(numbers, period)
        if runs:
            covered[period] = runs
    kept = sorted(covered, key=lambda period: (-_coverage(covered[period]), period))[:LEVELS]
    return [covered[period] for period in sorted(kept, reverse=True)]


def _coverage(runs: list[Run]) -> int:
    return sum(run.end - run.first for run in runs)


def _candidates(numbers: _Numbers) -> list[int]:
    found: dict[int, None] = {}
    prefix = _prefix_hashes(numbers)
    inverse = _powers(len(numbers) + 1, pow(_BASE, -1, 2**64))
    for window in _WINDOWS:
        if 2 * window > len(numbers):
            break
        with np.errstate(over="ignore"):
            hashes = (prefix[window:] - prefix[:-window]) * inverse[: len(prefix) - window]
        for period in _distances(hashes):
            found.setdefault(period)
    return list(found)


def _powers(count: int, base: int) -> _Words:
    powers = np.full(count, base & _MASK, np.uint64)
    powers[:1] = 1
    with np.errstate(over="ignore"):
        return np.multiply.accumulate(powers)


def _prefix_hashes(numbers: _Numbers) -> _Words:
    """Sums of (number + 1) * BASE**i modulo 2**64, one more than there are numbers."""
    with np.errstate(over="ignore"):
        terms = (numbers.astype(np.uint64) + np.uint64(1)) * _powers(len(numbers), _BASE)
        prefix = np.zeros(len(numbers) + 1, np.uint64)
        np.add.accumulate(terms, out=prefix[1:])
    return prefix


def _distances(hashes: _Words) -> list[int]:
    """The most frequent distances between equal neighbours."""
    at = np.argsort(hashes, kind="stable")
    equal = hashes[at[1:]] == hashes[at[:-1]]
    distances, counts = np.unique((at[1:] - at[:-1])[equal], return_counts=True)
    best = np.argsort(-counts, kind="stable")[:_CANDIDATES]
    return [int(distances[i]) for i in best]


def _runs(numbers: _Numbers, period: int) -> list[Run]:
    equal = np.concatenate(([False], numbers[period:] == numbers[:-period], [False]))
    edges = np.flatnonzero(equal[1:] != equal[:-1])
    return [
        Run(int(first), int(end) + period, period)
        for first, end in zip(edges[::2], edges[1::2], strict=True)
        if end - first >= (_REPETITIONS - 1) * period
    ]
