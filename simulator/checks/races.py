"""Unordered access to shared HBM by the programs of a launch, found with vector clocks.

Within a program order holds. Between programs it holds through rendezvous alone (`core_barrier`,
`sendrecv`). Two accesses to one element, at least one of them a write, that no rendezvous orders
are the finding, whatever order the simulator ran them in. Elements are compared exactly, so
interleaved halves are no conflict. In runs with values, accesses at addresses that values decide
are compared, and register loops turn by turn; without values, the first turn of a loop is.

The reference gives `core_barrier` a tensor, "the shared data that all cores need to synchronize
on", and does not say whether other tensors are in order as well: what only barriers on other
tensors order is a warning. A barrier on a tile on chip, and `sendrecv`, order everything here.

Programs that compute the same, each for itself, may store it at the same place (kernels that do not
use `program_id` do, launched twice): a store of the same elements at the same line by both is no
conflict if the same values are there when the second program comes to its next rendezvous or its
end (it may fill first and scatter then); without values it is taken for one. What a program reads
of its own stores is not compared, as the stores were; what it stored at addresses that are not
known may be anything it reads of that tensor (the dynamic_elementwise_add of nki-library's
experimental/dynamic_shapes reads back a result that both programs fill in a dynamic_range).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from trnx.simulator.errors import UnorderedAccessError
from trnx.simulator.findings import DISPUTED_ORDER, Findings
from trnx.simulator.kernel_lines import Line, location_of
from trnx.simulator.language.hbm_shadow import Covered, HbmShadow
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.language.tensor_view import has_overlap
from trnx.simulator.memory.storage import MemoryRegion, Storage
from trnx.simulator.program.loops import Loops
from trnx.simulator.program.observer import Observer, Recorded

# Segments that barriers on other tensors alone order: the oldest are forgotten.
_KEPT = 32


class _Access(NamedTuple):
    """What one program does to a region."""

    core: int
    name: str
    tensor: NkiTensor
    is_write: bool
    line: Line

    @property
    def verb(self) -> str:
        return "writes" if self.is_write else "reads"


@dataclass
class _Segment:
    """What one program did to one storage between two of its rendezvous, by element."""

    epoch: int
    read: HbmShadow
    written: HbmShadow
    accesses: list[_Access] = field(default_factory=list)
    # Regions in `accesses`: the turns of a loop are compared once where they are alike.
    seen: set[tuple[Hashable, bool, Line]] = field(default_factory=set)


@dataclass
class Unordered:
    """A write that no rendezvous orders after another program's access, and the finding that it is;
    `is_shared` where the other program made the same store, which then may change nothing.
    """

    tensor: NkiTensor
    finding: UnorderedAccessError
    is_shared: bool
    line: Line  # of the other program's access

    def is_as(self, content: torch.Tensor) -> bool:
        """True where the elements are what they are in `content`, a copy of the whole storage."""
        tensor = self.tensor
        before = content.view(tensor.dtype.torch).as_strided(
            tensor.shape, tensor.strides, tensor.offset
        )
        held = (
            t.clone(memory_format=torch.contiguous_format) for t in (before, tensor.torch_view())
        )
        return torch.equal(*(t.view(torch.uint8) for t in held))


class RaceDetector(Observer):
    """Clocks of the programs, and their accesses that something may still conflict with.

    With `values`, `turns` gives the loops of the running program where a register loop is open:
    what it does to shared HBM is compared turn by turn, when it runs.
    """

    def __init__(
        self, programs: int, findings: Findings, values: bool, turns: Callable[[], Loops | None]
    ) -> None:
        self._findings = findings
        self._values = values
        self._turns = turns
        self._clocks = [[int(i == j) for j in range(programs)] for i in range(programs)]
        self._segments: dict[tuple[Storage, int], list[_Segment]] = {}
        # What each rendezvous was about: one tensor's storage, or everything.
        self._rendezvous: list[Storage | None] = []
        self._warned: set[tuple[Line, Line]] = set()
        # Elements of which each program's own store was the last.
        self._own: dict[tuple[Storage, int], HbmShadow] = {}
        # Where a program stored at addresses that are not known: any element may be its own.
        self._own_unknown: set[tuple[Storage, int]] = set()
        # Stores that another program made too, and what that one had left in the storage.
        self._deferred: dict[Storage, tuple[torch.Tensor, list[Unordered]]] = {}
        # True once what was found depends on the values of this run.
        self.has_compared_values = False

    def on_instruction(self, instruction: Recorded) -> None:
        """Compare what it does to shared HBM with what other programs did."""
        core, name, line = instruction.core, instruction.name, instruction.line
        shared = [
            _Access(core, name, tensor, is_write, line)
            for tensor, is_write in instruction.operands
            if tensor.storage.buffer is MemoryRegion.shared_hbm
        ]
        if not shared:
            return
        loops = self._turns()
        if loops is not None:
            loops.watch(functools.partial(self._use, shared))
            return
        unordered: Unordered | None = None
        for access in shared:
            is_known = access.tensor.indirection is None or not self._values
            for region in [access] if is_known else _touched(access):
                unordered = self._access(region) or unordered
        if unordered is not None:
            self._judge(unordered)

    def _use(self, accesses: Sequence[_Access]) -> None:
        """An instruction of a register loop is about to run: its operands, at the addresses that
        they have in this turn.
        """
        self.has_compared_values = True
        for access in accesses:
            for region in _touched(access):
                if (write := self._access(region)) is not None:
                    self._judge(write)

    def _judge(self, write: Unordered) -> None:
        """A write that races with another program: a finding, unless both store the same."""
        if not write.is_shared:
            self._findings.report(write.finding)
        elif self._values:
            self.defer(write)

    def finish(self, core: int) -> None:
        """Judge what the programs stored twice."""
        del core
        self.resolve()

    def defer(self, write: Unordered) -> None:
        """The second of two programs is about to make the store that the first made."""
        self.has_compared_values = True
        storage = write.tensor.storage
        if storage not in self._deferred:
            whole = storage.view(storage.dtype, (storage.pitch,), (1,), 0)
            self._deferred[storage] = (whole.clone(), [])
        self._deferred[storage][1].append(write)

    def resolve(self) -> None:
        """Where programs meet or end, a store of both must have left the same values."""
        deferred, self._deferred = self._deferred, {}
        for content, writes in deferred.values():
            for write in writes:
                if not write.is_as(content):
                    self._findings.report(write.finding)

    def on_rendezvous(self, about: Storage | None) -> None:
        """What comes after is ordered after what came before."""
        self.resolve()
        self._rendezvous.append(about)
        joined = [max(clock[i] for clock in self._clocks) for i in range(len(self._clocks))]
        for program in range(len(self._clocks)):
            self._clocks[program] = list(joined)
            self._clocks[program][program] += 1

    def _access(self, access: _Access) -> Unordered | None:
        """Reports a read that conflicts with another program, and returns a write that does, to be
        judged when it was executed.
        """
        tensor, is_write = access.tensor, access.is_write
        key = (tensor.storage, access.core)
        if tensor.indirection is not None:
            if is_write:
                self._own_unknown.add(key)
            return None
        own = self._own.get(key)
        is_own = not is_write and (
            key in self._own_unknown or (own is not None and own.covers(tensor))
        )
        segment = self._segment(tensor.storage, access.core)
        same = (tensor.region_key(), is_write, access.line)
        if same in segment.seen:
            return None
        segment.seen.add(same)
        conflict = None if is_own else self._conflict(access)
        (segment.written if is_write else segment.read).mark(tensor)
        segment.accesses.append(access)
        if is_write:
            self._note_store(access.core, tensor, conflict is not None)
        elif conflict is not None:
            self._findings.report(conflict.finding)
            return None
        return conflict

    def _note_store(self, program: int, tensor: NkiTensor, is_same: bool) -> None:
        """`program` stores last; what others stored there before stays theirs if it is the same."""
        for other in range(len(self._clocks)):
            own = self._own.get((tensor.storage, other))
            if other != program and own is not None and not is_same and _touches(own, tensor):
                own.erase(tensor)
        mine = self._own.get((tensor.storage, program))
        if mine is None:
            storage = tensor.storage
            mine = HbmShadow(storage.nbytes)
            self._own[tensor.storage, program] = mine
        mine.mark(tensor)

    def _segment(self, storage: Storage, program: int) -> _Segment:
        segments = self._segments.setdefault((storage, program), [])
        epoch = self._clocks[program][program]
        if not segments or segments[-1].epoch != epoch:
            known = min(c[program] for i, c in enumerate(self._clocks) if i != program)
            segments[:] = [
                segment
                for segment in segments
                if segment.epoch > known or not self._is_ordered(segment, storage)
            ][-_KEPT:]
            size = storage.nbytes
            segments.append(_Segment(epoch, HbmShadow(size), HbmShadow(size)))
        return segments[-1]

    def _is_ordered(self, segment: _Segment, storage: Storage) -> bool:
        """True where a rendezvous about this storage, or about everything, came after."""
        return any(
            about is None or about is storage for about in self._rendezvous[segment.epoch - 1 :]
        )

    def _warn(self, access: _Access, other: int, segment: _Segment) -> None:
        """The two are ordered by barriers on other tensors alone."""
        if self._is_ordered(segment, access.tensor.storage):
            return
        found = _unordered(access, other, segment)
        key = (access.line, found.line)
        if found.is_shared or key in self._warned:
            return
        self._warned.add(key)
        self._findings.report(
            UnorderedAccessError(
                DISPUTED_ORDER,
                f"{access.name}: program {access.core} uses {access.tensor.describe()}, which "
                f"program {other} uses at {location_of(found.line)}; only barriers on other "
                "tensors lie between them. Pass this tensor to nisa.core_barrier",
                location_of(access.line),
            )
        )

    def _conflict(self, access: _Access) -> Unordered | None:
        tensor = access.tensor
        for other in range(len(self._clocks)):
            for segment in self._segments.get((tensor.storage, other), ()):
                if other == access.core or not (
                    _touches(segment.written, tensor)
                    or (access.is_write and _touches(segment.read, tensor))
                ):
                    continue
                if segment.epoch > self._clocks[access.core][other]:
                    return _unordered(access, other, segment)
                self._warn(access, other, segment)
        return None


def _unordered(access: _Access, other: int, segment: _Segment) -> Unordered:
    """The finding that `access` is, after those of program `other` in a segment."""
    tensor, line = access.tensor, access.line
    last = [
        known
        for known in segment.accesses
        if (known.is_write or access.is_write) and has_overlap(known.tensor, tensor)
    ][-1]
    finding = UnorderedAccessError(
        "shared-hbm-order",
        f"{access.name}: program {access.core} {access.verb} {tensor.describe()}, which program "
        f"{other} {last.verb} at {location_of(last.line)} with nothing that orders the two; put "
        "nisa.core_barrier between them",
        location_of(line),
    )
    is_shared = access.is_write and any(
        known.is_write and known.line == line and known.tensor.same_elements(tensor)
        for known in segment.accesses
    )
    return Unordered(tensor, finding, is_shared, last.line)


def _touched(access: _Access) -> list[_Access]:
    """The regions that an indirect view reaches, by the values that its index has now."""
    tensor = access.tensor
    indirect = tensor.indirection
    if indirect is None or indirect.base is not None:
        return [access]
    index = indirect.index
    values = index.torch_view() if isinstance(index, NkiTensor) else index.value
    rest = slice(1, None) if indirect.is_vector else slice(None)
    shape, strides = tensor.shape[rest] or (1,), tensor.strides[rest] or (1,)
    offsets = [
        tensor.offset + value * indirect.scale
        for value in sorted(set(values.reshape(-1).to(torch.int64).tolist()))
        if 0 <= value < indirect.limit
    ]
    storage, dtype, name = tensor.storage, tensor.dtype, tensor.name
    return [
        access._replace(tensor=NkiTensor(storage, dtype, shape, strides, offset, name))
        for offset in offsets
    ]


def _touches(coverage: HbmShadow, tensor: NkiTensor) -> bool:
    return not coverage.is_empty and coverage.state(tensor) is not Covered.NONE
