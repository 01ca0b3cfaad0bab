"""How an instruction is declared: legality, semantics and engine in one function.

    @instruction
    def tensor_tensor(emit, dst, data1, data2, op, engine=Engine.unknown, name=None):
        emit.on(engine, (Engine.vector, Engine.gpsimd))
        emit.require(data1.free_size == dst.free_size, "data1 and dst differ in elements/partition")
        a = emit.read_f32(data1, "data1", shape=dst.shape)
        b = emit.read_f32(data2, "data2", shape=dst.shape)
        emit.step(TORCH_OP[op], a, b, out=emit.write_f32(dst, "dst"))

A kernel calls it without `emit`. The function validates, and builds steps: zero-argument calls on
preallocated strided torch views, which are executed once while tracing with values and again in
every replay. So it must not look at values, must not keep Python state between calls, and a step
must write only through `out=` or in place. Order: all reads first, then writes; finishing steps
(rounding into the destination, copying out of scratch) run after the function's own.

The shape given to `read*`/`write*` re-expresses the operand in that shape, row-major over its
elements (the ISA matches operands by partitions and elements per partition, not by shape). Views of
SBUF and PSUM may be sliced, viewed and transposed freely; views of HBM must be passed to steps as
they are, because binding retargets these very objects. Nothing is recorded when the function
raises.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import torch

from trnx.simulator.checks.undefined import Read, missing_elements
from trnx.simulator.codecs import append_load_f32, append_store_f32
from trnx.simulator.context import current, kernel_location
from trnx.simulator.dtypes import DType
from trnx.simulator.errors import (
    AllocationOverlapError,
    FindingError,
    IllegalInstructionError,
    Location,
    TrnxError,
    UninitialisedReadError,
)
from trnx.simulator.hardware import Hardware
from trnx.simulator.isa.arguments import explain_arguments
from trnx.simulator.isa.enums import Engine
from trnx.simulator.isa.indirect import (
    check_tensor_indirect,
    load_scalar_indirect,
    store_scalar_indirect,
)
from trnx.simulator.pool import Buffer
from trnx.simulator.program import Step
from trnx.simulator.registers import VirtualRegister
from trnx.simulator.spec import contiguous_strides
from trnx.simulator.storage import ON_CHIP, MemoryRegion
from trnx.simulator.tensor import Indirect, NkiTensor
from trnx.simulator.views import has_overlap, reshape_strides

# Every instruction by its name in nki.isa.
INSTRUCTIONS: dict[str, Callable[..., NkiInstruction]] = {}


class NkiInstruction:
    """Handle of a recorded instruction; `depends_on` adds a scheduling edge (program order holds
    anyway).
    """

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Make this instruction run after `producers`; returns self."""
        for producer in producers:
            if producer.index > self.index:
                raise TrnxError("depends_on: a producer must come before its consumer")
        return self


# Instructions with a second result, for the sake of which `dst` may be a broadcast view.
_DISCARDING = frozenset({"activation", "activation_reduce", "tensor_scalar_reduce"})


class Emit:
    """Records one instruction: operands, steps, engine. Lives as long as the instruction's call."""

    __slots__ = (
        "_finish",
        "_operands",
        "_scratch",
        "_simulator",
        "detail",
        "engine",
        "flops",
        "generation",
        "hardware",
        "hbm_bytes",
        "missing",
        "name",
        "steps",
    )

    def __init__(self, name: str, simulator: Any) -> None:
        self.name = name
        self.engine = Engine.unknown
        self.steps: list[Step] = []
        self.flops = 0
        self.hbm_bytes = 0
        # What the time of the instruction depends on besides its operands; see simulator/timing.
        self.detail = ""
        # The record of the target, and its nc_version: 2, 3 or 4.
        self.hardware: Hardware = simulator.hardware
        self.generation = self.hardware.generation
        self._simulator = simulator
        self._operands: list[tuple[NkiTensor, bool]] = []
        # Operands that were read with elements that nothing has written.
        self.missing: list[Read] = []
        self._finish: list[Step] = []
        self._scratch: list[Buffer] = []

    # ---- legality ----

    def finding(
        self, check: str, message: str, kind: type[FindingError] = IllegalInstructionError
    ) -> None:
        """Report what a check found at the kernel's line; the instruction goes on if it returns."""
        self._simulator.findings.report(kind(check, f"{self.name}: {message}", kernel_location()))

    @property
    def programs(self) -> int:
        """Programs of the launch."""
        return math.prod(self._simulator.grid)

    def meet(
        self, key: Hashable, brought: Any, about: NkiTensor | None = None
    ) -> dict[int, Any] | None:
        """Wait for the other programs; the last gets what each brought, the others None. `about` is
        the tensor in shared HBM that the meeting puts in order, if it is one alone.
        """
        everyone = frozenset(range(self.programs))
        storage = None if about is None else about.storage
        cores = self._simulator.cores
        arrived: dict[int, Any] | None = cores.meet(key, everyone, brought, storage)
        return arrived

    @property
    def rank(self) -> int:
        """The rank of this launch."""
        return int(self._simulator.rank.index)

    @property
    def ranks(self) -> int:
        """Ranks of the launch."""
        return int(self._simulator.rank.count)

    def meet_ranks(self, key: Hashable, parties: Sequence[int], brought: Any) -> list[Any]:
        """Wait for other ranks, and for the other programs of this one. The last of all gets the
        rounds that are to be done, each what every rank brought; the others get none.

        Each program brings its own, so there is a round for each, but one where all bring the same
        tensors: those in HBM that programs share.
        """
        together = self.meet(("ranks", key), brought) if self.programs > 1 else {0: brought}
        arrived = None if together is None else self._simulator.rank.meet(key, parties, together)
        if arrived is None:
            return []
        rounds = [
            {rank: by_program[program] for rank, by_program in arrived.items()}
            for program in range(self.programs)
        ]
        return [one for i, one in enumerate(rounds) if i == 0 or not _is_same(one, rounds[0])]

    def location(self) -> Location | None:
        """The kernel's source line."""
        return kernel_location()

    def illegal(self, message: str) -> NoReturn:
        """Raise IllegalInstructionError at the kernel's line."""
        raise IllegalInstructionError(self.name, f"{self.name}: {message}", kernel_location())

    def require(self, condition: bool, message: str) -> None:
        """Raise IllegalInstructionError unless `condition`."""
        if not condition:
            self.illegal(message)

    def require_set(self, register: VirtualRegister, what: str) -> None:
        """A register must have got a value."""
        if not register.is_set:
            self.finding(
                "uninitialised-read", f"{what} is a register without value", UninitialisedReadError
            )

    def on(
        self, requested: Any, allowed: Sequence[Engine], default: Engine | None = None
    ) -> Engine:
        """Choose the engine: `requested`; for unknown or None `default`, else the first allowed."""
        if requested is None or requested is Engine.unknown:
            self.engine = default or allowed[0]
        else:
            if requested not in allowed:
                names = ", ".join(engine.name for engine in allowed)
                self.finding(
                    "engine", f"engine {requested} cannot run it here; choose one of {names}"
                )
            self.engine = requested
        return self.engine

    def check(
        self,
        tensor: Any,
        operand: str,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
    ) -> NkiTensor:
        """Validate buffer, dtype and partition placement of an operand."""
        if not isinstance(tensor, NkiTensor):
            self.illegal(f"{operand} must be a tensor, not {type(tensor).__name__}")
        storage = tensor.storage
        if storage.buffer not in buffers:
            names = ", ".join(region.value for region in buffers)
            self.finding("buffer", f"{operand} is in {tensor.buffer.value}; it must be in {names}")
        if dtypes is not None and tensor.dtype not in dtypes:
            self.finding(
                "dtype", f"{operand} is {tensor.dtype}; it must be one of {', '.join(dtypes)}"
            )
        if tensor.indirection is not None:
            self._check_indirection(tensor.indirection, operand)
        starts_at_0 = tensor.offset == 0 == storage.start_partition
        if storage.is_on_chip and not (starts_at_0 and tensor.shape[0] <= 128):
            self._check_partitions(tensor, operand)
        return tensor

    def _check_indirection(self, indirect: Indirect, operand: str) -> None:
        if indirect.is_vector and self.engine is not Engine.dma:
            self.illegal(f"{operand} has a vector offset, which only DMA instructions take")
        if indirect.base is not None:
            check_tensor_indirect(self, operand)

    def _check_partitions(self, tensor: NkiTensor, operand: str) -> None:
        # Partition access rules (SDK/nki/guides/architecture/trainium_inferentia2_arch.rst): 128
        # at most; more than 64 start at 0, 33 to 64 at 0 or 64, up to 32 at a multiple of 32.
        if self.engine is Engine.dma:
            return
        count, start = tensor.shape[0], tensor.start_partition
        if count > 128:
            self.finding("partitions", f"{operand} has {count} partitions; the maximum is 128")
        step = 32 if count <= 32 else 64 if count <= 64 else 128
        if start % step:
            self.finding(
                "start-partition",
                f"{operand} starts at partition {start} with {count} partitions; "
                f"the start must be a multiple of {step}",
            )

    # ---- operands ----

    def read(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
    ) -> torch.Tensor:
        """The operand's elements as stored (raw bits of its torch dtype), as a strided view.

        Where `shape` is not expressible on its strides, the view is a scratch copy.
        """
        checked = self.check(tensor, operand, buffers, dtypes)
        if checked.indirection is not None:
            loaded = load_scalar_indirect(self, checked, operand)
            self._strides_for(checked, operand, shape or checked.shape)
            return loaded.view(tuple(shape or checked.shape))
        self.require_written(checked, operand)
        self._operands.append((checked, False))
        return self._view(checked, operand, shape)

    def require_written(self, tensor: NkiTensor, operand: str) -> None:
        """Every element that is read must have been written."""
        if tensor.storage.written.covers(tensor):
            return
        if tensor.storage.lost_to is not None:
            other, where = tensor.storage.lost_to
            self.finding(
                "address-overlap",
                f"{operand} ({tensor.describe()}) was overwritten at {where} by {other}, which has "
                "the same address; use the tensors one after the other or move one",
                AllocationOverlapError,
            )
            return
        finding = tensor.storage.undefined or UninitialisedReadError(
            "uninitialised-read",
            f"{self.name}: {operand} ({tensor.describe()}) has elements that nothing has written; "
            "write them first (nisa.memset, or a copy of the whole region)",
            kernel_location(),
        )
        missing = missing_elements(self.name, operand, tensor)
        if missing is None:
            self._simulator.findings.report(finding)
        else:
            self.missing.append((missing, operand, finding))

    def _view(self, tensor: NkiTensor, operand: str, shape: Sequence[int] | None) -> torch.Tensor:
        if shape is None or tuple(shape) == tensor.shape:
            return tensor.torch_view()
        strides = self._strides_for(tensor, operand, shape)
        if strides is not None:
            return tensor.storage.view(tensor.dtype, tuple(shape), strides, tensor.offset)
        copy = self.scratch(tensor.shape, tensor.dtype.torch)
        self.step(copy.copy_, tensor.torch_view())
        return copy.view(tuple(shape))

    def _strides_for(
        self, tensor: NkiTensor, operand: str, shape: Sequence[int]
    ) -> tuple[int, ...] | None:
        size = 1
        for extent in shape:
            size *= extent
        if size != tensor.size:
            self.illegal(
                f"{operand} has shape {tensor.shape}, {tensor.size} elements; "
                f"expected as many as {tuple(shape)}, {size}"
            )
        return reshape_strides(tensor.shape, tensor.strides, tuple(shape))

    def read_f32(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
    ) -> torch.Tensor:
        """The operand as float32: the view itself for float32, else an upcast in scratch."""
        view = self.read(tensor, operand, shape=shape, buffers=buffers, dtypes=dtypes)
        if view.dtype is torch.float32 and tensor.dtype != "tfloat32":
            return view
        copy = self.scratch(view.shape, torch.float32)
        append_load_f32(self.steps, tensor.dtype, view, copy)
        return copy

    def scalar_f32(self, value: Any, operand: str, like: NkiTensor) -> float | torch.Tensor:
        """A scalar operand: a Python number, or one float32 per partition as [P, 1, ...] (rank of
        `like`).
        """
        if not isinstance(value, NkiTensor):
            if isinstance(value, bool | int | float):
                return value
            self.illegal(f"{operand} must be a number or a tensor [partitions, 1], not {value!r}")
        if value.size != value.shape[0] or value.shape[0] != like.shape[0]:
            self.illegal(
                f"{operand} has shape {value.shape}; expected ({like.shape[0]}, 1), "
                "one value per partition"
            )
        return self.read_f32(value, operand, shape=(value.shape[0],) + (1,) * (like.ndim - 1))

    def write(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
        elementwise: bool = True,
    ) -> torch.Tensor:
        """The destination as stored, to be written completely by the steps.

        It is the strided view itself unless it overlaps an operand that was read: exactly the same
        elements in the same order are fine for `elementwise` semantics, any other overlap goes
        through scratch, as hardware reads before it writes.
        """
        checked = self.check(tensor, operand, buffers, dtypes)
        if checked.indirection is not None:
            self._strides_for(checked, operand, shape or checked.shape)
            stored = store_scalar_indirect(self, checked, operand)
            return stored.view(tuple(shape or checked.shape))
        if checked.geometry().is_broadcast and self.name in _DISCARDING:
            return self._discarded(checked, wanted=checked.shape if shape is None else tuple(shape))
        self._add_destination(checked, operand)
        wanted = checked.shape if shape is None else tuple(shape)
        strides: tuple[int, ...] | None = checked.strides
        if wanted != checked.shape:
            strides = self._strides_for(checked, operand, wanted)
        if strides is not None and not self._must_buffer(checked, elementwise):
            return checked.storage.view(checked.dtype, wanted, strides, checked.offset)
        copy = self.scratch(wanted, checked.dtype.torch)
        self._finish.append(functools.partial(checked.torch_view().copy_, copy.view(checked.shape)))
        return copy

    def _discarded(self, tensor: NkiTensor, wanted: tuple[int, ...]) -> torch.Tensor:
        """A destination where elements overwrite each other, as kernels have it that want the
        reduction alone: the last element of each place stays.
        """
        last = tuple(slice(-1, None) if step == 0 else slice(None) for step in tensor.strides)
        self._operands.append((tensor, True))
        copy = self.scratch(wanted, tensor.dtype.torch)
        kept = copy.view(tensor.shape)[last]
        self._finish.append(functools.partial(tensor.torch_view()[last].copy_, kept))
        return copy

    def _add_destination(self, tensor: NkiTensor, operand: str) -> None:
        if tensor.geometry().is_broadcast:
            self.illegal(
                f"{operand} is a broadcast view; several elements would write one location"
            )
        if tensor.storage.constant:
            self.illegal(f"{operand} is a constant, which cannot be written")
        self._operands.append((tensor, True))

    def _must_buffer(self, tensor: NkiTensor, elementwise: bool) -> bool:
        storage = tensor.storage
        for other, is_write in self._operands:
            if (
                other.storage is storage
                and not is_write
                and has_overlap(other, tensor)
                and not (elementwise and other.same_elements(tensor))
            ):
                return True
        return False

    def write_f32(
        self,
        tensor: Any,
        operand: str,
        *,
        shape: Sequence[int] | None = None,
        buffers: Sequence[MemoryRegion] = ON_CHIP,
        dtypes: Sequence[DType] | None = None,
        elementwise: bool = True,
        exact: bool = False,
    ) -> torch.Tensor:
        """A float32 destination that is rounded once into `tensor` after the steps.

        Integer destinations round to nearest even and saturate, unless `exact` promises values that
        the destination type holds (comparison results).
        """
        target = self.write(
            tensor, operand, shape=shape, buffers=buffers, dtypes=dtypes, elementwise=elementwise
        )
        if target.dtype is torch.float32 and tensor.dtype != "tfloat32":
            return target
        value = self.scratch(target.shape, torch.float32)
        # Before the copy out of scratch that `write` may have queued for this destination.
        rounding: list[Step] = []
        append_store_f32(rounding, tensor.dtype, value, target, exact)
        self._finish[:0] = rounding
        return value

    def update(
        self, tensor: Any, operand: str, *, buffers: Sequence[MemoryRegion] = ON_CHIP
    ) -> torch.Tensor:
        """A read-modify-write operand as stored: elements that the steps do not write stay."""
        checked = self._direct_destination(tensor, operand, buffers)
        self.require_written(checked, operand)
        return checked.torch_view()

    def overwrite_some(
        self, tensor: Any, operand: str, *, buffers: Sequence[MemoryRegion] = ON_CHIP
    ) -> torch.Tensor:
        """A destination of which values decide what is written; all of it counts as written."""
        return self._direct_destination(tensor, operand, buffers).torch_view()

    def _direct_destination(
        self, tensor: Any, operand: str, buffers: Sequence[MemoryRegion]
    ) -> NkiTensor:
        checked = self.check(tensor, operand, buffers)
        self._add_destination(checked, operand)
        self.require(checked.indirection is None, f"{operand} cannot have a dynamic address")
        return checked

    def first_read(self) -> NkiTensor | None:
        """The operand that was read first, indices apart."""
        read = [tensor for tensor, is_write in self._operands if not is_write]
        indices = [tensor.indirection.index for tensor in read if tensor.indirection is not None]
        return next((tensor for tensor in read if not any(tensor is i for i in indices)), None)

    def reads(self, tensor: NkiTensor) -> None:
        """Record an operand that is read at addresses which only values decide."""
        self._operands.append((tensor, False))

    def writes_some(self, tensor: NkiTensor) -> None:
        """Record an operand that is written at addresses which only values decide."""
        if tensor.storage.constant:
            self.illegal("a constant cannot be written")
        self._operands.append((tensor, True))

    def store_f32(self, dtype: DType, value: torch.Tensor, target: torch.Tensor) -> None:
        """Append the steps that round the float32 scratch `value` into `target` of `dtype`."""
        append_store_f32(self.steps, dtype, value, target, exact=False)

    # ---- steps ----

    def scratch(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A contiguous temporary for the steps of this instruction; later instructions reuse it."""
        sizes = tuple(shape)
        buffer: Buffer = self._simulator.pool.take_scratch(math.prod(sizes) * dtype.itemsize)
        self._scratch.append(buffer)
        return buffer.view(dtype, sizes, contiguous_strides(sizes), 0)

    def kept_copy(self, tensor: NkiTensor, shape: Sequence[int]) -> tuple[torch.Tensor, bool]:
        """Dense float32 memory for the values of an operand that instructions read again and
        again, and whether they are there already.
        """
        sizes = tuple(shape)
        if self._simulator.keeps_copies and tensor.indirection is None:
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
        return self._simulator.derived(function, view)

    def turned(self, view: torch.Tensor) -> torch.Tensor:
        """`view.t()`, the same object for the same view."""
        turned: torch.Tensor = self.derived(torch.t, view)
        return turned

    def state(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """State that lives across the instructions of a run (accumulators), zero at first."""
        state: torch.Tensor = self._simulator.engine_state(key, tuple(shape), dtype)
        return state

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Append one step: `function(*args, **kwargs)`, its result ignored."""
        self.steps.append(functools.partial(function, *args, **kwargs))

    def finish(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Append a step that runs after the destinations are stored."""
        self._finish.append(functools.partial(function, *args, **kwargs))

    def commit(self) -> NkiInstruction:
        """Record the instruction; executes its steps when the trace has values."""
        self.steps.extend(self._finish)
        index = self._simulator.record(self, self._operands)
        for buffer in self._scratch:
            self._simulator.pool.give_back(buffer)
        return NkiInstruction(index)


def _is_same(one: Any, other: Any) -> bool:
    """True where two programs bring the same tensors; HBM has one view object of a region."""
    if isinstance(one, dict):
        return all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, torch.Tensor) or one is None:
        return one is other
    if dataclasses.is_dataclass(one):
        return _is_same(vars(one), vars(other))
    return bool(one == other)


def instruction(function: Callable[..., None]) -> Callable[..., NkiInstruction]:
    """Declare an instruction of nki.isa under the function's name; see the module's docstring."""
    if function.__name__ in INSTRUCTIONS:
        raise TrnxError(f"two instructions are named {function.__name__!r}")
    call = INSTRUCTIONS[function.__name__] = recorded(function)
    return call


def recorded(function: Callable[..., None]) -> Callable[..., NkiInstruction]:
    """The function that a kernel calls for an instruction, wherever it finds it."""
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> NkiInstruction:
        emit = Emit(name, current(name))
        try:
            function(emit, *args, **kwargs)
        except (TypeError, AttributeError, ValueError) as error:
            explain_arguments(emit, function, args, kwargs, error)
        return emit.commit()

    parameters = list(inspect.signature(function).parameters.values())[1:]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
