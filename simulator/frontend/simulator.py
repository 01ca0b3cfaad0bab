"""`Simulator`: the state of one trace. Nothing is global; an exception leaves nothing to reset."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, cast

import torch

from trnx.simulator.checks.capacity import check_address, peak_bytes
from trnx.simulator.checks.initialised import InitialisedData
from trnx.simulator.checks.liveness import Allocations
from trnx.simulator.checks.loop_scope import check_loop_scope
from trnx.simulator.checks.psum_groups import PsumGroups
from trnx.simulator.checks.races import RaceDetector
from trnx.simulator.errors import IllegalInstructionError, Location, UninitialisedReadError
from trnx.simulator.findings import Findings
from trnx.simulator.frontend.options import TraceOptions
from trnx.simulator.hardware import hardware
from trnx.simulator.isa.copy import memset, tensor_copy
from trnx.simulator.isa.dma import dma_copy
from trnx.simulator.isa.template_lookup import Templates
from trnx.simulator.kernel_lines import kernel_line, kernel_location
from trnx.simulator.language import recorder
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtypes import DType, resolve
from trnx.simulator.memory.placed import AddressRange
from trnx.simulator.memory.pool import BufferPool
from trnx.simulator.memory.storage import ON_CHIP, MemoryRegion, Slot, Step, Storage, poison
from trnx.simulator.memory.tensor_spec import TensorSpec
from trnx.simulator.memory.tile_layouts import TileLayout, TileLayouts
from trnx.simulator.memory.views import last_element
from trnx.simulator.multicore.cores import Core, Cores
from trnx.simulator.program.instruction_table import InstructionTable
from trnx.simulator.program.interleaved_loops import Loop
from trnx.simulator.program.loops import Loops
from trnx.simulator.program.observer import Observer, Recorded, observers
from trnx.simulator.program.program import Totals
from trnx.simulator.program.skipped_rows import Read
from trnx.simulator.program.specification import InstructionSpec

# Storages that observers are told of at once: one by one would cost more.
_FREED_AT_ONCE = 256


class Simulator:
    """Records one kernel; with `options.values`, steps run as they are recorded. `grid` is the
    launch's.
    """

    def __init__(
        self,
        options: TraceOptions,
        grid: tuple[int, ...] = (),
        findings: Findings | None = None,
    ) -> None:
        self.options = options
        self.hardware = hardware(options.target)
        self.findings = findings or Findings(options.strict, options.warn)
        self.rank = options.rank
        self.grid = grid
        self.values = options.values
        # True at the Python prompt; see the module `session`.
        self.is_interactive = False
        self.pool = BufferPool()
        self.rows = InstructionTable()
        self.templates = Templates()
        self.steps: list[Step] = []
        self.matmul_flops = 0
        self.hbm_bytes = 0
        self._layouts = TileLayouts(self.hardware)
        self._state: dict[str, torch.Tensor] = {}
        self._prologue: list[Step] = []
        self._steps_by_key: dict[tuple[Any, ...], Step] = {}
        self._derived: dict[tuple[Any, int], tuple[torch.Tensor, Any]] = {}
        # Shared HBM by order of allocation; every program of the grid gets the same tensors.
        self._shared: list[NkiTensor] = []
        self._peaks = (0, 0)
        # Identity matrices of `nl.shared_identity_matrix`, by size and dtype.
        self.identities: dict[tuple[int, str], NkiTensor] = {}
        # What `nl.shared_constant` was given, by line and by how often a program came there.
        self.constants: dict[tuple[Location | None, int], tuple[Any, ...]] = {}
        self.cores = Cores(self, math.prod(grid))
        programs = math.prod(grid)
        self.psum_groups = PsumGroups(self.findings)
        self.initialised = InitialisedData(self.findings, self.psum_groups.products)
        self._allocations = Allocations()
        self.races: RaceDetector | None = None
        self._observers: tuple[Observer, ...] = (self.initialised, self.psum_groups)
        if programs > 1:
            self.races = RaceDetector(programs, self.findings, self.values, self._open_turns)
            self._observers = (self.races, *self._observers)
        # An instruction that a check refuses is not told to others.
        self._observers += observers()
        self._told: dict[InstructionSpec, tuple[Callable[[Recorded], None], ...]] = {}
        # Indices of storages whose last tensor is gone.
        self._freed: list[int] = []
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
        if math.prod(self.grid) == 1:
            storage.region = MemoryRegion.private_hbm
        view = NkiTensor(storage, dtype, shape, strides)
        self.initialised.mark_all(storage)
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
        kind = dtype if type(dtype) is DType else resolve(dtype)
        if self.options.stores_float32 and kind.is_float:
            kind = resolve("float32")
        layout = self._layouts.layout(shape, kind, buffer)
        if buffer is MemoryRegion.shared_hbm:
            return self._shared_tensor(layout, kind, name)
        if len(self._freed) >= _FREED_AT_ONCE:
            self._forget_freed()
        made = place = None
        if buffer in ON_CHIP:
            line = kernel_line(sys._getframe(1))
            partitions, row_bytes = layout.partitions, layout.row_bytes
            core = self.core.index
            made = (core, buffer, partitions, row_bytes, name, address, line)
            if address is not None:
                place = self._place(buffer, address, layout)
        storage = Storage(
            self._allocations.add(made),
            buffer,
            kind,
            layout.partitions,
            layout.pitch,
            name,
            self.pool,
            None,
            place,
            self._freed,
            layout,
        )
        if self.values:
            storage.poison()
        return NkiTensor(storage, kind, layout.shape, layout.strides, 0, name)

    def _place(
        self, buffer: MemoryRegion, address: tuple[int, int], layout: TileLayout
    ) -> AddressRange:
        check_address(self.hardware, buffer, layout.partitions, layout.row_bytes, address)
        return self.core.manual.place(buffer, address, layout.partitions, layout.row_bytes)

    def _shared_tensor(self, layout: TileLayout, dtype: DType, name: str) -> NkiTensor:
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
        index = self._allocations.add(None)
        return Storage(index, MemoryRegion.shared_hbm, dtype, 1, size, name, None, slot)

    @property
    def storage_count(self) -> int:
        """How many storages the trace has made."""
        return len(self._allocations)

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
        if self.lacks_values(tensor, (tensor.describe(), kernel_location())):
            raise UninitialisedReadError(
                "uninitialised-read",
                f"{tensor.describe()} has elements that nothing has written",
                kernel_location(),
            )
        return tensor.torch_view()

    def lacks_values(self, tensor: NkiTensor, read: Read) -> bool:
        """True where nothing has written elements of a tensor, whatever values a run has. Where
        values of a run decide it, steps look, and name `read` if they find any.
        """
        if self.initialised.covers(tensor):
            return False
        skipped = self.initialised.skipped(tensor)
        if skipped is not None:
            skips = self.initialised.skips
            self.append_steps(skips.checks(skips.read_as(skipped, read)))
        return bool(self.initialised.unwritten(tensor).any())

    # ---- recording ----

    def record(self, instruction: Recorded, steps: Sequence[Step]) -> int:
        """Append one instruction with its steps, which are `shared`; executes them when the trace
        has values. The index of the instruction.
        """
        index = instruction.index = self.rows.count
        instruction.core = self.core.index
        spec = instruction.spec
        for notify in self._told.get(spec) or self._who_watches(spec):
            notify(instruction)
        for tensor in instruction.writes:
            storage = tensor.storage
            storage.writes += 1
            if storage.slot is not None:
                storage.slot.begin_writing()
        self._append(steps)
        self.rows.append(instruction, len(self.steps))
        if instruction.flops:
            self.matmul_flops += instruction.flops
        if instruction.hbm_bytes:
            self.hbm_bytes += instruction.hbm_bytes
        return index

    def _who_watches(self, spec: InstructionSpec) -> tuple[Callable[[Recorded], None], ...]:
        """Who is told of an instruction; found out once for each kind."""
        told = tuple(one.on_instruction for one in self._observers if one.watches(spec))
        self._told[spec] = told
        return told

    def rendezvous(self, about: Storage | None) -> None:
        """All programs of the grid wait for each other here."""
        for observer in self._observers:
            observer.on_rendezvous(about)

    def _forget_freed(self) -> None:
        """Let observers forget the storages of tensors that are gone."""
        freed = self._freed.copy()
        self._freed.clear()
        for observer in self._observers:
            observer.on_freed(freed)

    def append_steps(self, steps: Iterable[Step]) -> None:
        """Record steps; with values, outside of loops, execute them."""
        self._append(self.shared(steps))

    def shared(self, steps: Iterable[Step]) -> list[Step]:
        """The steps; in place of one with the same function and operands as one before, that one:
        the turns of a kernel's loop repeat most of their steps.
        """
        shared: list[Step] = []
        for step in steps:
            if type(step) is functools.partial:
                key, named = (step.func, *map(id, step.args)), step.keywords
                if named:
                    key = (*key, *named, *map(id, named.values()))
                step = self._steps_by_key.setdefault(key, step)
            shared.append(step)
        return shared

    def _append(self, steps: Sequence[Step]) -> None:
        loops = self.core.loops
        if loops.is_open:
            loops.extend(steps)
            return
        self.steps += steps
        if self.values:
            for step in steps:
                step()

    @property
    def compares_turns(self) -> bool:
        """True in a register loop that runs when it is complete, with other programs beside it:
        what it does to shared HBM is compared then, turn by turn.
        """
        return self._open_turns() is not None

    def _open_turns(self) -> Loops | None:
        is_compared = self.races is not None and self.values and self.loops.depth > 0
        return self.loops if is_compared else None

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

    # ---- what tensors and registers ask ----

    def assign(self, view: NkiTensor, value: Any) -> None:
        """`tensor[key] = value`: a copy (by DMA where HBM takes part) or a constant."""
        if not isinstance(value, NkiTensor):
            memset(view, value)
        elif view.is_on_chip and value.is_on_chip:
            tensor_copy(view, value)
        else:
            dma_copy(view, value)

    def while_condition(self, register: VirtualRegister) -> bool:
        """`while register:`, see `Loops`."""
        return self.loops.while_condition(register)

    def begin_body(self, loop: Loop, own: int, is_sure: bool) -> None:
        """The body of a register loop begins; see `checks.loop_writes`."""
        self.initialised.loop_writes.begin(self.core.index, loop, own, is_sure)

    def end_body(self, where: Location | None, registers: Sequence[VirtualRegister]) -> list[Step]:
        """It is complete; steps that are to run before the loop."""
        return self.initialised.loop_writes.end(self.core.index, where, registers)

    # ---- programs of a grid ----

    def join_loops(self, loop: Loop, with_ranks: bool) -> None:
        """Complete a loop in which programs meet, and ranks."""
        self.cores.join(loop, with_ranks)

    def end_program(self, core: Core) -> None:
        """Judge the program that was recorded: capacity, open loops."""
        core.loops.check_closed()
        for observer in self._observers:
            observer.finish(core.index)
        self.keep_loops(core)
        allocations = self._allocations.of_core(core.index, self.rows)
        check_loop_scope(core.loops.records, allocations, self.rows, self.findings)
        sbuf, psum = peak_bytes(self.hardware, allocations, core.loops.records, self.findings)
        self._peaks = (max(self._peaks[0], sbuf), max(self._peaks[1], psum))

    def keep_loops(self, core: Core) -> None:
        """The rows know the loops of a program."""
        self.rows.loops += [
            (loop.first, loop.last, loop.trips, core.index) for loop in core.loops.records
        ]

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
        self.templates.forget()
        for held in (
            self._shared,
            self._state,
            self._steps_by_key,
            self._derived,
            self.identities,
            self.constants,
        ):
            held.clear()

    def all_steps(self) -> list[Step]:
        """Steps of a whole run."""
        return [*self._prologue, *self.steps]

    # ---- findings ----

    def illegal(self, message: str) -> NoReturn:
        """Raise IllegalInstructionError at the kernel's line."""
        raise IllegalInstructionError("legality", message, kernel_location())


# Whoever records a kernel is a Simulator.
current = cast(Callable[[str], Simulator], recorder.current)


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
