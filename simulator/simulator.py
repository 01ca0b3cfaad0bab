"""`Simulator`: the state of one trace. Nothing is global; an exception leaves nothing to reset."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from trnx.simulator.capacity import check_address, peak_bytes
from trnx.simulator.checks.findings import Findings
from trnx.simulator.checks.ordering import Ordering, Unordered, touched
from trnx.simulator.checks.overlap import Place, overwrite
from trnx.simulator.checks.undefined import carry
from trnx.simulator.context import (
    Recorded,
    kernel_line,
    kernel_location,
    observer_or_none,
    stores_float32,
)
from trnx.simulator.cores import Core, Cores
from trnx.simulator.coverage import Covered
from trnx.simulator.dtypes import DType, resolve
from trnx.simulator.errors import (
    IllegalInstructionError,
    UninitialisedReadError,
)
from trnx.simulator.hardware import Hardware
from trnx.simulator.isa.enums import Engine
from trnx.simulator.layouts import Layout, Layouts
from trnx.simulator.loops import Loops
from trnx.simulator.pool import BufferPool
from trnx.simulator.program import Step, Totals
from trnx.simulator.ranks import SINGLE, Rank
from trnx.simulator.rows import Rows
from trnx.simulator.spec import TensorSpec
from trnx.simulator.storage import ON_CHIP, Allocation, MemoryRegion, Slot, Storage, poison
from trnx.simulator.tensor import NkiTensor
from trnx.simulator.views import last_element

if TYPE_CHECKING:
    from trnx.simulator.isa.instruction import Emit


_ENGINE_NAMES = {engine: engine.name for engine in Engine}


class Simulator:
    """Records one kernel for `hardware`; `values` says whether steps run as they are recorded."""

    def __init__(
        self,
        hardware: Hardware,
        grid: tuple[int, ...] = (),
        values: bool = False,
        findings: Findings | None = None,
        rank: Rank = SINGLE,
    ) -> None:
        self.hardware = hardware
        self.findings = findings or Findings()
        self.rank = rank
        self.grid = grid
        self.values = values
        # True at the Python prompt; see the module `session`.
        self.is_interactive = False
        self._observer = observer_or_none()
        self._stores_float32 = stores_float32()
        self.pool = BufferPool()
        self.rows = Rows()
        self.steps: list[Step] = []
        self.matmul_flops = 0
        self.hbm_bytes = 0
        self._storages = 0
        self._layouts = Layouts(hardware)
        self._state: dict[str, torch.Tensor] = {}
        self._prologue: list[Step] = []
        self._steps_by_key: dict[tuple[Any, ...], Step] = {}
        self._derived: dict[tuple[Any, int], tuple[torch.Tensor, Any]] = {}
        # Shared HBM by order of allocation; every program of the grid gets the same tensors.
        self._shared: list[NkiTensor] = []
        self._peaks = (0, 0)
        # Identity matrices of `nl.shared_identity_matrix`, by size and dtype.
        self.identities: dict[tuple[int, str], NkiTensor] = {}
        self.cores = Cores(self, math.prod(grid))
        programs = math.prod(grid)
        self.ordering = Ordering(programs, self.findings) if programs > 1 else None
        # The program of the grid that is running.
        self.core = Core(self, 0)

    @property
    def loops(self) -> Loops:
        """Loops of the running program."""
        return self.core.loops

    # ---- tensors ----

    def argument(
        self,
        spec: TensorSpec,
        tensor: torch.Tensor | None,
        kind: DType | None = None,
        is_borrowed: bool = False,
    ) -> NkiTensor:
        """An HBM tensor for an argument: int64 as int32 pairs, bool as uint8; see the module
        `tracing`. `kind` is the NKI type where torch has none. Borrowed memory stays as it is.
        """
        shape, strides, dtype = kernel_layout(spec)
        dtype = kind or dtype
        span = last_element(shape, strides) + 1 if spec.numel else 0
        if tensor is None:
            # Addresses without content: the pages are never touched.
            tensor = torch.empty(span, dtype=dtype.torch, device="cpu")
        slot = Slot(tensor.detach(), is_borrowed)
        storage = self._in_hbm(dtype, span, slot)
        view = NkiTensor(storage, dtype, shape, strides)
        storage.written.full = True
        return view

    def allocate(
        self,
        shape: Sequence[int],
        dtype: Any,
        buffer: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
    ) -> NkiTensor:
        """`nl.ndarray`: a new tensor with unknown content."""
        kind = resolve(dtype)
        if self._stores_float32 and kind.is_float:
            kind = resolve("float32")
        layout = self._layouts.layout(shape, kind, buffer)
        if buffer is MemoryRegion.shared_hbm:
            return self._shared_tensor(layout, kind, name)
        allocation = place = None
        if buffer in ON_CHIP:
            line = kernel_line(sys._getframe(1))
            allocation = Allocation(
                buffer, layout.partitions, layout.row_bytes, name, address, line
            )
            self.core.allocations.append(allocation)
            if address is not None:
                place = self._place(buffer, address, layout)
        storage = Storage(
            self._next_index(),
            buffer,
            kind,
            layout.partitions,
            layout.pitch,
            name,
            self.pool,
            None,
            allocation,
            place,
        )
        if self.values:
            storage.poison()
        return NkiTensor(storage, kind, layout.shape, layout.strides, 0, name)

    def _next_index(self) -> int:
        self._storages += 1
        return self._storages - 1

    def _place(self, buffer: MemoryRegion, address: tuple[int, int], layout: Layout) -> Place:
        check_address(self.hardware, buffer, layout.partitions, layout.row_bytes, address)
        return self.core.manual.place(buffer, address, layout.partitions, layout.row_bytes)

    def _shared_tensor(self, layout: Layout, dtype: DType, name: str) -> NkiTensor:
        if self.core.shared_next < len(self._shared):
            tensor = self._shared[self.core.shared_next]
            if tensor.shape != layout.shape or tensor.dtype != dtype:
                self.illegal("programs of one grid allocate different tensors in shared HBM")
        else:
            memory = torch.empty(layout.shape, dtype=dtype.torch, device="cpu")
            if self.values:
                # A loop that makes no turn writes nothing: what it was to write is NaN, not chance.
                poison(memory, dtype.is_float)
            storage = self._in_hbm(dtype, layout.pitch, Slot(memory), name)
            tensor = NkiTensor(storage, dtype, layout.shape, layout.strides, 0, name)
            self._shared.append(tensor)
        self.core.shared_next += 1
        return tensor

    def _in_hbm(self, dtype: DType, size: int, slot: Slot, name: str = "") -> Storage:
        """Memory of the caller."""
        index = self._next_index()
        return Storage(index, MemoryRegion.shared_hbm, dtype, 1, size, name, None, slot)

    def engine_state(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """State of an engine that lives across instructions; every run starts with zeros."""
        own = f"{key} of core {self.core.index}"
        state = self._state.get(own)
        if state is None:
            state = self._state[own] = torch.zeros(shape, dtype=dtype, device="cpu")
            self._prologue.append(state.zero_)
        return state

    def values_of(self, tensor: NkiTensor) -> torch.Tensor:
        """The values that a tensor has now, as stored; for the Python prompt."""
        if not tensor.storage.written.covers(tensor):
            raise UninitialisedReadError(
                "uninitialised-read",
                f"{tensor.describe()} has elements that nothing has written",
                kernel_location(),
            )
        return tensor.torch_view()

    # ---- recording ----

    def record(self, emit: Emit, operands: list[tuple[NkiTensor, bool]]) -> int:
        """Append one instruction; executes its steps when the trace has values."""
        index, core, ordering = len(self.rows), self.core.index, self.ordering
        engine = _ENGINE_NAMES[emit.engine]
        line = emit.line
        assert line is not None
        unordered: Unordered | None = None
        shared: list[tuple[NkiTensor, bool]] = []
        for tensor, is_write in operands:
            storage = tensor.storage
            if ordering is not None and storage.buffer is MemoryRegion.shared_hbm:
                if self.compares_turns:
                    shared.append((tensor, is_write))
                for region in self._known_regions(tensor):
                    found = ordering.access(core, emit.name, region, is_write, line)
                    unordered = found or unordered
            if is_write:
                storage.writes += 1
                if storage.place is not None:
                    overwrite(tensor)
                if storage.buffer is MemoryRegion.psum and not storage.matmul.is_empty:
                    _keep_groups(tensor, emit.engine is Engine.tensor)
                if tensor.indirection is not None:
                    storage.written.mark_everything()
                else:
                    storage.written.mark(tensor)
                if storage.slot is not None and not storage.slot.is_written:
                    storage.slot.begin_writing()
            if storage.allocation is not None:
                storage.allocation.last = index
                if storage.allocation.first < 0:
                    storage.allocation.first = index
        if self._observer is not None:
            self._observer(Recorded(index, core, emit.name, engine, operands, line))
        if emit.missing:
            carry(emit.propagation, emit.missing, operands, self.findings)
        if shared:
            assert ordering is not None
            use = functools.partial(ordering.use, core, emit.name, shared, line)
            self.loops.watch(use)
        if unordered is None:
            self.append_steps(emit.steps)
        else:
            self._append_unordered(emit.steps, unordered)
        self.rows.append(
            emit.spec,
            emit.name,
            engine,
            line,
            operands,
            len(self.steps),
            core,
            emit.attributes,
            emit.flops,
        )
        self.matmul_flops += emit.flops
        self.hbm_bytes += emit.hbm_bytes
        return index

    def _known_regions(self, tensor: NkiTensor) -> list[NkiTensor]:
        """What an operand reaches, as far as it is known now; nothing where each turn of a loop
        is compared.
        """
        if self.compares_turns:
            return []
        if tensor.indirection is not None and self.values:
            return touched(tensor)
        return [tensor]

    def _append_unordered(self, steps: list[Step], write: Unordered) -> None:
        """Record a write that races with another program: a finding, unless both store the same."""
        assert self.ordering is not None
        if write.is_shared and self.values:
            self.ordering.doubt(write)
            self.append_steps(steps)
            return
        self.append_steps(steps)
        if not write.is_shared:
            self.findings.report(write.finding)

    def append_steps(self, steps: Iterable[Step]) -> None:
        """Record steps; with values, outside of loops, execute them.

        A step that was recorded before with the same function and operands is recorded again: the
        turns of a kernel's loop repeat most of their steps.
        """
        shared: list[Step] = []
        for step in steps:
            if type(step) is functools.partial:
                key, named = (step.func, *map(id, step.args)), step.keywords
                if named:
                    key = (*key, *named, *map(id, named.values()))
                step = self._steps_by_key.setdefault(key, step)
            shared.append(step)
        if self.core.loops.depth:
            self.core.loops.extend(shared)
            return
        self.steps.extend(shared)
        if self.values:
            for step in shared:
                step()

    @property
    def compares_turns(self) -> bool:
        """True in a register loop that runs when it is complete, with other programs beside it:
        what it does to shared HBM is compared then, turn by turn.
        """
        return self.ordering is not None and self.values and self.loops.depth > 0

    @property
    def keeps_copies(self) -> bool:
        """True where every write to a tensor on chip between two steps of its program is known: no
        loop, no other rank. Another program of the grid writes there in `sendrecv` alone, which
        both record.
        """
        return self.rank.count == 1 and not self.loops.depth

    def derived(self, function: Callable[[torch.Tensor], Any], view: torch.Tensor) -> Any:
        """`function(view)`, one object for all that ask; `function` may not read or write."""
        key = (function, id(view))
        found = self._derived.get(key)
        if found is None:
            # With the view, whose identity is in the key.
            found = self._derived[key] = (view, function(view))
        return found[1]

    # ---- programs of a grid ----

    def end_program(self, core: Core) -> None:
        """Judge the program that was recorded: capacity, open loops."""
        core.loops.check_closed()
        if self.ordering is not None:
            self.ordering.settle()
        self.rows.loops += [
            (loop.first, loop.last, loop.trips, core.index) for loop in core.loops.records
        ]
        sbuf, psum = peak_bytes(self.hardware, core.allocations, core.loops.records, self.findings)
        self._peaks = (max(self._peaks[0], sbuf), max(self._peaks[1], psum))

    def totals(self) -> Totals:
        """What was counted; completes the rows."""
        self.rows.seal()
        return Totals(self.matmul_flops, self.hbm_bytes, *self._peaks, self.pool.allocated_bytes)

    def forget(self) -> None:
        """Let go of memory when the Program is made: the objects of a trace refer to each other,
        and would hold it until garbage is collected.
        """
        self.pool = BufferPool()
        self.steps = []
        self._prologue = []
        for held in (self._shared, self._state, self._steps_by_key, self._derived, self.identities):
            held.clear()

    def all_steps(self) -> list[Step]:
        """Steps of a whole run."""
        return [*self._prologue, *self.steps]

    # ---- findings ----

    def illegal(self, message: str) -> NoReturn:
        """Raise IllegalInstructionError at the kernel's line."""
        raise IllegalInstructionError("legality", message, kernel_location())


def _keep_groups(tensor: NkiTensor, by_matmul: bool) -> None:
    """A write to PSUM: another engine ends what the Tensor engine accumulates there."""
    storage = tensor.storage
    if by_matmul:
        if storage.modified is not None:
            storage.modified.erase(tensor)
        return
    if storage.modified is None:
        storage.modified = storage.new_coverage()
    if storage.matmul.state(tensor) is not Covered.NONE:
        storage.modified.mark(tensor)
        storage.matmul.erase(tensor)


def kernel_layout(spec: TensorSpec) -> tuple[tuple[int, ...], tuple[int, ...], DType]:
    """Shape, strides and dtype under which a kernel sees an argument."""
    if spec.dtype is torch.int64:
        strides = tuple(stride * 2 for stride in spec.strides)
        return (*spec.shape, 2), (*strides, 1), resolve("int32")
    if spec.dtype is torch.bool:
        return spec.shape, spec.strides, resolve("uint8")
    if not spec.shape:
        return (1,), (1,), resolve(spec.dtype)
    return spec.shape, spec.strides, resolve(spec.dtype)
