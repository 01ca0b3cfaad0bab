"""Unordered access to shared HBM by the programs of a launch, found with vector clocks.

Within a program order holds. Between programs it holds through meetings alone (`core_barrier`,
`sendrecv`), which order everything before with everything after, for all tensors. Two accesses to
one element, at least one of them a write, that no meeting orders are the finding, whatever order
the simulator ran them in. Elements are compared exactly, so interleaved halves are no conflict.
Accesses at addresses that only values decide are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType

from trnx.simulator.checks.findings import Findings
from trnx.simulator.coverage import Coverage, Covered
from trnx.simulator.errors import Location, UnorderedAccessError
from trnx.simulator.storage import Storage
from trnx.simulator.tensor import NkiTensor
from trnx.simulator.views import has_overlap

Line = tuple[CodeType, int]


@dataclass
class _Segment:
    """What one program did to one storage between two of its meetings, by element."""

    epoch: int
    read: Coverage
    written: Coverage
    accesses: list[tuple[NkiTensor, bool, Line]] = field(default_factory=list)


class Ordering:
    """Clocks of the programs, and their accesses that something may still conflict with."""

    def __init__(self, programs: int, findings: Findings) -> None:
        self._findings = findings
        self._clocks = [[int(i == j) for j in range(programs)] for i in range(programs)]
        self._segments: dict[tuple[Storage, int], list[_Segment]] = {}

    def meet(self, parties: frozenset[int]) -> None:
        """All of `parties` wait for each other here."""
        joined = [max(self._clocks[p][i] for p in parties) for i in range(len(self._clocks))]
        for party in parties:
            self._clocks[party] = list(joined)
            self._clocks[party][party] += 1

    def access(
        self, program: int, opcode: str, tensor: NkiTensor, is_write: bool, line: Line
    ) -> None:
        """`program` uses `tensor`; reports a conflict with another program."""
        if tensor.indirection is not None:
            return
        for other in range(len(self._clocks)):
            if other != program:
                self._compare(program, other, opcode, tensor, is_write, line)
        segment = self._segment(tensor.storage, program)
        (segment.written if is_write else segment.read).mark(tensor)
        segment.accesses.append((tensor, is_write, line))

    def _segment(self, storage: Storage, program: int) -> _Segment:
        segments = self._segments.setdefault((storage, program), [])
        epoch = self._clocks[program][program]
        if not segments or segments[-1].epoch != epoch:
            known = min(c[program] for i, c in enumerate(self._clocks) if i != program)
            segments[:] = [segment for segment in segments if segment.epoch > known]
            size, granule = storage.nbytes, storage.dtype.itemsize
            segments.append(_Segment(epoch, Coverage(size, granule), Coverage(size, granule)))
        return segments[-1]

    def _compare(
        self, program: int, other: int, opcode: str, tensor: NkiTensor, is_write: bool, line: Line
    ) -> None:
        for segment in self._segments.get((tensor.storage, other), ()):
            if segment.epoch <= self._clocks[program][other]:
                continue
            if _touches(segment.written, tensor) or (is_write and _touches(segment.read, tensor)):
                self._report(program, other, opcode, segment, tensor, is_write, line)

    def _report(
        self,
        program: int,
        other: int,
        opcode: str,
        segment: _Segment,
        tensor: NkiTensor,
        is_write: bool,
        line: Line,
    ) -> None:
        theirs = [
            (wrote, _location(where))
            for known, wrote, where in segment.accesses
            if (wrote or is_write) and has_overlap(known, tensor)
        ]
        wrote, where = theirs[-1]
        self._findings.report(
            UnorderedAccessError(
                "shared-hbm-order",
                f"{opcode}: program {program} {'writes' if is_write else 'reads'} "
                f"{tensor.describe()}, which program {other} {'writes' if wrote else 'reads'} at "
                f"{where} with nothing that orders the two; put nisa.core_barrier between them",
                _location(line),
            )
        )


def _touches(coverage: Coverage, tensor: NkiTensor) -> bool:
    return not coverage.is_empty and coverage.state(tensor) is not Covered.NONE


def _location(line: Line) -> Location:
    code, number = line
    return Location(code.co_filename, number, code.co_name)
