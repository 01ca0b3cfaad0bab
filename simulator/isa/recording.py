"""What one instruction is to become while its function runs: steps, memory for them, operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trnx.simulator.costs.attributes import NONE
from trnx.simulator.hardware import Hardware
from trnx.simulator.isa.recorder import InitialisedData, PsumGroups, Recorder
from trnx.simulator.isa.templates import Derivation, KeptCopy, OperandView, copy_region
from trnx.simulator.kernel_lines import Line
from trnx.simulator.language.hbm_shadow import Covered
from trnx.simulator.language.registers import VirtualRegister
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtype_conversion import append_store_f32
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.pool import Buffer
from trnx.simulator.memory.storage import Step
from trnx.simulator.memory.tensor_spec import contiguous_strides
from trnx.simulator.program.observer import Recorded
from trnx.simulator.program.specification import InstructionSpec


class Recording(Recorded):
    """An instruction that is being made; `commit` hands it to the recorder and to observers."""

    __slots__ = (
        "_finish",
        "_owns_scratch",
        "_recorder",
        "copies",
        "derivations",
        "generation",
        "hardware",
        "is_repeatable",
        "lane_changes",
        "lane_needs",
        "product_states",
        "required",
        "scratch_buffers",
        "steps",
        "views",
    )

    def __init__(self, spec: InstructionSpec, recorder: Recorder, line: Line) -> None:
        self.spec = spec
        self.name = spec.name
        self.line = line
        self.engine = spec.engine
        self.steps: list[Step] = []
        self.flops = 0
        self.hbm_bytes = 0
        self.keeps = False
        # What the time of the instruction depends on besides its operands; see simulator/timing.
        self.attributes = NONE
        # The record of the target, and its nc_version: 2, 3 or 4.
        self.hardware: Hardware = recorder.hardware
        self.generation = self.hardware.generation
        self._recorder = recorder
        self.operands = []
        self.writes = []
        self.missing = []
        self.skipped = []
        # Another than the declared one, where it depends on the arguments.
        self.propagation = spec.undefined
        self.products = []
        self._finish: list[Step] = []
        self._owns_scratch = False
        # For `templates`: False once the function asked for what changes while a kernel is
        # recorded, but for these: reads that have to hold something, where products were, views of
        # operands, copies of them that are kept, what was derived from them, temporaries, lanes of
        # accumulators.
        self.is_repeatable = True
        self.required: list[NkiTensor] = []
        self.product_states: list[tuple[NkiTensor, Covered]] = []
        self.views: list[OperandView] = []
        self.copies: list[KeptCopy] = []
        self.derivations: list[Derivation] = []
        self.scratch_buffers: list[Buffer] = []
        self.lane_changes: list[tuple[str, int, bool]] = []
        self.lane_needs: list[tuple[str, int]] = []

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Append one step: `function(*args, **kwargs)`, its result ignored."""
        self.steps.append(functools.partial(function, *args, **kwargs))

    def finish(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Append a step that runs after the destinations are stored."""
        self._finish.append(functools.partial(function, *args, **kwargs))

    def store_f32(self, dtype: DType, value: torch.Tensor, target: torch.Tensor) -> None:
        """Append the steps that round the float32 scratch `value` into `target` of `dtype`."""
        append_store_f32(self.steps, dtype, value, target, exact=False)

    def scratch(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A contiguous temporary for the steps of this instruction; later instructions reuse it."""
        sizes = tuple(shape)
        nbytes = math.prod(sizes) * dtype.itemsize
        if self._owns_scratch:
            buffer = self._recorder.pool.take_own(nbytes)
        else:
            buffer = self._recorder.pool.take_scratch(nbytes)
            self.scratch_buffers.append(buffer)
        return buffer.view(dtype, sizes, contiguous_strides(sizes), 0)

    @property
    def initialised(self) -> InitialisedData:
        """Which elements hold something."""
        self.is_repeatable = False
        return self._recorder.initialised

    @property
    def psum_groups(self) -> PsumGroups:
        """Where products lie."""
        self.is_repeatable = False
        return self._recorder.psum_groups

    def product_state(self, tensor: NkiTensor) -> Covered:
        """Whether none, some or all of a view's locations hold a product."""
        state = self._recorder.psum_groups.state(tensor)
        self.product_states.append((tensor, state))
        return state

    def is_product_modified(self, tensor: NkiTensor) -> bool:
        """True where another instruction has overwritten a product in the view."""
        return self._recorder.psum_groups.is_modified(tensor)

    def is_requested(self, check: str) -> bool:
        """True where the user asked for a warning by its name."""
        return self._recorder.findings.is_requested(check)

    def sets_register(self, register: VirtualRegister) -> None:
        """A register without a value gets one, in a register loop for its turns alone."""
        self._recorder.core.loops.note_register(register)

    def starts_group(self, tensor: NkiTensor) -> None:
        """Products in a view overwrite it, though the kernel leaves that open; in a register loop
        that matters where the tensor was there before.
        """
        loop = self._recorder.core.loops.innermost
        if loop is not None and tensor.storage.index < loop.storages:
            self.psum_groups.start_in_loop(tensor, loop, self.location)

    @property
    def is_in_loop(self) -> bool:
        """True in a register loop."""
        self.is_repeatable = False
        return bool(self._recorder.core.loops.depth)

    def own_scratch(self) -> None:
        """The instruction waits for others: in a register loop these run meanwhile, turn after
        turn, and its temporaries are no one else's.
        """
        self._owns_scratch = self.is_in_loop

    def kept_copy(self, tensor: NkiTensor, shape: Sequence[int]) -> tuple[torch.Tensor, bool]:
        """Dense float32 memory for the values of an operand that instructions read again and
        again, and whether they are there already.
        """
        sizes = tuple(shape)
        if self._recorder.keeps_copies and tensor.indirection is None:
            found = tensor.storage.kept_copy(*copy_region(tensor, sizes))
            if found is not None:
                memory, is_there = found
                copy = memory.view(torch.float32, sizes, contiguous_strides(sizes), 0)
                self.copies.append((copy, tensor, sizes, is_there))
                return copy, is_there
        self.is_repeatable = False
        return self.scratch(sizes), False

    def derived(self, function: Callable[[torch.Tensor], Any], view: torch.Tensor) -> Any:
        """Another object for the memory of a view on chip: `function(view)`, made once, so that
        equal steps stay equal.
        """
        found = self._recorder.derived(function, view)
        self.derivations.append((function, view, found))
        return found

    def turned(self, view: torch.Tensor) -> torch.Tensor:
        """`view.t()`, the same object for the same view."""
        turned: torch.Tensor = self.derived(torch.t, view)
        return turned

    def state(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """State that lives across the instructions of a run (accumulators), zero at first."""
        return self._recorder.engine_state(key, tuple(shape), dtype)

    def change_lanes(self, key: str, mask: int, is_set: bool) -> None:
        """The instruction gives these lanes of a file of registers a value, or loses theirs."""
        self.lane_changes.append((key, mask, is_set))

    def are_lanes_set(self, key: str, mask: int) -> bool:
        """True where all these lanes hold what an instruction before gave them."""
        self.lane_needs.append((key, mask))
        return self._recorder.core.lanes.are_set(key, mask)
