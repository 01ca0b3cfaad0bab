"""`Timeline`: a schedule with the rows that it schedules; what traces and plots read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from trnx.simulator.errors import Location
from trnx.simulator.hardware import Hardware
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.timing.schedule import MemoryStep, Schedule, Wait, queue_name

_REGIONS = (MemoryRegion.sbuf, MemoryRegion.psum)


class Waiting(NamedTuple):
    """A queue waits from `start` to `end` (ps) before `position` for `cause` (-1: unknown)."""

    position: int
    queue: int
    start: int
    end: int
    cause: int
    reason: int


@dataclass(frozen=True)
class Timeline:
    """A scheduled kernel. Positions are those of the schedule."""

    rows: InstructionTable
    schedule: Schedule
    chip: Hardware

    @cached_property
    def _opcodes(self) -> tuple[str, ...]:
        return self.rows.opcodes()

    @cached_property
    def _locations(self) -> tuple[Location, ...]:
        return self.rows.locations()

    @cached_property
    def matmul_flops(self) -> int:
        """FLOPs of matrix products, trips of loops counted."""
        flops = np.frombuffer(self.rows.flops, np.uint64)
        order = np.frombuffer(self.schedule.order, np.uint32)
        return int(flops[order].sum()) if len(order) else 0

    @cached_property
    def memory(self) -> tuple[MemoryStep, ...]:
        """Live bytes per partition over predicted time, of each core and region."""
        return tuple(self.schedule.memory())

    def opcode(self, position: int) -> str:
        """The instruction's name."""
        return self._opcodes[self.rows.opcode[self.schedule.order[position]]]

    def location(self, position: int) -> Location:
        """The kernel's source line."""
        return self._locations[self.rows.line[self.schedule.order[position]]]

    def peak_bytes(self) -> dict[MemoryRegion, int]:
        """Most bytes per partition that are live at once, of the fullest core."""
        return {
            region: max((s.bytes_per_partition for s in self.memory if s.region is region),
                        default=0)
            for region in _REGIONS
        }  # fmt: skip

    def memory_of(self, core: int, region: MemoryRegion) -> tuple[list[int], list[int]]:
        """(ps, bytes per partition) of one core's region, as steps that begin at 0."""
        steps = [s for s in self.memory if s.core == core and s.region is region]
        return [0, *(s.ps for s in steps)], [0, *(s.bytes_per_partition for s in steps)]

    def peaks_over_time(self, core: int, region: MemoryRegion, parts: int) -> list[int]:
        """The most live bytes per partition within each of `parts` equal stretches of time."""
        times, values = self.memory_of(core, region)
        total = self.schedule.total_ps
        peaks = [0] * parts
        if not total:
            return peaks
        for (start, end), value in zip(itertools.pairwise([*times, total]), values, strict=True):
            first = min(parts - 1, start * parts // total)
            last = max(first, min(parts - 1, (end * parts - 1) // total))
            for part in range(first, last + 1):
                peaks[part] = max(peaks[part], value)
        return peaks

    def waits(self) -> Iterator[Waiting]:
        """Every stretch in which a queue waits, in the order of positions."""
        schedule = self.schedule
        free: dict[int, int] = {}
        for position, queue in enumerate(schedule.queue):
            before = free.get(queue, 0)
            start = schedule.start[position]
            if start > before:
                yield Waiting(
                    position, queue, before, start, schedule.cause[position],
                    schedule.reason[position],
                )  # fmt: skip
            free[queue] = schedule.free[position]


def wait_name(reason: int, other: int, has_cores: bool) -> str:
    """What a queue waits for: the other queue, and why where it is not for its results."""
    name = queue_name(other, has_cores)
    return name if reason in (Wait.none, Wait.data) else f"{name} ({Wait(reason).name})"
