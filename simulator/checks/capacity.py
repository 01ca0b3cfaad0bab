"""Capacity of SBUF and PSUM by liveness: from a tensor's first use to its last in program order.

The compiler places tensors that have no address; the simulator asks whether what is live at once
fits. PSUM tiles do not straddle banks, so a tile of more than half a bank counts as whole banks.
Tensors with an address count by the bytes that they cover together.

What does not fit by the bytes of whole columns (all partitions at one address) is judged by how
tensors can share them: the compiler's allocator chooses the start partition, 0 or 64 for a tensor
of at most 64 partitions, 0, 32, 64 or 96 for one of at most 32 (SDK trainium_inferentia2_arch.rst),
so in SBUF these count as halves and quarters. RoPE of nki-library (core/embeddings) needs that.

The device's compiler may move instructions and spill to HBM (SDK memory-hierarchy-overview.rst), so
it takes some kernels that are refused here: nobody promises that it succeeds, and a spill is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trnx.simulator.checks.liveness import Allocation
from trnx.simulator.errors import CapacityError, IllegalInstructionError, Location
from trnx.simulator.findings import Findings
from trnx.simulator.hardware import Hardware
from trnx.simulator.kernel_lines import kernel_location, location_of
from trnx.simulator.memory.storage import MemoryRegion
from trnx.simulator.program.loops import LoopRecord

_MAP_ROWS = 16


def check_address(
    hardware: Hardware,
    buffer: MemoryRegion,
    partitions: int,
    nbytes: int,
    address: tuple[int, int],
) -> None:
    """An address must lie in the buffer, in PSUM at a bank's start; bytes per partition."""
    start, offset = address
    is_psum = buffer is MemoryRegion.psum
    limit = hardware.psum_partition_bytes if is_psum else hardware.sbuf_partition_bytes
    problem = ""
    if start < 0 or start + partitions > hardware.partitions:
        problem = f"partitions {start} to {start + partitions - 1} of {hardware.partitions}"
    elif offset < 0 or offset + nbytes > limit:
        problem = f"bytes {offset} to {offset + nbytes - 1} of {limit} per partition"
    elif is_psum and offset % hardware.psum_bank_bytes:
        problem = f"byte {offset}, which is not the start of a {hardware.psum_bank_bytes}-byte bank"
    if problem:
        raise IllegalInstructionError(
            "address", f"address {address} in {buffer.value}: {problem}", kernel_location()
        )


def peak_bytes(
    hardware: Hardware,
    allocations: Sequence[Allocation],
    loops: Iterable[LoopRecord],
    findings: Findings,
) -> tuple[int, int]:
    """Most live bytes per partition of SBUF and of PSUM; reports where they do not fit."""
    spans = [(loop.first, loop.last) for loop in loops]
    limits = (hardware.sbuf_partition_bytes, hardware.psum_partition_bytes)
    for is_shared in (False, True):
        used = {
            buffer: [
                _Use(a, *_lifetime(a, spans), _size(a, hardware, is_shared))
                for a in allocations
                if a.buffer is buffer and a.first >= 0
            ]
            for buffer in (MemoryRegion.sbuf, MemoryRegion.psum)
        }
        peaks = [_peak(uses) for uses in used.values()]
        full = [i for i, limit in enumerate(limits) if peaks[i][0] > limit]
        if not full:
            return peaks[0][0], peaks[1][0]
    for i in full:
        peak, at = peaks[i]
        buffer, uses = list(used.items())[i]
        live = [use for use in uses if use.is_live(at)]
        findings.report(_finding(buffer, peak, limits[i], live))
    return peaks[0][0], peaks[1][0]


@dataclass(slots=True)  # not frozen, which would take three times as long to make
class _Use:
    """A tensor with its life (first and last instruction) and bytes per partition."""

    allocation: Allocation
    first: int
    last: int
    size: int

    def is_live(self, at: int) -> bool:
        return self.first <= at <= self.last


def _size(allocation: Allocation, hardware: Hardware, is_shared: bool) -> int:
    """Bytes per partition: of whole columns, or (`is_shared`) a part of those that others share."""
    bank = hardware.psum_bank_bytes
    if allocation.buffer is MemoryRegion.psum:
        is_whole = allocation.bytes > bank // 2
        return -(-allocation.bytes // bank) * bank if is_whole else allocation.bytes
    if not is_shared or allocation.address is not None:
        return allocation.bytes
    parts = 4 if allocation.partitions <= 32 else 2 if allocation.partitions <= 64 else 1
    return -(-allocation.bytes // parts)


def _peak(uses: Sequence[_Use]) -> tuple[int, int]:
    """(bytes, instruction) of the peak: automatic tensors added, manual ones by what they cover."""
    events: list[tuple[int, int, int]] = []
    for number, use in enumerate(uses):
        # A tensor that dies at an instruction and one born there are live together.
        events.append((use.first, 0, number))
        events.append((use.last, 1, number))
    automatic = peak = at = 0
    placed = _Union([_span(use) for use in uses if use.allocation.address is not None])
    for index, is_end, number in sorted(events):
        use = uses[number]
        if use.allocation.address is None:
            automatic += -use.size if is_end else use.size
        else:
            placed.change(_span(use), -1 if is_end else 1)
        if automatic + placed.size > peak:
            peak, at = automatic + placed.size, index
    return peak, at


def _span(use: _Use) -> tuple[int, int]:
    """First and end byte of a tensor with an address."""
    assert use.allocation.address is not None
    start = use.allocation.address[1]
    return start, start + use.size


class _Union:
    """Bytes (`size`) that spans cover together, while they come and go: how often each piece
    between two of their edges is covered.
    """

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        edges = sorted({edge for span in spans for edge in span})
        self._piece = {edge: piece for piece, edge in enumerate(edges)}
        self._lengths = np.diff(np.array(edges, np.int64))
        self._covers = np.zeros(len(self._lengths), np.int64)
        self.size = 0

    def change(self, span: tuple[int, int], by: int) -> None:
        """One comes (1) or goes (-1)."""
        pieces = slice(self._piece[span[0]], self._piece[span[1]])
        covers = self._covers[pieces]
        changed = covers == (0 if by > 0 else 1)
        self.size += by * int(self._lengths[pieces][changed].sum())
        covers += by


def _lifetime(allocation: Allocation, loops: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """A tensor from before a loop that its body uses lives to the loop's end: it is used again."""
    first, last = allocation.first, allocation.last
    for begin, end in loops:
        if first < begin <= last < end:
            last = end - 1
    return first, last


def _finding(buffer: MemoryRegion, peak: int, limit: int, live: Sequence[_Use]) -> CapacityError:
    """With a map of what is live; the line is that of the tensor that came last."""
    rows = [
        f"\n  {use.size:>8} bytes  instructions {use.first} to {use.last}  "
        f"{use.allocation.name or 'tensor'} of {_location(use.allocation)}"
        for use in sorted(live, key=lambda use: -use.size)
    ]
    more = f"\n  and {len(rows) - _MAP_ROWS} more" if len(rows) > _MAP_ROWS else ""
    so = ""
    if any(use.size < use.allocation.bytes for use in live):
        so = " (those of at most 64 or 32 partitions counted as halves or quarters)"
    return CapacityError(
        "capacity",
        f"{peak} bytes per partition of {buffer.value} are live at once{so}, but there are {limit};"
        f" use smaller tiles or let tensors die earlier. Live, largest first:"
        f"{''.join(rows[:_MAP_ROWS])}{more}",
        _location(max(live, key=lambda use: use.first).allocation),
    )


def _location(allocation: Allocation) -> Location | None:
    return None if allocation.line is None else location_of(allocation.line)
