"""`Schedule`: what the scheduler found out, as columns over the executed instructions.

A position is one executed instruction: rows of the Program with register loops unrolled, and with
the streams of two cores interleaved. Times are integer picoseconds from the start of the kernel.
The columns are complete also where repetition was skipped.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trnx.simulator.costs.cost import COUNT, QUEUES, Cost
from trnx.simulator.memory.storage import MemoryRegion


class Wait(IntEnum):
    """Why an instruction started later than its queue allowed."""

    none = 0
    data = 1  # `cause` produces what it needs, or still uses what it overwrites
    memory = 2  # `cause` still uses the SBUF or PSUM space that it takes over
    port = 3  # another engine holds the port, bus or PSUM bank
    partner = 4  # the other core


class MemoryStep(NamedTuple):
    """Bytes per partition that are live from `ps` on."""

    ps: int
    core: int
    region: MemoryRegion
    bytes_per_partition: int


class Lifetime(NamedTuple):
    """An on-chip tensor: its size, the position that first uses it, the last of each queue."""

    core: int
    region: MemoryRegion
    bytes_per_partition: int
    first: int
    last: tuple[int, ...]


class Changed(NamedTuple):
    """Numbers of the source lines whose instructions the compiler's passes changed: copies that are
    not made, tiles that get copies of their own.
    """

    copies: tuple[int, ...] = ()
    rewritten: tuple[int, ...] = ()


def queue_name(queue: int, has_cores: bool) -> str:
    """ "tensor", or "core 1 tensor" where there are several cores."""
    core, index = divmod(queue, COUNT)
    return f"core {core} {QUEUES[index]}" if has_cores else QUEUES[index]


def _times(count: int) -> array[int]:
    return array("q", [-1]) * count


@dataclass
class Schedule:
    """When each position starts (`start`), frees its queue (`free`) and when its results can be
    seen (`visible`); for a DMA also its first and last byte (`begin`, `last`; -1 for others).

    `cause` is the position that it waited for last (-1: none), `reason` a `Wait`. `queue` is
    core * 8 + the index in QUEUES. `skipped` counts positions that were not simulated one by one;
    `assumptions` names what the prediction takes for granted, `changed` the source lines that the
    compiler is taken to change.
    """

    order: array[int]
    queue: array[int]
    costs: Sequence[Cost]
    cost_of: array[int]
    lifetimes: Sequence[Lifetime] = ()
    assumptions: tuple[str, ...] = ()
    changed: Changed = field(default_factory=Changed)
    throttled_ps: int = 0
    skipped: int = 0
    start: array[int] = field(init=False)
    free: array[int] = field(init=False)
    visible: array[int] = field(init=False)
    begin: array[int] = field(init=False)
    last: array[int] = field(init=False)
    cause: array[int] = field(init=False)
    reason: array[int] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.order)
        self.start, self.free, self.visible = _times(count), _times(count), _times(count)
        self.begin, self.last = _times(count), _times(count)
        self.cause = array("i", [-1]) * count
        self.reason = array("B", [0]) * count

    @property
    def is_exact(self) -> bool:
        """False where something is assumed that only a run knows."""
        return not self.assumptions

    @property
    def total_ps(self) -> int:
        """When the last result is visible."""
        return int(np.frombuffer(self.visible, np.int64).max()) if self.visible else 0

    @property
    def cores(self) -> tuple[int, ...]:
        """The cores that have instructions."""
        return tuple(sorted({q // COUNT for q in set(self.queue)})) or (0,)

    def cost(self, position: int) -> Cost:
        """What the instruction costs by itself."""
        return self.costs[self.cost_of[position]]

    def _sum(self, values: Sequence[int]) -> int:
        counts = np.bincount(np.frombuffer(self.cost_of, np.uint32), minlength=len(self.costs))
        return sum(int(n) * value for n, value in zip(counts, values, strict=True))

    @property
    def hbm_bytes(self) -> int:
        """Bytes read from and written to HBM."""
        return self._sum([cost.hbm_bytes for cost in self.costs]) if self.order else 0

    @property
    def dma_bytes(self) -> int:
        """Bytes moved by DMA."""
        return self._sum([cost.dma_bytes for cost in self.costs]) if self.order else 0

    @property
    def dma_busy_ps(self) -> int:
        """Time in which DMA engines move data, summed over engines."""
        return self._sum([c.dma_engines * c.transfer for c in self.costs]) if self.order else 0

    def positions(self, queue: int) -> npt.NDArray[np.int64]:
        """The positions of a queue, in its order."""
        return np.nonzero(np.frombuffer(self.queue, np.uint16) == queue)[0]

    @property
    def busy_ps(self) -> dict[int, int]:
        """Time in which each queue is taken."""
        start, free = np.frombuffer(self.start, np.int64), np.frombuffer(self.free, np.int64)
        return {
            q: int((free[at] - start[at]).sum())
            for q in sorted(set(self.queue))
            for at in (self.positions(q),)
        }

    @property
    def stalled_ps(self) -> dict[int, dict[tuple[Wait, int], int]]:
        """Time in which each queue waits, by reason and the queue that it waits for."""
        found: dict[int, dict[tuple[Wait, int], int]] = {}
        if not self.order:
            return found
        start, free = np.frombuffer(self.start, np.int64), np.frombuffer(self.free, np.int64)
        reason = np.frombuffer(self.reason, np.uint8)
        cause = np.frombuffer(self.cause, np.int32)
        other = np.frombuffer(self.queue, np.uint16)
        for q in sorted(set(self.queue)):
            at = self.positions(q)
            waits = start[at] - np.concatenate(([0], free[at][:-1]))
            late = waits > 0
            at, waits = at[late], waits[late]
            causes = np.where(cause[at] >= 0, other[cause[at]], q)
            keys = reason[at].astype(np.int64) * 65536 + causes
            found[q] = {
                (Wait(int(key) // 65536), int(key) % 65536): int(waits[keys == key].sum())
                for key in np.unique(keys)
            }
        return found

    def critical_path(self) -> list[tuple[int, int]]:
        """(position, until when it holds things up), from the end back to the start: each time to
        what it waited for last. The differences add up to the total.
        """
        if not self.order:
            return []
        position = int(np.frombuffer(self.visible, np.int64).argmax())
        until, path = self.total_ps, []
        while position >= 0:
            path.append((position, until))
            until = self.start[position]
            position = self.cause[position]
        return path

    def memory(self) -> list[MemoryStep]:
        """Live bytes per partition over predicted time, of each core and region; a tensor lives
        from its first instruction's start until the last one is done.
        """
        changes: dict[tuple[int, MemoryRegion, int], int] = {}
        for core, region, size, first, last in self.lifetimes:
            until = max(self.visible[position] for position in last)
            for ps, change in ((self.start[first], size), (until, -size)):
                changes[core, region, ps] = changes.get((core, region, ps), 0) + change
        live: dict[tuple[int, MemoryRegion], int] = {}
        steps = []
        for core, region, ps in sorted(changes, key=lambda key: (key[2], key[0], key[1].value)):
            place = core, region
            live[place] = live.get(place, 0) + changes[core, region, ps]
            steps.append(MemoryStep(ps, core, region, live[place]))
        return steps
