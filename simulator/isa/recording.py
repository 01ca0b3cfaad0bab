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
from trnx.simulator.kernel_lines import Line
from trnx.simulator.language.tensor import NkiTensor
from trnx.simulator.memory.dtype_conversion import append_store_f32
from trnx.simulator.memory.dtypes import DType
from trnx.simulator.memory.pool import Buffer
from trnx.simulator.memory.storage import Step
from trnx.simulator.memory.tensor_spec import contiguous_strides
from trnx.simulator.program.observer import Recorded
from trnx.simulator.program.propagation import Missing
from trnx.simulator.program.specification import InstructionSpec


class Recording(Recorded):
    """An instruction that is being made; `commit` hands it to the recorder and to observers."""

    __slots__ = (
        "_finish",
        "_owns_scratch",
        "_recorder",
        "_scratch",
        "generation",
        "hardware",
        "missing",
        "propagation",
        "steps",
    )

    def __init__(self, spec: InstructionSpec, recorder: Recorder, line: Line | None) -> None:
        self.spec = spec
        self.name = spec.name
        assert line is not None, "the kernel that calls"
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
        # Operands that were read with elements that nothing has written.
        self.missing: list[Missing] = []
        # Another than the declared one, where it depends on the arguments.
        self.propagation = spec.undefined
        self._finish: list[Step] = []
        self._scratch: list[Buffer] = []
        self._owns_scratch = False

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
            self._scratch.append(buffer)
        return buffer.view(dtype, sizes, contiguous_strides(sizes), 0)

    @property
    def initialised(self) -> InitialisedData:
        """Which elements hold something."""
        return self._recorder.initialised

    @property
    def psum_groups(self) -> PsumGroups:
        """Where products lie."""
        return self._recorder.psum_groups

    @property
    def is_in_loop(self) -> bool:
        """True in a register loop."""
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
            region = (*tensor.region_key(), tensor.dtype, sizes)
            found = tensor.storage.kept_copy(region, math.prod(sizes) * 4)
            if found is not None:
                memory, is_there = found
                return memory.view(torch.float32, sizes, contiguous_strides(sizes), 0), is_there
        return self.scratch(sizes), False

    def derived(self, function: Callable[[torch.Tensor], Any], view: torch.Tensor) -> Any:
        """Another object for the memory of a view on chip: `function(view)`, made once, so that
        equal steps stay equal.
        """
        return self._recorder.derived(function, view)

    def turned(self, view: torch.Tensor) -> torch.Tensor:
        """`view.t()`, the same object for the same view."""
        turned: torch.Tensor = self.derived(torch.t, view)
        return turned

    def state(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """State that lives across the instructions of a run (accumulators), zero at first."""
        return self._recorder.engine_state(key, tuple(shape), dtype)
