"""What instructions share: DMA engines, HBM, the power throttle of TensorE. Integer picoseconds."""

from __future__ import annotations

from collections.abc import Sequence

from trnx.simulator.costs.cost import ANY_ENGINE, Cost

# Half steps of a picosecond: the throttle halves rates.
_HALVES = 2
# Rows of TensorE's array.
ROWS = 128


class Throttle:
    """dI/dt limit of TensorE: half rate until it was active for the window, again after the
    activity of a window falls below one half.

    The level rises while TensorE works and falls while it waits. A product that uses some rows of
    the array counts as active with their share: with 64 of 128 the level stays, with fewer it
    falls (kernels C-IV bmm and mamba: products of 64 rows and of one run at half rate although
    TensorE is busy all the time).
    """

    __slots__ = ("_is_warm", "_last_end", "_level", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._level = 0
        self._is_warm = window == 0
        self._last_end = 0

    def stretched(self, start: int, interval: int, beyond: int = 0, rows: int = ROWS) -> int:
        """The time that work of `interval` on `rows` takes when it starts at `start`. The engine is
        active for `beyond` longer than that: work on a part of the array counts with its share
        alone.
        """
        if not self._window:
            return interval
        self._level -= max(0, start - self._last_end)
        if self._level <= 0:
            self._level, self._is_warm = 0, False
        # How the level changes in two picoseconds, in shares of the rows.
        rise = _HALVES * rows - ROWS
        taken = self._warm(interval, rise) if self._is_warm else self._cold(interval, rise)
        self._last_end = max(self._last_end, start + taken + beyond)
        return taken

    def _cold(self, interval: int, rise: int) -> int:
        """Half rate until the window is full, then full rate."""
        slow = _HALVES * interval
        if rise > 0:
            slow = min(slow, -(-(self._window - self._level) * ROWS // rise))
        taken = interval + slow // _HALVES
        self._level = max(0, self._level + taken * rise // ROWS)
        if self._level >= self._window:
            self._is_warm, self._level = True, self._window // _HALVES
        return taken

    def _warm(self, interval: int, rise: int) -> int:
        """Full rate until the level is used up."""
        fast = interval if rise >= 0 else min(interval, self._level * ROWS // -rise)
        self._level = min(self._level + fast * rise // ROWS, self._window // _HALVES)
        if fast == interval:
            return interval
        self._level, self._is_warm = 0, False
        return fast + self._cold(interval - fast, rise)

    def state(self, now: int) -> tuple[int, int, bool]:
        """What decides about work from `now` on; equal states behave the same."""
        ahead = max(0, self._last_end - now)
        level = self._level - max(0, now - self._last_end)
        return (level, ahead, self._is_warm) if level > 0 else (0, 0, False)

    def shift(self, ps: int) -> None:
        """As if everything had happened `ps` later."""
        self._last_end += ps


class PeTiles:
    """The 32 x 32 squares of TensorE's array: products on different ones work side by side."""

    __slots__ = ("_free", "_is_used")

    def __init__(self) -> None:
        self._free = [0] * 16
        self._is_used = False

    def start(self, cost: Cost, start: int) -> int:
        """When the squares of a product are free."""
        if not self._is_used:
            return start
        squares = cost.pe_tiles or 0xFFFF
        return max(start, *(free for i, free in enumerate(self._free) if squares >> i & 1))

    def take(self, cost: Cost, until: int) -> None:
        """Use the squares of a product."""
        if cost.pe_tiles:
            self._is_used = True
            for i in range(len(self._free)):
                if cost.pe_tiles >> i & 1:
                    self._free[i] = until

    def state(self, now: int) -> tuple[int, ...]:
        """Relative to `now`."""
        return tuple(max(0, free - now) for free in self._free) if self._is_used else ()

    def shift(self, ps: int) -> None:
        """As if everything had happened `ps` later."""
        self._free = [free + ps for free in self._free]


class DmaEngines:
    """The DMA engines of a core: a transfer takes those of its partitions, or as many that are free
    first.

    A transfer of a class (0 goes first) waits for those of its own class and of higher ones that
    were issued before it. Packets that a lower class has under way already are not delayed.
    """

    __slots__ = ("_every", "_free", "_staggers")

    def __init__(self, count: int, classes: int, stagger: int) -> None:
        self._every = range(count)
        self._free = [[0] * count for _ in range(classes)]
        self._staggers = [i * stagger for i in range(count)]

    def take(self, cost: Cost, begin: int) -> tuple[int, int]:
        """(first byte, last byte) of a transfer that may begin at `begin`."""
        classes = self._free[min(cost.priority, len(self._free) - 1) :]
        free, transfer = classes[0], cost.transfer
        engines = self._engines(cost, free)
        starts = [
            free[engine] if free[engine] > begin + stagger else begin + stagger
            for engine, stagger in zip(engines, self._staggers, strict=False)
        ]
        for lower in classes:
            for engine, start in zip(engines, starts, strict=True):
                lower[engine] = max(lower[engine], start) + transfer
        return min(starts), max(starts) + transfer

    def _engines(self, cost: Cost, free: list[int]) -> Sequence[int]:
        count, first = cost.dma_engines, cost.first_engine
        if first == ANY_ENGINE:
            return sorted(self._every, key=free.__getitem__)[:count]
        return self._every[first : first + count]

    def state(self, now: int) -> tuple[tuple[int, ...], ...]:
        """Free times relative to `now`, before which nothing can begin."""
        return tuple(tuple(max(0, lane - now) for lane in free) for free in self._free)

    def shift(self, ps: int) -> None:
        """As if everything had happened `ps` later."""
        for free in self._free:
            free[:] = [lane + ps for lane in free]


class Hbm:
    """One HBM stack: its traffic runs at its rate at most."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = 0

    def take(self, ps: int, begin: int) -> int:
        """When traffic that needs `ps` and may begin at `begin` is done."""
        self._free = max(self._free, begin) + ps
        return self._free

    def state(self, now: int) -> int:
        """Relative to `now`, before which nothing can begin."""
        return max(0, self._free - now)

    def shift(self, ps: int) -> None:
        """As if everything had happened `ps` later."""
        self._free += ps
