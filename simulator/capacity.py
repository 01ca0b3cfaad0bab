"""Capacity of SBUF and PSUM by liveness: from a tensor's first use to its last in program order.

The compiler places tensors that have no address; the simulator asks whether what is live at once
fits. PSUM tiles do not straddle banks, so a tile of more than half a bank counts as whole banks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trnx.simulator.context import kernel_location
from trnx.simulator.errors import CapacityError, IllegalInstructionError, Location
from trnx.simulator.hardware import Hardware
from trnx.simulator.storage import Allocation, MemoryRegion

if TYPE_CHECKING:
    from trnx.simulator.loops import LoopRecord


def check_address(
    hardware: Hardware,
    buffer: MemoryRegion,
    partitions: int,
    nbytes: int,
    address: tuple[int, int] | None,
) -> None:
    """A given address must lie in the buffer, in PSUM at a bank's start; bytes per partition."""
    if address is None:
        return
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
    hardware: Hardware, allocations: Sequence[Allocation], loops: Iterable[LoopRecord]
) -> tuple[int, int]:
    """Most live bytes per partition of SBUF and of PSUM. Raises CapacityError where they do not
    fit.
    """
    spans = [(loop.first, loop.last) for loop in loops]
    result = []
    for buffer, limit in (
        (MemoryRegion.sbuf, hardware.sbuf_partition_bytes),
        (MemoryRegion.psum, hardware.psum_partition_bytes),
    ):
        used = [a for a in allocations if a.buffer is buffer and a.first >= 0]
        peak, at = _peak(used, spans, buffer, hardware)
        if peak > limit:
            _raise(buffer, peak, limit, [a for a in used if a.first <= at <= a.last])
        result.append(peak)
    return result[0], result[1]


def _peak(
    allocations: Sequence[Allocation],
    loops: Sequence[tuple[int, int]],
    buffer: MemoryRegion,
    hardware: Hardware,
) -> tuple[int, int]:
    """(bytes, instruction) of the peak."""
    events: list[tuple[int, int, int]] = []
    for allocation in allocations:
        first, last = _lifetime(allocation, loops)
        size = allocation.bytes
        if buffer is MemoryRegion.psum and size > hardware.psum_bank_bytes // 2:
            size = -(-size // hardware.psum_bank_bytes) * hardware.psum_bank_bytes
        # A tensor that dies at an instruction and one born there are live together.
        events.append((first, 0, size))
        events.append((last, 1, -size))
    live = peak = at = 0
    for index, _, change in sorted(events):
        live += change
        if live > peak:
            peak, at = live, index
    return peak, at


def _lifetime(allocation: Allocation, loops: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """A tensor from before a loop that its body uses lives to the loop's end: it is used again."""
    first, last = allocation.first, allocation.last
    for begin, end in loops:
        if first < begin <= last < end:
            last = end - 1
    return first, last


def _raise(buffer: MemoryRegion, peak: int, limit: int, live: Sequence[Allocation]) -> None:
    largest = sorted(live, key=lambda a: -a.bytes)[:5]
    where = [f"{a.bytes} bytes {a.name or 'tensor'} of {_location(a)}" for a in largest]
    raise CapacityError(
        "capacity",
        f"{peak} bytes per partition of {buffer.value} are live at once, but there are {limit}; "
        f"use smaller tiles or let tensors die earlier. Largest: {'; '.join(where)}",
        _location(largest[0]) if largest else None,
    )


def _location(allocation: Allocation) -> Location | None:
    if allocation.line is None:
        return None
    code, line = allocation.line
    return Location(code.co_filename, line, code.co_name)
